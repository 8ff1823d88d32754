//! Parts of placement policies: expressions, terms about other workloads, groups of a spread, limits of replicas, and
//! forbidden combinations.

use portolan_cel::PlacementExpression;
use portolan_types::placement::{MovePace, Rollout};
use serde_json::Value;

use super::{Errors, names, selectors, view::At};

/// Most expressions of one policy: each is evaluated for every physical cluster or object.
const MAX_EXPRESSIONS: usize = 16;
/// Most terms about other workloads in one list.
const MAX_TERMS: usize = 8;
/// Most replicas that a limit may name.
const MAX_LIMIT: i64 = 1_000_000;

/// Checks the expression `cel`, if it is set.
pub(super) fn expression(at: &At<'_>, compile: fn(&str) -> Result<PlacementExpression, String>, errors: &mut Errors) {
    let text = at.text("cel");
    if !text.is_empty()
        && let Err(problem) = compile(text)
    {
        errors.invalid(at.path("cel"), at.get("cel"), &problem);
    }
}

/// Checks combinations of the parts of a policy.
pub(super) fn contradictions(spec: &At<'_>, errors: &mut Errors) {
    let clusters = spec.child("clusters");
    let (named, excluded) = (clusters.get("names").as_array(), clusters.get("exclude").as_array());
    if let (Some(named), Some(excluded)) = (named, excluded)
        && !named.is_empty()
        && clusters.count("fallback") == 0
        && named.iter().all(|name| excluded.contains(name))
    {
        let why = "may not exclude every physical cluster that is named";
        errors.invalid(clusters.path("exclude"), clusters.get("exclude"), why);
    }
    let overrides = spec.items("overrides").map(|one| count_expressions(one.child("clusters").value));
    let resources = spec.items("resources").filter(|one| !one.text("cel").is_empty()).count();
    if resources + count_expressions(clusters.value) + overrides.sum::<usize>() > MAX_EXPRESSIONS {
        errors.forbidden(spec.path.clone(), "may not have more than 16 CEL expressions");
    }
    if clusters.text("fallbackMode") == "Overflow" {
        let why = "may not be used when `fallbackMode` is 'Overflow'";
        spec.child("replicas").items("limits").for_each(|limit| limit.forbids(&["min"], why, errors));
    }
}

fn count_expressions(clusters: &Value) -> usize {
    let own = clusters.get("cel").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let further = clusters.get("fallback").and_then(Value::as_array).into_iter().flatten();
    usize::from(own) + further.map(count_expressions).sum::<usize>()
}

/// Checks `with` and `apartFrom`.
pub(super) fn workload_terms(spec: &At<'_>, errors: &mut Errors) {
    for list in ["with", "apartFrom"] {
        if spec.count(list) > MAX_TERMS {
            errors.forbidden(spec.path(list), "may not have more than 8 entries");
        }
        for term in spec.items(list) {
            if term.has("selector") {
                selectors::selector(&term.child("selector"), errors);
            } else {
                errors.required(term.path("selector"), "must select other workloads");
            }
            if !term.text("topologyKey").is_empty() {
                selectors::label_name(&term, "topologyKey", errors);
            }
        }
    }
    let with = spec.get("with").as_array().map_or(&[][..], Vec::as_slice);
    for term in spec.items("apartFrom").filter(|term| with.contains(term.value)) {
        errors.invalid(&term.path, term.value, "contradicts the same entry of `with`");
    }
}

/// Checks `rollout`. The schema makes the names of stages unique.
pub(super) fn rollout(at: &At<'_>, errors: &mut Errors) {
    if at.count("stages") > Rollout::MAX_STAGES {
        errors.forbidden(at.path("stages"), "may not have more than 16 entries");
    }
    at.in_range("timeoutSeconds", (0, i64::from(MovePace::MAX_TIMEOUT_SECONDS)), errors);
    for stage in at.items("stages").take(Rollout::MAX_STAGES) {
        let details = names::dns_label(stage.text("name"));
        details.iter().for_each(|detail| errors.invalid(stage.path("name"), stage.get("name"), detail));
        selectors::selector(&stage.child("selector"), errors);
        if stage.has("percent") {
            stage.in_range("percent", (1, 100), errors);
        }
        stage.in_range("waitSeconds", (0, i64::from(MovePace::MAX_TIMEOUT_SECONDS)), errors);
    }
}

/// Checks `suspend`.
pub(super) fn suspension(at: &At<'_>, errors: &mut Errors) {
    for name in at.items("dispatchOn") {
        let details = names::dns_subdomain(name.as_text());
        details.iter().for_each(|detail| errors.invalid(&name.path, name.value, detail));
    }
}

/// Checks `minGroups` and `maxGroups` of an entry of `spread`.
pub(super) fn groups(spec: &At<'_>, spread: &At<'_>, errors: &mut Errors) {
    spread.nonnegatives(&["minGroups", "maxGroups"], errors);
    let (least, most) = (spread.number("minGroups"), spread.number("maxGroups"));
    if most > 0 && least > most {
        errors.invalid(spread.path("minGroups"), spread.get("minGroups"), "must be less than or equal to `maxGroups`");
    }
    if spec.int("count").is_some_and(|count| count > 0 && count < least) {
        errors.invalid(spread.path("minGroups"), spread.get("minGroups"), "must be less than or equal to `count`");
    }
}

/// Checks `limits` of `replicas`.
pub(super) fn replica_limits(replicas: &At<'_>, divides: bool, errors: &mut Errors) {
    if replicas.count("limits") > 0 && !divides {
        errors.forbidden(replicas.path("limits"), "may only be used when `mode` is 'Divide'");
    }
    for limit in replicas.items("limits") {
        selectors::selector(&limit.child("selector"), errors);
        limit.nonnegative("min", errors);
        limit.most("min", MAX_LIMIT, errors);
        if !limit.has("max") {
            continue;
        }
        limit.in_range("max", (1, MAX_LIMIT), errors);
        if limit.number("min") > limit.number("max") {
            errors.invalid(limit.path("min"), limit.get("min"), "must be less than or equal to `max`");
        }
    }
}
