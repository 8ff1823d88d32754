//! Checks of the Pod Security Standards, with the texts of `k8s.io/pod-security-admission`.

mod containers;
mod host;
mod profiles;

use serde_json::Value;

use super::policy::{PodSecurityLevel, PodSecurityStandard};
use containers::{
    capabilities, capabilities_restricted, privilege_escalation, privileged, proc_mount, proc_mount_baseline,
    run_as_non_root, run_as_user, volume_types,
};
use host::{host_namespaces, host_paths, host_ports, host_probes, host_process, sysctls};
use profiles::{app_armor, se_linux, seccomp_baseline, seccomp_restricted};

/// Violation of a standard by a pod.
pub(super) struct PodSecurityViolation {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

/// Pod under check.
pub(super) struct CheckedPod<'a> {
    pub(super) annotations: Option<&'a Value>,
    pub(super) spec: &'a Value,
    /// Minor version whose rules apply.
    pub(super) minor: u32,
}

type CheckResult = Option<PodSecurityViolation>;
type PodCheck = fn(&CheckedPod<'_>) -> CheckResult;

/// Check with the minor versions it applies to: since one, until a stricter check replaces it.
struct VersionedCheck {
    since: u32,
    check: PodCheck,
    replaced: Option<u32>,
}

const fn rule(since: u32, check: PodCheck) -> VersionedCheck {
    VersionedCheck { since, check, replaced: None }
}

const fn replaced(check: PodCheck, from: u32) -> VersionedCheck {
    VersionedCheck { since: 0, check, replaced: Some(from) }
}

// Ordered by id, as kube-apiserver reports them.
const BASELINE: [VersionedCheck; 12] = [
    rule(0, app_armor),
    replaced(capabilities, 22),
    rule(0, host_namespaces),
    replaced(host_paths, 0),
    rule(0, host_ports),
    rule(34, host_probes),
    rule(0, privileged),
    replaced(proc_mount_baseline, 35),
    rule(0, se_linux),
    replaced(seccomp_baseline, 19),
    rule(0, sysctls),
    rule(0, host_process),
];
const RESTRICTED: [VersionedCheck; 7] = [
    rule(8, privilege_escalation),
    rule(22, capabilities_restricted),
    rule(35, proc_mount),
    rule(0, volume_types),
    rule(0, run_as_non_root),
    rule(23, run_as_user),
    rule(19, seccomp_restricted),
];

/// Returns all violations of a standard by a pod.
pub(super) fn violations(
    standard: PodSecurityStandard,
    annotations: Option<&Value>,
    spec: &Value,
) -> Vec<PodSecurityViolation> {
    let pod = CheckedPod { annotations, spec, minor: standard.version.minor() };
    let holds = |rule: &&VersionedCheck| rule.since <= pod.minor;
    let baseline = || BASELINE.iter().filter(holds);
    let checks: Vec<&VersionedCheck> = match standard.level {
        PodSecurityLevel::Privileged => Vec::new(),
        PodSecurityLevel::Baseline => baseline().collect(),
        PodSecurityLevel::Restricted => {
            let kept = baseline().filter(|rule| rule.replaced.is_none_or(|from| pod.minor < from));
            kept.chain(RESTRICTED.iter().filter(holds)).collect()
        }
    };
    checks.into_iter().filter_map(|rule| (rule.check)(&pod)).collect()
}

impl<'a> CheckedPod<'a> {
    fn list(&self, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.spec.get(key).and_then(Value::as_array).into_iter().flatten()
    }

    /// Returns all containers: init containers first, ephemeral ones last.
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.list("initContainers").chain(self.list("containers")).chain(self.list("ephemeralContainers"))
    }

    fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.spec.pointer(pointer).filter(|value| !value.is_null())
    }

    fn is_windows(&self) -> bool {
        self.at("/os/name").and_then(Value::as_str) == Some("windows")
    }

    /// Returns true for a pod with a user namespace, whose users have no rights on the host.
    fn has_own_users(&self) -> bool {
        self.minor >= 35 && self.at("/hostUsers") == Some(&Value::Bool(false))
    }

    /// Names the setters of a bad `securityContext`: `pod`, and containers by name.
    fn setters(&self, mut bad: impl FnMut(&'a Value) -> bool) -> Vec<String> {
        let pod = self.at("/securityContext").is_some_and(&mut bad).then(|| "pod".to_owned());
        let names: Vec<&str> = self.containers().filter(|c| security(c).is_some_and(&mut bad)).map(name).collect();
        pod.into_iter().chain((!names.is_empty()).then(|| quoted_list("container", &names))).collect()
    }
}

fn name(item: &Value) -> &str {
    item.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn security(container: &Value) -> Option<&Value> {
    container.get("securityContext").filter(|context| !context.is_null())
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

fn quoted<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    items.into_iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ")
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// Formats names: `container "a"`, `containers "a", "b"`.
fn quoted_list(word: &str, names: &[&str]) -> String {
    format!("{} {}", plural(word, names.len()), quoted(names.iter().copied()))
}

fn verb_form(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

fn violation(reason: &'static str, detail: String) -> CheckResult {
    Some(PodSecurityViolation { reason, detail })
}
