//! Conditional defaults of core/v1 and of the small groups.

use std::sync::LazyLock;

use portolan_types::object::child_mut;
use regex::Regex;
use serde_json::{Value, json};

use crate::quota::{Compute, pod_amounts};
use portolan_kinds::custom;

use super::{Fields, Function, child, default_to, default_unset, is_set, is_unset, items, text};

/// Functions by type.
pub(super) const FUNCTIONS: &[(&str, Function)] = &[
    ("io.k8s.api.core.v1.Volume", volume),
    ("io.k8s.api.core.v1.Container", container),
    ("io.k8s.api.core.v1.EphemeralContainer", container),
    ("io.k8s.api.core.v1.PodSpec", pod_spec),
    ("io.k8s.api.core.v1.NodeSpec", node_spec),
    ("io.k8s.api.core.v1.PodStatus", pod_status),
    ("io.k8s.api.core.v1.Service", service),
    ("io.k8s.api.core.v1.Pod", pod),
    ("io.k8s.api.core.v1.Secret", secret),
    ("io.k8s.api.core.v1.PersistentVolume", persistent_volume),
    ("io.k8s.api.core.v1.Namespace", namespace),
    ("io.k8s.api.core.v1.NodeStatus", node_status),
    ("io.k8s.api.core.v1.LimitRangeItem", limit_range_item),
    ("io.k8s.api.networking.v1.NetworkPolicySpec", network_policy),
    ("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior", scaling_behavior),
    ("io.k8s.api.rbac.v1.Subject", subject),
    ("io.k8s.api.resource.v1.ExactDeviceRequest", device_request),
    ("io.k8s.api.resource.v1.DeviceSubRequest", device_request),
    ("io.k8s.api.resource.v1.NodeAllocatableResourceMapping", resource_mapping),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition", custom_resource_definition),
];

/// Defaults a volume without any source to an empty directory.
fn volume(fields: &mut Fields) {
    if !fields.iter().any(|(name, value)| name != "name" && !value.is_null()) {
        fields.insert("emptyDir".into(), json!({}));
    }
    if let Some(image) = child(fields, "image") {
        let policy = pull_policy(text(image, "reference"));
        default_unset(image, "pullPolicy", policy);
    }
}

fn container(fields: &mut Fields) {
    let policy = pull_policy(text(fields, "image"));
    default_unset(fields, "imagePullPolicy", policy);
}

fn pull_policy(image: &str) -> &'static str {
    if is_latest(image) { "Always" } else { "IfNotPresent" }
}

/// Returns true if an image reference means the tag `latest`: it names the tag, or has neither tag nor digest. Invalid
/// references do not.
fn is_latest(image: &str) -> bool {
    let Some(parts) = REFERENCE.captures(image).filter(|_| !IDENTIFIER.is_match(image)) else { return false };
    match (parts.name("tag"), parts.name("digest")) {
        (Some(tag), _) => tag.as_str() == "latest",
        (None, digest) => digest.is_none(),
    }
}

/// Grammar of image references, as in the module `github.com/distribution/reference`.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let part = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let domain = format!(r"(?:{part}(?:\.{part})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?");
    let component = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[a-fA-F0-9]{32,}";
    let tag = "[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}";
    let name = format!("(?:{domain}/)?{component}(?:/{component})*");
    Regex::new(&format!("^{name}(?::(?<tag>{tag}))?(?:@(?<digest>{digest}))?$")).expect("a test compiles it")
});

/// Pattern of an image id, which is not a reference.
static IDENTIFIER: LazyLock<Regex> = LazyLock::new(|| Regex::new("^[a-f0-9]{64}$").expect("a test compiles it"));

/// Seconds for which a client's address sticks to an endpoint.
const AFFINITY_SECONDS: i64 = 10_800;

fn service(fields: &mut Fields) {
    let Some(spec) = child(fields, "spec") else { return };
    default_unset(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => {
            let client = child_mut(child_mut(spec, "sessionAffinityConfig"), "clientIP");
            default_to(client, "timeoutSeconds", AFFINITY_SECONDS);
        }
        _ => {}
    }
    default_unset(spec, "type", "ClusterIP");
    for port in items(spec, "ports") {
        default_unset(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        default_unset(port, "targetPort", number);
    }
    let kind = text(spec, "type").to_owned();
    let load_balancer = kind == "LoadBalancer";
    let external_ips = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    if load_balancer || kind == "NodePort" || (kind == "ClusterIP" && external_ips) {
        default_unset(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if load_balancer {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
        let status = child(fields, "status").and_then(|status| child(status, "loadBalancer"));
        for ingress in status.into_iter().flat_map(|balancer| items(balancer, "ingress")) {
            if !text(ingress, "ip").is_empty() {
                default_to(ingress, "ipMode", "VIP");
            }
        }
    }
}

/// Sets defaults of pods that pod templates do not have.
fn pod(fields: &mut Fields) {
    let Some(spec) = child(fields, "spec") else { return };
    for list in ["containers", "initContainers"] {
        items(spec, list).filter_map(|container| child(container, "resources")).for_each(requests_from_limits);
    }
    resources_of_pod(spec);
    default_to(spec, "enableServiceLinks", true);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for list in ["containers", "initContainers"] {
            for port in items(spec, list).flat_map(|container| items(container, "ports")) {
                let number = port.get("containerPort").cloned().unwrap_or_default();
                if !is_unset(&number) {
                    default_unset(port, "hostPort", number);
                }
            }
        }
    }
}

/// Copies the name of the service account to its deprecated field.
fn pod_spec(spec: &mut Fields) {
    let name = match (text(spec, "serviceAccountName"), text(spec, "serviceAccount")) {
        ("", older) => older.to_owned(),
        (name, _) => name.to_owned(),
    };
    if !name.is_empty() {
        spec.insert("serviceAccountName".into(), name.clone().into());
        spec.insert("serviceAccount".into(), name.into());
    }
}

/// Makes `podCIDR`, which old clients read, the first of `podCIDRs`, and the other way round.
fn node_spec(spec: &mut Fields) {
    first_of(spec, "podCIDR", "podCIDRs", |text| text.into(), |entry| entry.as_str());
}

/// Completes `podIP` and `podIPs` in the same way.
fn pod_status(status: &mut Fields) {
    first_of(status, "podIP", "podIPs", |text| json!({"ip": text}), |entry| entry.get("ip")?.as_str());
}

fn first_of(fields: &mut Fields, one: &str, list: &str, make: fn(&str) -> Value, read: fn(&Value) -> Option<&str>) {
    let given = text(fields, one).to_owned();
    let first = fields.get(list).and_then(|list| list.get(0)).and_then(read).unwrap_or_default().to_owned();
    if !given.is_empty() && given != first {
        fields.insert(list.into(), json!([make(&given)]));
    } else if !first.is_empty() {
        fields.insert(one.into(), first.into());
    }
}

/// Resources that a pod may ask for as a whole.
fn is_of_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Defaults pod-level resources, if there are any: limits of huge pages are the containers' limits, and requests are
/// the containers' requests, or else the pod's limits.
fn resources_of_pod(spec: &mut Fields) {
    let own = |spec: &Fields, name: &str| spec.get("resources")?.get(name).filter(|own| !is_unset(own)).cloned();
    let (requests, limits) = (own(spec, "requests"), own(spec, "limits"));
    if requests.is_none() && limits.is_none() {
        return;
    }
    let of_containers = |spec: &Fields, compute| pod_amounts(&Value::Object(spec.clone()), compute, |_| false);
    let is_requested = |name: &str| requests.as_ref().is_some_and(|own| own.get(name).is_some());
    for (name, amount) in of_containers(spec, Compute::Limits) {
        if name.starts_with("hugepages-") && !is_requested(&name) {
            default_to(child_mut(child_mut(spec, "resources"), "limits"), &name, amount.to_string());
        }
    }
    let Some(Value::Object(limits)) = own(spec, "limits") else { return };
    let mut requests = of_containers(spec, Compute::Requests);
    requests.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
    let all = requests.into_iter().map(|(name, amount)| (name, amount.to_string().into()));
    let all = all.chain(limits.into_iter().filter(|(name, _)| is_of_pods(name)));
    for (name, amount) in all {
        default_to(child_mut(child_mut(spec, "resources"), "requests"), &name, amount);
    }
}

fn requests_from_limits(resources: &mut Fields) {
    let limits = resources.get("limits").and_then(Value::as_object).filter(|limits| !limits.is_empty()).cloned();
    let requests = limits.map(|limits| (child_mut(resources, "requests"), limits));
    if let Some((requests, limits)) = requests {
        limits.into_iter().for_each(|(name, amount)| default_to(requests, &name, amount));
    }
}

/// Moves the write-only `stringData` into `data`.
fn secret(fields: &mut Fields) {
    use base64::Engine as _;
    if let Some(Value::Object(texts)) = fields.remove("stringData") {
        let data = child_mut(fields, "data");
        for (key, value) in texts {
            let bytes = value.as_str().unwrap_or_default().as_bytes();
            data.insert(key, base64::engine::general_purpose::STANDARD.encode(bytes).into());
        }
    }
    default_unset(fields, "type", "Opaque");
}

fn persistent_volume(fields: &mut Fields) {
    if let Some(spec) = child(fields, "spec") {
        default_unset(spec, "persistentVolumeReclaimPolicy", "Retain");
        default_to(spec, "volumeMode", "Filesystem");
    }
}

/// Sets the label by which selectors find a namespace. A namespace without a generated name yet gets it later.
fn namespace(fields: &mut Fields) {
    let Some(metadata) = child(fields, "metadata") else { return };
    let name = text(metadata, "name").to_owned();
    if !name.is_empty() {
        child_mut(metadata, "labels").insert("kubernetes.io/metadata.name".into(), name.into());
    }
}

fn node_status(fields: &mut Fields) {
    if let Some(capacity) = fields.get("capacity").filter(|capacity| !is_unset(capacity)).cloned() {
        default_to(fields, "allocatable", capacity);
    }
}

fn limit_range_item(fields: &mut Fields) {
    if text(fields, "type") != "Container" {
        return;
    }
    for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
        let amounts = fields.get(from).and_then(Value::as_object).filter(|amounts| !amounts.is_empty()).cloned();
        if let Some(amounts) = amounts {
            let target = child_mut(fields, to);
            amounts.into_iter().for_each(|(name, amount)| default_to(target, &name, amount));
        }
    }
}

fn network_policy(spec: &mut Fields) {
    if spec.get("policyTypes").is_none_or(is_unset) {
        let egress = spec.get("egress").is_some_and(|egress| !is_unset(egress));
        let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".into(), types);
    }
}

/// Partial rules are completed with the standard ones; missing rules come from the table.
fn scaling_behavior(behavior: &mut Fields) {
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    if let Some(up) = child(behavior, "scaleUp") {
        default_to(up, "stabilizationWindowSeconds", 0);
        default_to(up, "selectPolicy", "Max");
        default_to(up, "policies", json!([pods, percent]));
    }
    if let Some(down) = child(behavior, "scaleDown") {
        default_to(down, "selectPolicy", "Max");
        default_to(down, "policies", json!([percent]));
    }
}

fn subject(fields: &mut Fields) {
    if matches!(text(fields, "kind"), "User" | "Group") {
        default_unset(fields, "apiGroup", "rbac.authorization.k8s.io");
    }
}

/// Defaults a device request to one device.
fn device_request(request: &mut Fields) {
    default_unset(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        default_unset(request, "count", 1);
    }
}

/// Defaults the share of the node's capacity that a device takes to one.
fn resource_mapping(mapping: &mut Fields) {
    default_to(mapping, "allocationMultiplier", "1");
}

/// Defaults `spec.names`, but not the accepted names in the status, and removes an empty webhook.
fn custom_resource_definition(definition: &mut Fields) {
    let stored = custom::stored_versions(definition.get("spec").unwrap_or(&Value::Null), &Value::Null);
    if stored.as_array().is_some_and(|all| !all.is_empty()) {
        default_unset(child_mut(definition, "status"), "storedVersions", stored);
    }
    let Some(spec) = child(definition, "spec") else { return };
    let says_nothing = |hook: &Value| hook.as_object().is_some_and(|own| own.values().all(Value::is_null));
    if let Some(conversion) = child(spec, "conversion").filter(|own| own.get("webhook").is_some_and(says_nothing)) {
        conversion.remove("webhook");
    }
    let Some(names) = child(spec, "names") else { return };
    let kind = text(names, "kind").to_owned();
    if !kind.is_empty() {
        default_unset(names, "singular", kind.to_lowercase());
        default_unset(names, "listKind", format!("{kind}List"));
    }
}

/// Returns true if a field is not empty; used by the functions of workloads.
pub(super) fn has(fields: &Fields, name: &str) -> bool {
    is_set(fields, name) && !fields.get(name).is_none_or(is_unset)
}
