//! Flow schemas: which requests go where.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::super::{Errors, FieldError, internal, names, view::At};

const MAX_PRECEDENCE: i64 = 10_000;
const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
const KINDS: [&str; 3] = ["Group", "ServiceAccount", "User"];
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// The schemas that every server has, as they must be.
static FIXED: LazyLock<[(&str, Value); 2]> = LazyLock::new(|| {
    let rules = |groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect();
        json!([{
            "subjects": subjects,
            "resourceRules": [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]},
            ],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }])
    };
    [
        (
            "exempt",
            json!({"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1,
                "rules": rules(&["system:masters"])}),
        ),
        (
            "catch-all",
            json!({"priorityLevelConfiguration": {"name": "catch-all"}, "matchingPrecedence": 10_000,
                "distinguisherMethod": {"type": "ByUser"},
                "rules": rules(&["system:unauthenticated", "system:authenticated"])}),
        ),
    ]
});

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let (name, spec) = (object.child("metadata").text("name"), object.child("spec"));
    self::spec(name, &spec, errors);
    if FIXED.iter().any(|(known, fixed)| *known == name && fixed != spec.value) {
        let shown = internal::printed_value("FlowSchemaSpec", spec.value);
        let why = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid_shown(&spec.path, &shown, &why));
    }
}

fn spec(name: &str, spec: &At<'_>, errors: &mut Errors) {
    let precedence = spec.number("matchingPrecedence");
    let mut wrong = |why: &str| errors.invalid(spec.path("matchingPrecedence"), &precedence.into(), why);
    if precedence <= 0 {
        wrong("must be a positive value");
    }
    if precedence > MAX_PRECEDENCE {
        wrong(&format!("must not be greater than {MAX_PRECEDENCE}"));
    }
    if precedence == 1 && name != "exempt" {
        wrong("only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = spec.child("distinguisherMethod");
    if !method.is_missing() && !METHODS.contains(&method.text("type")) {
        let shown = internal::printed_value("FlowDistinguisherMethod", method.value);
        errors.push(FieldError::not_supported_shown(method.path("type"), &shown, &METHODS));
    }
    let level = spec.child("priorityLevelConfiguration");
    if level.needs_because("name", "must reference a priority level", errors) {
        level.follows("name", names::dns_subdomain, errors);
    }
    spec.items("rules").for_each(|rule| self::rule(&rule, errors));
}

fn rule(rule: &At<'_>, errors: &mut Errors) {
    if rule.count("subjects") == 0 {
        errors.required(rule.path("subjects"), "subjects must contain at least one value");
    }
    rule.items("subjects").for_each(|one| subject(&one, errors));
    if rule.count("resourceRules") + rule.count("nonResourceRules") == 0 {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.required(&rule.path, why);
    }
    rule.items("resourceRules").for_each(|one| of_resources(&one, errors));
    rule.items("nonResourceRules").for_each(|one| of_paths(&one, errors));
}

/// The fields of a subject, in the order in which they are checked, with the kinds that they belong to.
const FIELDS: [(&str, &str); 3] = [("serviceAccount", "ServiceAccount"), ("user", "User"), ("group", "Group")];

fn subject(at: &At<'_>, errors: &mut Errors) {
    let Some((own, kind)) = FIELDS.iter().find(|(_, kind)| *kind == at.text("kind")) else {
        return at.supported("kind", &KINDS, errors);
    };
    match at.present(own) {
        None => errors.required(at.path(own), &format!("{own} is required when subject kind is '{kind}'")),
        Some(account) if *own == "serviceAccount" => service_account(&account, errors),
        Some(named) => drop(named.needs("name", errors)),
    }
    for (other, kind) in FIELDS.iter().filter(|(other, _)| other != own && at.has(other)) {
        errors.forbidden(at.path(other), &format!("{other} is forbidden when subject kind is not '{kind}'"));
    }
}

fn service_account(at: &At<'_>, errors: &mut Errors) {
    if at.needs("name", errors) && at.text("name") != "*" {
        at.follows("name", names::dns_subdomain, errors);
    }
    if at.needs_because("namespace", "must specify namespace for service account", errors) {
        at.follows("namespace", names::dns_label, errors);
    }
}

fn is_wild(at: &At<'_>, name: &str) -> bool {
    at.items(name).any(|one| one.as_text() == "*")
}

/// Checks a nonempty list: either `*` alone, or other values. Returns true if its values must be checked further.
fn list(at: &At<'_>, name: &str, missing: &str, others: &str, errors: &mut Errors) -> bool {
    let (count, wild) = (at.count(name), is_wild(at, name));
    if count == 0 {
        errors.required(at.path(name), missing);
    } else if wild && count > 1 {
        errors.invalid(at.path(name), at.get(name), &format!("if '*' is present, must not specify other {others}"));
    }
    count > 0 && !wild
}

fn verbs(at: &At<'_>, errors: &mut Errors) {
    let named = list(at, "verbs", "verbs must contain at least one value", "verbs", errors);
    if named && at.items("verbs").any(|verb| !VERBS.contains(&verb.as_text())) {
        errors.not_supported(at.path("verbs"), at.get("verbs"), &VERBS);
    }
}

fn of_resources(at: &At<'_>, errors: &mut Errors) {
    verbs(at, errors);
    list(at, "apiGroups", "resource rules must supply at least one api group", "api groups", errors);
    list(at, "resources", "resource rules must supply at least one resource", "resources", errors);
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    if at.count("namespaces") == 0 && at.flag("clusterScope") {
        return;
    }
    if list(at, "namespaces", missing, "namespaces", errors) {
        for namespace in at.items("namespaces") {
            for why in names::dns_label(namespace.as_text()) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {why}");
                errors.invalid(&namespace.path, namespace.value, &why);
            }
        }
    }
}

fn of_paths(at: &At<'_>, errors: &mut Errors) {
    verbs(at, errors);
    let missing = "nonResourceURLs must contain at least one value";
    if list(at, "nonResourceURLs", missing, "non-resource URLs", errors) {
        for path in at.items("nonResourceURLs") {
            if let Some(why) = path_complaint(path.as_text()) {
                errors.invalid(&path.path, path.value, why);
            }
        }
    }
}

fn path_complaint(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !path.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}
