//! Lists whose elements must be unique.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{
    custom::schema::{ListKind, Schema},
    field::{Errors, Path},
};

/// Elements that occur twice, in lists where they may not.
pub fn check(path: &Path, value: &Value, schema: &Schema, errors: &mut Errors) {
    match value {
        _ if errors.is_full() => {}
        Value::Object(fields) => {
            if let Some(entry) = schema.entries() {
                fields.iter().for_each(|(key, value)| check(&path.key(key), value, entry, errors));
            }
            for (key, value) in fields {
                if let Some(property) = schema.property(key) {
                    check(&path.child(key), value, property, errors);
                }
            }
        }
        Value::Array(items) => {
            match &schema.list {
                ListKind::Atomic => {}
                ListKind::Set => {
                    report_repeated(path, items, errors);
                }
                ListKind::Map(keys) => check_keys(path, items, keys, errors),
            }
            if let Some(schema) = &schema.items {
                items.iter().enumerate().for_each(|(at, item)| check(&path.index(at), item, schema, errors));
            }
        }
        _ => {}
    }
}

fn check_keys(path: &Path, items: &[Value], keys: &[std::sync::Arc<str>], errors: &mut Errors) {
    if let Some((at, item)) = items.iter().enumerate().find(|(_, item)| !item.is_null() && !item.is_object()) {
        return errors.invalid(path.index(at), item, "must be an object for an array of list-type map");
    }
    let of = |item: &Value| {
        let own = keys.iter().filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone())));
        Value::Object(own.collect::<Map<_, _>>())
    };
    let found: Vec<Value> = items.iter().map(of).collect();
    report_repeated(path, &found, errors);
}

fn report_repeated(path: &Path, items: &[Value], errors: &mut Errors) {
    for at in repeated(items) {
        if errors.is_full() {
            return;
        }
        errors.duplicate(path.index(at), &items[at]);
    }
}

/// Returns the index of the second occurrence of each repeated element.
fn repeated(items: &[Value]) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(items.len());
    let mut found = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let times = seen.entry(item.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            found.push(at);
        }
    }
    found
}
