//! Whole objects inside of objects (`x-kubernetes-embedded-resource`): their metadata is read as that of any object.

use serde_json::{Map, Value};

use crate::decode;
use portolan_kinds::{
    KindTable,
    custom::{Schema, prefixed},
    field::{FieldError, Path},
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Brings the metadata of embedded objects into canonical form, and returns the sorted paths of unknown fields.
///
/// # Errors
/// Invalid metadata.
pub(super) fn coerce(object: &mut Value, schema: &Schema) -> Result<Vec<String>, String> {
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

/// Cleans a part of an object, at its path; the part may be an embedded object itself.
///
/// # Errors
/// Invalid metadata.
pub fn coerce_at(path: &Path, value: &mut Value, schema: &Schema, unknown: &mut Vec<String>) -> Result<(), String> {
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

/// Cleans an embedded object itself.
///
/// # Errors
/// Invalid metadata.
pub fn coerce_resource(path: &Path, fields: &mut Map<String, Value>, unknown: &mut Vec<String>) -> Result<(), String> {
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
