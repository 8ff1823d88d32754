//! Selectors and names of namespaces, rewritten so that they select downstream the counterparts of the upstream
//! namespaces of the same logical cluster, and no others. Pure.

use std::collections::BTreeMap;

use portolan_types::{
    GroupVersionKind, LogicalClusterId, annotations,
    labels::{LabelSelector, LabelSelectorSpec},
    object,
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::{
    namespace_naming::{NamespaceNaming, downstream_key, upstream_key},
    rules::SyncRefusal,
};

/// Deepest nesting that is looked into; decoding bounds it too.
const MAX_DEPTH: usize = 64;
/// Maps of texts, whose keys are anybody's choice.
const TEXT_MAPS: [&str; 5] = ["metadata", "matchLabels", "nodeSelector", "data", "stringData"];
/// Label that the API server puts onto each namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespace of the DNS service.
const DNS_NAMESPACE: &str = "kube-system";
/// Label of its pods.
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
/// Port of DNS.
const DNS_PORT: i64 = 53;

/// Rewrites all selectors and names of namespaces in a copy.
///
/// # Errors
/// A [`SyncRefusal`] for a selector that cannot be rewritten exactly.
pub(super) fn translate(
    kind: &GroupVersionKind,
    naming: &NamespaceNaming,
    cluster: LogicalClusterId,
    copy: &mut Value,
) -> Result<(), SyncRefusal> {
    let dns = match (&*kind.group, &*kind.kind) {
        ("", "ConfigMap" | "Secret") => return Ok(()),
        ("networking.k8s.io", "NetworkPolicy") => dns_rules(copy),
        _ => Vec::new(),
    };
    let is_custom = kind.group.contains('.') && !kind.group.ends_with(".k8s.io");
    let translation = Translation { naming, cluster, is_custom };
    for (field, value) in copy.as_object_mut().into_iter().flatten() {
        if !matches!(field.as_str(), "metadata" | "status") {
            translation.walk(value, MAX_DEPTH)?;
        }
    }
    if let Some(egress) = copy.pointer_mut("/spec/egress").and_then(Value::as_array_mut) {
        egress.extend(dns);
    }
    Ok(())
}

/// Restores the upstream selectors of namespaces in an object that was created downstream from a copy.
pub(crate) fn restore_selectors(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(selector) = map.get_mut("namespaceSelector").filter(|selector| selector.is_object()) {
                restore(selector);
            }
            map.values_mut().for_each(restore_selectors);
        }
        Value::Array(items) => items.iter_mut().for_each(restore_selectors),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn restore(selector: &mut Value) {
    if let Some(labels) = selector.get_mut("matchLabels").and_then(Value::as_object_mut) {
        labels.remove(annotations::DOWN_TENANT);
        *labels =
            std::mem::take(labels).into_iter().map(|(key, value)| (upstream_key(&key).unwrap_or(key), value)).collect();
        if labels.is_empty() {
            selector.as_object_mut().map(|selector| selector.remove("matchLabels"));
        }
    }
    for expression in selector.get_mut("matchExpressions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(key) = expression["key"].as_str().and_then(upstream_key) {
            expression["key"] = key.into();
        }
    }
}

struct Translation<'a> {
    naming: &'a NamespaceNaming,
    cluster: LogicalClusterId,
    /// True for a kind whose fields have no meaning that is known beforehand.
    is_custom: bool,
}

impl Translation<'_> {
    fn walk(&self, value: &mut Value, depth: usize) -> Result<(), SyncRefusal> {
        let deeper = depth.checked_sub(1).ok_or_else(|| SyncRefusal::not_syncable("it is nested too deeply"))?;
        match value {
            Value::Object(map) => {
                self.term(map)?;
                for (field, child) in map.iter_mut() {
                    if !TEXT_MAPS.contains(&field.as_str()) || field == "metadata" {
                        self.walk(child, deeper)?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|child| self.walk(child, deeper)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// A peer of a NetworkPolicy, a term of an affinity, the source of a claim, or a similar structure in a custom
    /// resource.
    fn term(&self, map: &mut Map<String, Value>) -> Result<(), SyncRefusal> {
        match map.get_mut("namespaceSelector") {
            None | Some(Value::Null) => {}
            Some(selector @ Value::Object(_)) => self.selector(selector)?,
            Some(_) if self.is_custom => return Err(not_exact("namespaceSelector")),
            Some(_) => {}
        }
        if map.contains_key("topologyKey")
            && let Some(names) = map.get_mut("namespaces").and_then(Value::as_array_mut)
        {
            names.iter_mut().try_for_each(|name| self.name(name))?;
        }
        match map.get_mut("dataSourceRef").and_then(|source| source.get_mut("namespace")) {
            Some(name @ Value::String(_)) => self.name(name),
            Some(_) | None => Ok(()),
        }
    }

    fn name(&self, name: &mut Value) -> Result<(), SyncRefusal> {
        let parsed = name.as_str().and_then(|name| name.parse().ok()).ok_or_else(|| not_exact("namespaces"))?;
        let downstream = self.naming.downstream(self.cluster, &parsed);
        *name = downstream.map_err(|error| SyncRefusal::not_syncable(error.to_string()))?.as_str().into();
        Ok(())
    }

    fn selector(&self, selector: &mut Value) -> Result<(), SyncRefusal> {
        let exact = |fields: &Map<String, Value>| {
            fields.keys().all(|field| matches!(field.as_str(), "matchLabels" | "matchExpressions"))
        };
        if !selector.as_object().is_some_and(exact) {
            return Err(not_exact("namespaceSelector"));
        }
        for expression in selector.get_mut("matchExpressions").and_then(Value::as_array_mut).into_iter().flatten() {
            let key = expression["key"].as_str().and_then(downstream_key);
            expression["key"] = key.ok_or_else(|| not_exact("a key of namespaceSelector"))?.into();
        }
        let fields = selector.as_object_mut().map(|fields| object::child_mut(fields, "matchLabels"));
        let Some(labels) = fields else { return Err(not_exact("namespaceSelector")) };
        let mut translated = Map::new();
        for (key, value) in std::mem::take(labels) {
            let key = downstream_key(&key).ok_or_else(|| not_exact("a key of namespaceSelector"))?;
            translated.insert(key, value);
        }
        translated.insert(annotations::DOWN_TENANT.into(), self.naming.tenant(self.cluster).into());
        *labels = translated;
        Ok(())
    }
}

fn not_exact(what: &str) -> SyncRefusal {
    SyncRefusal::not_syncable(format!(
        "{what} cannot be translated exactly into what it selects on the physical cluster, where namespaces have other names"
    ))
}

/// Rules that let pods reach the DNS service of the physical cluster, which serves them in place of the upstream one:
/// for each rule of egress whose peers select the pods `k8s-app: kube-dns` of the upstream namespace `kube-system`, one
/// that leads to the pods of that label in the physical cluster's `kube-system`, on the port 53 as far as the rule
/// itself allows that.
fn dns_rules(policy: &Value) -> Vec<Value> {
    let rules = policy.pointer("/spec/egress").and_then(Value::as_array).into_iter().flatten();
    let to_dns = rules.filter(|rule| {
        let peers = rule.get("to").and_then(Value::as_array);
        peers.into_iter().flatten().any(selects_dns)
    });
    let ports: Vec<Value> = to_dns.flat_map(dns_ports).collect();
    let mut all: Vec<Value> = Vec::new();
    ports.into_iter().for_each(|port| {
        if !all.contains(&port) {
            all.push(port);
        }
    });
    if all.is_empty() {
        return Vec::new();
    }
    let (key, value) = DNS_LABEL;
    let peer = json!({
        "namespaceSelector": {"matchLabels": {(NAME_LABEL): DNS_NAMESPACE}},
        "podSelector": {"matchLabels": {(key): value}},
    });
    vec![json!({"to": [peer], "ports": all})]
}

fn selects_dns(peer: &Value) -> bool {
    let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let matches = |selector: &Value, labels: &BTreeMap<String, String>| {
        let spec = LabelSelectorSpec::deserialize(selector).ok();
        spec.and_then(|spec| LabelSelector::try_from(&spec).ok()).is_some_and(|selector| selector.matches_map(labels))
    };
    let is_namespace = peer
        .get("namespaceSelector")
        .filter(|selector| selector.is_object())
        .is_some_and(|selector| matches(selector, &labels(NAME_LABEL, DNS_NAMESPACE)));
    let pods = peer.get("podSelector").filter(|selector| selector.is_object());
    is_namespace && pods.is_none_or(|selector| matches(selector, &labels(DNS_LABEL.0, DNS_LABEL.1)))
}

/// Returns the DNS ports of a rule.
fn dns_ports(rule: &Value) -> Vec<Value> {
    let port = |protocol: &str| json!({"protocol": protocol, "port": DNS_PORT});
    let Some(ports) = rule.get("ports").and_then(Value::as_array).filter(|ports| !ports.is_empty()) else {
        return vec![port("UDP"), port("TCP")];
    };
    let dns = ports.iter().filter_map(|entry| {
        let protocol = entry["protocol"].as_str().unwrap_or("TCP");
        let is_in = match (&entry["port"], entry["endPort"].as_i64()) {
            (Value::Null, _) => true,
            (Value::Number(first), last) => {
                let first = first.as_i64()?;
                (first..=last.unwrap_or(first)).contains(&DNS_PORT)
            }
            // A named port is defined by the pod; CoreDNS names port 53 so.
            (Value::String(name), _) => matches!(name.as_str(), "dns" | "dns-tcp"),
            _ => false,
        };
        (is_in && matches!(protocol, "UDP" | "TCP")).then(|| port(protocol))
    });
    dns.collect()
}

#[cfg(test)]
mod tests;
