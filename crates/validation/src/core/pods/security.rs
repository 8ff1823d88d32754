//! Security contexts.

use std::collections::HashSet;

use super::{
    super::super::{Errors, FieldError, internal, names, view::At},
    volumes::descending_path,
};

/// Greatest id of a user or group.
const MAX_ID: i64 = i32::MAX as i64;

fn id(at: &At<'_>, name: &str, errors: &mut Errors) {
    if at.has(name) {
        at.in_range(name, (0, MAX_ID), errors);
    }
}

/// Groups at `supplementalGroups`.
pub(super) fn groups(at: &At<'_>, errors: &mut Errors) {
    for group in at.items("supplementalGroups") {
        let id = group.value.as_i64().unwrap_or(0);
        if !(0..=MAX_ID).contains(&id) {
            errors.invalid(&group.path, &id.into(), "must be between 0 and 2147483647, inclusive");
        }
    }
}

/// Checks the security context of a pod; its fields about host namespaces are in the spec.
pub(super) fn of_pod(spec: &At<'_>, errors: &mut Errors) {
    let at = spec.child("securityContext");
    for name in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(&at, name, errors);
    }
    groups(&at, errors);
    if spec.flag("hostPID") && spec.flag("shareProcessNamespace") {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(at.path("shareProcessNamespace"), &true.into(), why);
    }
    sysctls(spec, &at, errors);
    at.supported_if_present("fsGroupChangePolicy", &["Always", "OnRootMismatch"], errors);
    seccomp(&at.child("seccompProfile"), errors);
    windows_options(&at.child("windowsOptions"), errors);
    apparmor(&at.child("appArmorProfile"), errors);
    at.supported_if_present("supplementalGroupsPolicy", &["Merge", "Strict"], errors);
    selinux_policy(&at, errors);
}

/// While the feature gate `SELinuxMount` is off, a pod may change its policy only if it already has one.
fn selinux_policy(at: &At<'_>, errors: &mut Errors) {
    const RULE: &str = "a policy of SELinux for the first time";
    let (name, known) = ("seLinuxChangePolicy", ["MountOption", "Recursive"]);
    if !at.has(name) {
        return;
    }
    errors.waive(RULE);
    let told = |known: &[&str]| FieldError::not_supported(at.path(name), &at.text(name).into(), known);
    let first = told(&["Recursive"]).tolerated(RULE);
    match at.text(name) {
        "Recursive" => {}
        policy if known.contains(&policy) => errors.push(first),
        _ => errors.push(first.or_else(told(&known))),
    }
}

const SYSCTL_RULE: &str = "must have at most 253 characters and match regex \
     ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
/// Parameters of the kernel that belong to the namespace of inter-process communication.
const IPC: [&str; 10] = [
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.shm",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.msg",
];

fn is_sysctl(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let part = |text: &str| {
        let bytes = text.as_bytes();
        let ends = |byte: Option<&u8>| byte.is_some_and(|b| plain(*b));
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| plain(*b) || b"-_".contains(b))
    };
    name.len() <= 253 && name.split(['.', '/']).all(part)
}

fn sysctls(spec: &At<'_>, at: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for sysctl in at.items("sysctls") {
        let (name, path) = (sysctl.text("name"), sysctl.path("name"));
        if sysctl.needs("name", errors) {
            if !is_sysctl(name) {
                errors.invalid(&path, &name.into(), SYSCTL_RULE);
            } else if taken.contains(name) {
                errors.duplicate(&path, &name.into());
            }
        }
        let from = errors.len();
        let dotted = dotted(name);
        if spec.flag("hostNetwork") && dotted.starts_with("net.") {
            errors.invalid(&path, &name.into(), "may not be specified when 'hostNetwork' is true");
        } else if spec.flag("hostIPC") && (IPC.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.")) {
            errors.invalid(&path, &name.into(), "may not be specified when 'hostIPC' is true");
        }
        errors.mark_tolerated(from, "parameters of the node's kernel");
        taken.insert(name);
    }
}

/// Returns a name with a dot in place of its first slash.
fn dotted(name: &str) -> String {
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name.chars().map(swap).collect(),
        _ => name.to_owned(),
    }
}

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn seccomp(at: &At<'_>, errors: &mut Errors) {
    if at.is_missing() {
        return;
    }
    if at.needs_because("type", "type is required when seccompProfile is set", errors) {
        at.supported("type", &PROFILE_TYPES, errors);
    }
    let path = at.path("localhostProfile");
    match (at.text("type"), at.has("localhostProfile")) {
        ("Localhost", false) => errors.required(path, "must be set when seccomp type is Localhost"),
        ("Localhost", true) => descending_path(at.text("localhostProfile"), &path, errors),
        (_, true) => {
            let value = internal::printed_value("SeccompProfile", at.value);
            let why = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid_shown(path, &value, why));
        }
        (_, false) => {}
    }
}

/// Longest path of a file.
const MAX_PATH: usize = 4095;

fn apparmor(at: &At<'_>, errors: &mut Errors) {
    if at.is_missing() {
        return;
    }
    let (path, file) = (at.path("localhostProfile"), at.text("localhostProfile"));
    match at.text("type") {
        "Localhost" => {
            if file.trim() != file {
                errors.invalid(&path, &file.into(), "must not be padded with whitespace");
            } else if file.is_empty() {
                errors.required(&path, "must be set when AppArmor type is Localhost");
            }
            if file.len() > MAX_PATH {
                errors.push(FieldError::too_long(&path, MAX_PATH));
            }
        }
        "RuntimeDefault" | "Unconfined" if at.has("localhostProfile") => {
            errors.invalid(&path, &file.into(), "can only be set when AppArmor type is Localhost");
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => errors.required(at.path("type"), "type is required when appArmorProfile is set"),
        _ => at.supported("type", &PROFILE_TYPES, errors),
    }
}

/// Checks the context of a container.
pub(super) fn of_container(at: &At<'_>, host_users: bool, errors: &mut Errors) {
    if at.is_missing() {
        return;
    }
    id(at, "runAsUser", errors);
    id(at, "runAsGroup", errors);
    at.supported_if_present("procMount", &["Default", "Unmasked"], errors);
    if host_users && at.text("procMount") == "Unmasked" {
        let why = "`hostUsers` must be false to use `Unmasked`";
        errors.invalid(at.path("procMount"), at.get("procMount"), why);
    }
    seccomp(&at.child("seccompProfile"), errors);
    if at.get("allowPrivilegeEscalation") == &serde_json::Value::Bool(false) {
        let shown = || internal::printed_value("SecurityContext", at.value);
        if at.flag("privileged") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid_shown(&at.path, &shown(), why));
        }
        for _ in at.child("capabilities").items("add").filter(|name| name.as_text() == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid_shown(&at.path, &shown(), why));
        }
    }
    windows_options(&at.child("windowsOptions"), errors);
    apparmor(&at.child("appArmorProfile"), errors);
}

/// Longest credential specification in KiB, and names that are too long for domains and too long for users.
const MAX_CREDENTIAL_KIB: usize = 64;
const DOMAIN_TOO_LONG: usize = 256;
const MAX_USER: usize = 104;

fn windows_options(at: &At<'_>, errors: &mut Errors) {
    if at.has("gmsaCredentialSpecName") {
        at.follows("gmsaCredentialSpecName", names::dns_subdomain, errors);
    }
    if at.has("gmsaCredentialSpec") {
        let (text, path) = (at.text("gmsaCredentialSpec"), at.path("gmsaCredentialSpec"));
        if text.is_empty() {
            errors.invalid(path, &text.into(), "gmsaCredentialSpec cannot be an empty string");
        } else if text.len() > MAX_CREDENTIAL_KIB * 1024 {
            let why = format!("gmsaCredentialSpec size must be under {MAX_CREDENTIAL_KIB} KiB");
            errors.invalid(path, &text.into(), &why);
        }
    }
    if at.has("runAsUserName") {
        let name = at.text("runAsUserName");
        for why in windows_user(name) {
            errors.invalid(at.path("runAsUserName"), &name.into(), &why);
        }
    }
}

/// Validates the name of a Windows user, with an optional domain and backslash.
fn windows_user(name: &str) -> names::Complaints {
    let one = |why: &str| vec![why.to_owned()];
    if name.is_empty() {
        return one("runAsUserName cannot be an empty string");
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return one("runAsUserName cannot contain control characters");
    }
    if name.matches('\\').count() > 1 {
        return one("runAsUserName cannot contain more than one backslash");
    }
    let (domain, user) = match name.split_once('\\') {
        Some((domain, user)) => (Some(domain), user),
        None => (None, name),
    };
    let mut all = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= DOMAIN_TOO_LONG) {
        all.push(format!("runAsUserName's Domain length must be under {DOMAIN_TOO_LONG} characters"));
    }
    if domain.is_some_and(|domain| !is_windows_domain(domain)) {
        all.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned());
    }
    match user.len() {
        0 => all.push("runAsUserName's User cannot be empty".to_owned()),
        length if length > MAX_USER => {
            all.push(format!("runAsUserName's User length must not be longer than {MAX_USER} characters"));
        }
        _ => {}
    }
    if !user.is_empty() && user.chars().all(|c| ". ".contains(c)) {
        all.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        let why = "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]";
        all.push(why.to_owned());
    }
    all
}

fn is_windows_domain(domain: &str) -> bool {
    let plain = |c: char| !"\\/:*?\"<>|".contains(c);
    let netbios = (1..=15).contains(&domain.chars().count()) && !domain.starts_with('.') && domain.chars().all(plain);
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        bytes.len() <= 63
            && ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    };
    netbios || domain.split('.').all(label)
}
