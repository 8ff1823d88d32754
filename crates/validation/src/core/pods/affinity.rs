//! Validation of node and pod affinity.

use super::{
    super::super::{Errors, FieldError, names, selectors, view::At},
    spread,
};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn check(at: &At<'_>, errors: &mut Errors) {
    let node = at.child("nodeAffinity");
    if let Some(required) = node.present(REQUIRED) {
        node_selector(&required, errors);
    }
    for term in node.items(PREFERRED) {
        weight(&term, errors);
        selector_term(&term.child("preference"), false, errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = at.child(kind);
        pods.items(REQUIRED).for_each(|term| pod_term(&term, errors));
        for term in pods.items(PREFERRED) {
            weight(&term, errors);
            pod_term(&term.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(term: &At<'_>, errors: &mut Errors) {
    let weight = term.number("weight");
    if !(1..=100).contains(&weight) {
        errors.invalid(term.path("weight"), &weight.into(), "must be in the range 1-100");
    }
}

/// Checks a selector of nodes.
pub(crate) fn node_selector(at: &At<'_>, errors: &mut Errors) {
    if at.count("nodeSelectorTerms") == 0 {
        errors.required(at.path("nodeSelectorTerms"), "must have at least one node selector term");
    }
    at.items("nodeSelectorTerms").for_each(|term| selector_term(&term, true, errors));
}

/// One term of a selector of nodes; `values` are only checked where the term is required.
pub(crate) fn selector_term(term: &At<'_>, values: bool, errors: &mut Errors) {
    for expression in term.items("matchExpressions") {
        let (count, path) = (expression.count("values"), expression.path("values"));
        match expression.text("operator") {
            "In" | "NotIn" if count == 0 => {
                errors.required(&path, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if count > 0 => {
                errors.forbidden(&path, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "Gt" | "Lt" if count != 1 => {
                errors.required(&path, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => errors.push(FieldError::invalid_named(
                expression.path("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        expression.follows("key", names::qualified_name, errors);
        let from = errors.len();
        for value in expression.items("values").filter(|_| values) {
            errors.invalid_each(&value.path, value.value, names::label_value(value.as_text()));
        }
        errors.mark_tolerated(from, "labels of nodes");
    }
    for field in term.items("matchFields") {
        node_field(&field, errors);
    }
}

fn node_field(field: &At<'_>, errors: &mut Errors) {
    match field.text("operator") {
        "In" | "NotIn" if field.count("values") != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(field.path("values"), why);
        }
        "In" | "NotIn" => {}
        other => errors.push(FieldError::invalid_named(field.path("operator"), other, "not a valid selector operator")),
    }
    if field.text("key") != "metadata.name" {
        errors.invalid(field.path("key"), &field.text("key").into(), "not a valid field selector key");
        return;
    }
    for value in field.items("values") {
        errors.invalid_each(&value.path, value.value, names::dns_subdomain(value.as_text()));
    }
}

fn pod_term(term: &At<'_>, errors: &mut Errors) {
    for name in ["labelSelector", "namespaceSelector"] {
        selectors::tolerated_selector(&term.child(name), errors);
    }
    for namespace in term.items("namespaces") {
        errors.invalid_each(term.path("namespace"), namespace.value, names::dns_label(namespace.as_text()));
    }
    spread::label_keys(term, errors);
    term.needs_because("topologyKey", "can not be empty", errors);
    term.follows("topologyKey", names::qualified_name, errors);
}
