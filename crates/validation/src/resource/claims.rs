//! Claims of devices.

use super::{
    super::{
        Errors, names,
        view::{At, NOT_POSITIVE},
    },
    MAX_CONFIGS, MAX_SELECTORS,
    parts::{self, EFFECTS},
};

/// Most requests of a claim, alternatives of a request, and constraints.
pub(super) const MAX_REQUESTS: usize = 32;
/// Maximum of requests in which a name is searched: a larger number is an error of its own.
const MAX_LOOKED_AT: usize = 1000;
const MAX_ALTERNATIVES: usize = 8;
const MAX_CONSTRAINTS: usize = 32;

pub(super) fn spec(spec: &At<'_>, errors: &mut Errors) {
    let devices = spec.child("devices");
    parts::set(&devices, "requests", MAX_REQUESTS, request, parts::by_name, errors);
    let constraint = |one: &At<'_>, errors: &mut Errors| constraint(&devices, one, errors);
    parts::each(&devices, "constraints", MAX_CONSTRAINTS, constraint, errors);
    let configuration = |one: &At<'_>, errors: &mut Errors| {
        of_requests(&devices, one, errors);
        parts::configuration(one, errors);
    };
    parts::each(&devices, "config", MAX_CONFIGS, configuration, errors);
}

/// Checks a list of references to requests.
pub(super) fn of_requests(devices: &At<'_>, at: &At<'_>, errors: &mut Errors) {
    let rule = |one: &At<'_>, errors: &mut Errors| request_name(devices, one, errors);
    parts::set(at, "requests", MAX_REQUESTS, rule, parts::by_itself, errors);
}

/// Checks the name of a request in `devices`, perhaps with one of its alternatives.
pub(super) fn request_name(devices: &At<'_>, at: &At<'_>, errors: &mut Errors) {
    let why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let segments: Vec<&str> = at.as_text().split('/').collect();
    if segments.len() > 2 {
        return errors.invalid(&at.path, &at.as_text().into(), why);
    }
    for segment in &segments {
        errors.invalid_each(&at.path, &(*segment).into(), names::dns_label(segment));
    }
    let requests = devices.items("requests").take(MAX_LOOKED_AT);
    let request = requests.filter(|request| request.text("name") == segments[0]).last();
    let known = request.is_some_and(|request| match segments.get(1) {
        None => true,
        Some(below) => request.items("firstAvailable").take(MAX_LOOKED_AT).any(|one| one.text("name") == *below),
    });
    if !known {
        errors.invalid(&at.path, &at.as_text().into(), why);
    }
}

fn request(at: &At<'_>, errors: &mut Errors) {
    at.follows("name", names::dns_label, errors);
    match (at.present("exactly"), at.count("firstAvailable")) {
        (None, 0) => errors.required(&at.path, "exactly one of `exactly` or `firstAvailable` is required"),
        (None, _) => parts::set(at, "firstAvailable", MAX_ALTERNATIVES, alternative, parts::by_name, errors),
        (Some(exactly), 0) => requested_devices(&exactly, errors),
        (Some(_), _) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.invalid(&at.path, &serde_json::Value::Null, why);
        }
    }
}

fn alternative(at: &At<'_>, errors: &mut Errors) {
    at.follows("name", names::dns_label, errors);
    requested_devices(at, errors);
}

/// Validates the requested devices and their number.
fn requested_devices(at: &At<'_>, errors: &mut Errors) {
    at.needs_to_follow("deviceClassName", names::dns_subdomain, errors);
    parts::each(at, "selectors", MAX_SELECTORS, parts::selector, errors);
    let count = at.number("count");
    match at.text("allocationMode") {
        "All" if count != 0 => {
            let why = "must not be specified when allocationMode is 'All'";
            errors.invalid(at.path("count"), &count.into(), why);
        }
        "ExactCount" if count <= 0 => errors.invalid(at.path("count"), &count.into(), NOT_POSITIVE),
        _ => at.supported("allocationMode", &["All", "ExactCount"], errors),
    }
    at.items("tolerations").for_each(|one| toleration(&one, errors));
}

fn toleration(at: &At<'_>, errors: &mut Errors) {
    at.follows_if_set("key", names::qualified_name, errors);
    match at.text("operator") {
        "Exists" if !at.text("value").is_empty() => {
            errors.invalid(at.path("value"), at.get("value"), "must be empty for operator `Exists`");
        }
        "Equal" => at.follows("value", names::label_value, errors),
        _ => at.one_of("operator", &["Equal", "Exists"], errors),
    }
    at.one_of_if_set("effect", &EFFECTS, errors);
}

fn constraint(devices: &At<'_>, at: &At<'_>, errors: &mut Errors) {
    of_requests(devices, at, errors);
    match ["matchAttribute", "distinctAttribute"].into_iter().find(|name| at.has(name)) {
        Some(name) => parts::full_name(at, name, errors),
        None => {
            let why =
                "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
            errors.required(&at.path, why);
        }
    }
}
