//! Validation of a Job's pod failure policy and success policy.

use std::collections::{BTreeSet, HashSet};

use super::{
    super::{Errors, FieldError, names, view::At},
    indexes,
};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_CONDITIONS: usize = 20;
/// Longest list of indexes, in bytes.
const MAX_INDEXES: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const STATES: [&str; 3] = ["False", "True", "Unknown"];

/// Text at `name` that must be one of `known`, which are listed when it is missing.
fn required_one_of(at: &At<'_>, name: &str, known: &[&str], errors: &mut Errors) {
    let quoted: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    if at.needs_because(name, &format!("valid values: [{}]", quoted.join(" ")), errors) {
        at.supported(name, known, errors);
    }
}

fn too_many(at: &At<'_>, name: &str, most: usize, errors: &mut Errors) {
    if at.count(name) > most {
        errors.push(FieldError::too_many(at.path(name), at.count(name), most));
    }
}

pub(super) fn check(spec: &At<'_>, policy: &At<'_>, errors: &mut Errors) {
    too_many(policy, "rules", MAX_RULES, errors);
    let pod = spec.child("template").child("spec");
    let containers: BTreeSet<&str> =
        ["containers", "initContainers"].iter().flat_map(|list| pod.items(list)).map(|one| one.text("name")).collect();
    for rule in policy.items("rules") {
        if rule.text("action") == "FailIndex" {
            if !spec.has("backoffLimitPerIndex") {
                errors.invalid(rule.path("action"), rule.get("action"), "requires the backoffLimitPerIndex to be set");
            }
        } else {
            required_one_of(&rule, "action", &ACTIONS, errors);
        }
        if let Some(codes) = rule.present("onExitCodes") {
            exit_codes(&codes, &containers, errors);
        }
        too_many(&rule, "onPodConditions", MAX_CONDITIONS, errors);
        for condition in rule.items("onPodConditions") {
            condition.follows("type", names::qualified_name, errors);
            required_one_of(&condition, "status", &STATES, errors);
        }
        let why = match (rule.has("onExitCodes"), rule.count("onPodConditions") > 0) {
            (true, true) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, false) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        errors.push(FieldError::invalid_hidden(&rule.path, why));
    }
}

fn exit_codes(at: &At<'_>, containers: &BTreeSet<&str>, errors: &mut Errors) {
    required_one_of(at, "operator", &["In", "NotIn"], errors);
    if at.has("containerName") && !containers.contains(at.text("containerName")) {
        let why = "must be one of the container or initContainer names in the pod template";
        errors.invalid(at.path("containerName"), at.get("containerName"), why);
    }
    if at.count("values") == 0 {
        errors.invalid(at.path("values"), at.get("values"), "at least one value is required");
    }
    too_many(at, "values", MAX_EXIT_CODES, errors);
    let mut taken = HashSet::new();
    for code in at.items("values") {
        let number = code.value.as_i64().unwrap_or(0);
        if at.text("operator") == "In" && number == 0 {
            errors.invalid(&code.path, code.value, "must not be 0 for the In operator");
        }
        if !taken.insert(number) {
            errors.duplicate(&code.path, code.value);
        }
    }
    if !at.items("values").map(|code| code.value.as_i64()).is_sorted() {
        errors.invalid(at.path("values"), at.get("values"), "must be ordered");
    }
}

/// Validates the success policy.
pub(super) fn success(spec: &At<'_>, policy: &At<'_>, errors: &mut Errors) {
    if policy.count("rules") == 0 {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.required(policy.path("rules"), why);
    }
    too_many(policy, "rules", MAX_RULES, errors);
    // Without completions an indexed job is refused already.
    let completions = spec.number("completions");
    for rule in policy.items("rules") {
        let (count, list) = ("succeededCount", "succeededIndexes");
        if !rule.has(count) && !rule.has(list) {
            errors.required(&rule.path, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut total = 0;
        if rule.has(list) {
            if rule.text(list).len() > MAX_INDEXES {
                errors.push(FieldError::too_long(rule.path(list), MAX_INDEXES));
            }
            match indexes::count(rule.text(list), completions) {
                Ok(found) => total = found,
                Err(why) => {
                    let why = format!("error parsing succeededIndexes: {why}");
                    errors.invalid(rule.path(list), rule.get(list), &why);
                }
            }
        }
        if rule.has(count) {
            rule.nonnegative(count, errors);
            let mut at_most = |most: i64, what: &str| {
                if rule.number(count) > most {
                    let why = format!("must be less than or equal to {most} (the number of {what})");
                    errors.invalid(rule.path(count), rule.get(count), &why);
                }
            };
            at_most(completions, "specified completions");
            if rule.has(list) {
                at_most(total, "indexes in the specified succeededIndexes field");
            }
        }
    }
}
