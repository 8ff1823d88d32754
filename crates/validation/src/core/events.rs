//! Events, in both groups.

use super::super::{
    Errors, FieldError, internal, names,
    rules::{
        Rules,
        Step::{Became, Is, Metadata, MetadataChange},
    },
    view::{At, is_same},
};

/// Events of `events.k8s.io`: the checks of all events and further ones.
pub(crate) static EVENTS: &[(&str, Rules)] = &[(
    "Event",
    Rules {
        create: &[Is(new_form), Metadata, Is(new_event)],
        update: &[Is(new_form), MetadataChange, Became(update)],
        subresources: &[],
    },
)];

/// Longest texts, in bytes.
const MAX_NAME: usize = 128;
const MAX_NOTE: usize = 1024;

/// Names of the fields of an Event in one API version.
struct Names {
    about: &'static str,
    reporter: &'static str,
    reporter_shown: &'static str,
    message: &'static str,
}

const OLD: Names = Names {
    about: "involvedObject",
    reporter: "reportingComponent",
    reporter_shown: "reportingComponent",
    message: "message",
};
const NEW: Names = Names {
    about: "regarding",
    reporter: "reportingController",
    reporter_shown: "reportingController",
    message: "note",
};

pub(super) fn legacy(object: &At<'_>, errors: &mut Errors) {
    check(object, &OLD, errors);
}

fn new_form(object: &At<'_>, errors: &mut Errors) {
    check(object, &NEW, errors);
}

fn check(object: &At<'_>, fields: &Names, errors: &mut Errors) {
    let about = object.child(fields.about).text("namespace");
    let namespace = object.child("metadata").text("namespace");
    let dated = object.has("eventTime");
    // Cluster-scoped objects have their events in the default namespace.
    let fits = match (dated, about) {
        (false, "") => matches!(namespace, "" | "default"),
        (false, about) => about == namespace,
        (true, "") => matches!(namespace, "default" | "kube-system"),
        (true, _) => true,
    };
    if !fits {
        errors.invalid("involvedObject.namespace", &about.into(), "does not match event.namespace");
    }
    if dated {
        texts(object, fields, errors);
    }
    errors.invalid_each("namespace", &namespace.into(), names::dns_subdomain(namespace));
}

fn texts(object: &At<'_>, fields: &Names, errors: &mut Errors) {
    let reporter = object.text(fields.reporter);
    if reporter.is_empty() {
        errors.required(fields.reporter_shown, "");
    }
    errors.invalid_each(fields.reporter_shown, &reporter.into(), names::qualified_name(reporter));
    for name in ["reportingInstance", "action", "reason"] {
        object.needs(name, errors);
        if object.text(name).len() > MAX_NAME {
            errors.invalid(name, &"".into(), &format!("can have at most {MAX_NAME} characters"));
        }
    }
    if object.text(fields.message).len() > MAX_NOTE {
        errors.invalid("message", &"".into(), &format!("can have at most {MAX_NOTE} characters"));
    }
}

fn series(object: &At<'_>, errors: &mut Errors) {
    let Some(series) = object.present("series") else { return };
    if series.number("count") < 2 {
        errors.invalid("series.count", &"".into(), "should be at least 2");
    }
    if !series.has("lastObservedTime") {
        errors.required("series.lastObservedTime", "");
    }
}

fn new_event(object: &At<'_>, errors: &mut Errors) {
    series(object, errors);
    if !object.has("eventTime") {
        errors.required("eventTime", "");
    }
    let kind = object.text("type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid("type", &"".into(), &format!("has invalid value: {kind}"));
    }
    let old = [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ];
    let unset = "needs to be unset";
    for (_, shown) in old.into_iter().filter(|(name, _)| object.has(name) && object.int(name) != Some(0)) {
        errors.invalid(shown, &"".into(), unset);
    }
    let source = object.child("deprecatedSource");
    if !source.text("component").is_empty() || !source.text("host").is_empty() {
        errors.invalid("source", &"".into(), unset);
    }
}

/// Immutable fields, by their names here and in errors.
const FIXED: [(&str, &str); 14] = [
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reason", "reason"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// Go's formats of the fields that are not strings.
const FORMS: [(&str, &str); 7] = [
    ("regarding", "ObjectReference"),
    ("related", "*ObjectReference"),
    ("deprecatedSource", "EventSource"),
    ("deprecatedFirstTimestamp", "any"),
    ("deprecatedLastTimestamp", "any"),
    ("deprecatedCount", "number"),
    ("eventTime", "any"),
];

fn update(old: &At<'_>, new: &At<'_>, errors: &mut Errors) {
    if old.get("series") != new.get("series") {
        series(new, errors);
    }
    for (name, shown) in FIXED.into_iter().filter(|(name, _)| !is_same(old.get(name), new.get(name))) {
        let form = FORMS.iter().find(|(known, _)| *known == name).map_or("string", |(_, form)| form);
        let value = internal::printed_value(form, new.get(name));
        errors.push(FieldError::invalid_shown(shown, &value, super::super::view::IMMUTABLE));
    }
}
