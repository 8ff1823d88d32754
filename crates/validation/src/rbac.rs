//! The group rbac.authorization.k8s.io.

use super::{
    Errors, FieldError, internal, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    selectors,
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[
    ("Role", Rules { create: &[Metadata, Is(role)], update: &[Metadata, Is(role), MetadataChange], subresources: &[] }),
    (
        "ClusterRole",
        Rules {
            create: &[Metadata, Is(cluster_role)],
            update: &[Metadata, Is(cluster_role), MetadataChange],
            subresources: &[],
        },
    ),
    (
        "RoleBinding",
        Rules {
            create: &[Metadata, Is(namespaced)],
            update: &[Metadata, Is(namespaced), MetadataChange, Became(binding_update)],
            subresources: &[],
        },
    ),
    (
        "ClusterRoleBinding",
        Rules {
            create: &[Metadata, Is(everywhere)],
            update: &[Metadata, Is(everywhere), MetadataChange, Became(binding_update)],
            subresources: &[],
        },
    ),
];

const GROUP: &str = "rbac.authorization.k8s.io";

fn role(object: &At<'_>, errors: &mut Errors) {
    object.items("rules").for_each(|one| rule(&one, true, errors));
}

fn cluster_role(object: &At<'_>, errors: &mut Errors) {
    object.items("rules").for_each(|one| rule(&one, false, errors));
    let Some(aggregation) = object.present("aggregationRule") else { return };
    if aggregation.count("clusterRoleSelectors") == 0 {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required(aggregation.path("clusterRoleSelectors"), why);
    }
    for selector in aggregation.items("clusterRoleSelectors") {
        selectors::tolerated_selector(&selector, errors);
        if selectors::matches(selector.value, &serde_json::Value::Null).is_none() {
            errors.push(FieldError::invalid_shown(&selector.path, "null", "invalid label selector."));
        }
    }
}

fn rule(rule: &At<'_>, namespaced: bool, errors: &mut Errors) {
    let needs = |name: &str, why: &str, errors: &mut Errors| {
        if rule.count(name) == 0 {
            errors.required(rule.path(name), why);
        }
    };
    needs("verbs", "verbs must contain at least one value", errors);
    if rule.count("nonResourceURLs") > 0 {
        let (path, urls) = (rule.path("nonResourceURLs"), rule.get("nonResourceURLs"));
        if namespaced {
            errors.invalid(&path, urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|name| rule.count(name) > 0) {
            errors.invalid(&path, urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    needs("apiGroups", "resource rules must supply at least one api group", errors);
    needs("resources", "resource rules must supply at least one resource", errors);
}

fn namespaced(object: &At<'_>, errors: &mut Errors) {
    binding(object, &["Role", "ClusterRole"], errors);
}

fn everywhere(object: &At<'_>, errors: &mut Errors) {
    binding(object, &["ClusterRole"], errors);
}

fn binding(object: &At<'_>, kinds: &[&str], errors: &mut Errors) {
    let role = object.child("roleRef");
    role.supported("apiGroup", &[GROUP], errors);
    role.supported("kind", kinds, errors);
    role.needs_to_follow("name", names::path_segment, errors);
    object.items("subjects").for_each(|one| subject(&one, kinds.len() > 1, errors));
}

fn subject(at: &At<'_>, namespaced: bool, errors: &mut Errors) {
    at.needs("name", errors);
    match at.text("kind") {
        "ServiceAccount" => {
            at.follows_if_set("name", names::dns_subdomain, errors);
            at.supported("apiGroup", &[""], errors);
            if !namespaced {
                at.needs("namespace", errors);
            }
        }
        "User" | "Group" => at.supported("apiGroup", &[GROUP], errors),
        _ => at.supported("kind", &["ServiceAccount", "User", "Group"], errors),
    }
}

fn binding_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("roleRef") != new.get("roleRef") {
        let shown = internal::printed_value("RoleRef", new.get("roleRef"));
        errors.push(FieldError::invalid_shown("roleRef", &shown, "cannot change roleRef"));
    }
}
