//! Changes of an object, each on one line of the corpus: `{spec.replicas: -1, -spec.selector: , +metadata: {labels:
//! {}}}`.
//!
//! A path is keys joined by dots (`\.` is a dot within a key); a number is an index of a list, `-` at the end appends.
//! `path: value` sets, `-path:` removes, `+path: {…}` merges maps; `+:` merges into the object itself.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// Ordered changes of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectMutation(Vec<FieldMutation>);

#[derive(Clone, Debug)]
enum FieldMutation {
    Set(Vec<String>, Value),
    Remove(Vec<String>),
    Merge(Vec<String>, Value),
}

impl ObjectMutation {
    /// Parses `{path: value, …}`.
    pub(super) fn parse(changes: &Map<String, Value>) -> Self {
        Self(changes.iter().map(|(path, value)| FieldMutation::parse(path, value)).collect())
    }

    /// Creates a change that sets one value.
    pub(super) fn set(path: &str, value: impl Into<Value>) -> Self {
        Self(vec![FieldMutation::Set(segments(path), value.into())])
    }

    /// Adds a change that sets a value.
    pub(super) fn and(mut self, path: &str, value: impl Into<Value>) -> Self {
        self.0.push(FieldMutation::Set(segments(path), value.into()));
        self
    }

    /// Adds a change that removes a value.
    pub(super) fn without(mut self, path: &str) -> Self {
        self.0.push(FieldMutation::Remove(segments(path)));
        self
    }

    /// Returns a changed copy of `object`.
    pub(super) fn apply(&self, object: &Value) -> Result<Value> {
        let mut changed = object.clone();
        for change in &self.0 {
            change.apply(&mut changed).with_context(|| format!("{change:?}"))?;
        }
        Ok(changed)
    }

    /// Returns the values, so that their placeholders can be substituted.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.0.iter_mut().filter_map(|change| match change {
            FieldMutation::Set(_, value) | FieldMutation::Merge(_, value) => Some(value),
            FieldMutation::Remove(_) => None,
        })
    }
}

impl FieldMutation {
    fn parse(path: &str, value: &Value) -> Self {
        match path.as_bytes().first() {
            Some(b'-') => Self::Remove(segments(&path[1..])),
            Some(b'+') => Self::Merge(segments(&path[1..]), value.clone()),
            _ => Self::Set(segments(path), value.clone()),
        }
    }

    fn apply(&self, object: &mut Value) -> Result<()> {
        match self {
            Self::Set(path, value) => *place(object, path)? = value.clone(),
            Self::Merge(path, value) => merge(place(object, path)?, value),
            Self::Remove(path) => remove(object, path)?,
        }
        Ok(())
    }
}

fn segments(path: &str) -> Vec<String> {
    if path.is_empty() {
        return Vec::new();
    }
    let protected = path.replace("\\.", "\0");
    protected.split('.').map(|segment| segment.replace('\0', ".")).collect()
}

/// Returns the position that a path names; creates missing maps.
fn place<'v>(object: &'v mut Value, path: &[String]) -> Result<&'v mut Value> {
    path.iter().try_fold(object, |value, segment| {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(map) => Ok(map.entry(segment.clone()).or_insert(Value::Null)),
            Value::Array(items) => item(items, segment),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                bail!("{segment:?} is asked of a plain value")
            }
        }
    })
}

fn item<'v>(items: &'v mut Vec<Value>, segment: &str) -> Result<&'v mut Value> {
    let index = if segment == "-" { items.len() } else { segment.parse().context("a list has numbers")? };
    if index == items.len() {
        items.push(Value::Null);
    }
    items.get_mut(index).with_context(|| format!("the list has no item {index}"))
}

fn remove(object: &mut Value, path: &[String]) -> Result<()> {
    let (last, parents) = path.split_last().context("the object itself cannot be removed")?;
    match place(object, parents)? {
        Value::Object(map) => drop(map.remove(last)),
        Value::Array(items) => {
            let index: usize = last.parse().context("a list has numbers")?;
            if index < items.len() {
                items.remove(index);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_line_changes_an_object() {
        let base = json!({"a": {"b": 1}, "l": [{"n": "x"}]});
        for (case, changes, expected) in [
            ("a value is set", json!({"a.b": 2}), json!({"a": {"b": 2}, "l": [{"n": "x"}]})),
            (
                "maps on the way are made",
                json!({"c.d.e": 1}),
                json!({"a": {"b": 1}, "c": {"d": {"e": 1}}, "l": [{"n": "x"}]}),
            ),
            ("null is a value", json!({"a": null}), json!({"a": null, "l": [{"n": "x"}]})),
            ("an item is changed", json!({"l.0.n": "y"}), json!({"a": {"b": 1}, "l": [{"n": "y"}]})),
            ("an item is appended", json!({"l.-": 3}), json!({"a": {"b": 1}, "l": [{"n": "x"}, 3]})),
            ("an item is removed", json!({"-l.0": null}), json!({"a": {"b": 1}, "l": []})),
            ("a key is removed", json!({"-a": null}), json!({"l": [{"n": "x"}]})),
            ("a key may hold dots", json!({"a.x\\.y": 1}), json!({"a": {"b": 1, "x.y": 1}, "l": [{"n": "x"}]})),
            ("maps are merged", json!({"+a": {"c": 2}}), json!({"a": {"b": 1, "c": 2}, "l": [{"n": "x"}]})),
            ("also into the object", json!({"+": {"z": 2}}), json!({"a": {"b": 1}, "l": [{"n": "x"}], "z": 2})),
        ] {
            let mutation = ObjectMutation::parse(changes.as_object().unwrap());
            assert_eq!(mutation.apply(&base).unwrap(), expected, "{case}");
        }
    }

    #[test]
    fn a_path_through_a_plain_value_is_an_error() {
        assert!(ObjectMutation::set("a.b", 1).apply(&json!({"a": "text"})).is_err());
        assert!(ObjectMutation::set("l.5", 1).apply(&json!({"l": []})).is_err());
    }
}
