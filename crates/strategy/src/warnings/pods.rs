//! Warnings about pods and templates of pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::{MOST_COMPARED, Warnings, addresses, annotations, is_fractional, items, nodes, paths, storage, text};
use crate::lifecycle::profile_of_annotation;

/// Deprecated kinds of volumes, in the order in which they are checked.
const ENDED: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
/// Annotations that have become fields.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const USE_SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const USE_APPARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
const NO_POD: &str = "a null labelSelector results in matching no pod";

/// Returns the deprecation of a kind of volumes.
pub(super) fn end_of(plugin: &str) -> &'static str {
    ENDED.iter().find(|(name, _)| *name == plugin).map_or("", |(_, end)| end)
}

/// Warnings about a pod at `path`, which is empty for a pod that is no template.
pub(super) fn pod(path: &str, pod: &Value, warnings: &mut Warnings) {
    let at = |rest: String| if path.is_empty() { rest } else { format!("{path}.{rest}") };
    for (key, what) in nodes::old_keys(pod.pointer("/spec/nodeSelector")) {
        warnings.add(at(format!("spec.nodeSelector[{key}]: {what}")));
    }
    node_affinity(&at, pod, warnings);
    for (index, spread) in items(pod, "/spec/topologySpreadConstraints").enumerate() {
        let key = text(spread, "/topologyKey");
        if let Some(what) = nodes::old_label(key) {
            warnings.add(at(format!("spec.topologySpreadConstraints[{index}].topologyKey: {key} is {what}")));
        }
        if spread.get("labelSelector").is_none_or(Value::is_null) {
            warnings.add(at(format!("spec.topologySpreadConstraints[{index}].labelSelector: {NO_POD}")));
        }
    }
    for (key, why) in OLD_ANNOTATIONS {
        if annotations(pod).any(|(own, _)| own == key) {
            warnings.add(at(format!("metadata.annotations[{key}]: {why}")));
        }
    }
    for (index, volume) in items(pod, "/spec/volumes").enumerate() {
        for (plugin, end) in ENDED.iter().filter(|(plugin, _)| volume.get(plugin).is_some()) {
            let plugin = if *plugin == "storageos" { "storageOS" } else { plugin };
            warnings.add(at(format!("spec.volumes[{index}].{plugin}: {end}")));
        }
        if let Some(claim) = volume.pointer("/ephemeral/volumeClaimTemplate") {
            let path = at(format!("spec.volumes[{index}].ephemeral.volumeClaimTemplate.spec"));
            storage::sizes(claim.get("spec"), &path, warnings);
        }
    }
    items(pod, "/spec/volumes").for_each(|volume| paths::overlaps(volume, warnings));
    twice(&at, pod, "hostAliases", "ip", warnings);
    twice(&at, pod, "imagePullSecrets", "name", warnings);
    for (index, secret) in items(pod, "/spec/imagePullSecrets").enumerate() {
        if text(secret, "/name").is_empty() {
            warnings.add(at(format!("spec.imagePullSecrets[{index}].name: invalid empty name \"\"")));
        }
    }
    fractions(&at("spec.overhead".to_owned()), pod.pointer("/spec/overhead"), warnings);
    profiles(path, pod, warnings);
    ports(&at, pod, warnings);
    if pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|grace| grace < 0) {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        warnings.add(at(format!("spec.terminationGracePeriodSeconds: {why}")));
    }
    affinity(&at, pod, warnings);
    addresses::ips(pod, "/spec/dnsConfig/nameservers", &at("spec.dnsConfig.nameservers".to_owned()), warnings);
    addresses::ips_of(pod, "/spec/hostAliases", ("ip", ".ip"), &at("spec.hostAliases".to_owned()), warnings);
}

/// Amounts of memory and storage that are no whole numbers of bytes.
fn fractions(path: &str, amounts: Option<&Value>, warnings: &mut Warnings) {
    for name in ["memory", "ephemeral-storage"] {
        fraction(path, amounts, name, warnings);
    }
}

fn fraction(path: &str, amounts: Option<&Value>, name: &str, warnings: &mut Warnings) {
    if let Some(amount) = amounts.and_then(|amounts| amounts.get(name)).filter(|amount| is_fractional(amount)) {
        warnings.add(format!("{path}[{name}]: fractional byte value {amount} is invalid, must be an integer"));
    }
}

/// Nodes that are chosen by labels of old, or preferred by values that no label has.
fn node_affinity(at: &dyn Fn(String) -> String, pod: &Value, warnings: &mut Warnings) {
    let affinity = "spec.affinity.nodeAffinity";
    let required = format!("{affinity}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
    for (index, term) in items(pod, &format!("/{}", required.replace('.', "/"))).enumerate() {
        nodes::expressions(term, &at(format!("{required}[{index}]")), false, warnings);
    }
    let preferred = format!("{affinity}.preferredDuringSchedulingIgnoredDuringExecution");
    for (index, term) in items(pod, &format!("/{}", preferred.replace('.', "/"))).enumerate() {
        if let Some(term) = term.get("preference") {
            nodes::expressions(term, &at(format!("{preferred}[{index}].preference")), true, warnings);
        }
    }
}

/// Warns of AppArmor profiles in annotations of a pod that its containers will get, or cannot get.
pub(super) fn profiles_by_annotation(pod: &Value, warnings: &mut Warnings) {
    if text(pod, "/spec/os/name") == "windows" {
        return;
    }
    let of_pod = pod.pointer("/spec/securityContext/appArmorProfile");
    let annotated: HashMap<_, _> = annotations(pod).collect();
    for (_, container) in containers(pod) {
        let key = format!("{APPARMOR}{}", text(container, "/name"));
        let Some(named) = annotated.get(key.as_str()) else { continue };
        let has_one = container.pointer("/securityContext/appArmorProfile").is_some();
        let named = profile_of_annotation(named);
        if !has_one && (named.is_none() || named.as_ref() != of_pod) {
            warnings.add(format!("metadata.annotations[{key}]: {USE_APPARMOR}"));
        }
    }
}

/// List elements whose name an earlier element already has.
fn twice(at: &dyn Fn(String) -> String, pod: &Value, list: &str, key: &str, warnings: &mut Warnings) {
    let mut seen = BTreeSet::new();
    for (index, item) in items(pod, &format!("/spec/{list}")).enumerate() {
        let name = text(item, &format!("/{key}"));
        if !seen.insert(name) {
            warnings.add(at(format!("spec.{list}[{index}].{key}: duplicate {key} {name:?}")));
        }
    }
}

/// Returns all containers with their paths: first those that run before the others.
fn containers(pod: &Value) -> impl Iterator<Item = (String, &Value)> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |list| {
        let all = items(pod, &format!("/spec/{list}")).enumerate();
        all.map(move |(index, container)| (format!("spec.{list}[{index}]"), container))
    })
}

fn profiles(path: &str, pod: &Value, warnings: &mut Warnings) {
    let at = |rest: String| if path.is_empty() { rest } else { format!("{path}.{rest}") };
    let annotated: HashMap<_, _> = annotations(pod).collect();
    let has = |key: &str| annotated.contains_key(key);
    let set = |object: &Value, field: &str| object.pointer(&format!("/securityContext/{field}")).is_some();
    let of_pod = pod.get("spec").unwrap_or(&Value::Null);
    if !set(of_pod, "seccompProfile") && has(SECCOMP_OF_POD) {
        warnings.add(at(format!("metadata.annotations[{SECCOMP_OF_POD}]: {USE_SECCOMP}")));
    }
    for (place, container) in containers(pod) {
        let name = text(container, "/name");
        let (seccomp, apparmor) = (format!("{SECCOMP}{name}"), format!("{APPARMOR}{name}"));
        if !set(container, "seccompProfile") && has(&seccomp) {
            warnings.add(at(format!("metadata.annotations[{seccomp}]: {USE_SECCOMP}")));
        }
        // For pods, the warning comes before the annotation becomes a field.
        let named = annotated.get(apparmor.as_str()).filter(|_| !path.is_empty());
        if let Some(named) = named.filter(|_| !set(container, "appArmorProfile")) {
            let of_pod = of_pod.pointer("/securityContext/appArmorProfile");
            if of_pod.is_none() || of_pod != profile_of_annotation(named).as_ref() {
                warnings.add(at(format!("metadata.annotations[{apparmor}]: {USE_APPARMOR}")));
            }
        }
        for name in ["memory", "ephemeral-storage"] {
            for list in ["limits", "requests"] {
                let amounts = container.pointer(&format!("/resources/{list}"));
                fraction(&at(format!("{place}.resources.{list}")), amounts, name, warnings);
            }
        }
        environment(&at(place), container, warnings);
    }
}

/// Variables that hide one of the same name without taking it up.
fn environment(place: &str, container: &Value, warnings: &mut Warnings) {
    let mut seen = BTreeSet::new();
    for (index, variable) in items(container, "/env").enumerate() {
        let (name, value) = (text(variable, "/name"), text(variable, "/value"));
        let reference = format!("$({name})");
        let takes_up = variable.get("valueFrom").is_none() && value != reference && value.contains(&reference);
        if !seen.insert(name) && !takes_up {
            let why = format!("hides previous definition of {name:?}, which may be dropped when using apply");
            warnings.add(format!("{place}.env[{index}]: {why}"));
        }
    }
}

/// Ports that several containers of the pod, or one twice, claim.
fn ports(at: &dyn Fn(String) -> String, pod: &Value, warnings: &mut Warnings) {
    let mut taken: BTreeMap<String, Vec<(String, &Value)>> = BTreeMap::new();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let mut of_names = Warnings::default();
    for (place, container) in containers(pod) {
        for (index, port) in items(container, "/ports").enumerate() {
            let own = at(format!("{place}.ports[{index}]"));
            let (host_ip, host_port) = (text(port, "/hostIP"), number(port, "/hostPort"));
            if !host_ip.is_empty() && host_port == 0 {
                warnings.add(format!("{own}: hostIP set without hostPort: {}", printed_port(port)));
            }
            let key = format!("{}/{}", number(port, "/containerPort"), text(port, "/protocol"));
            let others = taken.entry(key).or_default();
            for (other, first) in others.iter().take(MOST_COMPARED) {
                if let Some(how) = clash(port, first) {
                    warnings.add(format!("{own}: {how} port definition with {other}"));
                }
            }
            others.push((own.clone(), port));
            let name = text(port, "/name");
            match names.get(name) {
                _ if name.is_empty() => {}
                Some(first) => {
                    let what = format!("services and probes that select ports by name will use {first}");
                    of_names.add(format!("{own}: duplicate port name {name:?} with {first}, {what}"));
                }
                None => drop(names.insert(name, own)),
            }
        }
    }
    warnings.0.append(&mut of_names.0);
}

/// Returns a port as Go prints it.
fn printed_port(port: &Value) -> String {
    let (name, protocol, ip) = (text(port, "/name"), text(port, "/protocol"), text(port, "/hostIP"));
    let (host, container) = (number(port, "/hostPort"), number(port, "/containerPort"));
    format!("{{Name:{name} HostPort:{host} ContainerPort:{container} Protocol:{protocol} HostIP:{ip}}}")
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// Returns the conflict of two definitions of one port and protocol.
fn clash(port: &Value, first: &Value) -> Option<&'static str> {
    let (ip, other_ip) = (text(port, "/hostIP"), text(first, "/hostIP"));
    let (host, other_host) = (number(port, "/hostPort"), number(first, "/hostPort"));
    if ip == other_ip && host == other_host {
        return Some("duplicate");
    }
    if host == 0 || other_host == 0 {
        return Some("overlapping");
    }
    (host == other_host && ip.is_empty() != other_ip.is_empty()).then_some("dangerously ambiguous")
}

fn affinity(at: &dyn Fn(String) -> String, pod: &Value, warnings: &mut Warnings) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (list, below) in [
            ("requiredDuringSchedulingIgnoredDuringExecution", ""),
            ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm."),
        ] {
            for (index, term) in items(pod, &format!("/spec/affinity/{kind}/{list}")).enumerate() {
                let term = if below.is_empty() { Some(term) } else { term.get("podAffinityTerm") };
                if term.and_then(|term| term.get("labelSelector")).is_none_or(Value::is_null) {
                    warnings.add(at(format!("spec.affinity.{kind}.{list}[{index}].{below}labelSelector: {NO_POD}")));
                }
            }
        }
    }
}
