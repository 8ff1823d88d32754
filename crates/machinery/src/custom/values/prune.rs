//! Taking off what is not declared.

use serde_json::{Map, Number, Value};

use super::prefixed;
use crate::custom::schema::{Additional, META_FIELDS, Schema};

/// Most unknown fields that are told, and most bytes of a path.
const MAX_TOLD: usize = 100;
const MAX_PATH: usize = 1024;

/// Paths of the fields that were taken off.
#[derive(Default)]
struct Taken(Vec<String>);

impl Taken {
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

/// Takes off what `schema` does not declare of a whole object, and tells the sorted paths of it. Metadata, and what kind of object
/// it is, are not looked at.
pub(in crate::custom) fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    let mut taken = Taken::default();
    let walk = if schema.preserves_unknown { kept } else { declared };
    if let Value::Object(fields) = object {
        walk(fields, schema, true, &mut taken);
    }
    taken.0.sort();
    taken.0
}

/// Takes off what `schema` does not declare of a part of an object.
pub(in crate::custom) fn prune_part(value: &mut Value, schema: &Schema) {
    below(value, Some(schema), &mut Taken::default());
}

/// A value that `schema` describes; without one nothing is declared of it.
fn below(value: &mut Value, schema: Option<&Schema>, taken: &mut Taken) {
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

/// A value of which all stays; only what is declared of it is looked into.
fn kept_below(value: &mut Value, schema: Option<&Schema>, taken: &mut Taken) {
    match (value, schema) {
        (Value::Object(fields), Some(schema)) => kept(fields, schema, schema.is_resource, taken),
        (Value::Array(items), Some(schema)) => each(items, Some(schema), kept_below, taken),
        _ => {}
    }
}

type Walk = fn(&mut Value, Option<&Schema>, &mut Taken);

fn each(items: &mut [Value], schema: Option<&Schema>, walk: Walk, taken: &mut Taken) {
    let schema = schema.and_then(|schema| schema.items.as_deref());
    for (at, item) in items.iter_mut().enumerate() {
        let mark = taken.0.len();
        walk(item, schema, taken);
        taken.prefix(mark, || format!("[{at}]"));
    }
}

/// Fields of which only declared ones stay.
fn declared(fields: &mut Map<String, Value>, schema: &Schema, is_resource: bool, taken: &mut Taken) {
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

/// Fields that all stay; what is declared of them is looked into.
fn kept(fields: &mut Map<String, Value>, schema: &Schema, is_resource: bool, taken: &mut Taken) {
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
pub(in crate::custom) fn drop_bare_nulls(value: &mut Value, schema: &Schema) {
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

/// Writes numbers as they come back from a store that writes them as Go does: `5.0` as `5`, and what is no integer of 64 bits with
/// a sign as a float.
pub(in crate::custom) fn whole_numbers(value: &mut Value) {
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
