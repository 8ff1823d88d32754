//! Devices in a slice.

use serde_json::Value;

use super::{
    super::{
        Errors, FieldError, core, internal, names,
        view::{At, is_same},
    },
    capacity,
    parts::{self, EFFECTS},
    slices::{counter_map, true_or_nothing},
};

/// Most attributes and capacities, taints, and counter sets that one device takes from.
const MAX_ATTRIBUTES: usize = 32;
const MAX_TAINTS: usize = 16;
const MAX_CONSUMED: usize = 2;
/// Longest value of an attribute.
const MAX_VALUE: usize = 64;

pub(super) fn check(old: Option<&At<'_>>, device: &At<'_>, by_device: bool, errors: &mut Errors) {
    device.follows("name", names::dns_label, errors);
    let count = device.count("attributes") + device.count("capacity");
    if count > MAX_ATTRIBUTES {
        let why = format!("the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}");
        errors.invalid(&device.path, &count.into(), &why);
    }
    for (name, attribute) in device.entries("attributes") {
        parts::qualified_name(&device.child("attributes"), name, errors);
        self::attribute(&attribute, errors);
    }
    for (name, capacity) in device.entries("capacity") {
        parts::qualified_name(&device.child("capacity"), name, errors);
        capacity::check(&capacity, device.flag("allowMultipleAllocations"), errors);
    }
    if !old.is_some_and(|old| is_same(old.get("taints"), device.get("taints"))) {
        parts::each(device, "taints", MAX_TAINTS, taint, errors);
    }
    let counter_set = |one: &At<'_>| one.text("counterSet").into();
    let consumed = |one: &At<'_>, errors: &mut Errors| {
        one.needs_to_follow("counterSet", names::dns_label, errors);
        counter_map(one, errors);
    };
    parts::set(device, "consumesCounters", MAX_CONSUMED, consumed, counter_set, errors);
    nodes(device, by_device, errors);
    parts::binding(device, errors);
}

fn nodes(device: &At<'_>, by_device: bool, errors: &mut Errors) {
    if !by_device {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|name| device.has(name)) {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.invalid(&device.path, &Value::Null, why);
        }
        return;
    }
    let mut set = Vec::new();
    match (device.has("nodeName"), device.text("nodeName")) {
        (false, _) => {}
        (true, "") => errors.invalid(device.path("nodeName"), &"".into(), "must not be empty"),
        (true, _) => {
            set.push("`nodeName`");
            device.follows("nodeName", names::dns_subdomain, errors);
        }
    }
    if let Some(selector) = device.present("nodeSelector") {
        set.push("`nodeSelector`");
        core::node_selector(&selector, errors);
    }
    if true_or_nothing(device, "allNodes", errors) {
        set.push("`allNodes`");
    }
    let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match set.len() {
        0 => errors.required(&device.path, why),
        1 => {}
        _ => errors.invalid(&device.path, &format!("{{{}}}", set.join(", ")).into(), why),
    }
}

/// Types of attributes. Lists of values belong to a disabled feature gate.
const VALUES: [&str; 4] = ["bool", "int", "string", "version"];

fn attribute(at: &At<'_>, errors: &mut Errors) {
    if at.text("string").len() > MAX_VALUE {
        errors.push(FieldError::too_long(at.path("string"), MAX_VALUE));
    }
    if let Some(version) = at.present("version") {
        if !is_semantic_version(version.as_text()) {
            let why = "must be a string compatible with semver.org spec 2.0.0";
            errors.invalid(&version.path, version.value, why);
        }
        if version.as_text().len() > MAX_VALUE {
            errors.push(FieldError::too_long(&version.path, MAX_VALUE));
        }
    }
    let shown = match VALUES.iter().filter(|name| at.has(name)).count() {
        0 => "\"\"".to_owned(),
        1 => return,
        _ => internal::printed_value("DeviceAttribute", at.value),
    };
    errors.push(FieldError::invalid_shown(&at.path, &shown, "exactly one value must be specified"));
}

/// Returns true for a semantic version (semver.org, 2.0.0), with an optional pre-release and build.
fn is_semantic_version(text: &str) -> bool {
    let is_number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_early = |part: &str| is_number(part) || (is_word(part) && !part.bytes().all(|b| b.is_ascii_digit()));
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, early) = rest.split_once('-').map_or((rest, None), |(core, early)| (core, Some(early)));
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && early.is_none_or(|early| early.split('.').all(is_early))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

fn taint(at: &At<'_>, errors: &mut Errors) {
    at.follows("key", names::qualified_name, errors);
    at.follows_if_set("value", names::label_value, errors);
    at.one_of("effect", &EFFECTS, errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_semver() {
        for (text, expected) in [
            ("1.2.3", true),
            ("0.0.0-alpha.1+build-5.007", true),
            ("1.2.3--", true),
            ("1.2", false),
            ("01.2.3", false),
            ("1.2.3-01", false),
            ("1.2.3-", false),
            ("1.2.3+", false),
            ("v1.2.3", false),
        ] {
            assert_eq!(is_semantic_version(text), expected, "{text}");
        }
    }
}
