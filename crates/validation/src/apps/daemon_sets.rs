//! Daemon sets.

use super::{
    super::{Errors, FieldError, core, internal, selectors, view::At},
    keeps_running, not_empty, selects,
};

pub(super) fn check(object: &At<'_>, errors: &mut Errors) {
    let spec = object.child("spec");
    selectors::tolerated_selector(&spec.child("selector"), errors);
    selects(&spec, true, errors);
    if let Some(selector) = spec.present("selector") {
        not_empty(&selector, "daemonset", errors);
    }
    core::template(&spec.child("template"), errors);
    keeps_running(&spec.child("template"), "DaemonSet", errors);
    spec.nonnegative("minReadySeconds", errors);
    let strategy = spec.child("updateStrategy");
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => match strategy.present("rollingUpdate") {
            Some(rolling) => rolling_update(&rolling, errors),
            None => errors.required(strategy.path("rollingUpdate"), ""),
        },
        _ => {
            let shown = internal::printed_value("DaemonSetUpdateStrategy", strategy.value);
            errors.push(FieldError::not_supported_shown(&strategy.path, &shown, &["RollingUpdate", "OnDelete"]));
        }
    }
    spec.nonnegative("revisionHistoryLimit", errors);
}

fn rolling_update(rolling: &At<'_>, errors: &mut Errors) {
    let parts = [rolling.child("maxUnavailable"), rolling.child("maxSurge")];
    parts.iter().for_each(|part| selectors::int_or_percent(part, errors));
    parts.iter().for_each(|part| selectors::at_most_100_percent(part, errors));
    let [unavailable, surge] = parts;
    match (selectors::is_zero(unavailable.value), selectors::is_zero(surge.value)) {
        (true, true) => errors.required(&unavailable.path, "cannot be 0 when maxSurge is 0"),
        (false, false) => errors.invalid(&surge.path, surge.value, "may not be set when maxUnavailable is non-zero"),
        _ => {}
    }
}

pub(super) fn status(object: &At<'_>, errors: &mut Errors) {
    let numbers = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    object.child("status").nonnegatives(&numbers, errors);
}
