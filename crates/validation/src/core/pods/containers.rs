//! Containers of pods.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{
    super::super::{Errors, names, selectors::PROTOCOLS, view::At},
    Part, environment, mounts, probes, resources, restart, security,
};

/// The volumes of a pod by name.
pub(super) type Volumes<'v> = HashMap<&'v str, &'v Value>;

/// Names in a pod that its containers may refer to.
struct ReferableNames<'v> {
    volumes: &'v Volumes<'v>,
    /// Sorted names of claims for devices.
    claims: Vec<&'v str>,
}

/// Checks containers of all types.
pub(super) fn all(part: &Part<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let spec = &part.spec;
    if spec.count("containers") == 0 {
        errors.required(spec.path("containers"), "");
    }
    let mut claims: Vec<&str> = spec.items("resourceClaims").map(|claim| claim.text("name")).collect();
    claims.sort_unstable();
    let known = &ReferableNames { volumes, claims };
    let mut taken = HashSet::new();
    for container in spec.items("containers") {
        common(part, &container, known, errors);
        take_name(&container, &mut taken, errors);
        probes::check(part, &container, errors);
        restart::check(&container, errors);
    }
    host_ports(spec.items("containers"), errors);
    let mut taken: HashSet<&str> = spec.items("containers").map(|container| container.text("name")).collect();
    for container in spec.items("initContainers") {
        init(part, &container, known, &mut taken, errors);
    }
    ephemeral(part, known, errors);
}

fn take_name<'v>(container: &At<'v>, taken: &mut HashSet<&'v str>, errors: &mut Errors) {
    let name = container.text("name");
    if !taken.insert(name) {
        errors.duplicate(container.path("name"), &name.into());
    }
}

fn init<'v>(
    part: &Part<'_>,
    container: &At<'v>,
    known: &ReferableNames<'_>,
    taken: &mut HashSet<&'v str>,
    errors: &mut Errors,
) {
    common(part, container, known, errors);
    restart::of_init(container, errors);
    let name = container.text("name");
    if taken.contains(name) {
        errors.duplicate(container.path("name"), &name.into());
    } else if !name.is_empty() {
        taken.insert(name);
    }
    // kube-apiserver reports the list, as if the container were its first.
    let first = At { value: container.value, path: part.spec.path("initContainers").index(0) };
    host_ports(std::iter::once(first), errors);
    let stays = container.text("restartPolicy") == "Always";
    if stays {
        probes::check(part, container, errors);
    } else {
        let why = "may not be set for init containers without restartPolicy=Always";
        container.forbids(&["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"], why, errors);
        let from = errors.len();
        for policy in
            container.items("resizePolicy").filter(|policy| policy.text("restartPolicy") == "RestartContainer")
        {
            let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.invalid(policy.path("restartPolicy"), policy.get("restartPolicy"), why);
        }
        errors.mark_tolerated(from, "restart of an init container");
    }
}

/// Fields that containers have and ephemeral ones may not, in kube-apiserver's order.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn ephemeral(part: &Part<'_>, known: &ReferableNames<'_>, errors: &mut Errors) {
    let spec = &part.spec;
    let others: HashSet<&str> =
        spec.items("containers").chain(spec.items("initContainers")).map(|container| container.text("name")).collect();
    let mut taken = others.clone();
    let why = "cannot be set for an Ephemeral Container";
    for container in spec.items("ephemeralContainers") {
        common(part, &container, known, errors);
        super::padded_image(&container, errors);
        take_name(&container, &mut taken, errors);
        let target = container.text("targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(container.path("targetContainerName"), &target.into());
        }
        let set = |name: &str| match container.get(name) {
            Value::Null => false,
            Value::Object(map) => name == "lifecycle" || !map.is_empty(),
            Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        };
        for name in NOT_EPHEMERAL.into_iter().filter(|name| set(name)) {
            errors.forbidden(container.path(name), why);
        }
        for mount in container.items("volumeMounts") {
            for name in ["subPath", "subPathExpr"].into_iter().filter(|name| !mount.text(name).is_empty()) {
                errors.forbidden(mount.path(name), why);
            }
        }
    }
}

fn common(part: &Part<'_>, at: &At<'_>, known: &ReferableNames<'_>, errors: &mut Errors) {
    at.needs_to_follow("name", names::dns_label, errors);
    at.needs("image", errors);
    at.one_of("terminationMessagePolicy", &["File", "FallbackToLogsOnError"], errors);
    ports(at, errors);
    environment::check(at, errors);
    mounts::check(at, known.volumes, errors);
    mounts::devices(at, known.volumes, errors);
    at.one_of("imagePullPolicy", &["Always", "IfNotPresent", "Never"], errors);
    resources::requirements(&at.child("resources"), &known.claims, errors);
    resize_policy(part, at, errors);
    security::of_container(&at.child("securityContext"), part.host_users(), errors);
}

fn ports(at: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for port in at.items("ports") {
        let name = port.text("name");
        if !name.is_empty() {
            let details = names::port_name(name);
            if details.is_empty() && !taken.insert(name) {
                errors.duplicate(port.path("name"), &name.into());
            }
            errors.invalid_each(port.path("name"), &name.into(), details);
        }
        match port.number("containerPort") {
            0 => errors.required(port.path("containerPort"), ""),
            _ => port.in_range("containerPort", (1, 65_535), errors),
        }
        if port.number("hostPort") != 0 {
            port.in_range("hostPort", (1, 65_535), errors);
        }
        port.one_of("protocol", &PROTOCOLS, errors);
    }
}

fn host_ports<'v>(containers: impl Iterator<Item = At<'v>>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for port in containers.flat_map(|container| container.items("ports")) {
        let number = port.number("hostPort");
        if number == 0 {
            continue;
        }
        let key = format!("{}/{}/{number}", port.text("protocol"), port.text("hostIP"));
        if taken.contains(&key) {
            errors.duplicate(port.path("hostPort"), &key.into());
        } else {
            taken.insert(key);
        }
    }
}

fn resize_policy(part: &Part<'_>, at: &At<'_>, errors: &mut Errors) {
    let path = at.path("resizePolicy");
    let mut seen = HashSet::new();
    for policy in at.items("resizePolicy") {
        if !seen.insert(policy.text("resourceName")) {
            errors.duplicate(&policy.path, policy.get("resourceName"));
        }
        for (name, known) in
            [("resourceName", ["cpu", "memory"]), ("restartPolicy", ["NotRequired", "RestartContainer"])]
        {
            match policy.text(name) {
                "" => errors.required(&path, ""),
                word if !known.contains(&word) => errors.not_supported(&path, &word.into(), &known),
                _ => {}
            }
        }
        let restart = policy.text("restartPolicy");
        if part.spec.text("restartPolicy") == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(&path, &restart.into(), why);
        }
    }
}
