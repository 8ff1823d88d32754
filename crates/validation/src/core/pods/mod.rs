//! Pods and templates of pods.

mod affinity;
mod annotations;
mod containers;
mod environment;
mod ephemeral;
mod mounts;
mod os;
mod probes;
mod projected;
mod resize;
mod resources;
mod restart;
mod security;
mod spread;
mod status;
mod update;
pub(super) mod volumes;

use std::collections::HashSet;

use serde_json::Value;

use super::super::{
    Errors, metadata, names, selectors,
    view::{At, is_same},
};
pub(crate) use affinity::node_selector;
pub(crate) use ephemeral::update as ephemeral_update;
pub(crate) use resize::update as resize_update;
pub(crate) use resources::{
    container_resource, is_extended, is_native, is_standard_for_quota, limit_range_name, quantity, quota_name,
    requirements,
};
pub(crate) use status::update as status_update;
pub(crate) use update::update;
pub(crate) use volumes::{back_steps, csi_driver, file_mode, local_path};

/// Context of a pod spec: the object that it is part of.
pub(super) struct Part<'v> {
    /// The spec.
    pub(super) spec: At<'v>,
    /// The metadata of the pod; null in a template.
    pub(super) metadata: &'v Value,
    /// True for a pod, false for a pod template.
    pub(super) is_pod: bool,
}

impl<'v> Part<'v> {
    /// Returns containers of all types, in the order in which kube-apiserver visits them.
    pub(super) fn containers(&self) -> impl Iterator<Item = At<'v>> + use<'v> {
        let spec = self.spec.clone();
        ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(move |list| spec.items(list))
    }

    fn annotation(&self, key: &str) -> Option<&'v str> {
        self.metadata.get("annotations")?.get(key)?.as_str()
    }

    /// Returns true if containers use the node's user namespace.
    fn host_users(&self) -> bool {
        self.spec.get("hostUsers") != &Value::Bool(false)
    }
}

/// Checks a new pod.
pub(crate) fn new(object: &At<'_>, errors: &mut Errors) {
    pod(object, errors);
    let spec = object.child("spec");
    if spec.count("ephemeralContainers") > 0 {
        errors.forbidden(spec.path("ephemeralContainers"), "cannot be set on create");
    }
    if !spec.text("nodeName").is_empty() && spec.count("schedulingGates") > 0 {
        errors.forbidden(spec.path("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
    annotations::match_fields(&part_of(object), errors);
}

fn part_of<'v>(object: &At<'v>) -> Part<'v> {
    Part { spec: object.child("spec"), metadata: object.get("metadata"), is_pod: true }
}

/// Checks a pod, new or changed.
pub(crate) fn pod(object: &At<'_>, errors: &mut Errors) {
    let part = part_of(object);
    annotations::check(&part, &object.path("metadata").child("annotations"), errors);
    spec(&part, errors);
    if part.spec.text("serviceAccountName").is_empty() {
        for source in part.spec.items("volumes").flat_map(|volume| volume.child("projected").items("sources")) {
            let why = "must not be specified when serviceAccountName is not set";
            source.forbids(&["serviceAccountToken"], why, errors);
        }
    }
    for container in part.spec.items("containers").chain(part.spec.items("initContainers")) {
        padded_image(&container, errors);
    }
}

fn padded_image(container: &At<'_>, errors: &mut Errors) {
    let image = container.text("image");
    if image.trim() != image {
        errors.invalid(container.path("image"), &image.into(), "must not have leading or trailing whitespace");
    }
}

/// Checks a template of pods.
pub(crate) fn template(at: &At<'_>, errors: &mut Errors) {
    let metadata = at.get("metadata");
    let part = Part { spec: at.child("spec"), metadata, is_pod: false };
    metadata::labels(&at.path("labels"), metadata.get("labels"), errors);
    metadata::annotations_at(&at.path("annotations"), metadata.get("annotations"), errors);
    annotations::check(&part, &at.path("annotations"), errors);
    spec(&part, errors);
    annotations::match_fields(&part, errors);
    if part.spec.count("ephemeralContainers") > 0 {
        errors.forbidden(part.spec.path("ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

/// Checks the specific annotations of a template again, where kube-apiserver does so.
pub(crate) fn template_annotations(at: &At<'_>, errors: &mut Errors) {
    let part = Part { spec: at.child("spec"), metadata: at.get("metadata"), is_pod: false };
    annotations::check(&part, &at.path("annotations"), errors);
}

/// Checks the template of a pod (kind `PodTemplate`).
pub(crate) fn pod_template(object: &At<'_>, errors: &mut Errors) {
    template(&object.child("template"), errors);
}

/// Checks the spec of a pod or of a template.
fn spec(part: &Part<'_>, errors: &mut Errors) {
    let at = &part.spec;
    if !at.has("terminationGracePeriodSeconds") {
        errors.required(at.path("terminationGracePeriodSeconds"), "");
    }
    let known = volumes::list(part, errors);
    resources::pod_claims(part, errors);
    containers::all(part, &known, errors);
    resources::of_pod(part, errors);
    host_ports(part, errors);
    at.one_of("restartPolicy", &["Always", "OnFailure", "Never"], errors);
    at.one_of("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], errors);
    metadata::labels(&at.path("nodeSelector"), Some(at.get("nodeSelector")), errors);
    security::of_pod(at, errors);
    affinity::check(&at.child("affinity"), errors);
    dns_config(at, errors);
    for gate in at.items("readinessGates") {
        gate.follows("conditionType", names::qualified_name, errors);
    }
    scheduling_gates(at, errors);
    spread::check(at, errors);
    os::host_process(part, errors);
    host_users(part, errors);
    host_name(at, errors);
    identity(at, errors);
    if let Some(overhead) = at.present("overhead") {
        resources::overhead(&overhead, errors);
    }
    os::check(part, errors);
    if let Some(group) = at.present("schedulingGroup") {
        scheduling_group(&group, errors);
    }
    environment::files(part, errors);
}

fn scheduling_group(group: &At<'_>, errors: &mut Errors) {
    if group.has("podGroupName") {
        group.follows("podGroupName", names::dns_subdomain, errors)
    } else {
        errors.invalid(group.path("podGroupName"), &Value::Null, "must specify one of: `podGroupName`")
    }
}

/// Checks the names of the objects that the pod belongs to, and of its node.
fn identity(at: &At<'_>, errors: &mut Errors) {
    at.follows_if_set("serviceAccountName", names::dns_subdomain, errors);
    at.follows_if_set("nodeName", names::dns_subdomain, errors);
    if at.has("activeDeadlineSeconds") {
        at.in_range("activeDeadlineSeconds", (1, i32::MAX.into()), errors);
    }
    at.follows_if_set("hostname", names::dns_label, errors);
    at.follows_if_set("subdomain", names::dns_label, errors);
    tolerations(at, errors);
    host_aliases(at, errors);
    at.follows_if_set("priorityClassName", names::dns_subdomain, errors);
    if at.has("runtimeClassName") {
        at.follows("runtimeClassName", names::dns_subdomain, errors);
    }
    if at.has("preemptionPolicy") {
        at.one_of("preemptionPolicy", &["PreemptLowerPriority", "Never"], errors);
    }
}

fn host_ports(part: &Part<'_>, errors: &mut Errors) {
    if !part.spec.flag("hostNetwork") {
        return;
    }
    for port in part.spec.items("containers").flat_map(|container| container.items("ports")) {
        let (on_host, inside) = (port.number("hostPort"), port.number("containerPort"));
        if (part.is_pod || on_host != 0) && on_host != inside {
            let why = "must match `containerPort` when `hostNetwork` is true";
            errors.invalid(port.path("hostPort"), &on_host.into(), why);
        }
    }
}

/// Most name servers, search paths and characters of these that resolvers understand.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

fn dns_config(at: &At<'_>, errors: &mut Errors) {
    let config = at.child("dnsConfig");
    if at.text("dnsPolicy") == "None" {
        if config.is_missing() {
            errors.required(&config.path, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if config.count("nameservers") == 0 {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(config.path("nameservers"), why);
            return;
        }
    }
    if config.count("nameservers") > MAX_NAMESERVERS {
        let why = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.invalid(config.path("nameservers"), config.get("nameservers"), &why);
    }
    for server in config.items("nameservers") {
        selectors::legacy_ip(&server, &HashSet::new(), errors);
    }
    let (path, searches) = (config.path("searches"), config.get("searches"));
    if config.count("searches") > MAX_SEARCHES {
        errors.invalid(&path, searches, &format!("must not have more than {MAX_SEARCHES} search paths"));
    }
    let spaces = config.count("searches").saturating_sub(1);
    if config.items("searches").map(|search| search.as_text().len()).sum::<usize>() + spaces > MAX_SEARCH_CHARACTERS {
        let why =
            format!("must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list");
        errors.invalid(&path, searches, &why);
    }
    for search in config.items("searches").filter(|search| search.as_text() != ".") {
        let text = search.as_text().strip_suffix('.').unwrap_or(search.as_text());
        errors.invalid_each(&search.path, &text.into(), names::dns_subdomain_with_underscore(text));
    }
    for option in config.items("options").filter(|option| option.text("name").is_empty()) {
        errors.required(&option.path, "must not be empty");
    }
}

fn scheduling_gates(at: &At<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for gate in at.items("schedulingGates") {
        let name = gate.text("name");
        errors.invalid_each(&gate.path, &name.into(), names::qualified_name(name));
        if !seen.insert(name) {
            errors.duplicate(&gate.path, &name.into());
        }
    }
}

fn host_users(part: &Part<'_>, errors: &mut Errors) {
    if part.host_users() {
        return;
    }
    let why = "when `hostUsers` is false";
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if part.spec.flag(field) {
            errors.forbidden(part.spec.path(shown), why);
        }
    }
    let from = errors.len();
    for container in part.containers().filter(|container| container.count("volumeDevices") > 0) {
        errors.forbidden(container.path("volumeDevices"), why);
    }
    errors.mark_tolerated(from, "devices with users of their own");
}

/// Longest name that a kernel gives to a host.
const MAX_HOSTNAME: usize = 64;

fn host_name(at: &At<'_>, errors: &mut Errors) {
    if !at.has("hostnameOverride") {
        return;
    }
    let path = at.path("hostnameOverride");
    for (field, why) in [
        ("setHostnameAsFQDN", "may not be specified when setHostnameAsFQDN is true"),
        ("hostNetwork", "may not be specified when hostNetwork is true"),
    ] {
        if at.flag(field) {
            errors.forbidden(&path, why);
        }
    }
    if at.text("hostnameOverride").len() > MAX_HOSTNAME {
        errors.push(super::super::FieldError::too_long(&path, MAX_HOSTNAME));
    }
    at.follows("hostnameOverride", names::dns_subdomain, errors);
}

/// Checks tolerations of pods and of placement policies.
pub(crate) fn tolerations(at: &At<'_>, errors: &mut Errors) {
    for toleration in at.items("tolerations") {
        toleration.follows_if_set("key", names::qualified_name, errors);
        let (operator, path) = (toleration.text("operator"), toleration.path("operator"));
        if toleration.text("key").is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(&path, &operator.into(), why);
        }
        if toleration.has("tolerationSeconds") && toleration.text("effect") != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(toleration.path("effect"), &toleration.text("effect").into(), why);
        }
        let value = toleration.text("value");
        match operator {
            "Equal" | "" => {
                let details = names::label_value(value);
                if !details.is_empty() {
                    errors.invalid(&path, &value.into(), &details.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid(&path, &value.into(), "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            "Lt" | "Gt" => errors.not_supported(&path, &operator.into(), &["Equal", "Exists", "Lt", "Gt"]),
            _ => errors.not_supported(&path, &operator.into(), &["Equal", "Exists"]),
        }
        toleration.one_of_if_set("effect", &TAINT_EFFECTS, errors);
    }
}

/// Effects of a taint.
pub(crate) const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

fn host_aliases(at: &At<'_>, errors: &mut Errors) {
    for alias in at.items("hostAliases") {
        selectors::legacy_ip(&At { value: alias.get("ip"), path: alias.path("ip") }, &HashSet::new(), errors);
        for host in alias.items("hostnames") {
            errors.invalid_each(&host.path, host.value, names::dns_subdomain(host.as_text()));
        }
    }
}

/// Returns true if two values mean the same.
fn same(one: &Value, other: &Value) -> bool {
    is_same(one, other)
}
