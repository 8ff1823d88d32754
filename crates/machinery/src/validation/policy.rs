//! Autoscalers, disruption budgets, RBAC, priority classes, leases.

use serde_json::Value;

use super::{
    Errors, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    selectors,
    view::{At, IMMUTABLE},
};

pub(super) static AUTOSCALING: &[(&str, Rules)] = &[(
    "HorizontalPodAutoscaler",
    Rules {
        create: &[Metadata, Is(autoscaler)],
        update: &[MetadataChange, Metadata, Is(autoscaler)],
        subresources: &[],
    },
)];

pub(super) static POLICY: &[(&str, Rules)] = &[(
    "PodDisruptionBudget",
    Rules {
        create: &[Metadata, Is(disruption_budget)],
        update: &[MetadataChange, Metadata, Is(disruption_budget)],
        subresources: &[],
    },
)];

pub(super) static RBAC: &[(&str, Rules)] = &[
    (
        "Role",
        Rules {
            create: &[Metadata, Is(|at, errors| role(at, true, errors))],
            update: &[MetadataChange, Metadata, Is(|at, errors| role(at, true, errors))],
            subresources: &[],
        },
    ),
    (
        "ClusterRole",
        Rules {
            create: &[Metadata, Is(|at, errors| role(at, false, errors))],
            update: &[MetadataChange, Metadata, Is(|at, errors| role(at, false, errors))],
            subresources: &[],
        },
    ),
    (
        "RoleBinding",
        Rules {
            create: &[Metadata, Is(|at, errors| role_binding(at, true, errors))],
            update: &[
                MetadataChange,
                Metadata,
                Is(|at, errors| role_binding(at, true, errors)),
                Became(role_binding_update),
            ],
            subresources: &[],
        },
    ),
    (
        "ClusterRoleBinding",
        Rules {
            create: &[Metadata, Is(|at, errors| role_binding(at, false, errors))],
            update: &[
                MetadataChange,
                Metadata,
                Is(|at, errors| role_binding(at, false, errors)),
                Became(role_binding_update),
            ],
            subresources: &[],
        },
    ),
];

pub(super) static SCHEDULING: &[(&str, Rules)] = &[(
    "PriorityClass",
    Rules {
        create: &[Metadata, Is(priority_class)],
        update: &[MetadataChange, Metadata, Is(priority_class), Became(priority_class_update)],
        subresources: &[],
    },
)];

pub(super) static COORDINATION: &[(&str, Rules)] = &[(
    "Lease",
    Rules { create: &[Metadata, Is(lease)], update: &[MetadataChange, Metadata, Is(lease)], subresources: &[] },
)];

pub(super) static NODE: &[(&str, Rules)] = &[(
    "RuntimeClass",
    Rules {
        create: &[Metadata, Is(runtime_class)],
        update: &[MetadataChange, Metadata, Is(runtime_class), Became(runtime_class_update)],
        subresources: &[],
    },
)];

fn autoscaler(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.int("minReplicas").is_some_and(|count| count < 1) {
        errors.invalid(spec.path("minReplicas"), spec.get("minReplicas"), "must be greater than or equal to 1");
    }
    let most = spec.int("maxReplicas").unwrap_or(0);
    if most == 0 {
        errors.required(spec.path("maxReplicas"), "must be set and greater than 0");
    } else if most < 0 {
        errors.invalid(spec.path("maxReplicas"), &most.into(), "must be greater than or equal to 1");
    }
    if spec.int("minReplicas").is_some_and(|least| most < least) {
        errors.invalid(spec.path("maxReplicas"), &most.into(), "must be greater than or equal to `minReplicas`");
    }
    let target = spec.child("scaleTargetRef");
    for name in ["kind", "name"] {
        if target.needs(name, errors) {
            target.follows(name, names::path_segment, errors);
        }
    }
    if !target.text("apiVersion").contains('/') && target.text("kind") != "ReplicationController" {
        let why = "apiVersion must specify API group";
        errors.invalid(target.path("apiVersion"), &target.text("apiVersion").into(), why);
    }
    if spec.int("targetCPUUtilizationPercentage").is_some_and(|percent| percent < 1) {
        let path = spec.path("targetCPUUtilizationPercentage");
        errors.invalid(path, spec.get("targetCPUUtilizationPercentage"), "must be greater than 0");
    }
    spec.items("metrics").for_each(|one| metric(&one, errors));
    let from_outside = spec.items("metrics").any(|metric| matches!(metric.text("type"), "Object" | "External"));
    if spec.int("minReplicas") == Some(0) && !from_outside {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(spec.path("metrics"), why);
    }
    let behavior = spec.child("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        if behavior.has(direction) {
            scaling_rules(&behavior.child(direction), errors);
        }
    }
}

const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

fn metric(at: &At<'_>, errors: &mut Errors) {
    if !at.needs("type", errors) {
        return;
    }
    let kind = at.text("type");
    let Some((_, field)) = SOURCES.iter().find(|(name, _)| *name == kind) else {
        let known: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        errors.not_supported(at.path("type"), at.get("type"), &known);
        return;
    };
    if !at.has(field) {
        errors.required(at.path(field), "must populate information for the given metric source");
    }
    for (_, other) in SOURCES.iter().filter(|(_, other)| other != field) {
        if at.has(other) {
            errors.forbidden(at.path(other), "must populate the given metric source only");
        }
    }
    let source = at.child(field);
    if source.is_missing() {
        return;
    }
    if matches!(kind, "Resource" | "ContainerResource") && source.text("name").is_empty() {
        errors.required(source.path("name"), "must specify a resource name");
    }
    if matches!(kind, "Pods" | "Object" | "External") {
        source.child("metric").needs("name", errors);
    }
    let target = source.child("target");
    target.one_of("type", &["Utilization", "Value", "AverageValue"], errors);
    if kind == "Resource" && !target.has("averageUtilization") && !target.has("averageValue") {
        let why = "must set either a target raw value or a target utilization";
        errors.required(target.path("averageUtilization"), why);
    }
    if target.int("averageUtilization").is_some_and(|percent| percent < 1) {
        errors.invalid(target.path("averageUtilization"), target.get("averageUtilization"), "must be greater than 0");
    }
}

/// Longest windows, in seconds.
const MAX_STABILIZATION: i64 = 3600;
const MAX_PERIOD: i64 = 1800;

fn scaling_rules(at: &At<'_>, errors: &mut Errors) {
    at.nonnegative("stabilizationWindowSeconds", errors);
    let window = "stabilizationWindowSeconds";
    if at.int(window).is_some_and(|seconds| seconds > MAX_STABILIZATION) {
        errors.invalid(at.path(window), at.get(window), "must be less than or equal to 3600");
    }
    at.one_of_if_set("selectPolicy", &["Disabled", "Max", "Min"], errors);
    if at.count("policies") == 0 {
        errors.required(at.path("policies"), "must specify at least one Policy");
    }
    for policy in at.items("policies") {
        policy.one_of("type", &["Percent", "Pods"], errors);
        for name in ["value", "periodSeconds"] {
            if policy.int(name).unwrap_or(0) <= 0 {
                errors.invalid(policy.path(name), &policy.int(name).unwrap_or(0).into(), "must be greater than zero");
            }
        }
        if policy.int("periodSeconds").is_some_and(|seconds| seconds > MAX_PERIOD) {
            let path = policy.path("periodSeconds");
            errors.invalid(path, policy.get("periodSeconds"), "must be less than or equal to 1800");
        }
    }
}

fn disruption_budget(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.has("minAvailable") && spec.has("maxUnavailable") {
        errors.invalid(&spec.path, spec.value, "minAvailable and maxUnavailable cannot be both set");
    }
    for name in ["minAvailable", "maxUnavailable"] {
        selectors::int_or_percent(&spec.child(name), errors);
        selectors::at_most_100_percent(&spec.child(name), errors);
    }
    selectors::selector(&spec.child("selector"), errors);
    spec.one_of_if_set("unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], errors);
}

const GROUP: &str = "rbac.authorization.k8s.io";

fn role(object: &At<'_>, namespaced: bool, errors: &mut Errors) {
    for rule in object.items("rules") {
        if rule.count("verbs") == 0 {
            errors.required(rule.path("verbs"), "verbs must contain at least one value");
        }
        if rule.count("nonResourceURLs") > 0 {
            let (path, urls) = (rule.path("nonResourceURLs"), rule.get("nonResourceURLs"));
            if namespaced {
                errors.invalid(&path, urls, "namespaced rules cannot apply to non-resource URLs");
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|name| rule.count(name) > 0) {
                errors.invalid(&path, urls, "rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if rule.count("apiGroups") == 0 {
            errors.required(rule.path("apiGroups"), "resource rules must supply at least one api group");
        }
        if rule.count("resources") == 0 {
            errors.required(rule.path("resources"), "resource rules must supply at least one resource");
        }
    }
    let aggregation = object.child("aggregationRule");
    if !aggregation.is_missing() {
        if aggregation.count("clusterRoleSelectors") == 0 {
            let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.required(aggregation.path("clusterRoleSelectors"), why);
        }
        aggregation.items("clusterRoleSelectors").for_each(|selector| selectors::selector(&selector, errors));
    }
}

fn role_binding(object: &At<'_>, namespaced: bool, errors: &mut Errors) {
    let role = object.child("roleRef");
    if role.text("apiGroup") != GROUP {
        errors.not_supported(role.path("apiGroup"), &role.text("apiGroup").into(), &[GROUP]);
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&role.text("kind")) {
        errors.not_supported(role.path("kind"), &role.text("kind").into(), kinds);
    }
    if role.needs("name", errors) {
        role.follows("name", names::path_segment, errors);
    }
    object.items("subjects").for_each(|one| subject(&one, namespaced, errors));
}

fn subject(at: &At<'_>, namespaced: bool, errors: &mut Errors) {
    at.needs("name", errors);
    let group = at.text("apiGroup");
    match at.text("kind") {
        "ServiceAccount" => {
            if !at.text("name").is_empty() {
                at.follows("name", names::dns_subdomain, errors);
            }
            if !group.is_empty() {
                errors.not_supported(at.path("apiGroup"), &group.into(), &[""]);
            }
            if !namespaced {
                at.needs("namespace", errors);
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.not_supported(at.path("apiGroup"), &group.into(), &[GROUP]);
            }
        }
        other => errors.not_supported(at.path("kind"), &other.into(), &["ServiceAccount", "User", "Group"]),
    }
}

fn role_binding_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("roleRef") != new.get("roleRef") {
        errors.invalid("roleRef", new.get("roleRef"), "cannot change roleRef");
    }
}

/// Values above are kept for the system's own classes.
const MAX_PRIORITY: i64 = 1_000_000_000;

fn priority_class(object: &At<'_>, errors: &mut Errors) {
    let name = object.get("metadata").get("name").and_then(Value::as_str).unwrap_or_default();
    let own = matches!(name, "system-cluster-critical" | "system-node-critical");
    if name.starts_with("system-") && !own {
        let why = "priority class names with 'system-' prefix are reserved for system use only. error: ";
        errors.forbidden("metadata.name", &format!("{why}{name} is not a known system priority class"));
    }
    if object.int("value").is_some_and(|value| value > MAX_PRIORITY) && !own {
        errors.forbidden("value", &format!("maximum allowed value of a user defined priority is {MAX_PRIORITY}"));
    }
    object.one_of_if_set("preemptionPolicy", &["PreemptLowerPriority", "Never"], errors);
}

fn priority_class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("value") != new.get("value") {
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
    object.follows("handler", names::dns_label, errors);
}

fn runtime_class_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("handler") != new.get("handler") {
        errors.invalid("handler", new.get("handler"), IMMUTABLE);
    }
}
