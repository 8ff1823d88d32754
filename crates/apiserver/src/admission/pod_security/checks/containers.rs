//! Rights of containers, and volumes.

use std::collections::BTreeSet;

use portolan_types::pod_security::CAPABILITIES;
use serde_json::Value;

use super::{CheckResult, CheckedPod, name, plural, quoted, quoted_list, text, verb_form, violation};

pub(super) fn privilege_escalation(pod: &CheckedPod<'_>) -> CheckResult {
    if pod.minor >= 25 && pod.is_windows() {
        return None;
    }
    let allowed = |c: &&Value| c.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false));
    let bad: Vec<&str> = pod.containers().filter(allowed).map(name).collect();
    let detail =
        || format!("{} must set securityContext.allowPrivilegeEscalation=false", quoted_list("container", &bad));
    (!bad.is_empty()).then(detail).and_then(|detail| violation("allowPrivilegeEscalation != false", detail))
}

fn capability_list<'a>(container: &'a Value, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let list = container.pointer(&format!("/securityContext/capabilities/{key}")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the containers that add capabilities outside `allowed`, and these capabilities.
fn added<'a>(pod: &CheckedPod<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let (mut bad, mut capabilities) = (Vec::new(), BTreeSet::new());
    for container in pod.containers() {
        let others: Vec<&str> = capability_list(container, "add").filter(|c| !allowed.contains(c)).collect();
        if !others.is_empty() {
            bad.push(name(container));
        }
        capabilities.extend(others);
    }
    (bad, capabilities)
}

fn not_included(bad: &[&str], capabilities: BTreeSet<&str>) -> String {
    format!(
        "{} must not include {} in securityContext.capabilities.add",
        quoted_list("container", bad),
        quoted(capabilities)
    )
}

pub(super) fn capabilities(pod: &CheckedPod<'_>) -> CheckResult {
    let (bad, capabilities) = added(pod, &CAPABILITIES);
    let detail = || not_included(&bad, capabilities);
    (!bad.is_empty()).then(detail).and_then(|detail| violation("non-default capabilities", detail))
}

pub(super) fn capabilities_restricted(pod: &CheckedPod<'_>) -> CheckResult {
    if pod.minor >= 25 && pod.is_windows() {
        return None;
    }
    let keeps = |container: &&Value| !capability_list(container, "drop").any(|c| c == "ALL");
    let keeping: Vec<&str> = pod.containers().filter(keeps).map(name).collect();
    let (bad, capabilities) = added(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            quoted_list("container", &keeping)
        ));
    }
    if !bad.is_empty() {
        details.push(not_included(&bad, capabilities));
    }
    (!details.is_empty()).then(|| details.join("; ")).and_then(|detail| violation("unrestricted capabilities", detail))
}

pub(super) fn privileged(pod: &CheckedPod<'_>) -> CheckResult {
    let set = |c: &&Value| c.pointer("/securityContext/privileged") == Some(&Value::Bool(true));
    let bad: Vec<&str> = pod.containers().filter(set).map(name).collect();
    let detail = || format!("{} must not set securityContext.privileged=true", quoted_list("container", &bad));
    (!bad.is_empty()).then(detail).and_then(|detail| violation("privileged", detail))
}

pub(super) fn proc_mount_baseline(pod: &CheckedPod<'_>) -> CheckResult {
    if pod.has_own_users() { None } else { proc_mount(pod) }
}

pub(super) fn proc_mount(pod: &CheckedPod<'_>) -> CheckResult {
    let (mut bad, mut kinds) = (Vec::new(), BTreeSet::new());
    for container in pod.containers() {
        if let Some(kind) = text(container, "/securityContext/procMount").filter(|kind| *kind != "Default") {
            bad.push(name(container));
            kinds.insert(kind);
        }
    }
    let detail =
        || format!("{} must not set securityContext.procMount to {}", quoted_list("container", &bad), quoted(kinds));
    (!bad.is_empty()).then(detail).and_then(|detail| violation("procMount", detail))
}

const SAFE_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

pub(super) fn volume_types(pod: &CheckedPod<'_>) -> CheckResult {
    let (mut bad, mut kinds) = (Vec::new(), BTreeSet::new());
    for volume in pod.list("volumes") {
        let is_of = |kind: &&&str| volume.get(**kind).is_some_and(|source| !source.is_null());
        if SAFE_VOLUMES.iter().any(|kind| is_of(&kind)) {
            continue;
        }
        bad.push(name(volume));
        kinds.insert(OTHER_VOLUMES.iter().find(is_of).copied().unwrap_or("unknown"));
    }
    if bad.is_empty() {
        return None;
    }
    let word = plural("restricted volume type", kinds.len());
    let detail = format!("{} {} {word} {}", quoted_list("volume", &bad), verb_form(bad.len()), quoted(kinds));
    violation("restricted volume types", detail)
}

pub(super) fn run_as_non_root(pod: &CheckedPod<'_>) -> CheckResult {
    if pod.has_own_users() {
        return None;
    }
    const REASON: &str = "runAsNonRoot != true";
    let setters = pod.setters(|context| context.get("runAsNonRoot") == Some(&Value::Bool(false)));
    if !setters.is_empty() {
        let who = setters.join(" and ");
        return violation(REASON, format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    if pod.at("/securityContext/runAsNonRoot") == Some(&Value::Bool(true)) {
        return None;
    }
    let silent = |c: &&Value| c.pointer("/securityContext/runAsNonRoot").is_none_or(Value::is_null);
    let silent: Vec<&str> = pod.containers().filter(silent).map(name).collect();
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", quoted_list("container", &silent));
    (!silent.is_empty()).then(detail).and_then(|detail| violation(REASON, detail))
}

pub(super) fn run_as_user(pod: &CheckedPod<'_>) -> CheckResult {
    if pod.has_own_users() {
        return None;
    }
    let setters = pod.setters(|context| context.get("runAsUser").and_then(Value::as_i64) == Some(0));
    let detail = || format!("{} must not set runAsUser=0", setters.join(" and "));
    (!setters.is_empty()).then(detail).and_then(|detail| violation("runAsUser=0", detail))
}
