//! The group autoscaling.

use portolan_types::quantity::Quantity;

use super::{
    Errors, core, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    selectors,
    view::{At, NEGATIVE, NOT_POSITIVE},
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "HorizontalPodAutoscaler",
    Rules {
        create: &[Metadata, Is(|at, errors| autoscaler(&At::root(&serde_json::Value::Null), at, errors))],
        update: &[MetadataChange, Became(autoscaler)],
        subresources: &[("status", &[MetadataChange, Is(status)])],
    },
)];

fn status(object: &At<'_>, errors: &mut Errors) {
    object.child("status").nonnegatives(&["currentReplicas", "desiredReplicas"], errors);
}

fn autoscaler(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (old, spec) = (old.child("spec"), new.child("spec"));
    let lowest = i64::from(old.int("minReplicas") != Some(0));
    let (least, most) = (spec.int("minReplicas"), spec.number("maxReplicas"));
    if least.is_some_and(|least| least < lowest) {
        let why = format!("must be greater than or equal to {lowest}");
        errors.invalid(spec.path("minReplicas"), spec.get("minReplicas"), &why);
    }
    if most == 0 {
        errors.required(spec.path("maxReplicas"), "must be set and greater than 0");
    } else if most < 0 {
        errors.invalid(spec.path("maxReplicas"), &most.into(), "must be greater than or equal to 1");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid(spec.path("maxReplicas"), &most.into(), "must be greater than or equal to `minReplicas`");
    }
    let (before, target) = (old.child("scaleTargetRef"), spec.child("scaleTargetRef"));
    let is_unchanged = ["apiVersion", "kind"].into_iter().all(|name| before.text(name) == target.text(name));
    let group = if is_unchanged && !before.is_missing() {
        Group::Any
    } else if target.text("kind") == "ReplicationController" {
        Group::MayBeCore
    } else {
        Group::Named
    };
    reference(&target, group, errors);
    let described = |spec: &At<'_>| -> Vec<String> {
        let objects = spec.items("metrics").filter(|metric| metric.text("type") == "Object");
        objects.map(|metric| metric.child("object").child("describedObject").text("apiVersion").to_owned()).collect()
    };
    let was_wrong = described(&old).iter().any(|version| group_complaint(version, Group::MayBeCore).is_some());
    let group = if was_wrong { Group::Any } else { Group::MayBeCore };
    spec.items("metrics").for_each(|one| metric(&one, group, errors));
    let from_outside = spec.items("metrics").any(|metric| matches!(metric.text("type"), "Object" | "External"));
    if least == Some(0) && !from_outside {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(spec.path("metrics"), why);
    }
    let behavior = spec.child("behavior");
    for rules in ["scaleUp", "scaleDown"].into_iter().filter_map(|name| behavior.present(name)) {
        scaling_rules(&rules, errors);
    }
}

/// Rule for the group of an `apiVersion`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Named,
    MayBeCore,
    Any,
}

fn group_complaint(version: &str, group: Group) -> Option<String> {
    match version.matches('/').count() {
        _ if group == Group::Any => None,
        0 if group == Group::MayBeCore => None,
        0 => Some("apiVersion must specify API group".to_owned()),
        1 if version.starts_with('/') && group == Group::Named && version != "/" => {
            Some("apiVersion must specify API group".to_owned())
        }
        1 => None,
        _ => Some(format!("unexpected GroupVersion string: {version}")),
    }
}

fn reference(at: &At<'_>, group: Group, errors: &mut Errors) {
    at.needs_to_follow("kind", names::path_segment, errors);
    at.needs_to_follow("name", names::path_segment, errors);
    if let Some(why) = group_complaint(at.text("apiVersion"), group) {
        errors.invalid(at.path("apiVersion"), &at.text("apiVersion").into(), &why);
    }
}

/// Types of metrics with their fields, in the order in which they are checked.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

fn metric(at: &At<'_>, group: Group, errors: &mut Errors) {
    let kind = at.text("type");
    at.needs_because("type", "must specify a metric source type", errors);
    at.supported("type", &TYPES, errors);
    let given: Vec<_> = SOURCES.iter().filter(|(_, field)| at.has(field)).collect();
    if let Some((_, field)) = given.first() {
        source(&at.child(field), field, group, errors);
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map_or("", |(_, field)| *field);
    match expected {
        "" => at.supported("type", &TYPES, errors),
        field if at.has(field) => {}
        field => errors.required(at.path(field), "must populate information for the given metric source"),
    }
    if given.len() != 1 {
        for (_, other) in given.into_iter().filter(|(_, field)| *field != expected) {
            errors.forbidden(at.path(other), "must populate the given metric source only");
        }
    }
}

fn source(at: &At<'_>, field: &str, group: Group, errors: &mut Errors) {
    let of_resource = matches!(field, "resource" | "containerResource");
    if field == "object" {
        reference(&at.child("describedObject"), group, errors);
    }
    if of_resource && at.needs_because("name", "must specify a resource name", errors) && field == "containerResource" {
        core::container_resource(at.text("name"), &at.path("name"), errors);
    }
    if field == "containerResource" && at.needs_because("container", "must specify a container", errors) {
        at.follows("container", names::dns_label, errors);
    }
    if !of_resource {
        let metric = at.child("metric");
        if metric.needs_because("name", "must specify a metric name", errors) {
            metric.follows("name", names::path_segment, errors);
        }
    }
    let target = at.child("target");
    self::target(&target, errors);
    let [value, average, utilization] = ["value", "averageValue", "averageUtilization"];
    let missing = |names: &[&str]| names.iter().all(|name| !target.has(name));
    let both = |one: &str, other: &str| target.has(one) && target.has(other);
    match field {
        "object" if missing(&[value, average]) => {
            errors.required(target.path(average), "must set either a target value or averageValue");
        }
        "external" if missing(&[value, average]) => {
            errors.required(target.path(average), "must set either a target value for metric or a per-pod target");
        }
        "external" if both(value, average) => {
            errors.forbidden(target.path(value), "may not set both a target value for metric and a per-pod target");
        }
        "pods" if missing(&[average]) => {
            errors.required(target.path(average), "must specify a positive target averageValue");
        }
        _ if of_resource && missing(&[utilization, average]) => {
            let why = "must set either a target raw value or a target utilization";
            errors.required(target.path(utilization), why);
        }
        _ if of_resource && both(utilization, average) => {
            errors.forbidden(target.path(average), "may not set both a target raw value and a target utilization");
        }
        _ => {}
    }
}

fn target(at: &At<'_>, errors: &mut Errors) {
    at.needs_because("type", "must specify a metric target type", errors);
    if !matches!(at.text("type"), "Utilization" | "Value" | "AverageValue") {
        let why = "must be either Utilization, Value, or AverageValue";
        errors.invalid(at.path("type"), &at.text("type").into(), why);
    }
    for name in ["value", "averageValue"] {
        if selectors::quantity(at.get(name)).is_some_and(|amount| amount <= Quantity::ZERO) {
            errors.invalid(at.path(name), at.get(name), "must be positive");
        }
    }
    if at.int("averageUtilization").is_some_and(|percent| percent < 1) {
        errors.invalid(at.path("averageUtilization"), at.get("averageUtilization"), "must be greater than 0");
    }
}

/// Longest windows, in seconds.
const MAX_STABILIZATION: i64 = 3600;
const MAX_PERIOD: i64 = 1800;

fn scaling_rules(at: &At<'_>, errors: &mut Errors) {
    let window = "stabilizationWindowSeconds";
    if at.number(window) < 0 {
        errors.invalid(at.path(window), at.get(window), "must be greater than or equal to zero");
    }
    at.most(window, MAX_STABILIZATION, errors);
    at.supported_if_present("selectPolicy", &["Disabled", "Max", "Min"], errors);
    if at.count("policies") == 0 {
        errors.required(at.path("policies"), "must specify at least one Policy");
    }
    for policy in at.items("policies") {
        policy.supported("type", &["Percent", "Pods"], errors);
        for name in ["value", "periodSeconds"].into_iter().filter(|name| policy.number(name) <= 0) {
            errors.invalid(policy.path(name), &policy.number(name).into(), NOT_POSITIVE);
        }
        policy.most("periodSeconds", MAX_PERIOD, errors);
    }
    if selectors::quantity(at.get("tolerance")).is_some_and(|amount| amount < Quantity::ZERO) {
        errors.invalid(at.path("tolerance"), at.get("tolerance"), NEGATIVE);
    }
}
