//! Warnings of kube-apiserver about valid objects that mean less than their authors may think.

mod addresses;
mod network;
mod nodes;
mod paths;
mod pods;
mod schemas;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use portolan_types::{labels::key_faults, object, quantity::Quantity};
use serde_json::Value;

use portolan_kinds::{Kind, custom};
use portolan_validation::{names::dns_label, pair_fault};

/// Returns the warnings about an object to create, before the server changes it.
pub fn before_create(kind: &Kind, object: &Value) -> Vec<String> {
    let mut warnings = Warnings::default();
    if ("", "Pod") == (&*kind.gvk.group, &*kind.gvk.kind) {
        pods::profiles_by_annotation(object, &mut warnings);
    }
    warnings.0
}

/// Returns the warnings about a new object. Defaults have been applied.
pub fn on_create(kind: &Kind, object: &Value) -> Vec<String> {
    let mut warnings = Warnings::default();
    name(kind, object, &mut warnings);
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Pod") => pods::pod("", object, &mut warnings),
        ("", "ResourceQuota") => quota(object, &mut warnings),
        ("batch", "Job") => job("spec", object.get("spec"), &mut warnings),
        ("batch", "CronJob") => job(JOB_OF_CRON, object.pointer("/spec/jobTemplate/spec"), &mut warnings),
        ("discovery.k8s.io", "EndpointSlice") if text(object, "/addressType") == "FQDN" => {
            warnings.add("spec.addressType: FQDN endpoints are deprecated");
        }
        ("networking.k8s.io", "Ingress")
            if annotations(object).any(|(key, _)| key == "kubernetes.io/ingress.class")
                && object.pointer("/spec/ingressClassName").is_none() =>
        {
            let why = "is deprecated, please use 'spec.ingressClassName' instead";
            warnings.add(format!("annotation \"kubernetes.io/ingress.class\" {why}"));
        }
        (custom::GROUP, "CustomResourceDefinition") => {
            schemas::formats(object).into_iter().for_each(|format| warnings.add(schemas::unrecognized(&format)));
        }
        _ => {}
    }
    if !kind.is_typed() {
        finalizers(None, object, &mut warnings);
    }
    template(kind, object, &mut warnings);
    always(kind, None, object, &mut warnings);
    warnings.0
}

/// Returns the warnings about a changed object, of whose endpoint `subresource` is the last part.
pub fn on_update(kind: &Kind, subresource: Option<&str>, old: &Value, new: &Value) -> Vec<String> {
    let mut warnings = Warnings::default();
    match subresource {
        None => changed(kind, old, new, &mut warnings),
        Some("status") => status(kind, new, &mut warnings),
        Some(_) => {}
    }
    warnings.0
}

/// Adds warnings about the template of a workload that changed.
fn changed(kind: &Kind, old: &Value, new: &Value, warnings: &mut Warnings) {
    let pair = (&*kind.gvk.group, &*kind.gvk.kind);
    let counted = if pair == ("apps", "DaemonSet") { TEMPLATE_GENERATION } else { "/metadata/generation" };
    if old.pointer(counted) != new.pointer(counted) {
        match pair {
            ("batch", "Job") => job("spec", new.get("spec"), warnings),
            ("batch", "CronJob") => job(JOB_OF_CRON, new.pointer("/spec/jobTemplate/spec"), warnings),
            _ => {}
        }
        // As in kube-apiserver, the old template of these is checked.
        template(kind, if pair == ("", "ReplicationController") { old } else { new }, warnings);
    }
    match pair {
        ("batch", "CronJob") if text(new, "/spec/schedule").contains("TZ") => {
            let more = "see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";
            warnings.add(format!("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, {more}"));
        }
        (custom::GROUP, "CustomResourceDefinition") => {
            let before = schemas::formats(old);
            let fresh = schemas::formats(new).into_iter().filter(|format| !before.contains(format));
            fresh.for_each(|format| warnings.add(schemas::unrecognized(&format)));
        }
        _ => {}
    }
    if !kind.is_typed() {
        finalizers(Some(old), new, warnings);
    }
    always(kind, Some(old), new, warnings);
}

fn status(kind: &Kind, new: &Value, warnings: &mut Warnings) {
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Pod") => {
            addresses::ips_of(new, "/status/podIPs", ("ip", ".ip"), "status.podIPs", warnings);
            addresses::ips_of(new, "/status/hostIPs", ("ip", ".ip"), "status.hostIPs", warnings);
        }
        ("", "Service") | ("networking.k8s.io", "Ingress") => network::balancer(new, warnings),
        _ => {}
    }
}

/// Adds warnings about new and changed objects alike.
fn always(kind: &Kind, old: Option<&Value>, new: &Value, warnings: &mut Warnings) {
    match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Service") => network::service(new, warnings),
        ("", "Endpoints") => network::endpoints(new, warnings),
        ("", "Node") => nodes::node(new, warnings),
        ("", "PersistentVolume") => storage::volume(new, warnings),
        ("", "PersistentVolumeClaim") => storage::claim(new, warnings),
        ("", "Secret") => secret(new, warnings),
        ("", "ServiceAccount") => service_account(old, new, warnings),
        ("admissionregistration.k8s.io", _) => reserved_name(new, warnings),
        ("apps", "StatefulSet") => stateful_set(old.is_some(), new, warnings),
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(new, warnings),
        ("networking.k8s.io", "NetworkPolicy") => network::network_policy(new, warnings),
        ("node.k8s.io", "RuntimeClass") => nodes::runtime_class(new, warnings),
        ("resource.k8s.io", "ResourceSlice") => slice(new, warnings),
        ("storage.k8s.io", "CSIDriver") => storage::driver(old, new, warnings),
        ("storage.k8s.io", "CSIStorageCapacity") => storage::capacity(new, warnings),
        ("storage.k8s.io", "StorageClass") => storage::class(new, warnings),
        _ => {}
    }
}

const TEMPLATE_GENERATION: &str = "/metadata/annotations/deprecated.daemonset.template.generation";
const JOB_OF_CRON: &str = "spec.jobTemplate.spec";

/// Maximum of warnings about one object. An answer holds fewer, and repeated elements could cause any number.
const MOST: usize = 128;
/// Elements of a list that one of them is compared with.
const MOST_COMPARED: usize = 128;

/// Warnings in kube-apiserver's order.
#[derive(Debug, Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn add(&mut self, text: impl Into<String>) {
        if self.0.len() < MOST {
            self.0.push(text.into());
        }
    }
}

fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'o>(object: &'o Value, pointer: &str) -> impl Iterator<Item = &'o Value> + use<'o> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn annotations(object: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

/// Adds warnings about the pod template of a kind.
fn template(kind: &Kind, object: &Value, warnings: &mut Warnings) {
    let path = match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job")
        | ("", "ReplicationController") => "spec.template",
        ("batch", "CronJob") => "spec.jobTemplate.spec.template",
        ("", "PodTemplate") => "template",
        _ => return,
    };
    if let Some(template) = object.pointer(&format!("/{}", path.replace('.', "/"))) {
        pods::pod(path, template, warnings);
    }
}

/// Names from which pods are named had better be labels.
fn name(kind: &Kind, object: &Value, warnings: &mut Warnings) {
    let used = match (&*kind.gvk.group, &*kind.gvk.kind) {
        ("", "Pod") => "the Pod's hostname",
        ("", "ReplicationController") | ("apps", "Deployment" | "ReplicaSet") | ("batch", "Job" | "CronJob") => {
            "Pod names and hostnames"
        }
        _ => return,
    };
    let faults = dns_label(object::name(object));
    if !faults.is_empty() {
        let why = "which can result in surprising behavior; a DNS label is recommended";
        warnings.add(format!("metadata.name: this is used in {used}, {why}: [{}]", faults.join(" ")));
    }
}

/// Maximum of completions, and of parallel pods, of an indexed job whose failed indexes can be recorded.
const MANY_COMPLETIONS: i64 = 100_000;
const MANY_AT_A_TIME: i64 = 10_000;

fn job(path: &str, spec: Option<&Value>, warnings: &mut Warnings) {
    let Some(spec) = spec else { return };
    let number = |name: &str| spec.get(name).and_then(Value::as_i64).unwrap_or(0);
    let large = number("completions") > MANY_COMPLETIONS && number("parallelism") > MANY_AT_A_TIME;
    if text(spec, "/completionMode") == "Indexed" && large {
        let why = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail";
        warnings.add(format!("{path}: {why}"));
    }
}

fn stateful_set(is_change: bool, set: &Value, warnings: &mut Warnings) {
    // kube-apiserver's path of a change is this one.
    let below = if is_change { ".Spec" } else { "" };
    for (index, claim) in items(set, "/spec/volumeClaimTemplates").enumerate() {
        storage::sizes(claim.get("spec"), &format!("spec.volumeClaimTemplates[{index}]{below}"), warnings);
    }
    if set.pointer("/spec/revisionHistoryLimit").and_then(Value::as_i64).is_some_and(|limit| limit < 0) {
        let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
        warnings.add(format!("spec.revisionHistoryLimit: {why}"));
    }
}

/// Requests that are allowed to be more than limits.
fn quota(quota: &Value, warnings: &mut Warnings) {
    let hard =
        |name: &str| text(quota.pointer("/spec/hard").and_then(|hard| hard.get(name)).unwrap_or(&Value::Null), "");
    let amount = |text: &str| text.parse::<Quantity>().ok();
    for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (requests, limits) = (format!("requests.{name}"), format!("limits.{name}"));
        let plain = matches!(name, "cpu" | "memory") && hard(&requests).is_empty();
        let requests = if plain { name } else { &requests };
        let (request, limit) = (hard(requests), hard(&limits));
        if amount(request).zip(amount(limit)).is_some_and(|(request, limit)| request > limit) {
            warnings.add(format!("ResourceQuota {requests} ({request}) should be less than {limits} ({limit})"));
        }
    }
}

/// Warns of a certificate that does not fit its key.
fn secret(secret: &Value, warnings: &mut Warnings) {
    if text(secret, "/type") != "kubernetes.io/tls" {
        return;
    }
    let bytes = |name: &str| {
        let encoded = secret.get("data").and_then(|data| data.get(name)).and_then(Value::as_str).unwrap_or_default();
        portolan_gocompat::base64::read(encoded).unwrap_or_default()
    };
    pair_fault(&bytes("tls.crt"), &bytes("tls.key")).into_iter().for_each(|fault| warnings.add(fault));
}

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

fn service_account(old: Option<&Value>, new: &Value, warnings: &mut Warnings) {
    let has = |account: &Value| annotations(account).any(|(key, _)| key == MOUNTABLE);
    if has(new) && !old.is_some_and(has) {
        let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
        warnings.add(format!("metadata.annotations[{MOUNTABLE}]: {why}"));
    }
}

/// Suffix of names that belong to configuration files.
const STATIC: &str = ".static.k8s.io";

fn reserved_name(object: &Value, warnings: &mut Warnings) {
    if object::name(object).ends_with(STATIC) {
        let why = "are reserved for static manifest-based configurations and cannot be managed via the API";
        warnings.add(format!("metadata.name: names ending with {STATIC:?} {why}"));
    }
}

fn slice(slice: &Value, warnings: &mut Warnings) {
    let driver = text(slice, "/spec/driver");
    if driver.chars().any(char::is_uppercase) {
        let why = format!("driver names should be lowercase; {driver:?} contains uppercase characters");
        warnings.add(format!("spec.driver: {why}"));
    }
}

/// Returns true for a quantity that is not a whole number, down to a thousandth.
fn is_fractional(value: &Value) -> bool {
    const MILLI: i128 = 1_000_000;
    const WHOLE: i128 = 1000;
    let nanos = value.as_str().and_then(|text| text.parse::<Quantity>().ok()).map_or(0, Quantity::nanos);
    let milli = nanos.div_euclid(MILLI) + i128::from(nanos.rem_euclid(MILLI) != 0);
    milli % WHOLE != 0
}

/// Warns of finalizers added to a custom object whose names others may choose, too.
fn finalizers(old: Option<&Value>, new: &Value, warnings: &mut Warnings) {
    let had: BTreeSet<&str> = old.into_iter().flat_map(object::finalizers).collect();
    let added: BTreeSet<&str> = object::finalizers(new).filter(|name| !had.contains(name)).collect();
    for name in added {
        let mut warn = |why: &str| warnings.add(format!("metadata.finalizers: {name:?}: {why}"));
        key_faults(name).iter().for_each(|why| warn(why));
        if !name.contains('/') && !matches!(name, "orphan" | "foregroundDeletion" | "kubernetes") {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            let why = "to avoid accidental conflicts with other finalizer writers";
            warn(&format!("prefer a domain-qualified finalizer name{path} {why}"));
        }
    }
}
