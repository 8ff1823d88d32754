//! Pruning: removal of undeclared fields.

use serde_json::{Map, Number, Value};

use super::prefixed;
use crate::custom::schema::{Additional, META_FIELDS, Schema};

/// Most unknown fields that are reported, and most bytes of a path.
const MAX_TOLD: usize = 100;
const MAX_PATH: usize = 1024;

/// Paths of the fields that were taken off.
#[derive(Default)]
struct PrunedFields(Vec<String>);

impl PrunedFields {
    fn add(&mut self, name: &str) {
        if self.0.len() < MAX_TOLD {
            self.0.push(name[..name.floor_char_boundary(MAX_PATH)].to_owned());
        }
    }

    /// Puts a step in front of the paths of all that was taken since `mark`.
    fn prefix(&mut self, mark: usize, step: impl FnOnce() -> String) {
        if self.0.len() > mark {
            let step = step();
            let paths = self.0[mark..].iter_mut().filter(|path| path.len() < MAX_PATH);
            paths.for_each(|path| *path = prefixed(&step[..step.floor_char_boundary(MAX_PATH)], path));
        }
    }
}

/// Removes the fields of a whole object that `schema` does not declare, and returns their sorted paths. Metadata,
/// `apiVersion` and `kind` are skipped.
pub fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    let mut taken = PrunedFields::default();
    let walk = if schema.preserves_unknown { keep_all_fields } else { declared };
    if let Value::Object(fields) = object {
        walk(fields, schema, true, &mut taken);
    }
    taken.0.sort();
    taken.0
}

/// Removes the fields of a part of an object that `schema` does not declare.
pub fn prune_part(value: &mut Value, schema: &Schema) {
    below(value, Some(schema), &mut PrunedFields::default());
}

/// Prunes a value that `schema` describes; without a schema it has no declared fields.
fn below(value: &mut Value, schema: Option<&Schema>, taken: &mut PrunedFields) {
    if schema.is_some_and(|schema| schema.preserves_unknown) {
        return kept_below(value, schema, taken);
    }
    match (value, schema) {
        (Value::Object(fields), Some(schema)) => declared(fields, schema, schema.is_resource, taken),
        (Value::Object(fields), None) => {
            fields.keys().for_each(|name| taken.add(name));
            fields.clear();
        }
        (Value::Array(items), schema) => each(items, schema, below, taken),
        _ => {}
    }
}

/// Keeps a value; only its declared parts are pruned inside.
fn kept_below(value: &mut Value, schema: Option<&Schema>, taken: &mut PrunedFields) {
    match (value, schema) {
        (Value::Object(fields), Some(schema)) => keep_all_fields(fields, schema, schema.is_resource, taken),
        (Value::Array(items), Some(schema)) => each(items, Some(schema), kept_below, taken),
        _ => {}
    }
}

type Walk = fn(&mut Value, Option<&Schema>, &mut PrunedFields);

fn each(items: &mut [Value], schema: Option<&Schema>, walk: Walk, taken: &mut PrunedFields) {
    let schema = schema.and_then(|schema| schema.items.as_deref());
    for (at, item) in items.iter_mut().enumerate() {
        let mark = taken.0.len();
        walk(item, schema, taken);
        taken.prefix(mark, || format!("[{at}]"));
    }
}

/// Fields of which only declared ones stay.
fn declared(fields: &mut Map<String, Value>, schema: &Schema, is_resource: bool, taken: &mut PrunedFields) {
    fields.retain(|name, value| {
        if is_resource && META_FIELDS.contains(&name.as_str()) {
            return true;
        }
        let known = schema.property(name);
        if known.is_none() && matches!(schema.additional, Additional::Unsaid) {
            taken.add(name);
            return false;
        }
        let mark = taken.0.len();
        below(value, known.or_else(|| schema.entries()), taken);
        taken.prefix(mark, || name.clone());
        true
    });
}

/// Keeps all fields; declared ones are pruned inside.
fn keep_all_fields(fields: &mut Map<String, Value>, schema: &Schema, is_resource: bool, taken: &mut PrunedFields) {
    for (name, value) in fields.iter_mut() {
        let known = schema.property(name);
        let is_meta = is_resource && META_FIELDS.contains(&name.as_str());
        if is_meta || (known.is_none() && matches!(schema.additional, Additional::Unsaid)) {
            continue;
        }
        let mark = taken.0.len();
        below(value, known.or_else(|| schema.entries()), taken);
        taken.prefix(mark, || name.clone());
    }
}

/// Takes off fields that are null where that is no value and nothing is filled in.
pub fn drop_bare_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let Some(schema) = schema.at_key(name) else { return true };
            if schema.is_bare_null(value) && schema.default.is_none() {
                return false;
            }
            drop_bare_nulls(value, schema);
            true
        }),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| drop_bare_nulls(item, schema));
            }
        }
        _ => {}
    }
}

/// Writes numbers in the form that a store written by Go returns: `5.0` as `5`, and a number that is no signed 64-bit
/// integer as a float.
pub fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|_| !number.is_i64());
            // Up to here floats hold every integer.
            if let Some(float) = whole.filter(|float| float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0) {
                *number = Number::from(float as i64);
            } else if let Some(float) = whole.filter(|_| number.is_u64()).and_then(Number::from_f64) {
                *number = float;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
