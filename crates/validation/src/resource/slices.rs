//! Slices of the devices that a driver has.

use super::{
    super::{
        Errors, FieldError, core, internal, names,
        view::{At, IMMUTABLE, NOT_POSITIVE},
    },
    devices, parts,
};

/// Maximum of devices; the others are of devices with costly fields, of counter sets, and of counters.
const MAX_DEVICES: usize = 128;
const MAX_DEAR_DEVICES: usize = 64;
const MAX_COUNTER_SETS: usize = 8;
const MAX_COUNTERS: usize = 32;

pub(super) fn check(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let (before, spec) = (old.map(|old| old.child("spec")), new.child("spec"));
    core::csi_driver(&spec, "driver", errors);
    pool(&spec.child("pool"), errors);
    if let Some(before) = &before {
        let pools = (before.child("pool"), spec.child("pool"));
        for (old, new, name) in [(&pools.0, &pools.1, "name"), (before, &spec, "driver"), (before, &spec, "nodeName")] {
            if old.get(name) != new.get(name) {
                errors.invalid(new.path(name), new.get(name), IMMUTABLE);
            }
        }
    }
    nodes(&spec, errors);
    if spec.has("sharedCounters") && spec.has("devices") {
        errors.invalid(&spec.path, &"".into(), "only one of `sharedCounters` or `devices` is allowed");
    }
    let dear = |device: At<'_>| device.count("taints") + device.count("consumesCounters") > 0;
    let most = if spec.items("devices").any(dear) { MAX_DEAR_DEVICES } else { MAX_DEVICES };
    let by_device = spec.flag("perDeviceNodeSelection");
    let device = |one: &At<'_>, errors: &mut Errors| {
        let old =
            before.as_ref().and_then(|spec| spec.items("devices").find(|old| old.text("name") == one.text("name")));
        devices::check(old.as_ref(), one, by_device, errors);
    };
    parts::set(&spec, "devices", most, device, parts::by_name, errors);
    parts::set(&spec, "sharedCounters", MAX_COUNTER_SETS, counters, parts::by_name, errors);
}

fn pool(at: &At<'_>, errors: &mut Errors) {
    parts::pool_name(at, "name", errors);
    if at.number("resourceSliceCount") <= 0 {
        errors.invalid(at.path("resourceSliceCount"), &at.number("resourceSliceCount").into(), NOT_POSITIVE);
    }
    if at.number("generation") < 0 {
        errors.invalid(at.path("generation"), at.get("generation"), "must be greater than or equal to zero");
    }
}

/// Checks a flag that is either absent or true; returns true if it is set.
pub(super) fn true_or_nothing(at: &At<'_>, name: &str, errors: &mut Errors) -> bool {
    if at.has(name) && !at.flag(name) {
        errors.invalid(at.path(name), at.get(name), "must be either unset or set to true");
    }
    at.flag(name)
}

fn nodes(spec: &At<'_>, errors: &mut Errors) {
    let mut set = Vec::new();
    match (spec.has("nodeName"), spec.text("nodeName")) {
        (false, _) => {}
        (true, "") => {
            let why = "must be either unset or set to a non-empty string";
            errors.invalid(spec.path("nodeName"), &"".into(), why);
        }
        (true, _) => {
            set.push("`nodeName`");
            spec.follows("nodeName", names::dns_subdomain, errors);
        }
    }
    if let Some(selector) = spec.present("nodeSelector") {
        set.push("`nodeSelector`");
        core::node_selector(&selector, errors);
        if selector.count("nodeSelectorTerms") != 1 {
            let shown = internal::printed_value("[]NodeSelectorTerm", selector.get("nodeSelectorTerms"));
            let why = "must have exactly one node selector term";
            errors.push(FieldError::invalid_shown(selector.path("nodeSelectorTerms"), &shown, why));
        }
    }
    for (name, word) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")] {
        if true_or_nothing(spec, name, errors) {
            set.push(word);
        }
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => errors.required(&spec.path, why),
        1 => {}
        _ => {
            let given = format!("{{{}}}", set.join(", "));
            errors.invalid(&spec.path, &given.into(), &format!("{why}, but multiple fields are set"));
        }
    }
}

fn counters(at: &At<'_>, errors: &mut Errors) {
    at.needs_to_follow("name", names::dns_label, errors);
    counter_map(at, errors);
}

/// Checks the field `counters`.
pub(super) fn counter_map(at: &At<'_>, errors: &mut Errors) {
    match at.count("counters") {
        0 => errors.required(at.path("counters"), ""),
        count if count > MAX_COUNTERS => {
            errors.push(FieldError::too_many(at.path("counters"), count, MAX_COUNTERS));
        }
        _ => {
            for (name, _) in at.entries("counters") {
                errors.invalid_each(at.path("counters"), &name.into(), names::dns_label(name));
            }
        }
    }
}
