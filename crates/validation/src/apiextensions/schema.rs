//! Schemas of a definition, node by node (apiextensions `validation.go`).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::{Errors, Path, view::At};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Errors that are forgiven where the definition had them before.
pub(super) const OLD_TYPES: &str = "types of schemas";
pub(super) const OLD_SETS: &str = "sets of what is not atomic";
pub(super) const OLD_KEYS: &str = "keys that may be missing";

/// Rules that depend on the position of a node.
#[derive(Clone, Copy, Default)]
struct Place {
    is_root: bool,
    /// True inside metadata, `apiVersion` and `kind`.
    in_meta: bool,
    /// Why it may have no default.
    no_default: Option<Reason>,
}

#[derive(Clone, Copy)]
enum Reason {
    Entries,
    Top(&'static str),
}

impl Reason {
    fn text(self) -> String {
        match self {
            Self::Entries => "must not be set inside additionalProperties applying to object metadata".to_owned(),
            Self::Top(name) => format!("must not be set in top-level {name}"),
        }
    }
}

/// Validates a schema with everything below it.
pub(super) fn check(schema: &At<'_>, errors: &mut Errors) {
    node(schema, Place { is_root: true, ..Place::default() }, errors);
}

fn node(at: &At<'_>, place: Place, errors: &mut Errors) {
    if errors.is_full() {
        return;
    }
    standard(at, place, errors);
    if at.flag("uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(at.path("uniqueItems"), why);
    }
    let below = Place { is_root: false, ..place };
    if at.has("additionalProperties") {
        let entries = at.child("additionalProperties");
        if at.count("properties") > 0 && *entries.value != Value::Bool(true) {
            errors.forbidden(&entries.path, "additionalProperties and properties are mutual exclusive");
        }
        if entries.value.is_object() {
            let reason = if place.in_meta { Some(Reason::Entries) } else { place.no_default };
            node(&entries, Place { no_default: reason, ..below }, errors);
        }
    }
    for (name, property) in at.entries("properties") {
        let mut inner = below;
        let meta = META_FIELDS.iter().find(|own| **own == name);
        if let Some(meta) = meta.filter(|_| place.is_root || at.flag("x-kubernetes-embedded-resource")) {
            inner.in_meta = true;
            inner.no_default = if place.is_root { Some(Reason::Top(meta)) } else { inner.no_default };
        }
        node(&property, inner, errors);
    }
    parts(at, below, errors);
    extensions(at, errors);
    rules(at, errors);
}

fn parts(at: &At<'_>, below: Place, errors: &mut Errors) {
    let mut one = |inner: Option<At<'_>>| {
        if let Some(inner) = inner.filter(|inner| inner.value.is_object()) {
            node(&inner, below, errors);
        }
    };
    one(at.present("not"));
    for name in ["allOf", "oneOf", "anyOf"] {
        at.items(name).for_each(|inner| one(Some(inner)));
    }
    at.entries("definitions").for_each(|(_, inner)| one(Some(inner)));
    one(at.present("items"));
    at.items("items").for_each(|inner| one(Some(inner)));
    at.entries("dependencies").for_each(|(_, inner)| one(Some(inner)));
}

/// Refuses keywords of OpenAPI that CustomResourceDefinitions do not support.
fn standard(at: &At<'_>, place: Place, errors: &mut Errors) {
    let kind = at.text("type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        let from = errors.len();
        errors.not_supported(at.path("type"), &kind.into(), &TYPES);
        errors.mark_tolerated(from, OLD_TYPES);
    }
    if let Some(reason) = place.no_default.filter(|_| at.has("default")) {
        errors.forbidden(at.path("default"), &reason.text());
    }
    for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        let is_there = match name {
            "additionalItems" | "dependencies" | "$ref" => at.has(name),
            "id" => !at.text(name).is_empty(),
            _ => at.count(name) > 0,
        };
        if is_there {
            errors.forbidden(at.path(name), &format!("{name} is not supported"));
        }
    }
    if kind == "null" {
        errors.forbidden(at.path("type"), "type cannot be set to null, use nullable as an alternative");
    }
    if at.get("items").as_array().is_some_and(|items| !items.is_empty()) {
        errors.forbidden(at.path("items"), "items must be a schema object and not an array");
    }
    if place.in_meta && at.flag("x-kubernetes-embedded-resource") {
        errors.forbidden(at.path("x-kubernetes-embedded-resource"), "must not be used inside of resource meta");
    }
}

fn extensions(at: &At<'_>, errors: &mut Errors) {
    let keeps = "x-kubernetes-preserve-unknown-fields";
    if *at.get(keeps) == Value::Bool(false) {
        errors.invalid(at.path(keeps), at.get(keeps), "must be true or undefined");
    }
    let (map_type, list_type) = ("x-kubernetes-map-type", "x-kubernetes-list-type");
    if at.has(map_type) {
        needs_type(at, "object", "must be object if x-kubernetes-map-type is specified", errors);
        at.supported(map_type, &["atomic", "granular"], errors);
    }
    if at.has(list_type) {
        if needs_type(at, "array", "must be array if x-kubernetes-list-type is specified", errors) {
            set_of_atoms(at, errors);
        }
        at.supported(list_type, &["atomic", "set", "map"], errors);
    }
    let why = "must be map if x-kubernetes-list-map-keys is non-empty";
    match (at.count("x-kubernetes-list-map-keys"), at.get(list_type)) {
        (0, _) => {}
        (_, Value::Null) => errors.required(at.path(list_type), why),
        (_, other) if other != "map" => errors.invalid(at.path(list_type), other, why),
        _ => {}
    }
    if at.text(list_type) == "map" {
        map_list(at, errors);
    }
    let from = errors.len();
    keys(at, errors);
    errors.mark_tolerated(from, OLD_KEYS);
}

/// Returns true if a node has the type that one of its keywords requires; reports a fault otherwise.
fn needs_type(at: &At<'_>, wanted: &str, why: &str, errors: &mut Errors) -> bool {
    match at.text("type") {
        "" => errors.required(at.path("type"), why),
        kind if kind != wanted => errors.invalid(at.path("type"), &kind.into(), why),
        _ => return true,
    }
    false
}

/// Checks that the elements of a set are atomic.
fn set_of_atoms(at: &At<'_>, errors: &mut Errors) {
    let items = at.child("items");
    if at.text("x-kubernetes-list-type") != "set" || !items.value.is_object() {
        return;
    }
    let (list_type, map_type) = ("x-kubernetes-list-type", "x-kubernetes-map-type");
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let from = errors.len();
    // If both are wrong, kube-apiserver shows the list type.
    match items.text("type") {
        "array" if items.has(list_type) && items.text(list_type) != "atomic" => {
            errors.invalid(items.path(list_type), items.get(list_type), why);
        }
        "object" if items.text(map_type) != "atomic" => {
            errors.invalid(items.path(map_type), items.get(list_type), why);
        }
        _ => {}
    }
    errors.mark_tolerated(from, OLD_SETS);
}

fn map_list(at: &At<'_>, errors: &mut Errors) {
    let (keys, items) = (at.child("x-kubernetes-list-map-keys"), at.child("items"));
    let names: Vec<&str> =
        at.items("x-kubernetes-list-map-keys").map(|key| key.value.as_str().unwrap_or_default()).collect();
    if names.is_empty() {
        errors.required(&keys.path, "must not be empty if x-kubernetes-list-type is map");
    }
    match items.value {
        Value::Null => errors.required(&items.path, "must have a schema if x-kubernetes-list-type is map"),
        Value::Array(schemas) => {
            let shown = json!({"Schema": null, "JSONSchemas": schemas});
            errors.invalid(&items.path, &shown, "must only have a single schema if x-kubernetes-list-type is map");
        }
        _ => {}
    }
    if !items.value.is_object() {
        return;
    }
    if items.text("type") != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        return errors.invalid(items.path("type"), &items.text("type").into(), why);
    }
    let mut seen = HashSet::new();
    for name in &names {
        if errors.is_full() {
            return;
        }
        match items.get("properties").get(name) {
            Some(own) if matches!(own.get("type").and_then(Value::as_str), Some("array" | "object")) => {
                let path = items.path("properties").key(name).child("type");
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.invalid(path, &items.text("type").into(), why);
            }
            Some(_) => {}
            None => errors.invalid(&keys.path, keys.value, "entries must all be names of item properties"),
        }
        if !seen.insert(name) {
            errors.invalid(&keys.path, keys.value, "must not contain duplicate entries");
        }
    }
}

/// Checks that distinguished elements are required to exist, and so are their keys.
fn keys(at: &At<'_>, errors: &mut Errors) {
    let (kind, items) = (at.text("x-kubernetes-list-type"), at.child("items"));
    if !matches!(kind, "set" | "map") || !items.value.is_object() {
        return;
    }
    if items.flag("nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.forbidden(items.path("nullable"), &why);
    }
    let required: HashSet<&str> = items.items("required").filter_map(|required| required.value.as_str()).collect();
    for key in at.items("x-kubernetes-list-map-keys").filter(|_| kind == "map") {
        let name = key.value.as_str().unwrap_or_default();
        let Some(own) = items.get("properties").get(name) else { continue };
        let path: Path = items.path("properties").key(name);
        if !required.contains(name) && own.get("default").is_none_or(Value::is_null) {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.required(path.child("default"), why);
        }
        if own.get("nullable") == Some(&Value::Bool(true)) {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.forbidden(path.child("nullable"), why);
        }
    }
}

fn has_line_break(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

/// Rules, as far as they are strings.
fn rules(at: &At<'_>, errors: &mut Errors) {
    for rule in at.items("x-kubernetes-validations") {
        let (text, message) = (rule.text("rule").trim(), rule.text("message"));
        if text.is_empty() {
            errors.required(rule.path("rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.invalid(rule.path("message"), &message.into(), "must be non-empty if specified");
        } else if has_line_break(message.trim()) {
            errors.invalid(rule.path("message"), &message.into(), "must not contain line breaks");
        } else if has_line_break(text) && message.trim().is_empty() {
            errors.required(rule.path("message"), "message must be specified if rule contains line breaks");
        }
        let expression = rule.text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            errors.required(rule.path("messageExpression"), "messageExpression must be non-empty if specified");
        }
        rule.supported_if_present("reason", &REASONS, errors);
        let path = rule.text("fieldPath");
        let mut wrong = |why: &str| errors.invalid(rule.path("fieldPath"), &path.into(), why);
        if !path.is_empty() && path.trim().is_empty() {
            wrong("must be non-empty if specified");
        }
        if has_line_break(path) {
            wrong("must not contain line breaks");
        }
        if !path.is_empty() && portolan_cel::rules::check_field_path(path, at.value).is_err() {
            wrong("must be a valid path");
        }
    }
}
