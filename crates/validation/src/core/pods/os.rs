//! Fields that pods of one operating system may not set, and Windows host processes.

use super::{
    super::super::{Errors, view::At},
    Part,
};

/// Checks the operating system of a pod, and the fields that it forbids.
pub(super) fn check(part: &Part<'_>, errors: &mut Errors) {
    let Some(os) = part.spec.present("os") else { return };
    match os.text("name") {
        "" => errors.required(os.path("name"), ""),
        "linux" => linux(part, errors),
        "windows" => windows(part, errors),
        other => errors.not_supported(&os.path, &other.into(), &["linux", "windows"]),
    }
}

fn linux(part: &Part<'_>, errors: &mut Errors) {
    let contexts = std::iter::once(part.spec.clone()).chain(part.containers());
    for at in contexts {
        let why = "windows options cannot be set for a linux pod";
        at.child("securityContext").forbids(&["windowsOptions"], why, errors);
    }
}

/// Fields of a pod, and whether they are in its spec (or else in its security context), in kube-apiserver's order.
const OF_PODS: [(&str, bool); 15] = [
    ("appArmorProfile", false),
    ("seLinuxOptions", false),
    ("hostUsers", true),
    ("hostPID", true),
    ("hostIPC", true),
    ("seccompProfile", false),
    ("fsGroup", false),
    ("fsGroupChangePolicy", false),
    ("sysctls", false),
    ("shareProcessNamespace", true),
    ("runAsUser", false),
    ("runAsGroup", false),
    ("supplementalGroups", false),
    ("supplementalGroupsPolicy", false),
    ("seLinuxChangePolicy", false),
];
const OF_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

fn windows(part: &Part<'_>, errors: &mut Errors) {
    let why = "cannot be set for a windows pod";
    let context = part.spec.child("securityContext");
    for (name, in_spec) in OF_PODS {
        let at = if in_spec { &part.spec } else { &context };
        at.forbids(&[name], why, errors);
    }
    for container in part.containers() {
        container.child("securityContext").forbids(&OF_CONTAINERS, why, errors);
    }
}

/// Validates Windows host processes: all containers of a pod are host processes, or none.
pub(super) fn host_process(part: &Part<'_>, errors: &mut Errors) {
    let asked = |at: &At<'_>| at.child("securityContext").child("windowsOptions").get("hostProcess").as_bool();
    let of_pod = asked(&part.spec);
    let (mut all, mut on_node) = (0, 0);
    for container in part.containers() {
        let own = asked(&container);
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let path = container.path("securityContext").child("windowsOptions").child("hostProcess");
            let why = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.invalid(path, &own.into(), &why);
        }
        all += 1;
        on_node += usize::from(own.or(of_pod) == Some(true));
    }
    if on_node == 0 {
        return;
    }
    if on_node != all {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(&part.spec.path, &"".into(), why);
    }
    if !part.spec.flag("hostNetwork") {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(part.spec.path("hostNetwork"), &false.into(), why);
    }
}
