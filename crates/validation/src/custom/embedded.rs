//! Whole objects inside of objects (`x-kubernetes-embedded-resource`).

use portolan_types::GroupVersion;
use serde_json::{Map, Value};

use crate::{embedded_metadata, names};
use portolan_kinds::{
    custom::Schema,
    field::{Errors, Path},
};

/// Validates all embedded objects below `value`.
pub(super) fn check(path: &Path, value: &Value, schema: &Schema, errors: &mut Errors) {
    match value {
        _ if errors.is_full() => {}
        Value::Object(fields) => {
            if schema.is_resource {
                check_resource(path, fields, errors);
            }
            for (name, value) in fields {
                match (schema.property(name), schema.entries()) {
                    (Some(property), _) => check(&path.child(name), value, property, errors),
                    (None, Some(entry)) => check(&path.key(name), value, entry, errors),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.items.as_deref() {
                items.iter().enumerate().for_each(|(at, item)| check(&path.index(at), item, schema, errors));
            }
        }
        _ => {}
    }
}

/// Validates one embedded object.
pub(super) fn check_resource(path: &Path, fields: &Map<String, Value>, errors: &mut Errors) {
    for name in ["apiVersion", "kind"] {
        let at = path.child(name);
        match fields.get(name) {
            None => errors.required(at, ""),
            Some(Value::String(text)) if text.is_empty() => errors.invalid(at, &"".into(), "must not be empty"),
            Some(Value::String(_)) => {}
            Some(other) => errors.invalid(at, other, "must be a string"),
        }
    }
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion").parse::<GroupVersion>().is_err() && !text("apiVersion").is_empty() {
        let why = format!("unexpected GroupVersion string: {}", text("apiVersion"));
        errors.invalid(path.child("apiVersion"), &text("apiVersion").into(), &why);
    }
    let wrong = names::dns_1035_label(&text("kind").to_lowercase());
    if !text("kind").is_empty() && !wrong.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        errors.invalid(path.child("kind"), &text("kind").into(), &why);
    }
    if let Some(metadata) = fields.get("metadata") {
        embedded_metadata(&path.child("metadata"), metadata, errors);
    }
}
