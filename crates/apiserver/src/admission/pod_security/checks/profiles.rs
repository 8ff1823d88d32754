//! Profiles of the kernel: AppArmor, SELinux and seccomp.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{CheckResult, CheckedPod, name, plural, quoted, quoted_list, text, violation};

pub(super) fn app_armor(pod: &CheckedPod<'_>) -> CheckResult {
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

pub(super) fn se_linux(pod: &CheckedPod<'_>) -> CheckResult {
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
        details.push(quoted_list("type", &kinds.into_iter().collect::<Vec<_>>()));
    }
    details.extend(sets_user.then(|| "user may not be set".to_owned()));
    details.extend(sets_role.then(|| "role may not be set".to_owned()));
    let (who, what) = (setters.join(" and "), details.join("; "));
    violation("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {what}"))
}

pub(super) fn seccomp_baseline(pod: &CheckedPod<'_>) -> CheckResult {
    if pod.minor < 19 { seccomp_annotations(pod) } else { seccomp_types(pod) }
}

fn seccomp_annotations(pod: &CheckedPod<'_>) -> CheckResult {
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

fn seccomp_types(pod: &CheckedPod<'_>) -> CheckResult {
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

pub(super) fn seccomp_restricted(pod: &CheckedPod<'_>) -> CheckResult {
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
    let who = quoted_list("container", &silent);
    let detail =
        || format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"");
    (!silent.is_empty()).then(detail).and_then(|detail| violation("seccompProfile", detail))
}
