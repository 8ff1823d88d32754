//! Groups of one kind: scheduling.k8s.io, coordination.k8s.io, node.k8s.io.

use std::collections::HashSet;

use super::{
    Errors, FieldError, core, internal, metadata, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    view::{At, IMMUTABLE},
};

pub(super) static SCHEDULING: &[(&str, Rules)] = &[(
    "PriorityClass",
    Rules {
        create: &[Metadata, Is(priority_class)],
        update: &[MetadataChange, Became(priority_class_update)],
        subresources: &[],
    },
)];

pub(super) static COORDINATION: &[(&str, Rules)] =
    &[("Lease", Rules { create: &[Metadata, Is(lease)], update: &[MetadataChange, Is(lease)], subresources: &[] })];

pub(super) static NODE: &[(&str, Rules)] = &[(
    "RuntimeClass",
    Rules {
        create: &[Metadata, Is(runtime_class)],
        update: &[Metadata, Is(runtime_class), MetadataChange, Became(runtime_class_update)],
        subresources: &[],
    },
)];

/// Larger values are reserved for the system's own classes.
const MAX_PRIORITY: i64 = 1_000_000_000;
const SYSTEM: [(&str, i64); 2] = [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn priority_class(object: &At<'_>, errors: &mut Errors) {
    let metadata = object.child("metadata");
    let name = metadata.text("name");
    if name.starts_with("system-") {
        let why = match SYSTEM.iter().find(|(known, _)| *known == name) {
            Some((_, value)) if object.number("value") != *value => {
                Some(format!("value of {name} PriorityClass must be {value}"))
            }
            Some(_) if object.flag("globalDefault") => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
            None => Some(format!("{name} is not a known system priority class")),
        };
        if let Some(why) = why {
            let start = "priority class names with 'system-' prefix are reserved for system use only. error: ";
            errors.forbidden("metadata.name", &format!("{start}{why}"));
        }
    } else if object.number("value") > MAX_PRIORITY {
        errors.forbidden("value", &format!("maximum allowed value of a user defined priority is {MAX_PRIORITY}"));
    }
    if object.has("preemptionPolicy") {
        match object.text("preemptionPolicy") {
            "PreemptLowerPriority" | "Never" => {}
            "" => errors.required("preemptionPolicy", ""),
            _ => object.supported("preemptionPolicy", &["PreemptLowerPriority", "Never"], errors),
        }
    }
}

fn priority_class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.number("value") != new.number("value") {
        errors.forbidden("value", "may not be changed in an update.");
    }
    new.immutable(old, "preemptionPolicy", errors);
}

fn lease(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.int("leaseDurationSeconds").is_some_and(|seconds| seconds <= 0) {
        errors.invalid(spec.path("leaseDurationSeconds"), spec.get("leaseDurationSeconds"), "must be greater than 0");
    }
    spec.nonnegative("leaseTransitions", errors);
}

fn runtime_class(object: &At<'_>, errors: &mut Errors) {
    object.needs_to_follow("handler", names::dns_label, errors);
    if let Some(overhead) = object.present("overhead") {
        let limits = serde_json::json!({"limits": overhead.get("podFixed")});
        core::requirements(&At { value: &limits, path: overhead.path.clone() }, &[], errors);
    }
    let Some(scheduling) = object.present("scheduling") else { return };
    metadata::labels(&scheduling.path("nodeSelector"), Some(scheduling.get("nodeSelector")), errors);
    core::tolerations(&scheduling, errors);
    let mut taken = HashSet::new();
    for toleration in scheduling.items("tolerations") {
        let key = ["key", "operator", "value", "effect"].map(|name| toleration.text(name));
        if !taken.insert(key) {
            let shown = internal::printed_value("Toleration", toleration.value);
            errors.push(FieldError::duplicate_shown(&toleration.path, &shown, ""));
        }
    }
}

fn runtime_class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.text("handler") != new.text("handler") {
        errors.invalid("handler", &new.text("handler").into(), IMMUTABLE);
    }
}
