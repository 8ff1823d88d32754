//! Errors about fields (apimachinery `field.Error`).

use std::{collections::HashSet, fmt};

use portolan_types::StatusCause;
use serde_json::Value;

use crate::custom::go_float;

/// Where a field is: names joined by dots, `[n]` for elements, `[key]` for entries of maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A path from its text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// A field of the object here.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        match self.0.is_empty() {
            true => Self(name.to_owned()),
            false => Self(format!("{}.{name}", self.0)),
        }
    }

    /// An element of the list here.
    #[must_use]
    pub fn index(&self, at: usize) -> Self {
        Self(format!("{}[{at}]", self.0))
    }

    /// An entry of the map here.
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

/// One thing that is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// The path of the field.
    pub field: String,
    /// The machine-readable word, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// The sentence without the path.
    pub message: String,
    /// The rule that was broken, where objects that broke it before may go on doing so.
    tolerated: Option<&'static str>,
}

/// A value as Go's JSON shows it: three characters of HTML are escaped where the value is more than text.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map_or(text, go_float),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => text,
        Value::Array(_) | Value::Object(_) => escaped(&text),
    }
}

/// JSON with `<`, `>` and `&` escaped.
pub(crate) fn escaped(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn plural(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn with_detail(start: String, detail: &str) -> String {
    if detail.is_empty() { start } else { format!("{start}: {detail}") }
}

impl FieldError {
    fn new(field: impl fmt::Display, reason: &'static str, message: String) -> Self {
        Self { field: field.to_string(), reason, message, tolerated: None }
    }

    /// A value is missing.
    pub fn required(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueRequired", with_detail("Required value".into(), detail))
    }

    /// A value is not acceptable.
    pub fn invalid(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self::invalid_shown(field, &shown(value), detail)
    }

    /// A value that is shown in another form than JSON's own is not acceptable.
    pub fn invalid_shown(field: impl fmt::Display, value: &str, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", with_detail(format!("Invalid value: {value}"), detail))
    }

    /// A value is of another type.
    pub fn type_invalid(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self { reason: "FieldValueTypeInvalid", ..Self::invalid(field, value, detail) }
    }

    /// A value that is better not shown is not acceptable.
    pub fn invalid_hidden(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", with_detail("Invalid value".into(), detail))
    }

    /// A value is none of those known.
    pub fn not_supported(field: impl fmt::Display, value: &Value, known: &[&str]) -> Self {
        Self::not_supported_shown(field, &shown(value), known)
    }

    /// A value that is shown in another form than JSON's own is none of those known.
    pub fn not_supported_shown(field: impl fmt::Display, value: &str, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
        let detail = if known.is_empty() { String::new() } else { format!("supported values: {}", known.join(", ")) };
        Self::new(field, "FieldValueNotSupported", with_detail(format!("Unsupported value: {value}"), &detail))
    }

    /// A value may not be set here.
    pub fn forbidden(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", with_detail("Forbidden".into(), detail))
    }

    /// A value occurs twice.
    pub fn duplicate(field: impl fmt::Display, value: &Value) -> Self {
        Self::duplicate_shown(field, &shown(value), "")
    }

    /// A value that is shown in another form than JSON's own occurs twice.
    pub fn duplicate_shown(field: impl fmt::Display, value: &str, detail: &str) -> Self {
        Self::new(field, "FieldValueDuplicate", with_detail(format!("Duplicate value: {value}"), detail))
    }

    /// A value that is better not shown occurs twice.
    pub fn duplicate_hidden(field: impl fmt::Display) -> Self {
        Self::new(field, "FieldValueDuplicate", "Duplicate value".into())
    }

    /// Something that is named does not exist.
    pub fn not_found(field: impl fmt::Display, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {}", shown(value)))
    }

    /// Something that is named does not exist, and why.
    pub fn not_found_because(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {}: {detail}", shown(value)))
    }

    /// Something went wrong while looking.
    pub fn internal(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "InternalError", format!("Internal error: {detail}"))
    }

    /// Text is longer than `max` bytes.
    pub fn too_long(field: impl fmt::Display, max: usize) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {}", plural(max, "byte")))
    }

    /// A list has more than `max` elements.
    pub fn too_many(field: impl fmt::Display, actual: usize, max: usize) -> Self {
        Self::new(field, "FieldValueTooMany", format!("Too many: {actual}: must have at most {}", plural(max, "item")))
    }

    /// The same, said only of objects that did not break `rule` before.
    #[must_use]
    pub fn tolerated(mut self, rule: &'static str) -> Self {
        self.tolerated = Some(rule);
        self
    }
}

impl From<FieldError> for StatusCause {
    fn from(error: FieldError) -> Self {
        Self { reason: error.reason.into(), message: error.message, field: error.field }
    }
}

/// All that is wrong, in the order found, as far as it is not too much to be told.
#[derive(Debug, Default)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    /// Most things that are told.
    const MAX: usize = 1000;
    /// Bytes of texts after which nothing more is told.
    const MAX_TEXT: usize = 1 << 20;

    /// Adds one.
    pub fn push(&mut self, error: FieldError) {
        if !self.is_full() {
            self.0.push(error);
        }
    }

    /// Adds all of `others`.
    pub fn append(&mut self, others: Errors) {
        others.0.into_iter().for_each(|error| self.push(error));
    }

    /// Whether enough is wrong, so that nothing more is told: who looks at many things can stop.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= Self::MAX
            || self.0.iter().map(|e| e.field.len() + e.message.len()).sum::<usize>() > Self::MAX_TEXT
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

    /// Whether something is wrong that makes other rules pointless: values that are missing, of a wrong type, or too many.
    pub(crate) fn is_blocking(&self) -> bool {
        const BLOCKING: [&str; 5] = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        self.0.iter().any(|error| BLOCKING.contains(&error.reason))
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of it as one text, as Go joins errors.
    pub fn aggregate(&self) -> String {
        let texts: Vec<String> = self.0.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        }
    }

    /// Puts them into the order of their texts.
    pub fn sort(&mut self) {
        self.0.sort_by_cached_key(|error| format!("{}: {}", error.field, error.message));
    }

    /// How many things are wrong so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Marks what was found since there were `from` as tolerated in objects that broke `rule` before.
    pub fn mark_tolerated(&mut self, from: usize, rule: &'static str) {
        for error in &mut self.0[from..] {
            error.tolerated = Some(rule);
        }
    }

    /// Drops what was found since there were `from` and breaks rules that the old state, whose errors `old` finds, broke too.
    pub fn tolerate(&mut self, from: usize, old: impl FnOnce() -> Errors) {
        // What is not told any more may be what is not tolerated.
        if self.is_full() || !self.0[from..].iter().any(|error| error.tolerated.is_some()) {
            return;
        }
        let broken: HashSet<&str> = old().0.iter().filter_map(|error| error.tolerated).collect();
        let found = self.0.split_off(from);
        self.0.extend(found.into_iter().filter(|error| !error.tolerated.is_some_and(|rule| broken.contains(rule))));
    }

    /// As causes of a `Status`, in the order found.
    pub fn into_causes(self) -> Vec<StatusCause> {
        self.0.into_iter().map(StatusCause::from).collect()
    }
}
