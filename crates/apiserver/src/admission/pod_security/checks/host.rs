//! Access to the host: namespaces, paths, ports, probes and sysctls.

use std::collections::BTreeSet;

use portolan_types::pod_security::SYSCTLS;
use serde_json::Value;

use super::{CheckResult, CheckedPod, name, plural, quoted, quoted_list, text, verb_form, violation};

pub(super) fn host_namespaces(pod: &CheckedPod<'_>) -> CheckResult {
    let set = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|key| pod.spec.get(*key) == Some(&true.into()));
    let set: Vec<String> = set.map(|key| format!("{key}=true")).collect();
    (!set.is_empty()).then(|| set.join(", ")).and_then(|detail| violation("host namespaces", detail))
}

pub(super) fn host_paths(pod: &CheckedPod<'_>) -> CheckResult {
    let bad = pod.list("volumes").filter(|volume| volume.get("hostPath").is_some_and(|path| !path.is_null()));
    let bad: Vec<&str> = bad.map(name).collect();
    (!bad.is_empty()).then(|| quoted_list("volume", &bad)).and_then(|detail| violation("hostPath volumes", detail))
}

pub(super) fn host_ports(pod: &CheckedPod<'_>) -> CheckResult {
    let (mut bad, mut ports) = (Vec::new(), BTreeSet::new());
    for container in pod.containers() {
        let own = container.get("ports").and_then(Value::as_array).into_iter().flatten();
        let own: Vec<i64> = own.filter_map(|port| port.get("hostPort")?.as_i64()).filter(|port| *port != 0).collect();
        if !own.is_empty() {
            bad.push(name(container));
        }
        ports.extend(own.iter().map(i64::to_string));
    }
    if bad.is_empty() {
        return None;
    }
    let word = plural("hostPort", ports.len());
    let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
    violation("hostPort", format!("{} {} {word} {ports}", quoted_list("container", &bad), verb_form(bad.len())))
}

pub(super) fn host_probes(pod: &CheckedPod<'_>) -> CheckResult {
    const HANDLERS: [&str; 5] =
        ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/postStart", "lifecycle/preStop"];
    let (mut bad, mut hosts) = (BTreeSet::new(), BTreeSet::new());
    for container in pod.containers() {
        for handler in HANDLERS {
            for action in ["httpGet", "tcpSocket"] {
                let host = text(container, &format!("/{handler}/{action}/host"));
                if let Some(host) = host.filter(|host| !host.is_empty()) {
                    bad.insert(name(container));
                    hosts.insert(host);
                }
            }
        }
    }
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<&str> = bad.into_iter().collect();
    let word = plural("probe or lifecycle host", hosts.len());
    let detail = format!("{} {} {word} {}", quoted_list("container", &bad), verb_form(bad.len()), quoted(hosts));
    violation("probe or lifecycle host", detail)
}

pub(super) fn sysctls(pod: &CheckedPod<'_>) -> CheckResult {
    let list = pod.at("/securityContext/sysctls").and_then(Value::as_array).into_iter().flatten().map(name);
    let allowed = |wanted: &str| SYSCTLS.iter().any(|(name, since)| *name == wanted && *since <= pod.minor);
    let bad: Vec<&str> = list.filter(|name| !allowed(name)).collect();
    (!bad.is_empty()).then(|| bad.join(", ")).and_then(|detail| violation("forbidden sysctls", detail))
}

pub(super) fn host_process(pod: &CheckedPod<'_>) -> CheckResult {
    let setters = pod.setters(|context| context.pointer("/windowsOptions/hostProcess") == Some(&Value::Bool(true)));
    let detail = || format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and "));
    (!setters.is_empty()).then(detail).and_then(|detail| violation("hostProcess", detail))
}
