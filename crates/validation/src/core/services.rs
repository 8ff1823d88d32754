//! Services.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::{
    Errors, FieldError, internal, metadata, names,
    selectors::{self, PROTOCOLS},
    view::{At, IMMUTABLE},
};

/// Checks a new service.
pub(super) fn new(object: &At<'_>, errors: &mut Errors) {
    service(object, &Value::Null, errors);
}

/// Validates a service; addresses that `old` has are not checked again.
fn service(object: &At<'_>, old: &Value, errors: &mut Errors) {
    let (spec, old) = (object.child("spec"), At::root(old));
    let kind = spec.text("type");
    topology_annotations(object, errors);
    if spec.count("ports") == 0 && !is_headless(&spec) && kind != "ExternalName" {
        errors.required(spec.path("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(&spec) => {
            let why = format!("may not be set to 'None' for {kind} services");
            errors.invalid(spec.path("clusterIPs").index(0), &"None".into(), &why);
        }
        "ExternalName" => external_name(&spec, errors),
        _ => {}
    }
    ports(&spec, errors);
    metadata::labels(&spec.path("selector"), Some(spec.get("selector")), errors);
    affinity(&spec, errors);
    cluster_ips(&spec, &old.child("spec"), errors);
    let existing = texts(&old.child("spec"), "externalIPs").into_iter().collect();
    for address in spec.items("externalIPs") {
        let from = errors.len();
        selectors::legacy_ip(&address, &existing, errors);
        if errors.len() == from {
            selectors::endpoint_ip(&address, errors);
        }
    }
    spec.one_of("type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    node_ports(&spec, errors);
    source_ranges(object, &old, errors);
    let why = "may only be used when `type` is 'LoadBalancer'";
    match (kind == "LoadBalancer", spec.has("allocateLoadBalancerNodePorts")) {
        (false, true) => errors.forbidden(spec.path("allocateLoadBalancerNodePorts"), why),
        (true, false) => errors.required("allocateLoadBalancerNodePorts", ""),
        _ => {}
    }
    load_balancer_class(&spec, errors);
    traffic(&spec, errors);
}

fn texts<'v>(at: &At<'v>, list: &str) -> Vec<&'v str> {
    at.items(list).map(|item| item.as_text()).collect()
}

fn is_headless(spec: &At<'_>) -> bool {
    texts(spec, "clusterIPs") == ["None"]
}

fn topology_annotations(object: &At<'_>, errors: &mut Errors) {
    let (hints, mode) = ("service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode");
    let annotations = object.child("metadata").child("annotations");
    if annotations.has(hints) && annotations.has(mode) && annotations.get(hints) != annotations.get(mode) {
        let why = format!("must match annotations[{hints}] when both are specified");
        errors.invalid(annotations.path.key(mode), annotations.get(mode), &why);
    }
}

fn external_name(spec: &At<'_>, errors: &mut Errors) {
    let why = "may not be set for ExternalName services";
    for name in ["clusterIPs", "ipFamilies"].into_iter().filter(|name| spec.count(name) > 0) {
        errors.forbidden(spec.path(name), why);
    }
    spec.forbids(&["ipFamilyPolicy"], why, errors);
    let text = spec.text("externalName");
    match text.strip_suffix('.').unwrap_or(text) {
        "" => errors.required(spec.path("externalName"), ""),
        name => errors.invalid_each(spec.path("externalName"), &name.into(), names::dns_subdomain(name)),
    }
}

fn ports(spec: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    let several = spec.count("ports") > 1;
    for port in spec.items("ports") {
        let name = port.text("name");
        if several && name.is_empty() {
            errors.required(port.path("name"), "");
        } else if !name.is_empty() {
            port.follows("name", names::dns_label, errors);
            if !taken.insert(name) {
                errors.duplicate(port.path("name"), &name.into());
            }
        }
        selectors::port_number(&port, "port", errors);
        port.one_of("protocol", &PROTOCOLS, errors);
        selectors::port(&port, "targetPort", errors);
        if port.has("appProtocol") {
            port.follows("appProtocol", names::qualified_name, errors);
        }
    }
}

/// Longest time that a client stays with its endpoint, in seconds.
const MAX_AFFINITY: i64 = 86_400;

fn affinity(spec: &At<'_>, errors: &mut Errors) {
    spec.one_of("sessionAffinity", &["ClientIP", "None"], errors);
    let config = spec.child("sessionAffinityConfig");
    match spec.text("sessionAffinity") {
        "ClientIP" => {
            let places = [config.clone(), config.child("clientIP"), config.child("clientIP").child("timeoutSeconds")];
            if let Some(missing) = places.iter().find(|place| place.is_missing()) {
                errors.required(&missing.path, "when session affinity type is ClientIP");
                return;
            }
            let [.., timeout] = places;
            if !(1..=MAX_AFFINITY).contains(&timeout.value.as_i64().unwrap_or(0)) {
                let why = format!("must be greater than 0 and less than {MAX_AFFINITY}");
                errors.invalid(&timeout.path, timeout.value, &why);
            }
        }
        "None" => spec.forbids(&["sessionAffinityConfig"], "must not be set when session affinity is None", errors),
        _ => {}
    }
}

/// Validates addresses and families. Their faults come before all others.
pub(crate) fn addresses(old: &Value, new: &Value, errors: &mut Errors) {
    cluster_ips(&At::root(new).child("spec"), &At::root(old).child("spec"), errors);
}

/// Addresses and their families.
fn cluster_ips(spec: &At<'_>, old: &At<'_>, errors: &mut Errors) {
    if spec.text("type") == "ExternalName" {
        return;
    }
    let (own, path, list) = (spec.text("clusterIP"), spec.path("clusterIPs"), spec.get("clusterIPs"));
    let all = texts(spec, "clusterIPs");
    match (own, all.first()) {
        ("", Some(_)) => errors.invalid(&path, list, "must be empty when `clusterIP` is not specified"),
        ("", None) => {}
        (_, None) => errors.required(&path, ""),
        (own, Some(first)) if *first != own => errors.invalid(&path, list, "first value must match `clusterIP`"),
        (_, Some(_)) => {}
    }
    let mut families = HashSet::new();
    for family in spec.items("ipFamilies") {
        if !matches!(family.as_text(), "IPv4" | "IPv6") {
            errors.not_supported(&family.path, family.value, &["IPv4", "IPv6"]);
        }
        if !families.insert(family.as_text()) {
            errors.duplicate(&family.path, family.value);
        }
    }
    spec.supported_if_present("ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"], errors);
    let from = errors.len();
    let existing = texts(old, "clusterIPs").into_iter().collect();
    for (index, address) in spec.items("clusterIPs").enumerate() {
        match (index, address.as_text()) {
            (0, "None") if all.len() > 1 => errors.invalid(&path, list, "'None' must be the first and only value"),
            (0, "None") => {}
            _ => selectors::legacy_ip(&address, &existing, errors),
        }
    }
    let good = errors.len() == from;
    if all.len() > 2 {
        errors.invalid(&path, list, "may only hold up to 2 values");
    }
    if !good {
        return;
    }
    if all.len() > 1 && !selectors::is_dual_stack(&all) {
        errors.invalid(&path, list, "may specify no more than one IP for each IP family");
    }
    if is_headless(spec) {
        return;
    }
    for (index, (address, family)) in spec.items("clusterIPs").zip(spec.items("ipFamilies")).enumerate() {
        let is_v6 = address.as_text().contains(':');
        if matches!((family.as_text(), is_v6), ("IPv4", true) | ("IPv6", false)) {
            let why = format!("expected an {} value as indicated by `ipFamilies[{index}]`", family.as_text());
            errors.invalid(&address.path, address.value, &why);
        }
    }
}

fn node_ports(spec: &At<'_>, errors: &mut Errors) {
    let given = || spec.items("ports").filter(|port| port.number("nodePort") != 0);
    if spec.text("type") == "ClusterIP" {
        for port in given() {
            errors.forbidden(port.path("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let mut taken = HashSet::new();
    for port in given() {
        if !taken.insert((port.text("protocol"), port.number("nodePort"))) {
            errors.duplicate(port.path("nodePort"), port.get("nodePort"));
        }
    }
    let mut taken = HashSet::new();
    for port in spec.items("ports") {
        let key = (port.text("protocol"), port.number("port"));
        if !taken.insert(key) {
            let shown =
                internal::printed_value("ServicePort", &json!({"protocol": key.0, "port": key.1, "targetPort": 0}));
            errors.push(FieldError::duplicate_shown(&port.path, &shown, ""));
        }
    }
}

const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

fn source_ranges(object: &At<'_>, old: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    let balanced = spec.text("type") == "LoadBalancer";
    let why = "may only be used when `type` is 'LoadBalancer'";
    let ranges = "loadBalancerSourceRanges";
    let annotations = object.child("metadata").child("annotations");
    if spec.count(ranges) > 0 {
        let path = spec.path("LoadBalancerSourceRanges");
        if !balanced {
            errors.forbidden(&path, why);
        }
        let existing: HashSet<&str> = old.child("spec").items(ranges).map(|range| range.as_text().trim()).collect();
        for (index, range) in spec.items(ranges).enumerate() {
            selectors::legacy_cidr(&path.index(index), range.as_text().trim(), &existing, errors);
        }
    } else if let Some(all) = annotations.get(SOURCE_RANGES).as_str() {
        let path = annotations.path.key(SOURCE_RANGES);
        if !balanced {
            errors.forbidden(&path, why);
        }
        let before = old.child("metadata").child("annotations").get(SOURCE_RANGES).as_str();
        for range in all.trim().split(',').filter(|_| before != Some(all) && !all.trim().is_empty()) {
            selectors::legacy_cidr(&path, range.trim(), &HashSet::new(), errors);
        }
    }
}

fn load_balancer_class(spec: &At<'_>, errors: &mut Errors) {
    if !spec.has("loadBalancerClass") {
        return;
    }
    match spec.text("type") {
        "LoadBalancer" => spec.follows("loadBalancerClass", names::qualified_name, errors),
        _ => errors.forbidden(spec.path("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'"),
    }
}

/// Returns true if a Service takes external traffic.
fn is_reachable(spec: &At<'_>) -> bool {
    matches!(spec.text("type"), "LoadBalancer" | "NodePort")
        || (spec.text("type") == "ClusterIP" && spec.count("externalIPs") > 0)
}

/// Returns true if load balancers check nodes for endpoints.
fn asks_nodes(spec: &At<'_>) -> bool {
    spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local"
}

fn traffic(spec: &At<'_>, errors: &mut Errors) {
    let policy = "externalTrafficPolicy";
    if is_reachable(spec) {
        spec.one_of(policy, &["Cluster", "Local"], errors);
    } else if !spec.text(policy).is_empty() {
        errors.invalid(spec.path(policy), spec.get(policy), "may only be set for externally-accessible services");
    }
    let health = "healthCheckNodePort";
    // A port that is not given is allocated after this check.
    if spec.number(health) != 0 {
        if asks_nodes(spec) {
            selectors::port_number(spec, health, errors)
        } else {
            let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(spec.path(health), spec.get(health), why);
        }
    }
    let policy = "internalTrafficPolicy";
    if !spec.has(policy) && matches!(spec.text("type"), "NodePort" | "LoadBalancer" | "ClusterIP") {
        errors.required(spec.path(policy), "");
    }
    spec.supported_if_present(policy, &["Cluster", "Local"], errors);
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    spec.supported_if_present("trafficDistribution", &known, errors);
}

/// Checks that the first address and family of a service stay.
pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    let is_named = |spec: &At<'_>| spec.text("type") == "ExternalName";
    if !is_named(&before) && !is_named(&after) {
        changed_addresses(&before, &after, errors);
        changed_families(&before, &after, errors);
    }
    let class = "loadBalancerClass";
    let balanced = |spec: &At<'_>| spec.text("type") == "LoadBalancer";
    if balanced(&before) && balanced(&after) && before.get(class) != after.get(class) {
        errors.invalid(after.path(class), after.get(class), "may not change once set");
    }
    load_balancer_class(&after, errors);
    let health = "healthCheckNodePort";
    if asks_nodes(&before) && asks_nodes(&after) && before.get(health) != after.get(health) {
        errors.forbidden(after.path(health), IMMUTABLE);
    }
    service(new, old.value, errors);
}

fn releases(after: &At<'_>, list: &str, what: &str, errors: &mut Errors) {
    if after.count(list) == 1 && after.text("ipFamilyPolicy") != "SingleStack" {
        let why = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.invalid(after.path("ipFamilyPolicy"), after.get("ipFamilyPolicy"), &why);
    }
}

fn changed_addresses(before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    if is_headless(before) && is_headless(after) {
        return;
    }
    let (was, is) = (texts(before, "clusterIPs"), texts(after, "clusterIPs"));
    let (path, list) = (after.path("clusterIPs"), after.get("clusterIPs"));
    let list = if list.is_null() { &json!([]) } else { list };
    if was.len() == is.len() {
        for (index, _) in was.iter().zip(&is).enumerate().filter(|(_, (was, is))| was != is) {
            errors.invalid(path.index(index), list, "may not change once set");
        }
        return;
    }
    let first_changed = matches!((was.first(), is.first()), (Some(was), Some(is)) if was != is);
    if is.is_empty() {
        errors.invalid(path.index(0), list, "primary clusterIP can not be unset");
    }
    if first_changed {
        errors.invalid(path.index(0), list, "may not change once set");
    }
    if was.len() > is.len() {
        releases(after, "clusterIPs", "clusterIP", errors);
    }
}

fn changed_families(before: &At<'_>, after: &At<'_>, errors: &mut Errors) {
    if is_headless(before) || is_headless(after) {
        return;
    }
    let (was, is) = (texts(before, "ipFamilies"), texts(after, "ipFamilies"));
    let first = after.path("ipFamilies").index(0);
    if was.len() == is.len() {
        for _ in was.iter().zip(&is).filter(|(was, is)| was != is) {
            errors.invalid(&first, after.get("ipFamilies"), "may not change once set");
        }
        return;
    }
    if was.len() > is.len() && after.count("clusterIPs") == 0 {
        errors.invalid(&first, after.get("ipFamilies"), "primary ipFamily can not be unset");
    }
    if matches!((was.first(), is.first()), (Some(was), Some(is)) if was != is) {
        errors.invalid(&first, after.get("clusterIPs"), "may not change once set");
    }
    if was.len() > is.len() {
        releases(after, "ipFamilies", "ipFamily", errors);
    }
}

/// Checks addresses that a load balancer has.
pub(super) fn status(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let balancer = new.child("status").child("loadBalancer");
    if new.child("spec").text("type") != "LoadBalancer" {
        if balancer.count("ingress") > 0 {
            let why = "may only be used when `spec.type` is 'LoadBalancer'";
            errors.forbidden(balancer.path("ingress"), why);
        }
        return;
    }
    let before = old.child("status").child("loadBalancer");
    ingress_points(&before, &balancer, true, errors);
}

/// Validates the addresses of a load balancer or Ingress.
pub(crate) fn ingress_points(before: &At<'_>, after: &At<'_>, modes: bool, errors: &mut Errors) {
    let existing: HashSet<&str> = before.items("ingress").map(|point| point.text("ip")).collect();
    for point in after.items("ingress") {
        let ip = point.text("ip");
        if !ip.is_empty() {
            selectors::legacy_ip(&point.child("ip"), &existing, errors);
        }
        match (point.has("ipMode"), ip.is_empty()) {
            _ if !modes => {}
            (false, false) => errors.required(point.path("ipMode"), "must be specified when `ip` is set"),
            (false, true) => {}
            (true, true) => errors.forbidden(point.path("ipMode"), "may not be specified when `ip` is not set"),
            (true, false) => point.supported("ipMode", &["Proxy", "VIP"], errors),
        }
        let host = point.text("hostname");
        if !host.is_empty() {
            point.follows("hostname", names::dns_subdomain, errors);
            if selectors::is_ip(host) {
                errors.invalid(point.path("hostname"), &host.into(), "must be a DNS name, not an IP address");
            }
        }
    }
}
