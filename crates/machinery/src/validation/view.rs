//! A place in an object, with its path: what rules are written against.

use serde_json::Value;

use super::{Errors, Path};

/// A value and where it is. Missing values are null.
#[derive(Clone)]
pub(super) struct At<'v> {
    pub(super) value: &'v Value,
    pub(super) path: Path,
}

impl<'v> At<'v> {
    pub(super) fn root(object: &'v Value) -> Self {
        Self { value: object, path: Path::default() }
    }

    pub(super) fn get(&self, name: &str) -> &'v Value {
        self.value.get(name).unwrap_or(&Value::Null)
    }

    pub(super) fn child(&self, name: &str) -> Self {
        Self { value: self.get(name), path: self.path.child(name) }
    }

    pub(super) fn text(&self, name: &str) -> &'v str {
        self.get(name).as_str().unwrap_or_default()
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.get(name).as_i64()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        !self.get(name).is_null()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name) == &Value::Bool(true)
    }

    pub(super) fn is_missing(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn path(&self, name: &str) -> Path {
        self.path.child(name)
    }

    pub(super) fn items(&self, name: &str) -> impl Iterator<Item = At<'v>> + use<'v> {
        let path = self.path(name);
        let list = self.get(name).as_array().map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(move |(at, value)| At { value, path: path.index(at) })
    }

    pub(super) fn count(&self, name: &str) -> usize {
        match self.get(name) {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        }
    }

    pub(super) fn entries(&self, name: &str) -> impl Iterator<Item = (&'v str, At<'v>)> + use<'v> {
        let path = self.path(name);
        let map = self.get(name).as_object();
        map.into_iter().flatten().map(move |(key, value)| (key.as_str(), At { value, path: path.key(key) }))
    }

    /// The value as text; empty when it is none.
    pub(super) fn as_text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    /// A number at `name` that may not be negative.
    pub(super) fn nonnegative(&self, name: &str, errors: &mut Errors) {
        if self.int(name).is_some_and(|number| number < 0) {
            errors.invalid(self.path(name), self.get(name), NEGATIVE);
        }
    }

    /// Text at `name` that must be there.
    pub(super) fn needs(&self, name: &str, errors: &mut Errors) -> bool {
        let missing = self.text(name).is_empty();
        if missing {
            errors.required(self.path(name), "");
        }
        !missing
    }

    /// Text at `name` that must be there and be one of `known`.
    pub(super) fn one_of(&self, name: &str, known: &[&str], errors: &mut Errors) {
        if self.needs(name, errors) {
            self.one_of_if_set(name, known, errors);
        }
    }

    /// Text at `name` that must be one of `known` when it is there.
    pub(super) fn one_of_if_set(&self, name: &str, known: &[&str], errors: &mut Errors) {
        let value = self.text(name);
        if !value.is_empty() && !known.contains(&value) {
            errors.not_supported(self.path(name), self.get(name), known);
        }
    }

    /// Text at `name` that must follow a rule.
    pub(super) fn follows(&self, name: &str, rule: fn(&str) -> super::names::Complaints, errors: &mut Errors) {
        for detail in rule(self.text(name)) {
            errors.invalid(self.path(name), &self.text(name).into(), &detail);
        }
    }

    /// What may not change between `old` and `self` at `name`.
    pub(super) fn immutable(&self, old: &At<'_>, name: &str, errors: &mut Errors) {
        if self.get(name) != old.get(name) {
            errors.invalid(self.path(name), self.get(name), IMMUTABLE);
        }
    }
}

pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const IMMUTABLE: &str = "field is immutable";
