//! Services and endpoint slices.

use std::{collections::HashSet, net::IpAddr};

use serde_json::Value;

use super::{
    Errors, metadata, names,
    selectors::{self, PROTOCOLS},
    view::At,
};

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

pub(super) fn service(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    let kind = spec.text("type");
    let headless = spec.text("clusterIP") == "None";
    if spec.count("ports") == 0 && !headless && kind != "ExternalName" {
        errors.required(spec.path("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let why = format!("may not be set to 'None' for {kind} services");
            errors.invalid(spec.path("clusterIPs").index(0), &"None".into(), &why);
        }
        "ExternalName" => external_name(&spec, errors),
        _ => {}
    }
    ports(&spec, errors);
    metadata::labels(&spec.path("selector"), Some(spec.get("selector")), errors);
    spec.one_of("sessionAffinity", &["ClientIP", "None"], errors);
    let timeout = spec.child("sessionAffinityConfig").child("clientIP");
    if spec.text("sessionAffinity") == "ClientIP"
        && timeout.int("timeoutSeconds").is_some_and(|seconds| !(1..=86_400).contains(&seconds))
    {
        let why = "must be greater than 0 and less than 86400";
        errors.invalid(timeout.path("timeoutSeconds"), timeout.get("timeoutSeconds"), why);
    }
    addresses(&spec, errors);
    spec.one_of("type", &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], errors);
    node_ports(&spec, errors);
    if spec.has("allocateLoadBalancerNodePorts") && kind != "LoadBalancer" {
        let path = spec.path("allocateLoadBalancerNodePorts");
        errors.forbidden(path, "may only be used when `type` is 'LoadBalancer'");
    }
    if spec.has("loadBalancerClass") && kind != "LoadBalancer" {
        errors.forbidden(spec.path("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'");
    }
    spec.one_of_if_set("externalTrafficPolicy", &["Cluster", "Local"], errors);
    let reachable =
        matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && spec.count("externalIPs") > 0);
    if !spec.text("externalTrafficPolicy").is_empty() && !reachable {
        let why = "may only be set for externally-accessible services";
        errors.invalid(spec.path("externalTrafficPolicy"), spec.get("externalTrafficPolicy"), why);
    }
    spec.one_of_if_set("internalTrafficPolicy", &["Cluster", "Local"], errors);
    let known = ["PreferClose", "PreferSameNode", "PreferSameZone"];
    spec.one_of_if_set("trafficDistribution", &known, errors);
}

fn external_name(spec: &At<'_>, errors: &mut Errors) {
    for name in ["clusterIPs", "ipFamilies"] {
        if spec.count(name) > 0 {
            errors.forbidden(spec.path(name), "may not be set for ExternalName services");
        }
    }
    let name = spec.text("externalName").trim_end_matches('.');
    match name {
        "" => errors.required(spec.path("externalName"), ""),
        name => {
            let details = names::dns_subdomain(name);
            details.iter().for_each(|detail| errors.invalid(spec.path("externalName"), &name.into(), detail));
        }
    }
}

fn ports(spec: &At<'_>, errors: &mut Errors) {
    let (mut names_taken, mut taken) = (HashSet::new(), HashSet::new());
    let several = spec.count("ports") > 1;
    for port in spec.items("ports") {
        let name = port.text("name");
        if several && name.is_empty() {
            errors.required(port.path("name"), "");
        } else if !name.is_empty() {
            port.follows("name", names::dns_label, errors);
            if !names_taken.insert(name) {
                errors.duplicate(port.path("name"), &name.into());
            }
        }
        selectors::port_number(&port, "port", errors);
        port.one_of("protocol", &PROTOCOLS, errors);
        selectors::port(&port, "targetPort", errors);
        if !port.text("appProtocol").is_empty() {
            port.follows("appProtocol", names::qualified_name, errors);
        }
    }
    for port in spec.items("ports") {
        let key = (port.text("protocol"), port.int("port").unwrap_or(0));
        if !taken.insert(key) {
            let shown = serde_json::json!({"protocol": key.0, "port": key.1});
            errors.duplicate(&port.path, &shown);
        }
    }
}

fn node_ports(spec: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for port in spec.items("ports") {
        let number = port.int("nodePort").unwrap_or(0);
        if number == 0 {
            continue;
        }
        if spec.text("type") == "ClusterIP" {
            errors.forbidden(port.path("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
        if !taken.insert((port.text("protocol"), number)) {
            errors.duplicate(port.path("nodePort"), &number.into());
        }
    }
}

fn addresses(spec: &At<'_>, errors: &mut Errors) {
    let first = spec.get("clusterIPs").get(0).and_then(Value::as_str).unwrap_or_default();
    if !first.is_empty() && first != spec.text("clusterIP") {
        errors.invalid(spec.path("clusterIPs"), spec.get("clusterIPs"), "element [0] must match clusterIP");
    }
    for address in spec.items("clusterIPs") {
        if address.as_text() != "None" && address.as_text().parse::<IpAddr>().is_err() {
            errors.invalid(&address.path, address.value, NO_IP);
        }
    }
    for address in spec.items("externalIPs") {
        match address.as_text().parse::<IpAddr>() {
            Err(_) => errors.invalid(&address.path, address.value, NO_IP),
            Ok(ip) if ip.is_unspecified() => errors.invalid(&address.path, address.value, "may not be unspecified"),
            Ok(ip) if ip.is_loopback() => {
                errors.invalid(&address.path, address.value, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
            }
            Ok(_) => {}
        }
    }
    for family in spec.items("ipFamilies") {
        if !matches!(family.as_text(), "IPv4" | "IPv6") {
            errors.not_supported(&family.path, family.value, &["IPv4", "IPv6"]);
        }
    }
    spec.one_of_if_set("ipFamilyPolicy", &["PreferDualStack", "RequireDualStack", "SingleStack"], errors);
}

/// Once given, the first address and family stay.
pub(super) fn service_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    if before.text("type") == "ExternalName" || after.text("type") == "ExternalName" {
        return;
    }
    let (was, is) = (before.text("clusterIP"), after.text("clusterIP"));
    if !was.is_empty() && was != is {
        let path = after.path("clusterIPs").index(0);
        let why = if is.is_empty() { "primary clusterIP can not be unset" } else { "may not change once set" };
        errors.invalid(path, after.get("clusterIPs"), why);
    }
    let family = |spec: &At<'_>| spec.get("ipFamilies").get(0).cloned();
    if family(&before).is_some() && family(&before) != family(&after) {
        errors.invalid(after.path("ipFamilies").index(0), after.get("ipFamilies"), "may not change once set");
    }
    let class = "loadBalancerClass";
    let same_type = before.text("type") == after.text("type");
    if before.text("type") == "LoadBalancer" && same_type && before.get(class) != after.get(class) {
        errors.invalid(after.path(class), after.get(class), "may not change once set");
    }
    let health = "healthCheckNodePort";
    let local = |spec: &At<'_>| spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local";
    if local(&before) && local(&after) && before.get(health) != after.get(health) {
        errors.forbidden(after.path(health), "field is immutable");
    }
}

/// Most endpoints and ports of a slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_PORTS: usize = 20_000;

pub(super) fn endpoint_slice(object: &At<'_>, errors: &mut Errors) {
    object.one_of("addressType", &["FQDN", "IPv4", "IPv6"], errors);
    if object.count("endpoints") > MAX_ENDPOINTS {
        errors.push(super::FieldError::too_many("endpoints", object.count("endpoints"), MAX_ENDPOINTS));
        return;
    }
    for endpoint in object.items("endpoints") {
        match endpoint.count("addresses") {
            0 => errors.required(endpoint.path("addresses"), "must contain at least 1 address"),
            count if count > 100 => errors.push(super::FieldError::too_many(endpoint.path("addresses"), count, 100)),
            _ => {}
        }
        for address in endpoint.items("addresses") {
            let fits = match (object.text("addressType"), address.as_text().parse::<IpAddr>()) {
                ("IPv4", Ok(IpAddr::V4(_))) | ("IPv6", Ok(IpAddr::V6(_))) => true,
                ("FQDN", _) => names::dns_subdomain(address.as_text()).is_empty(),
                _ => false,
            };
            if !fits {
                errors.invalid(&address.path, address.value, NO_IP);
            }
        }
    }
    if object.count("ports") > MAX_PORTS {
        errors.push(super::FieldError::too_many("ports", object.count("ports"), MAX_PORTS));
    }
    let mut taken = HashSet::new();
    for port in object.items("ports") {
        let name = port.text("name");
        if !name.is_empty() {
            port.follows("name", names::dns_label, errors);
        }
        if !taken.insert(name) {
            errors.duplicate(port.path("name"), &name.into());
        }
        port.one_of("protocol", &PROTOCOLS, errors);
    }
}
