//! Warnings about services and other objects with addresses.

use serde_json::Value;

use super::{Warnings, addresses, annotations, items, text};

const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

pub(super) fn service(service: &Value, warnings: &mut Warnings) {
    let (kind, cluster_ip) = (text(service, "/spec/type"), text(service, "/spec/clusterIP"));
    let external = kind == "ExternalName";
    let headless = kind == "ClusterIP" && cluster_ip == "None";
    let balancer = text(service, "/spec/loadBalancerIP");
    let has_external = items(service, "/spec/externalIPs").next().is_some();
    if annotations(service).any(|(key, _)| key == OLD_HINTS) {
        warnings.add(format!("annotation {OLD_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"));
    }
    if !external && !matches!(cluster_ip, "" | "None") {
        addresses::ips(service, "/spec/clusterIPs", "spec.clusterIPs", warnings);
    }
    if headless {
        if !balancer.is_empty() {
            warnings.add("spec.loadBalancerIP is ignored for headless services");
        }
        if has_external {
            warnings.add("spec.externalIPs is ignored for headless services");
        }
        if text(service, "/spec/sessionAffinity") != "None" {
            warnings.add("spec.SessionAffinity is ignored for headless services");
        }
    }
    addresses::ips(service, "/spec/externalIPs", "spec.externalIPs", warnings);
    if has_external && !headless && !external {
        warnings.add("spec.externalIPs is deprecated and may no longer be implemented in some clusters");
    }
    addresses::ip("spec.loadBalancerIP", balancer, warnings);
    addresses::networks(service, "/spec/loadBalancerSourceRanges", "spec.loadBalancerSourceRanges", warnings);
    if external && has_external {
        warnings.add("spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    }
    if !external && !text(service, "/spec/externalName").is_empty() {
        warnings.add("spec.externalName is ignored when spec.type is not \"ExternalName\"");
    }
    if text(service, "/spec/trafficDistribution") == "PreferClose" {
        warnings.add("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"");
    }
}

/// Warns of the addresses of a load balancer, in the status of a service or an ingress.
pub(super) fn balancer(status: &Value, warnings: &mut Warnings) {
    let path = "status.loadBalancer.ingress";
    addresses::ips_of(status, "/status/loadBalancer/ingress", ("ip", ""), path, warnings);
}

/// Returns true if a label names one of these controllers as owner of the object: they write addresses in canonical
/// form.
fn is_kept_by(object: &Value, label: &str, controllers: &[&str]) -> bool {
    let labels = object.pointer("/metadata/labels");
    let kept = labels.and_then(|labels| labels.get(label)).and_then(Value::as_str);
    kept.is_some_and(|kept| controllers.contains(&kept))
}

pub(super) fn endpoint_slice(slice: &Value, warnings: &mut Warnings) {
    let controllers = ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
    if is_kept_by(slice, "endpointslice.kubernetes.io/managed-by", &controllers) {
        return;
    }
    for (index, endpoint) in items(slice, "/endpoints").enumerate() {
        addresses::ips(endpoint, "/addresses", &format!("endpoints[{index}].addresses"), warnings);
    }
}

pub(super) fn endpoints(endpoints: &Value, warnings: &mut Warnings) {
    if is_kept_by(endpoints, "endpoints.kubernetes.io/managed-by", &["endpoint-controller"]) {
        return;
    }
    for (index, subset) in items(endpoints, "/subsets").enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            let path = format!("subsets[{index}].{list}");
            addresses::ips_of(subset, &format!("/{list}"), ("ip", ".ip"), &path, warnings);
        }
    }
}

pub(super) fn network_policy(policy: &Value, warnings: &mut Warnings) {
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(policy, &format!("/spec/{rules}")).enumerate() {
            for (at, peer) in items(rule, &format!("/{peers}")).enumerate() {
                let Some(block) = peer.get("ipBlock") else { continue };
                let path = format!("spec.{rules}[{index}].{peers}[{at}].ipBlock");
                addresses::network(&format!("{path}.cidr"), text(block, "/cidr"), warnings);
                addresses::networks(block, "/except", &format!("{path}.except"), warnings);
            }
        }
    }
}
