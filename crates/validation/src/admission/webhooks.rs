//! Webhooks.

use portolan_gocompat::url;
use std::collections::HashSet;

use super::{
    super::{Errors, names, selectors, view::At},
    matching,
};

const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
/// Versions of reviews that the server of the version before knows.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const REINVOCATIONS: [&str; 2] = ["IfNeeded", "Never"];
const FORM: &str = "; desired format: https://host[/path]";

pub(super) fn mutating(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    check(old, new, true, errors);
}

pub(super) fn validating(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    check(old, new, false, errors);
}

/// Faults that are tolerated because the old object has them too.
struct Leniency {
    side_effects: bool,
    versions: bool,
    names: bool,
    selectors: bool,
    /// Conditions did not change.
    conditions: bool,
}

impl Leniency {
    fn of(old: Option<&At<'_>>, new: &At<'_>) -> Self {
        let Some(old) = old else {
            return Self { side_effects: false, versions: false, names: false, selectors: false, conditions: false };
        };
        let any = |rule: fn(&At<'_>) -> bool| old.items("webhooks").any(|hook| rule(&hook));
        let mut names: Vec<&str> = old.items("webhooks").map(|hook| hook.text("name")).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        let conditions =
            |at: &At<'_>| -> Vec<_> { at.items("webhooks").map(|hook| hook.get("matchConditions").clone()).collect() };
        Self {
            side_effects: any(|hook| !NO_SIDE_EFFECTS.contains(&hook.text("sideEffects"))),
            versions: any(|hook| hook.count("admissionReviewVersions") > 0 && !knows_reviews(hook)),
            names: names.len() < all,
            selectors: any(has_bad_selector),
            conditions: conditions(old) == conditions(new),
        }
    }
}

fn knows_reviews(hook: &At<'_>) -> bool {
    hook.items("admissionReviewVersions").any(|version| REVIEWS.contains(&version.as_text()))
}

fn has_bad_selector(hook: &At<'_>) -> bool {
    let mut errors = Errors::default();
    for name in ["namespaceSelector", "objectSelector"] {
        selectors::selector(&hook.child(name), &mut errors);
    }
    !errors.is_empty()
}

fn check(old: Option<&At<'_>>, new: &At<'_>, mutating: bool, errors: &mut Errors) {
    let lenient = Leniency::of(old, new);
    let mut taken = HashSet::new();
    for hook in new.items("webhooks") {
        webhook(&hook, mutating, &lenient, errors);
        reviews(&hook, &lenient, errors);
        let name = hook.text("name");
        if lenient.names || name.is_empty() {
            continue;
        }
        if !taken.insert(name) {
            errors.duplicate(hook.path("name"), &name.into());
        }
    }
}

fn webhook(hook: &At<'_>, mutating: bool, lenient: &Leniency, errors: &mut Errors) {
    full_name(hook, errors);
    hook.items("rules").for_each(|rule| matching::rule(&rule, errors));
    matching::failure_policy(hook, errors);
    matching::match_policy(hook, errors);
    let known: &[&str] = if lenient.side_effects { &SIDE_EFFECTS } else { &NO_SIDE_EFFECTS };
    if hook.has("sideEffects") {
        hook.supported("sideEffects", known, errors)
    } else {
        errors.required(hook.path("sideEffects"), &format!("must specify one of {}", known.join(", ")))
    }
    if hook.int("timeoutSeconds").is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(hook.path("timeoutSeconds"), hook.get("timeoutSeconds"), why);
    }
    for name in ["namespaceSelector", "objectSelector"] {
        if lenient.selectors {
            selectors::selector_with_any_values(&hook.child(name), errors)
        } else {
            selectors::selector(&hook.child(name), errors)
        }
    }
    if mutating {
        hook.supported_if_present("reinvocationPolicy", &REINVOCATIONS, errors);
    }
    client(&hook.child("clientConfig"), errors);
    if !lenient.conditions {
        matching::conditions(hook, false, errors);
    }
}

/// Checks a name of three or more parts.
fn full_name(hook: &At<'_>, errors: &mut Errors) {
    if !hook.needs("name", errors) {
        return;
    }
    let name = hook.text("name");
    let wrong = names::dns_subdomain(name);
    if !wrong.is_empty() {
        errors.invalid(hook.path("name"), &name.into(), &wrong.join(","));
    } else if name.split('.').count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        errors.invalid(hook.path("name"), &name.into(), why);
    }
}

/// Validates the address of a webhook.
pub(crate) fn client(at: &At<'_>, errors: &mut Errors) {
    match (at.present("url"), at.present("service")) {
        (Some(url), None) => address(&url, errors),
        (None, Some(service)) => self::service(&service, errors),
        _ => errors.required(&at.path, "exactly one of url or service is required"),
    }
}

fn address(at: &At<'_>, errors: &mut Errors) {
    let url = match url::parse(at.as_text()) {
        Ok(url) => url,
        Err(why) => return errors.required(&at.path, &format!("url must be a valid URL: {why}{FORM}")),
    };
    let mut wrong = |value: &str, why: &str| errors.invalid(&at.path, &value.into(), why);
    if url.scheme != "https" {
        wrong(&url.scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        wrong("", &format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        wrong(user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        wrong(&url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        wrong(url.query, "query parameters are not permitted in the URL");
    }
}

/// Checks the service of a webhook. kube-apiserver swaps name and namespace, so each is reported missing under the
/// other's name.
fn service(at: &At<'_>, errors: &mut Errors) {
    for (missing, named) in [("namespace", "name"), ("name", "namespace")] {
        if at.text(missing).is_empty() {
            errors.required(at.path(named), "");
        }
    }
    if !(1..=65_535).contains(&at.number("port")) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.invalid(at.path("port"), &at.number("port").into(), why);
    }
    let (path, text) = (at.path("path"), at.text("path"));
    let mut wrong = |why: &str| errors.invalid(&path, &text.into(), why);
    match text {
        "" | "/" => return,
        "//" => return wrong("segment[0] may not be empty"),
        _ => {}
    }
    if !text.starts_with('/') {
        wrong("must start with a '/'");
    }
    // Whatever the first character is, it is taken for the slash.
    let rest = text.char_indices().nth(1).map_or("", |(at, _)| &text[at..]);
    for (at, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            wrong(&format!("segment[{at}] may not be empty"))
        } else {
            names::dns_subdomain(step).iter().for_each(|why| wrong(&format!("segment[{at}]: {why}")))
        }
    }
}

fn reviews(hook: &At<'_>, lenient: &Leniency, errors: &mut Errors) {
    let name = "admissionReviewVersions";
    if hook.count(name) == 0 {
        return errors.required(hook.path(name), &format!("must specify one of {}", REVIEWS.join(", ")));
    }
    let mut taken = HashSet::new();
    for version in hook.items(name) {
        if !taken.insert(version.as_text()) {
            errors.invalid(&version.path, version.value, "duplicate version");
            continue;
        }
        errors.invalid_each(&version.path, version.value, names::dns_1035_label(version.as_text()));
    }
    if !lenient.versions && !knows_reviews(hook) {
        let why = format!("must include at least one of {}", REVIEWS.join(", "));
        errors.invalid(hook.path(name), hook.get(name), &why);
    }
}
