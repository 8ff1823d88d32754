//! A value inside an object, with its path: the argument of validation rules.

use serde_json::Value;

use super::{Errors, Path, names::Complaints};

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

    /// Returns the child at `name`, where there is one.
    pub(super) fn present(&self, name: &str) -> Option<Self> {
        self.has(name).then(|| self.child(name))
    }

    pub(super) fn text(&self, name: &str) -> &'v str {
        self.get(name).as_str().unwrap_or_default()
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.get(name).as_i64()
    }

    /// Returns the number at `name`; 0 if it is absent.
    pub(super) fn number(&self, name: &str) -> i64 {
        self.int(name).unwrap_or(0)
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

    /// Returns the value as text; empty if it is not a string.
    pub(super) fn as_text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    /// Checks that the number at `name` is not negative.
    pub(super) fn nonnegative(&self, name: &str, errors: &mut Errors) {
        if self.number(name) < 0 {
            errors.invalid(self.path(name), self.get(name), NEGATIVE);
        }
    }

    /// Numbers at `names` that may not be negative.
    pub(super) fn nonnegatives(&self, names: &[&str], errors: &mut Errors) {
        names.iter().for_each(|name| self.nonnegative(name, errors));
    }

    /// Numbers that may not be greater than the one at `most`, which is called `word`.
    pub(super) fn at_most(&self, most: &str, names: &[&str], word: &str, errors: &mut Errors) {
        for name in names.iter().filter(|name| self.number(name) > self.number(most)) {
            errors.invalid(self.path(name), &self.number(name).into(), &format!("cannot be greater than {word}"));
        }
    }

    /// Checks that the number at `name` is in the range.
    pub(super) fn in_range(&self, name: &str, (least, most): (i64, i64), errors: &mut Errors) {
        let number = self.number(name);
        if !(least..=most).contains(&number) {
            errors.invalid(self.path(name), &number.into(), &format!("must be between {least} and {most}, inclusive"));
        }
    }

    /// Checks that the number at `name` is at most `most`.
    pub(super) fn most(&self, name: &str, most: i64, errors: &mut Errors) {
        if self.number(name) > most {
            errors.invalid(self.path(name), self.get(name), &format!("must be less than or equal to {most}"));
        }
    }

    /// Checks that the text at `name` is not empty.
    pub(super) fn needs(&self, name: &str, errors: &mut Errors) -> bool {
        self.needs_because(name, "", errors)
    }

    /// Checks that the text at `name` is not empty; `why` is the error.
    pub(super) fn needs_because(&self, name: &str, why: &str, errors: &mut Errors) -> bool {
        let missing = self.text(name).is_empty();
        if missing {
            errors.required(self.path(name), why);
        }
        !missing
    }

    /// Checks that the text at `name` is not empty and one of `known`.
    pub(super) fn one_of(&self, name: &str, known: &[&str], errors: &mut Errors) {
        if self.needs(name, errors) {
            self.one_of_if_set(name, known, errors);
        }
    }

    /// Checks that the text at `name` is empty or one of `known`.
    pub(super) fn one_of_if_set(&self, name: &str, known: &[&str], errors: &mut Errors) {
        if !self.text(name).is_empty() {
            self.supported(name, known, errors);
        }
    }

    /// Checks that the text at `name` is one of `known` if the field exists, even if it is empty.
    pub(super) fn supported_if_present(&self, name: &str, known: &[&str], errors: &mut Errors) {
        if self.has(name) {
            self.supported(name, known, errors);
        }
    }

    /// Checks that the text at `name` is one of `known`; an empty or missing one is an error.
    pub(super) fn supported(&self, name: &str, known: &[&str], errors: &mut Errors) {
        if !known.contains(&self.text(name)) {
            errors.not_supported(self.path(name), &self.text(name).into(), known);
        }
    }

    /// Checks that the text at `name` follows a rule.
    pub(super) fn follows(&self, name: &str, rule: fn(&str) -> Complaints, errors: &mut Errors) {
        errors.invalid_each(self.path(name), &self.text(name).into(), rule(self.text(name)));
    }

    /// Checks that the text at `name` is empty or follows a rule.
    pub(super) fn follows_if_set(&self, name: &str, rule: fn(&str) -> Complaints, errors: &mut Errors) {
        if !self.text(name).is_empty() {
            self.follows(name, rule, errors);
        }
    }

    /// Checks that the text at `name` is not empty and follows a rule.
    pub(super) fn needs_to_follow(&self, name: &str, rule: fn(&str) -> Complaints, errors: &mut Errors) {
        if self.needs(name, errors) {
            self.follows(name, rule, errors);
        }
    }

    /// Fields that may not be set, and why.
    pub(super) fn forbids(&self, names: &[&str], why: &str, errors: &mut Errors) {
        for name in names.iter().filter(|name| self.has(name)) {
            errors.forbidden(self.path(name), why);
        }
    }

    /// Requires that the field `name` is the same in `old` and `self`.
    pub(super) fn immutable(&self, old: &At<'_>, name: &str, errors: &mut Errors) {
        if !is_same(self.get(name), old.get(name)) {
            errors.invalid(self.path(name), self.get(name), IMMUTABLE);
        }
    }
}

/// Returns true if two values mean the same: an empty list equals an absent one.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    one == other || (empty(one) && empty(other))
}

pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const NOT_POSITIVE: &str = "must be greater than zero";
pub(super) const IMMUTABLE: &str = "field is immutable";
