//! Validation of a definition's conversion between versions.

use std::collections::HashSet;

use super::super::{Errors, admission, names, view::At};

/// Versions of reviews that the server of the version before knows.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

/// Unknown versions of reviews may stay.
pub(super) const OLD_REVIEWS: &str = "unknown versions of reviews";

pub(super) fn check(spec: &At<'_>, errors: &mut Errors) {
    let Some(at) = spec.present("conversion") else { return };
    at.one_of("strategy", &["None", "Webhook"], errors);
    let (client, versions) = ("webhookClientConfig", "conversionReviewVersions");
    if at.text("strategy") != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if at.has(client) {
            errors.forbidden(at.path(client), why);
        }
        if at.count(versions) > 0 {
            errors.forbidden(at.path(versions), why);
        }
        return;
    }
    match at.present(client) {
        None => errors.required(at.path(client), "required when strategy is set to Webhook"),
        Some(client) => admission::webhook_client(&client, errors),
    }
    reviews(&at, versions, errors);
}

fn reviews(at: &At<'_>, name: &str, errors: &mut Errors) {
    if at.count(name) == 0 {
        return errors.required(at.path(name), "");
    }
    let mut taken = HashSet::new();
    for version in at.items(name) {
        let text = version.value.as_str().unwrap_or_default();
        if taken.insert(text) {
            errors.invalid_each(&version.path, version.value, names::dns_1035_label(text))
        } else {
            errors.invalid(&version.path, version.value, "duplicate version")
        }
    }
    if !REVIEWS.iter().any(|known| taken.contains(known)) {
        let from = errors.len();
        let why = format!("must include at least one of {}", REVIEWS.join(", "));
        errors.invalid(at.path(name), at.get(name), &why);
        errors.mark_tolerated(from, OLD_REVIEWS);
    }
}
