//! Jobs and cron jobs.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    Errors, cron, pods, selectors,
    view::{At, IMMUTABLE},
    workloads::{MISMATCH, equal_but},
};

pub(super) fn job(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    generated_selector(object, errors);
    job_spec(&spec, errors);
    let labels = spec.get("template").pointer("/metadata/labels").unwrap_or(&Value::Null);
    let fits = spec.has("selector") && selectors::matches(spec.get("selector"), labels) == Some(true);
    if !fits {
        errors.invalid(spec.path("template").child("metadata").child("labels"), labels, MISMATCH);
    }
}

/// A selector that was generated is that of the job's own uid.
fn generated_selector(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.flag("manualSelector") {
        if !spec.has("selector") {
            errors.required(spec.path("selector"), "");
        }
        return;
    }
    let uid = object.get("metadata").get("uid").and_then(Value::as_str).unwrap_or_default();
    let labels = spec.get("template").pointer("/metadata/labels").cloned().unwrap_or_default();
    let wanted = spec.child("selector").get("matchLabels").as_object().map_or(0, serde_json::Map::len);
    let own = "batch.kubernetes.io/controller-uid";
    let fits = spec.child("selector").get("matchLabels").get(own).and_then(Value::as_str) == Some(uid);
    if !fits || wanted != 1 || labels.get(own).and_then(Value::as_str) != Some(uid) {
        errors.invalid(spec.path("selector"), spec.get("selector"), "`selector` not auto-generated");
    }
}

/// Most pods of an indexed job at one time.
const MAX_INDEXED_PARALLELISM: i64 = 100_000;

fn job_spec(spec: &At<'_>, errors: &mut Errors) {
    let numbers = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    numbers.iter().for_each(|name| spec.nonnegative(name, errors));
    if spec.has("maxFailedIndexes") && !spec.has("backoffLimitPerIndex") {
        errors.required(spec.path("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    spec.one_of_if_set("completionMode", &["NonIndexed", "Indexed"], errors);
    if spec.text("completionMode") == "Indexed" {
        if !spec.has("completions") {
            errors.required(spec.path("completions"), "when completion mode is Indexed");
        }
        if spec.int("parallelism").is_some_and(|count| count > MAX_INDEXED_PARALLELISM) {
            let why =
                format!("must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed");
            errors.invalid(spec.path("parallelism"), spec.get("parallelism"), &why);
        }
    } else {
        for name in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
            if spec.has(name) {
                errors.invalid(spec.path(name), spec.get(name), "requires indexed completion mode");
            }
        }
    }
    spec.one_of_if_set("podReplacementPolicy", &["Failed", "TerminatingOrFailed"], errors);
    let template = spec.child("template");
    pods::template(&template, &HashSet::new(), errors);
    let pod = template.child("spec");
    let (policy, path) = (pod.text("restartPolicy"), pod.path("restartPolicy"));
    match policy {
        "Always" | "" => errors.required(path, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.has("podFailurePolicy") => {
            errors.invalid(path, &policy.into(), "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" | "Never" => {}
        _ => errors.not_supported(path, &policy.into(), &["OnFailure", "Never"]),
    }
}

const FROZEN: [&str; 6] =
    ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"];

pub(super) fn job_update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let (before, after) = (old.child("spec"), new.child("spec"));
    if before.get("completions") != after.get("completions") {
        let path = after.path("completions");
        if after.text("completionMode") != "Indexed" || !after.has("completions") || !before.has("completions") {
            errors.invalid(path, after.get("completions"), IMMUTABLE);
        } else if after.get("completions") != after.get("parallelism") {
            errors.invalid(path, after.get("completions"), "can only be modified in tandem with spec.parallelism");
        }
    }
    let waits = before.flag("suspend") && old.get("status").get("startTime").is_none();
    let same = if waits {
        same_but_scheduling(before.get("template"), after.get("template"))
    } else {
        before.get("template") == after.get("template")
    };
    if !same {
        errors.invalid(after.path("template"), after.get("template"), IMMUTABLE);
    }
    FROZEN.iter().for_each(|name| after.immutable(&before, name, errors));
}

/// A job that was never started may still be told where to run.
fn same_but_scheduling(old: &Value, new: &Value) -> bool {
    let spec = |value: &Value| value.get("spec").cloned().unwrap_or_default();
    equal_but(&spec(old), &spec(new), &["affinity", "nodeSelector", "tolerations", "schedulingGates"])
}

/// The longest name from which jobs can be named.
const MAX_CRON_NAME: usize = 52;

pub(super) fn cron_job(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    if spec.needs("schedule", errors) {
        let schedule = spec.text("schedule");
        if let Err(why) = cron::check(schedule) {
            errors.invalid(spec.path("schedule"), &schedule.into(), &why);
        }
        if schedule.contains("TZ") {
            let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.invalid(spec.path("schedule"), &schedule.into(), why);
        }
    }
    spec.nonnegative("startingDeadlineSeconds", errors);
    if spec.has("timeZone") {
        time_zone(&spec, errors);
    }
    spec.one_of("concurrencyPolicy", &["Allow", "Forbid", "Replace"], errors);
    let template = spec.child("jobTemplate").child("spec");
    if template.flag("manualSelector") {
        let path = template.path("manualSelector");
        errors.not_supported(path, &true.into(), &["nil", "false"]);
    }
    job_spec(&template, errors);
    spec.nonnegative("successfulJobsHistoryLimit", errors);
    spec.nonnegative("failedJobsHistoryLimit", errors);
}

pub(super) fn new_cron_job(object: &At<'_>, errors: &mut Errors) {
    cron_job(object, errors);
    let name = object.get("metadata").get("name").and_then(Value::as_str).unwrap_or_default();
    if name.len() > MAX_CRON_NAME {
        errors.invalid("metadata.name", &name.into(), "must be no more than 52 characters");
    }
}

/// Names of time zones are only checked in form: which ones there are, the physical clusters know.
fn time_zone(spec: &At<'_>, errors: &mut Errors) {
    let (name, path) = (spec.text("timeZone"), spec.path("timeZone"));
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-+_/".contains(&b);
    if name.is_empty() {
        errors.invalid(path, &name.into(), "timeZone must be nil or non-empty string");
    } else if name.eq_ignore_ascii_case("local") {
        let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(path, &name.into(), why);
    } else if !name.bytes().all(plain) || name.split('/').any(str::is_empty) {
        errors.invalid(path, &name.into(), &format!("unknown time zone {name}"));
    }
}
