//! Whole objects inside of objects (`x-kubernetes-embedded-resource`): their metadata is read as that of any object.

use portolan_types::GroupVersion;
use serde_json::{Map, Value};

use super::prefixed;
use crate::{
    custom::schema::Schema,
    decode,
    kinds::KindTable,
    validation::{self, Errors, FieldError, Path, names},
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Brings the metadata of embedded objects into canonical form, and tells the sorted paths of what it does not know.
///
/// # Errors
/// What is no metadata.
pub(in crate::custom) fn coerce(object: &mut Value, schema: &Schema) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    if has_resources(schema) {
        coerce_at(&Path::default(), object, schema, &mut unknown)?;
    }
    unknown.sort();
    Ok(unknown)
}

fn has_resources(schema: &Schema) -> bool {
    let below = |schema: &Schema| schema.is_resource || has_resources(schema);
    schema.properties.iter().any(|(_, schema)| below(schema))
        || schema.items.as_deref().is_some_and(below)
        || schema.entries().is_some_and(below)
}

/// The same of a part of an object, at its path; also of one that is embedded itself.
///
/// # Errors
/// What is no metadata.
pub(in crate::custom) fn coerce_at(
    path: &Path,
    value: &mut Value,
    schema: &Schema,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    match value {
        Value::Object(fields) => {
            if schema.is_resource {
                coerce_resource(path, fields, unknown)?;
            }
            for (name, value) in fields.iter_mut() {
                match (schema.property(name), schema.entries()) {
                    (Some(property), _) => coerce_at(&path.child(name), value, property, unknown)?,
                    (None, Some(entry)) => coerce_at(&path.key(name), value, entry, unknown)?,
                    (None, None) => {}
                }
            }
            Ok(())
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else { return Ok(()) };
            items.iter_mut().enumerate().try_for_each(|(at, item)| coerce_at(&path.index(at), item, schema, unknown))
        }
        _ => Ok(()),
    }
}

/// The same of an embedded object itself.
///
/// # Errors
/// What is no metadata.
pub(in crate::custom) fn coerce_resource(
    path: &Path,
    fields: &mut Map<String, Value>,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    let wrong = |name: &str, value: &Value, why: &str| {
        let error = FieldError::invalid(path.child(name), value, why);
        format!("{}: {}", error.field, error.message)
    };
    for name in ["apiVersion", "kind"] {
        if let Some(value) = fields.get(name).filter(|value| !value.is_string()) {
            return Err(wrong(name, value, "must be a string"));
        }
    }
    let Some(metadata) = fields.get_mut("metadata") else { return Ok(()) };
    let table = KindTable::builtin();
    let Some(schema) = table.type_named(OBJECT_META) else { return Ok(()) };
    match decode::canonical(table, schema, metadata.clone()) {
        Ok((canonical, names)) => {
            let base = path.child("metadata").to_string();
            unknown.extend(names.iter().map(|name| prefixed(&base, name)));
            *metadata = canonical;
            Ok(())
        }
        Err(unfit) => Err(wrong("metadata", metadata, &unfit.decoded())),
    }
}

/// What is wrong with embedded objects, wherever they are below `value`.
pub(in crate::custom) fn check(path: &Path, value: &Value, schema: &Schema, errors: &mut Errors) {
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

/// What is wrong with an embedded object itself.
pub(in crate::custom) fn check_resource(path: &Path, fields: &Map<String, Value>, errors: &mut Errors) {
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
        validation::embedded_metadata(&path.child("metadata"), metadata, errors);
    }
}
