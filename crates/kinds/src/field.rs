//! Errors about fields (apimachinery `field.Error`).

use std::{collections::HashSet, fmt};

use portolan_gocompat::{json::escaped, print::go_general};
use portolan_types::{StatusCause, quoted::go_quoted};
use serde_json::Value;

/// Path of a field: names joined by dots, `[n]` for elements, `[key]` for map entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// Returns a path from its text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns a field of the object here.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// Returns an element of the list here.
    #[must_use]
    pub fn index(&self, at: usize) -> Self {
        Self(format!("{}[{at}]", self.0))
    }

    /// Returns an entry of the map here.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// Error of one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// The path of the field.
    pub field: String,
    /// The machine-readable word, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// The sentence without the path.
    pub message: String,
    /// The rule that was broken, where objects that broke it before may continue to do so.
    tolerated: Option<&'static str>,
    /// Text that replaces these faults, if any.
    instead: Option<String>,
}

/// Returns a value as Go shows it: text in its quotes, lists and objects as JSON, in which three characters of HTML are
/// escaped.
fn go_value(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map_or_else(|| value.to_string(), go_general),
        Value::String(text) => go_quoted(text),
        Value::Number(_) | Value::Bool(_) | Value::Null => value.to_string(),
        Value::Array(_) | Value::Object(_) => escaped(&value.to_string()),
    }
}

/// Returns a value of one of Go's named string types, which is shown as JSON; other values are shown as usual.
fn go_string_value(value: &Value) -> String {
    match value {
        Value::String(_) => escaped(&value.to_string()),
        other => go_value(other),
    }
}

fn plural(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn with_detail(start: String, detail: &str) -> String {
    if detail.is_empty() { start } else { format!("{start}: {detail}") }
}

impl FieldError {
    fn new(field: impl fmt::Display, reason: &'static str, message: String) -> Self {
        Self { field: field.to_string(), reason, message, tolerated: None, instead: None }
    }

    /// Returns the error for a missing value.
    pub fn required(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueRequired", with_detail("Required value".into(), detail))
    }

    /// Returns the error for an invalid value.
    pub fn invalid(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self::invalid_shown(field, &go_value(value), detail)
    }

    /// Returns the error for an invalid value of one of Go's named string types.
    pub fn invalid_named(field: impl fmt::Display, value: &str, detail: &str) -> Self {
        Self::invalid_shown(field, &go_string_value(&value.into()), detail)
    }

    /// Returns the error for an invalid value in a form other than its JSON.
    pub fn invalid_shown(field: impl fmt::Display, value: &str, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", with_detail(format!("Invalid value: {value}"), detail))
    }

    /// Returns the error for a value of another type.
    pub fn type_invalid(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self { reason: "FieldValueTypeInvalid", ..Self::invalid(field, value, detail) }
    }

    /// Returns the error for an invalid value without showing it.
    pub fn invalid_hidden(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", with_detail("Invalid value".into(), detail))
    }

    /// Returns the error for an unsupported value.
    pub fn not_supported(field: impl fmt::Display, value: &Value, known: &[&str]) -> Self {
        Self::not_supported_shown(field, &go_string_value(value), known)
    }

    /// Returns the error for an unsupported value, shown in a form other than its JSON.
    pub fn not_supported_shown(field: impl fmt::Display, value: &str, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
        let detail = if known.is_empty() { String::new() } else { format!("supported values: {}", known.join(", ")) };
        Self::new(field, "FieldValueNotSupported", with_detail(format!("Unsupported value: {value}"), &detail))
    }

    /// Returns the error for a value that may not be set here.
    pub fn forbidden(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", with_detail("Forbidden".into(), detail))
    }

    /// Returns the error for a duplicate value.
    pub fn duplicate(field: impl fmt::Display, value: &Value) -> Self {
        Self::duplicate_shown(field, &go_value(value), "")
    }

    /// Returns the error for a duplicate value in a form other than its JSON.
    pub fn duplicate_shown(field: impl fmt::Display, value: &str, detail: &str) -> Self {
        Self::new(field, "FieldValueDuplicate", with_detail(format!("Duplicate value: {value}"), detail))
    }

    /// Returns the error for a duplicate value without showing it.
    pub fn duplicate_hidden(field: impl fmt::Display) -> Self {
        Self::new(field, "FieldValueDuplicate", "Duplicate value".into())
    }

    /// Returns the error for a name that does not exist.
    pub fn not_found(field: impl fmt::Display, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {}", go_value(value)))
    }

    /// Returns the error for a name that does not exist, with the reason.
    pub fn not_found_because(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {}: {detail}", go_value(value)))
    }

    /// Returns the error for a failure of validation itself.
    pub fn internal(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "InternalError", format!("Internal error: {detail}"))
    }

    /// Returns the error for text that is longer than `max` bytes.
    pub fn too_long(field: impl fmt::Display, max: usize) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {}", plural(max, "byte")))
    }

    /// A text is longer than `max` bytes. `max` comes from a schema; a negative one allows no text.
    pub fn longer_than(field: impl fmt::Display, max: i64) -> Self {
        match usize::try_from(max) {
            Ok(max) => Self::too_long(field, max),
            Err(_) => Self::new(field, "FieldValueTooLong", "Too long: value is too long".into()),
        }
    }

    /// Returns the error for a list of more than `max` elements.
    pub fn too_many(field: impl fmt::Display, actual: usize, max: usize) -> Self {
        Self::new(field, "FieldValueTooMany", format!("Too many: {actual}: must have at most {}", plural(max, "item")))
    }

    /// Returns the size of the reported value in bytes.
    /// Formats it as Go does.
    fn line(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }

    fn text(&self) -> usize {
        self.field.len() + self.message.len()
    }

    /// Adds an error that counts only for objects that did not break `rule` before.
    #[must_use]
    pub fn tolerated(mut self, rule: &'static str) -> Self {
        self.tolerated = Some(rule);
        self
    }

    /// Returns the fault with the one that is reported where this one is tolerated.
    #[must_use]
    pub fn or_else(mut self, other: FieldError) -> Self {
        self.instead = Some(other.message);
        self
    }
}

impl From<FieldError> for StatusCause {
    fn from(error: FieldError) -> Self {
        Self { reason: error.reason.into(), message: error.message, field: error.field }
    }
}

/// Errors in the order in which they were found, up to a bound.
#[derive(Debug, Default)]
pub struct Errors {
    found: Vec<FieldError>,
    /// Bytes of their texts.
    text: usize,
    /// Rules that changes of the object are not held to, though it breaks none.
    waived: Vec<&'static str>,
    /// Faults that were there before and may stay.
    warned: Vec<FieldError>,
}

impl Errors {
    /// Maximum number of errors that are reported.
    const MAX: usize = 1000;
    /// Bytes of texts after which nothing more is reported.
    const MAX_TEXT: usize = 1 << 20;

    /// Adds one.
    pub fn push(&mut self, error: FieldError) {
        if !self.is_full() {
            self.text += error.text();
            self.found.push(error);
        }
    }

    /// Adds an error that existed before, about which clients are only warned.
    pub fn warn(&mut self, error: FieldError) {
        if self.warned.len() < Self::MAX && self.text <= Self::MAX_TEXT {
            self.text += error.text();
            self.warned.push(error);
        }
    }

    /// Takes the faults that are only warnings, as texts.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warned).iter().map(FieldError::line).collect()
    }

    /// Lets changes of the object break `rule`, because the old object already has the feature that `rule` is about.
    pub fn waive(&mut self, rule: &'static str) {
        if !self.waived.contains(&rule) {
            self.waived.push(rule);
        }
    }

    /// Adds all of `others`.
    pub fn append(&mut self, others: Errors) {
        others.waived.iter().for_each(|rule| self.waive(rule));
        others.found.into_iter().for_each(|error| self.push(error));
        others.warned.into_iter().for_each(|error| self.warn(error));
    }

    /// Returns true if no further fault is reported, so that long checks can stop.
    pub fn is_full(&self) -> bool {
        self.found.len() >= Self::MAX || self.text > Self::MAX_TEXT
    }

    /// Adds `invalid`.
    pub fn invalid(&mut self, field: impl fmt::Display, value: &Value, detail: &str) {
        self.push(FieldError::invalid(field, value, detail));
    }

    /// Adds `required`.
    pub fn required(&mut self, field: impl fmt::Display, detail: &str) {
        self.push(FieldError::required(field, detail));
    }

    /// Adds `forbidden`.
    pub fn forbidden(&mut self, field: impl fmt::Display, detail: &str) {
        self.push(FieldError::forbidden(field, detail));
    }

    /// Adds `not_supported`.
    pub fn not_supported(&mut self, field: impl fmt::Display, value: &Value, known: &[&str]) {
        self.push(FieldError::not_supported(field, value, known));
    }

    /// Adds `duplicate`.
    pub fn duplicate(&mut self, field: impl fmt::Display, value: &Value) {
        self.push(FieldError::duplicate(field, value));
    }

    /// Adds `not_found`.
    pub fn not_found(&mut self, field: impl fmt::Display, value: &Value) {
        self.push(FieldError::not_found(field, value));
    }

    /// Adds `invalid` for each of `details`.
    pub fn invalid_each(&mut self, field: impl fmt::Display, value: &Value, details: Vec<String>) {
        for detail in details {
            self.invalid(&field, value, &detail);
        }
    }

    /// Returns true if a fault makes other rules pointless: values that are missing, of a wrong type, or too many.
    pub(crate) fn is_blocking(&self) -> bool {
        const BLOCKING: [&str; 5] = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        self.found.iter().any(|error| BLOCKING.contains(&error.reason))
    }

    /// Returns true if there are no faults so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns all errors as one text, joined like in Go.
    pub fn aggregate(&self) -> String {
        let texts: Vec<String> = self.found.iter().map(FieldError::line).collect();
        match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        }
    }

    /// Puts them into the order of their texts.
    pub fn sort(&mut self) {
        self.found.sort_by_cached_key(FieldError::line);
    }

    /// Returns the number of faults so far.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Marks the errors from index `from` on as tolerated in objects that broke `rule` before.
    pub fn mark_tolerated(&mut self, from: usize, rule: &'static str) {
        for error in &mut self.found[from..] {
            error.tolerated = Some(rule);
        }
    }

    /// Drops the errors from index `from` on whose rules the old state broke too or waives. `old` finds the errors of
    /// the old state.
    pub fn tolerate(&mut self, from: usize, old: impl FnOnce() -> Errors) {
        // Errors beyond the bound are not reported, so they may be ones that are not tolerated.
        if self.is_full() || !self.found[from..].iter().any(|error| error.tolerated.is_some()) {
            return;
        }
        let old = old();
        let broken: HashSet<&str> = old.found.iter().filter_map(|error| error.tolerated).chain(old.waived).collect();
        let mut at = 0..;
        self.found.retain_mut(|error| {
            let is_older = at.next().is_some_and(|at| at < from);
            if is_older || !error.tolerated.is_some_and(|rule| broken.contains(rule)) {
                return true;
            }
            let instead = error.instead.take();
            instead.map(|message| error.message = message).is_some()
        });
        self.text = self.found.iter().map(FieldError::text).sum();
    }

    /// Returns the causes of a `Status`, in the order found.
    pub fn into_causes(self) -> Vec<StatusCause> {
        self.found.into_iter().map(StatusCause::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waived_rules_are_tolerated_or_reported() {
        let told = |message: &str| FieldError::forbidden("a", message);
        let mut errors = Errors::default();
        errors.push(told("kept"));
        errors.push(told("dropped").tolerated("rule"));
        errors.push(told("changed").tolerated("rule").or_else(told("to this")));
        errors.push(told("another rule").tolerated("other"));
        errors.tolerate(0, || {
            let mut old = Errors::default();
            old.waive("rule");
            old
        });
        let told: Vec<_> = errors.into_causes().into_iter().map(|cause| cause.message).collect();
        assert_eq!(told, ["Forbidden: kept", "Forbidden: to this", "Forbidden: another rule"]);
    }

    #[test]
    fn tolerated_errors_make_room_for_others() {
        let long = || "x".repeat(Errors::MAX_TEXT / 4);
        let mut errors = Errors::default();
        errors.required("a", &long());
        for _ in 0..2 {
            errors.push(FieldError::required("b", &long()).tolerated("rule"));
        }
        let before = || Errors { found: vec![FieldError::required("b", "").tolerated("rule")], ..Errors::default() };
        errors.tolerate(1, before);
        assert_eq!(errors.len(), 1);
        for _ in 0..100 {
            errors.required("c", &long());
        }
        assert_eq!(errors.len(), 4, "up to the bound, and one that goes over it");
        assert!(errors.is_full());
    }

    #[test]
    fn the_number_of_short_errors_is_bounded() {
        let mut errors = Errors::default();
        (0..2 * Errors::MAX).for_each(|_| errors.required("a", ""));
        assert_eq!(errors.len(), Errors::MAX);
    }
}
