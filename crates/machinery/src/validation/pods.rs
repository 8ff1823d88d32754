//! Pods and templates of pods.

use std::collections::HashSet;

use serde_json::Value;

use super::{Errors, containers, metadata, names, selectors, view::At, volumes};

/// A template of pods. `more_volumes` are those that a stateful set adds.
pub(super) fn template(at: &At<'_>, more_volumes: &HashSet<&str>, errors: &mut Errors) {
    let labels = at.get("metadata").get("labels");
    metadata::labels(&at.path("labels"), labels, errors);
    metadata::annotations_at(&at.path("annotations"), at.get("metadata").get("annotations"), errors);
    spec(&at.child("spec"), more_volumes, errors);
    if at.child("spec").count("ephemeralContainers") > 0 {
        errors.forbidden(
            at.path("spec").child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// The spec of a pod.
pub(super) fn spec(at: &At<'_>, more_volumes: &HashSet<&str>, errors: &mut Errors) {
    if at.int("terminationGracePeriodSeconds").is_none() {
        errors.required(at.path("terminationGracePeriodSeconds"), "");
    }
    let mut known = volumes::list(at, errors);
    known.extend(more_volumes);
    containers::all(at, &known, errors);
    at.one_of("restartPolicy", &["Always", "OnFailure", "Never"], errors);
    dns_policy(at, errors);
    metadata::labels(&at.path("nodeSelector"), Some(at.get("nodeSelector")), errors);
    security(at, errors);
    affinity(&at.child("affinity"), errors);
    spreading(at, errors);
    for name in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        if !at.text(name).is_empty() {
            at.follows(name, names::dns_subdomain, errors);
        }
    }
    if let Some(seconds) = at.int("activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.invalid(
            at.path("activeDeadlineSeconds"),
            &seconds.into(),
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for name in ["hostname", "subdomain"] {
        if !at.text(name).is_empty() {
            at.follows(name, names::dns_label, errors);
        }
    }
    tolerations(at, errors);
    host_aliases(at, errors);
    at.one_of_if_set("preemptionPolicy", &["PreemptLowerPriority", "Never"], errors);
}

/// A new pod has no ephemeral containers: they come through an endpoint of their own.
pub(super) fn new(object: &At<'_>, errors: &mut Errors) {
    let spec_at = object.child("spec");
    spec(&spec_at, &HashSet::new(), errors);
    if spec_at.count("ephemeralContainers") > 0 {
        errors.forbidden(spec_at.path("ephemeralContainers"), "cannot be set on create");
    }
}

fn dns_policy(at: &At<'_>, errors: &mut Errors) {
    at.one_of("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], errors);
    let config = at.child("dnsConfig");
    if at.text("dnsPolicy") == "None" && config.count("nameservers") == 0 {
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        let path = at.path("dnsConfig");
        if config.is_missing() {
            errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        } else {
            errors.required(path.child("nameservers"), why);
        }
    }
}

fn security(at: &At<'_>, errors: &mut Errors) {
    if at.flag("hostPID") && at.flag("shareProcessNamespace") {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(at.path("securityContext").child("shareProcessNamespace"), &true.into(), why);
    }
    let context = at.child("securityContext");
    for name in ["runAsUser", "runAsGroup", "fsGroup"] {
        id(&context, name, errors);
    }
}

/// A user or group id.
pub(super) fn id(at: &At<'_>, name: &str, errors: &mut Errors) {
    if at.int(name).is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
        errors.invalid(at.path(name), at.get(name), "must be between 0 and 2147483647, inclusive");
    }
}

fn affinity(at: &At<'_>, errors: &mut Errors) {
    let required = at.child("nodeAffinity").child("requiredDuringSchedulingIgnoredDuringExecution");
    if !required.is_missing() && required.count("nodeSelectorTerms") == 0 {
        errors.required(required.path("nodeSelectorTerms"), "must have at least one node selector term");
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let part = at.child(kind);
        let hard = part.items("requiredDuringSchedulingIgnoredDuringExecution");
        let soft: Vec<_> = part.items("preferredDuringSchedulingIgnoredDuringExecution").collect();
        for term in &soft {
            if !(1..=100).contains(&term.int("weight").unwrap_or(0)) {
                errors.invalid(term.path("weight"), term.get("weight"), "must be in the range 1-100");
            }
        }
        for term in hard.chain(soft.iter().map(|term| term.child("podAffinityTerm"))) {
            selectors::selector(&term.child("labelSelector"), errors);
            if term.text("topologyKey").is_empty() {
                errors.required(term.path("topologyKey"), "can not be empty");
            }
            selectors::label_name(&term, "topologyKey", errors);
        }
    }
}

fn spreading(at: &At<'_>, errors: &mut Errors) {
    for constraint in at.items("topologySpreadConstraints") {
        if constraint.int("maxSkew").unwrap_or(0) <= 0 {
            errors.invalid(constraint.path("maxSkew"), constraint.get("maxSkew"), "must be greater than zero");
        }
        match constraint.text("topologyKey") {
            "" => errors.required(constraint.path("topologyKey"), "can not be empty"),
            _ => selectors::label_name(&constraint, "topologyKey", errors),
        }
        let known = ["DoNotSchedule", "ScheduleAnyway"];
        if !known.contains(&constraint.text("whenUnsatisfiable")) {
            errors.not_supported(
                constraint.path("whenUnsatisfiable"),
                &constraint.text("whenUnsatisfiable").into(),
                &known,
            );
        }
        selectors::selector(&constraint.child("labelSelector"), errors);
    }
}

/// Tolerations, also those of placement policies.
pub(super) fn tolerations(at: &At<'_>, errors: &mut Errors) {
    for toleration in at.items("tolerations") {
        let (key, operator) = (toleration.text("key"), toleration.text("operator"));
        if !key.is_empty() {
            selectors::label_name(&toleration, "key", errors);
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.invalid(toleration.path("operator"), &operator.into(), why);
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
                    errors.invalid(toleration.path("operator"), &value.into(), &details.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.invalid(toleration.path("operator"), &value.into(), why);
            }
            "Exists" => {}
            _ => errors.not_supported(toleration.path("operator"), toleration.get("operator"), &["Equal", "Exists"]),
        }
        toleration.one_of_if_set("effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
    }
}

fn host_aliases(at: &At<'_>, errors: &mut Errors) {
    for alias in at.items("hostAliases") {
        if alias.text("ip").parse::<std::net::IpAddr>().is_err() {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.invalid(alias.path("ip"), &alias.text("ip").into(), why);
        }
        for host in alias.items("hostnames") {
            for detail in names::dns_subdomain(host.as_text()) {
                errors.invalid(alias.path("hostnames"), host.value, &detail);
            }
        }
    }
}

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
     `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 \
     if it was previously negative)";

/// What of a pod's spec may change: images, a shorter deadline, more tolerations, fewer scheduling gates.
pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    for list in ["containers", "initContainers"] {
        if old.count(list) != new.count(list) {
            errors.forbidden(new.path(list), "pod updates may not add or remove containers");
            return;
        }
        for container in new.items(list) {
            let image = container.text("image");
            if image.trim() != image {
                errors.invalid(container.path("image"), &image.into(), "must not have leading or trailing whitespace");
            }
        }
    }
    deadline(old, new, errors);
    let is_kept = |toleration: At<'_>| {
        new.items("tolerations")
            .any(|other| without(toleration.value, "tolerationSeconds") == without(other.value, "tolerationSeconds"))
    };
    if !old.items("tolerations").all(is_kept) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(new.path("tolerations"), why);
    }
    for gate in new.items("schedulingGates") {
        if !old.items("schedulingGates").any(|other| other.text("name") == gate.text("name")) {
            let name = gate.text("name");
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.forbidden(gate.path("name"), &why);
        }
    }
    if frozen(old.value) != frozen(&with_grace(old, new)) {
        errors.forbidden(&new.path, &format!("pod updates may not change fields other than {UPDATABLE}"));
    }
}

fn deadline(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let name = "activeDeadlineSeconds";
    match (old.int(name), new.int(name)) {
        (Some(before), Some(after)) if before < after => {
            errors.invalid(new.path(name), new.get(name), "must be less than or equal to previous value");
        }
        (Some(_), None) => {
            let why = "must not update from a positive integer to nil value";
            errors.invalid(new.path(name), &Value::Null, why);
        }
        _ => {}
    }
}

/// A negative grace period may become 1.
fn with_grace(old: &At<'_>, new: &At<'_>) -> Value {
    let name = "terminationGracePeriodSeconds";
    let mut spec = new.value.clone();
    if old.int(name).is_some_and(|before| before < 0) && new.int(name) == Some(1) {
        spec[name] = old.get(name).clone();
    }
    spec
}

fn without(value: &Value, name: &str) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove(name);
    }
    value
}

/// A spec without what may change. With scheduling gates, selectors of nodes may still be made narrower.
fn frozen(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let Some(fields) = spec.as_object_mut() else { return spec };
    let gated = fields.get("schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty());
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        fields.remove(name);
    }
    if gated {
        fields.remove("nodeSelector");
    }
    for list in ["containers", "initContainers"] {
        let containers = fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            container.remove("image");
        }
    }
    spec
}
