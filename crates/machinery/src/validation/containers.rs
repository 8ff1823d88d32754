//! Containers of pods.

use std::collections::HashSet;

use portolan_types::quantity::Quantity;
use serde_json::Value;

use super::{
    Errors, names, pods,
    selectors::{self, PROTOCOLS},
    view::At,
};

/// The containers of a pod, of which `volumes` names the volumes.
pub(super) fn all(spec: &At<'_>, volumes: &HashSet<&str>, errors: &mut Errors) {
    if spec.count("containers") == 0 {
        errors.required(spec.path("containers"), "");
    }
    let mut taken = HashSet::new();
    for container in spec.items("containers") {
        common(&container, volumes, errors);
        let name = container.text("name");
        if !taken.insert(name) {
            errors.duplicate(container.path("name"), &name.into());
        }
        lifecycle(&container.child("lifecycle"), errors);
        probes(&container, errors);
    }
    host_ports(spec, "containers", errors);
    for container in spec.items("initContainers") {
        common(&container, volumes, errors);
        let stays = container.text("restartPolicy") == "Always";
        if container.has("restartPolicy") && !stays && container.count("restartPolicyRules") == 0 {
            container.one_of_if_set("restartPolicy", &["Always", "OnFailure", "Never"], errors);
        }
        let name = container.text("name");
        if !name.is_empty() && !taken.insert(name) {
            errors.duplicate(container.path("name"), &name.into());
        }
        if stays {
            probes(&container, errors);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.has(field) {
                let why = "may not be set for init containers without restartPolicy=Always";
                errors.forbidden(container.path(field), why);
            }
        }
    }
    for container in spec.items("ephemeralContainers") {
        common(&container, volumes, errors);
        let name = container.text("name");
        if !name.is_empty() && !taken.insert(name) {
            errors.duplicate(container.path("name"), &name.into());
        }
    }
}

fn common(at: &At<'_>, volumes: &HashSet<&str>, errors: &mut Errors) {
    if at.needs("name", errors) {
        at.follows("name", names::dns_label, errors);
    }
    at.needs("image", errors);
    at.one_of("terminationMessagePolicy", &["File", "FallbackToLogsOnError"], errors);
    ports(at, errors);
    environment(at, errors);
    mounts(at, volumes, errors);
    at.one_of("imagePullPolicy", &["Always", "IfNotPresent", "Never"], errors);
    resources(&at.child("resources"), errors);
    let context = at.child("securityContext");
    pods::id(&context, "runAsUser", errors);
    pods::id(&context, "runAsGroup", errors);
    if context.flag("privileged") && context.get("allowPrivilegeEscalation") == &Value::Bool(false) {
        let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.invalid(&context.path, context.value, why);
    }
}

fn ports(at: &At<'_>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for port in at.items("ports") {
        let name = port.text("name");
        if !name.is_empty() {
            let details = names::port_name(name);
            for detail in &details {
                errors.invalid(port.path("name"), &name.into(), detail);
            }
            if details.is_empty() && !taken.insert(name) {
                errors.duplicate(port.path("name"), &name.into());
            }
        }
        match port.int("containerPort").unwrap_or(0) {
            0 => errors.required(port.path("containerPort"), ""),
            _ => selectors::port_number(&port, "containerPort", errors),
        }
        if port.int("hostPort").unwrap_or(0) != 0 {
            selectors::port_number(&port, "hostPort", errors);
        }
        port.one_of("protocol", &PROTOCOLS, errors);
    }
}

fn host_ports(spec: &At<'_>, list: &str, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for port in spec.items(list).flat_map(|container| container.items("ports")) {
        let number = port.int("hostPort").unwrap_or(0);
        if number == 0 {
            continue;
        }
        let key = format!("{}/{}/{number}", port.text("protocol"), port.text("hostIP"));
        if !taken.insert(key.clone()) {
            errors.duplicate(port.path("hostPort"), &key.into());
        }
    }
}

fn environment(at: &At<'_>, errors: &mut Errors) {
    for variable in at.items("env") {
        if variable.needs("name", errors) {
            variable.follows("name", names::env_name, errors);
        }
        let from = variable.child("valueFrom");
        if from.is_missing() {
            continue;
        }
        let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
        for name in ["configMapKeyRef", "secretKeyRef"] {
            let source = from.child(name);
            if source.is_missing() {
                continue;
            }
            source.follows("name", names::dns_subdomain, errors);
            if source.needs("key", errors) {
                source.follows("key", names::config_key, errors);
            }
        }
        let field = from.child("fieldRef");
        if !field.is_missing() {
            field.needs("fieldPath", errors);
        }
        let set = sources.iter().filter(|name| from.has(name)).count();
        let empty = Value::from("");
        if set == 0 {
            let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            errors.invalid(&from.path, &empty, why);
        } else if !variable.text("value").is_empty() {
            errors.invalid(&from.path, &empty, "may not be specified when `value` is not empty");
        } else if set > 1 {
            errors.invalid(&from.path, &empty, "may not have more than one field specified at a time");
        }
    }
    for source in at.items("envFrom") {
        if !source.text("prefix").is_empty() {
            source.follows("prefix", names::env_name, errors);
        }
        let set = ["configMapRef", "secretRef"].iter().filter(|name| source.has(name)).count();
        for name in ["configMapRef", "secretRef"] {
            let reference = source.child(name);
            if !reference.is_missing() && reference.needs("name", errors) {
                reference.follows("name", names::dns_subdomain, errors);
            }
        }
        let empty = Value::from("");
        match set {
            0 => errors.invalid(at.path("envFrom"), &empty, "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(at.path("envFrom"), &empty, "may not have more than one field specified at a time"),
        }
    }
}

fn mounts(at: &At<'_>, volumes: &HashSet<&str>, errors: &mut Errors) {
    let mut taken = HashSet::new();
    for mount in at.items("volumeMounts") {
        let name = mount.text("name");
        mount.needs("name", errors);
        if !volumes.contains(name) {
            errors.push(super::FieldError::not_found(mount.path("name"), &name.into()));
        }
        mount.needs("mountPath", errors);
        let path = mount.text("mountPath");
        if !taken.insert(path) {
            errors.invalid(mount.path("mountPath"), &path.into(), "must be unique");
        }
        let below = mount.text("subPath");
        if below.starts_with('/') {
            errors.invalid(at.path("volumeMounts").child("subPath"), &below.into(), "must be a relative path");
        }
        if below.split('/').any(|step| step == "..") {
            errors.invalid(at.path("volumeMounts").child("subPath"), &below.into(), "must not contain '..'");
        }
        if !below.is_empty() && !mount.text("subPathExpr").is_empty() {
            let why = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(mount.path("subPathExpr"), mount.get("subPathExpr"), why);
        }
    }
    for device in at.items("volumeDevices") {
        let name = device.text("name");
        device.needs("name", errors);
        if !volumes.contains(name) {
            errors.push(super::FieldError::not_found(device.path("name"), &name.into()));
        }
        device.needs("devicePath", errors);
    }
}

/// Requests and limits.
pub(super) fn resources(at: &At<'_>, errors: &mut Errors) {
    for list in ["limits", "requests"] {
        for (name, amount) in at.entries(list) {
            resource_name(name, &amount, errors);
            quantity(name, &amount, errors);
            if list != "requests" {
                continue;
            }
            let limit = at.get("limits").get(name);
            let above = |limit: &Value| selectors::quantity(amount.value) > selectors::quantity(limit);
            match limit {
                Some(limit) if may_overcommit(name) && above(limit) => {
                    let why = format!("must be less than or equal to {name} limit of {}", shown(limit));
                    errors.invalid(at.path("requests"), amount.value, &why);
                }
                Some(limit) if !may_overcommit(name) && limit != amount.value => {
                    let why = format!("must be equal to {name} limit of {}", shown(limit));
                    errors.invalid(at.path("requests"), amount.value, &why);
                }
                None if !may_overcommit(name) => {
                    errors.required(at.path("limits"), "Limit must be set for non overcommitable resources");
                }
                _ => {}
            }
        }
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Huge pages and extended resources are given out as they are.
fn may_overcommit(name: &str) -> bool {
    !name.starts_with("hugepages-") && (!name.contains('/') || is_native(name))
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.split('/').next().is_some_and(|domain| domain.ends_with("kubernetes.io"))
}

const NOT_STANDARD: &str = "must be a standard resource type or fully qualified";

/// What quotas can be about, besides `count/…` and names with a domain.
const QUOTA_RESOURCES: [&str; 16] = [
    "configmaps",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

fn is_standard_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage" | "storage")
        || ["hugepages-", "requests.hugepages-"].iter().any(|start| name.starts_with(start))
        || QUOTA_RESOURCES.contains(&name)
}

/// The name of what a quota is about.
pub(super) fn quota_name(name: &str, at: &At<'_>, errors: &mut Errors) {
    names::qualified_name(name).iter().for_each(|detail| errors.invalid(&at.path, &name.into(), detail));
    if !name.contains('/') && !is_standard_resource(name) {
        errors.invalid(&at.path, &name.into(), NOT_STANDARD);
        errors.invalid(&at.path, &name.into(), "must be a standard resource for quota");
    }
}

fn resource_name(name: &str, at: &At<'_>, errors: &mut Errors) {
    for detail in names::qualified_name(name) {
        errors.invalid(&at.path, &name.into(), &detail);
    }
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !name.contains('/') && !standard {
        if !is_standard_resource(name) {
            errors.invalid(&at.path, &name.into(), NOT_STANDARD);
        }
        errors.invalid(&at.path, &name.into(), "must be a standard resource for containers");
    }
}

/// An amount that is not negative, and whole where parts make no sense.
pub(super) fn quantity(name: &str, at: &At<'_>, errors: &mut Errors) {
    let Some(amount) = selectors::quantity(at.value) else { return };
    if amount < Quantity::ZERO {
        errors.invalid(&at.path, at.value, super::view::NEGATIVE);
    }
    let countable = name.contains('/') && !is_native(name);
    if countable && amount != Quantity::from_units(amount.units()) {
        errors.invalid(&at.path, at.value, "must be an integer");
    }
}

fn lifecycle(at: &At<'_>, errors: &mut Errors) {
    for hook in ["postStart", "preStop"] {
        let hook = at.child(hook);
        if !hook.is_missing() {
            handler(&hook, &["exec", "httpGet", "tcpSocket", "sleep"], errors);
        }
    }
}

fn probes(at: &At<'_>, errors: &mut Errors) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = at.child(name);
        if probe.is_missing() {
            continue;
        }
        handler(&probe, &["exec", "httpGet", "tcpSocket", "grpc"], errors);
        for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            probe.nonnegative(field, errors);
        }
        let grace = "terminationGracePeriodSeconds";
        if probe.int(grace).is_some_and(|seconds| seconds <= 0) {
            errors.invalid(probe.path(grace), probe.get(grace), "must be greater than 0");
        }
        match name {
            "readinessProbe" if probe.has(grace) => {
                errors.invalid(probe.path(grace), probe.get(grace), "must not be set for readinessProbes");
            }
            "livenessProbe" | "startupProbe" if probe.int("successThreshold").unwrap_or(1) != 1 => {
                errors.invalid(probe.path("successThreshold"), probe.get("successThreshold"), "must be 1");
            }
            _ => {}
        }
    }
}

fn handler(at: &At<'_>, kinds: &[&str], errors: &mut Errors) {
    let mut set = kinds.iter().filter(|kind| at.has(kind));
    let Some(first) = set.next() else {
        errors.required(&at.path, "must specify a handler type");
        return;
    };
    let action = at.child(first);
    match *first {
        "exec" if action.count("command") == 0 => errors.required(action.path("command"), ""),
        "httpGet" => {
            action.needs("path", errors);
            selectors::port(&action, "port", errors);
            action.one_of("scheme", &["HTTP", "HTTPS"], errors);
        }
        "tcpSocket" => selectors::port(&action, "port", errors),
        "grpc" => selectors::port_number(&action, "port", errors),
        _ => {}
    }
    for other in set {
        errors.forbidden(at.path(other), "may not specify more than 1 handler type");
    }
}
