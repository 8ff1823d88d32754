//! The checks of the Pod Security Standards, in the words of `k8s.io/pod-security-admission`.

use std::collections::BTreeSet;

use portolan_types::pod_security::{CAPABILITIES, SYSCTLS};
use serde_json::Value;

use super::policy::{Level, Standard};

/// What a check has against a pod.
pub(super) struct Violation {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

/// A pod as checks see it.
pub(super) struct Pod<'a> {
    pub(super) annotations: Option<&'a Value>,
    pub(super) spec: &'a Value,
    /// The minor version whose rules hold.
    pub(super) minor: u32,
}

type Found = Option<Violation>;
type Check = fn(&Pod<'_>) -> Found;

/// A check: since which minor version, what it checks, and from when on a stricter one stands for it.
struct Rule {
    since: u32,
    check: Check,
    replaced: Option<u32>,
}

const fn rule(since: u32, check: Check) -> Rule {
    Rule { since, check, replaced: None }
}

const fn replaced(check: Check, from: u32) -> Rule {
    Rule { since: 0, check, replaced: Some(from) }
}

/// In the order of their ids, as upstream tells them.
const BASELINE: [Rule; 12] = [
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
const RESTRICTED: [Rule; 7] = [
    rule(8, privilege_escalation),
    rule(22, capabilities_restricted),
    rule(35, proc_mount),
    rule(0, volume_types),
    rule(0, run_as_non_root),
    rule(23, run_as_user),
    rule(19, seccomp_restricted),
];

/// All that a standard has against a pod.
pub(super) fn violations(standard: Standard, annotations: Option<&Value>, spec: &Value) -> Vec<Violation> {
    let pod = Pod { annotations, spec, minor: standard.version.minor() };
    let holds = |rule: &&Rule| rule.since <= pod.minor;
    let baseline = || BASELINE.iter().filter(holds);
    let checks: Vec<&Rule> = match standard.level {
        Level::Privileged => Vec::new(),
        Level::Baseline => baseline().collect(),
        Level::Restricted => {
            let kept = baseline().filter(|rule| rule.replaced.is_none_or(|from| pod.minor < from));
            kept.chain(RESTRICTED.iter().filter(holds)).collect()
        }
    };
    checks.into_iter().filter_map(|rule| (rule.check)(&pod)).collect()
}

impl<'a> Pod<'a> {
    fn list(&self, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.spec.get(key).and_then(Value::as_array).into_iter().flatten()
    }

    /// Init containers first, ephemeral ones last.
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.list("initContainers").chain(self.list("containers")).chain(self.list("ephemeralContainers"))
    }

    fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.spec.pointer(pointer).filter(|value| !value.is_null())
    }

    fn is_windows(&self) -> bool {
        self.at("/os/name").and_then(Value::as_str) == Some("windows")
    }

    /// Users of a pod with user namespaces are nobody on the host.
    fn has_own_users(&self) -> bool {
        self.minor >= 35 && self.at("/hostUsers") == Some(&Value::Bool(false))
    }

    /// Who sets `securityContext` to something that `bad` finds: `pod`, and containers by name.
    fn setters(&self, mut bad: impl FnMut(&'a Value) -> bool) -> Vec<String> {
        let pod = self.at("/securityContext").is_some_and(&mut bad).then(|| "pod".to_owned());
        let names: Vec<&str> = self.containers().filter(|c| security(c).is_some_and(&mut bad)).map(name).collect();
        pod.into_iter().chain((!names.is_empty()).then(|| some("container", &names))).collect()
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

/// `container "a"`, `containers "a", "b"`.
fn some(word: &str, names: &[&str]) -> String {
    format!("{} {}", plural(word, names.len()), quoted(names.iter().copied()))
}

fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

fn violation(reason: &'static str, detail: String) -> Found {
    Some(Violation { reason, detail })
}

fn privilege_escalation(pod: &Pod<'_>) -> Found {
    if pod.minor >= 25 && pod.is_windows() {
        return None;
    }
    let allowed = |c: &&Value| c.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false));
    let bad: Vec<&str> = pod.containers().filter(allowed).map(name).collect();
    let detail = || format!("{} must set securityContext.allowPrivilegeEscalation=false", some("container", &bad));
    (!bad.is_empty()).then(detail).and_then(|detail| violation("allowPrivilegeEscalation != false", detail))
}

fn app_armor(pod: &Pod<'_>) -> Found {
    let mut values = BTreeSet::new();
    let mut setters = pod.setters(|context| {
        let Some(profile) = context.get("appArmorProfile").filter(|profile| !profile.is_null()) else { return false };
        let kind = text(profile, "/type").unwrap_or_default();
        let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind.to_owned());
        }
        bad
    });
    let annotations = pod.annotations.and_then(Value::as_object).into_iter().flatten();
    let mut old: Vec<String> = annotations
        .filter(|(key, _)| key.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, value)| !(value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/")))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    old.sort();
    if !old.is_empty() {
        setters.push(plural("annotation", old.len()));
    }
    if setters.is_empty() {
        return None;
    }
    let values: Vec<String> = values.into_iter().chain(old).collect();
    let reason = if values.len() == 1 { "forbidden AppArmor profile" } else { "forbidden AppArmor profiles" };
    let shown = quoted(values.iter().map(String::as_str));
    violation(reason, format!("{} must not set AppArmor profile type to {shown}", setters.join(" and ")))
}

fn capability_list<'a>(container: &'a Value, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let list = container.pointer(&format!("/securityContext/capabilities/{key}")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Containers that add other capabilities than `allowed`, and which.
fn added<'a>(pod: &Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
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
    format!("{} must not include {} in securityContext.capabilities.add", some("container", bad), quoted(capabilities))
}

fn capabilities(pod: &Pod<'_>) -> Found {
    let (bad, capabilities) = added(pod, &CAPABILITIES);
    let detail = || not_included(&bad, capabilities);
    (!bad.is_empty()).then(detail).and_then(|detail| violation("non-default capabilities", detail))
}

fn capabilities_restricted(pod: &Pod<'_>) -> Found {
    if pod.minor >= 25 && pod.is_windows() {
        return None;
    }
    let keeps = |container: &&Value| !capability_list(container, "drop").any(|c| c == "ALL");
    let keeping: Vec<&str> = pod.containers().filter(keeps).map(name).collect();
    let (bad, capabilities) = added(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", some("container", &keeping)));
    }
    if !bad.is_empty() {
        details.push(not_included(&bad, capabilities));
    }
    (!details.is_empty()).then(|| details.join("; ")).and_then(|detail| violation("unrestricted capabilities", detail))
}

fn host_namespaces(pod: &Pod<'_>) -> Found {
    let set = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|key| pod.spec.get(*key) == Some(&true.into()));
    let set: Vec<String> = set.map(|key| format!("{key}=true")).collect();
    (!set.is_empty()).then(|| set.join(", ")).and_then(|detail| violation("host namespaces", detail))
}

fn host_paths(pod: &Pod<'_>) -> Found {
    let bad = pod.list("volumes").filter(|volume| volume.get("hostPath").is_some_and(|path| !path.is_null()));
    let bad: Vec<&str> = bad.map(name).collect();
    (!bad.is_empty()).then(|| some("volume", &bad)).and_then(|detail| violation("hostPath volumes", detail))
}

fn host_ports(pod: &Pod<'_>) -> Found {
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
    violation("hostPort", format!("{} {} {word} {ports}", some("container", &bad), uses(bad.len())))
}

fn host_probes(pod: &Pod<'_>) -> Found {
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
    let detail = format!("{} {} {word} {}", some("container", &bad), uses(bad.len()), quoted(hosts));
    violation("probe or lifecycle host", detail)
}

fn privileged(pod: &Pod<'_>) -> Found {
    let set = |c: &&Value| c.pointer("/securityContext/privileged") == Some(&Value::Bool(true));
    let bad: Vec<&str> = pod.containers().filter(set).map(name).collect();
    let detail = || format!("{} must not set securityContext.privileged=true", some("container", &bad));
    (!bad.is_empty()).then(detail).and_then(|detail| violation("privileged", detail))
}

fn proc_mount_baseline(pod: &Pod<'_>) -> Found {
    if pod.has_own_users() { None } else { proc_mount(pod) }
}

fn proc_mount(pod: &Pod<'_>) -> Found {
    let (mut bad, mut kinds) = (Vec::new(), BTreeSet::new());
    for container in pod.containers() {
        if let Some(kind) = text(container, "/securityContext/procMount").filter(|kind| *kind != "Default") {
            bad.push(name(container));
            kinds.insert(kind);
        }
    }
    let detail = || format!("{} must not set securityContext.procMount to {}", some("container", &bad), quoted(kinds));
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

fn volume_types(pod: &Pod<'_>) -> Found {
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
    let detail = format!("{} {} {word} {}", some("volume", &bad), uses(bad.len()), quoted(kinds));
    violation("restricted volume types", detail)
}

fn run_as_non_root(pod: &Pod<'_>) -> Found {
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
    let detail = || format!("pod or {} must set securityContext.runAsNonRoot=true", some("container", &silent));
    (!silent.is_empty()).then(detail).and_then(|detail| violation(REASON, detail))
}

fn run_as_user(pod: &Pod<'_>) -> Found {
    if pod.has_own_users() {
        return None;
    }
    let setters = pod.setters(|context| context.get("runAsUser").and_then(Value::as_i64) == Some(0));
    let detail = || format!("{} must not set runAsUser=0", setters.join(" and "));
    (!setters.is_empty()).then(detail).and_then(|detail| violation("runAsUser=0", detail))
}

fn se_linux(pod: &Pod<'_>) -> Found {
    let (mut kinds, mut sets_user, mut sets_role) = (BTreeSet::new(), false, false);
    let setters = pod.setters(|context| {
        let Some(options) = context.get("seLinuxOptions").filter(|options| !options.is_null()) else { return false };
        let of = |key: &str| options.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = of("type");
        let known = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (pod.minor >= 31 && kind == "container_engine_t");
        if !known {
            kinds.insert(kind);
        }
        let (user, role) = (!of("user").is_empty(), !of("role").is_empty());
        sets_user |= user;
        sets_role |= role;
        !known || user || role
    });
    if setters.is_empty() {
        return None;
    }
    let mut details = Vec::new();
    if !kinds.is_empty() {
        details.push(some("type", &kinds.into_iter().collect::<Vec<_>>()));
    }
    details.extend(sets_user.then(|| "user may not be set".to_owned()));
    details.extend(sets_role.then(|| "role may not be set".to_owned()));
    let (who, what) = (setters.join(" and "), details.join("; "));
    violation("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {what}"))
}

fn seccomp_baseline(pod: &Pod<'_>) -> Found {
    if pod.minor < 19 { seccomp_annotations(pod) } else { seccomp_types(pod) }
}

fn seccomp_annotations(pod: &Pod<'_>) -> Found {
    let own = pod.containers().map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", name(c)));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(own);
    let valid = |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let bad: BTreeSet<String> = keys
        .filter_map(|key| {
            let value = pod.annotations?.get(&key)?.as_str()?;
            (!valid(value)).then(|| format!("{key}={value:?}"))
        })
        .collect();
    let word = plural("annotation", bad.len());
    let detail = || format!("forbidden {word} {}", bad.iter().cloned().collect::<Vec<_>>().join(", "));
    (!bad.is_empty()).then(detail).and_then(|detail| violation("seccompProfile", detail))
}

fn seccomp_types(pod: &Pod<'_>) -> Found {
    let mut kinds = BTreeSet::new();
    let setters = pod.setters(|context| {
        let Some(profile) = context.get("seccompProfile").filter(|profile| !profile.is_null()) else { return false };
        let kind = text(profile, "/type").unwrap_or_default();
        let bad = !matches!(kind, "Localhost" | "RuntimeDefault");
        if bad {
            kinds.insert(kind);
        }
        bad
    });
    let who = setters.join(" and ");
    let detail = || format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(kinds));
    (!setters.is_empty()).then(detail).and_then(|detail| violation("seccompProfile", detail))
}

fn seccomp_restricted(pod: &Pod<'_>) -> Found {
    if pod.minor >= 25 && pod.is_windows() {
        return None;
    }
    if let Some(bad) = seccomp_types(pod) {
        return Some(bad);
    }
    if pod.at("/securityContext/seccompProfile").is_some() {
        return None;
    }
    let silent = |c: &&Value| c.pointer("/securityContext/seccompProfile").is_none_or(Value::is_null);
    let silent: Vec<&str> = pod.containers().filter(silent).map(name).collect();
    let who = some("container", &silent);
    let detail =
        || format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"");
    (!silent.is_empty()).then(detail).and_then(|detail| violation("seccompProfile", detail))
}

fn sysctls(pod: &Pod<'_>) -> Found {
    let list = pod.at("/securityContext/sysctls").and_then(Value::as_array).into_iter().flatten().map(name);
    let allowed = |wanted: &str| SYSCTLS.iter().any(|(name, since)| *name == wanted && *since <= pod.minor);
    let bad: Vec<&str> = list.filter(|name| !allowed(name)).collect();
    (!bad.is_empty()).then(|| bad.join(", ")).and_then(|detail| violation("forbidden sysctls", detail))
}

fn host_process(pod: &Pod<'_>) -> Found {
    let setters = pod.setters(|context| context.pointer("/windowsOptions/hostProcess") == Some(&Value::Bool(true)));
    let detail = || format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and "));
    (!setters.is_empty()).then(detail).and_then(|detail| violation("hostProcess", detail))
}
