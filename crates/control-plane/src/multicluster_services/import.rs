//! Objects that an exported Service has upstream: its import, and the slices with its endpoints on each physical
//! cluster. Pure.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{annotations::PROJECTED_FROM, object, placement::PlacementRecord};
use serde_json::{Map, Value, json};

use super::{IMPORT, MANAGER, SERVICE_LABEL, SOURCE_LABEL};

/// Label of a slice that names its Service.
pub(super) const SLICE_OF: &str = "kubernetes.io/service-name";
/// Label of an EndpointSlice that names its controller.
pub(super) const SLICE_MANAGER: &str = "endpointslice.kubernetes.io/managed-by";
/// Prefix of the names of mirrored slices.
const PREFIX: &str = "mc-";
/// Longest name of an object.
const MAX_NAME: usize = 253;

/// Condition of an export or import.
pub(super) struct MulticlusterCondition {
    pub(super) kind: &'static str,
    pub(super) is_true: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl MulticlusterCondition {
    pub(super) fn new(kind: &'static str, is_true: bool, reason: &str, message: &str) -> Self {
        Self { kind, is_true, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// Writes it to the status of an object. Its time changes with its status only.
    pub(super) fn write_to(&self, object: &mut Value, now: &str) {
        let generation = object::generation(object);
        if !object["status"].is_object() {
            object["status"] = json!({});
        }
        if !object["status"]["conditions"].is_array() {
            object["status"]["conditions"] = json!([]);
        }
        let Some(list) = object["status"]["conditions"].as_array_mut() else { return };
        let text = if self.is_true { "True" } else { "False" };
        let known = list.iter_mut().find(|condition| condition["type"] == self.kind);
        let since =
            known.as_ref().filter(|known| known["status"] == text).map(|known| known["lastTransitionTime"].clone());
        let wanted = json!({
            "type": self.kind, "status": text, "reason": self.reason, "message": self.message,
            "observedGeneration": generation, "lastTransitionTime": since.unwrap_or_else(|| now.into()),
        });
        match known {
            Some(known) => *known = wanted,
            None => list.push(wanted),
        }
    }
}

/// Returns the fault of a Service that cannot be exported; `None` for any other.
pub(super) fn fault(service: &Value) -> Option<MulticlusterCondition> {
    let is_external = service["spec"]["type"] == "ExternalName";
    is_external.then(|| {
        let message = "a Service of the type ExternalName cannot be exported";
        MulticlusterCondition::new("Valid", false, "InvalidServiceType", message)
    })
}

/// Returns the slices that mirror those of a Service on each physical cluster, with the names of these. Only endpoints
/// that are ready are mirrored: a physical cluster that does not answer has none. Those on a physical cluster that the
/// workload is about to leave are not mirrored any more, although they still serve clients that know them.
pub(super) fn mirrored(service: &Value, import: &Value, shown: &[Value]) -> (Vec<Value>, BTreeSet<String>) {
    let (mut slices, mut clusters) = (Vec::new(), BTreeSet::new());
    let record = PlacementRecord::of(service).unwrap_or_default();
    let is_withdrawn =
        |name: &str| record.clusters.iter().any(|copy| copy.name == name && record.withdrawn.contains(&copy.uid));
    for slice in shown {
        let Some(cluster) = object::label(slice, PROJECTED_FROM).filter(|name| !is_withdrawn(name)) else { continue };
        let endpoints: Vec<Value> = list(slice, "endpoints").iter().filter(|own| is_ready(own)).map(endpoint).collect();
        let name = format!("{PREFIX}{}", object::name(slice));
        if endpoints.is_empty() || name.len() > MAX_NAME {
            continue;
        }
        clusters.insert(cluster.to_owned());
        slices.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": object::namespace(service),
                "labels": {
                    SERVICE_LABEL: object::name(service), SOURCE_LABEL: cluster, SLICE_MANAGER: MANAGER,
                },
                "ownerReferences": owner_of(import),
            },
            "addressType": slice["addressType"], "ports": slice["ports"], "endpoints": endpoints,
        }));
    }
    (slices, clusters)
}

fn is_ready(endpoint: &Value) -> bool {
    endpoint["conditions"]["ready"].as_bool().unwrap_or(true)
}

/// Returns an endpoint without references to objects: these are of one physical cluster.
fn endpoint(own: &Value) -> Value {
    let kept = ["addresses", "conditions", "hostname", "zone"];
    let kept = kept.into_iter().filter_map(|field| Some((field.to_owned(), own.get(field)?.clone())));
    kept.filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into()
}

pub(super) fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the reference of a dependent to its owner.
pub(super) fn owner_of(owner: &Value) -> Value {
    json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": object::name(owner),
        "uid": object::meta_text(owner, "uid"),
    }])
}

/// Returns the import of a Service.
pub(super) fn import(service: &Value, export: &Value, version: &str) -> Value {
    let spec = &service["spec"];
    let is_headless = spec["clusterIP"] == "None";
    let port = |port: &Value| {
        let fields = ["name", "protocol", "appProtocol", "port"];
        let fields = fields.into_iter().filter_map(|field| Some((field.to_owned(), port.get(field)?.clone())));
        Value::Object(fields.filter(|(_, value)| !value.is_null()).collect())
    };
    let mut wanted = json!({
        "ports": list(spec, "ports").iter().map(port).collect::<Vec<_>>(),
        "type": if is_headless { "Headless" } else { "ClusterSetIP" },
    });
    let copied =
        ["sessionAffinity", "sessionAffinityConfig", "ipFamilies", "internalTrafficPolicy", "trafficDistribution"];
    for field in copied {
        if let Some(value) = spec.get(field).filter(|value| !value.is_null()) {
            wanted[field] = value.clone();
        }
    }
    let exported = |field: &str| export["spec"][field].as_object().cloned().unwrap_or_default();
    let mut labels = exported("exportedLabels");
    labels.insert(super::MANAGED_BY.into(), MANAGER.into());
    json!({
        "apiVersion": format!("{}/{version}", super::GROUP), "kind": IMPORT,
        "metadata": {
            "name": object::name(service), "namespace": object::namespace(service), "labels": labels,
            "annotations": exported("exportedAnnotations"), "ownerReferences": owner_of(export),
        },
        "spec": wanted,
    })
}

/// Fields of a Service that all physical clusters have to agree on, with the reasons of KEP-1645.
const AGREED: [(&str, &str); 8] = [
    ("/spec/ports", "PortConflict"),
    ("/spec/type", "TypeConflict"),
    ("/spec/clusterIP", "TypeConflict"),
    ("/spec/sessionAffinityConfig", "SessionAffinityConfigConflict"),
    ("/spec/sessionAffinity", "SessionAffinityConflict"),
    ("/spec/internalTrafficPolicy", "InternalTrafficPolicyConflict"),
    ("/spec/trafficDistribution", "TrafficDistributionConflict"),
    ("/spec/ipFamilies", "IPFamilyConflict"),
];

/// Returns the condition about conflicts: there is one Service, but overrides of policies may change its copies.
pub(super) fn conflict(service: &Value) -> MulticlusterCondition {
    let record = PlacementRecord::of(service).unwrap_or_default();
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for change in &record.overrides {
        let names = change.on.iter().filter_map(|uid| record.on(uid)).map(|copy| copy.name.as_str());
        let names: BTreeSet<&str> = names.collect();
        let is_everywhere = record.active().all(|copy| names.contains(copy.name.as_str()));
        let paths = change.change.patch.iter().filter_map(|patch| patch["path"].as_str());
        for reason in paths.filter(|_| !is_everywhere).filter_map(reason_of) {
            found.entry(reason).or_default().extend(&names);
        }
    }
    if found.is_empty() {
        return MulticlusterCondition::new("Conflict", false, "NoConflicts", "");
    }
    let reasons: Vec<&str> = found.keys().copied().collect();
    let clusters: BTreeSet<&str> = found.values().flatten().copied().collect();
    let clusters: Vec<&str> = clusters.into_iter().collect();
    let message = format!(
        "overrides of policies change the Service on {}; the import has the fields of the Service here",
        clusters.join(", ")
    );
    MulticlusterCondition::new("Conflict", true, &reasons.join(","), &message)
}

fn reason_of(path: &str) -> Option<&'static str> {
    let is_below = |base: &str| path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    AGREED.iter().find(|(base, _)| is_below(base)).map(|(_, reason)| *reason)
}
