//! Errors about fields (apimachinery `field.Error`).

use std::{collections::HashSet, fmt};

use portolan_types::StatusCause;
use serde_json::Value;

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
}

fn shown(value: &Value) -> String {
    value.to_string()
}

fn with_detail(start: String, detail: &str) -> String {
    if detail.is_empty() { start } else { format!("{start}: {detail}") }
}

impl FieldError {
    fn new(field: impl fmt::Display, reason: &'static str, message: String) -> Self {
        Self { field: field.to_string(), reason, message }
    }

    /// A value is missing.
    pub fn required(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueRequired", with_detail("Required value".into(), detail))
    }

    /// A value is not acceptable.
    pub fn invalid(field: impl fmt::Display, value: &Value, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", with_detail(format!("Invalid value: {}", shown(value)), detail))
    }

    /// A value is none of those known.
    pub fn not_supported(field: impl fmt::Display, value: &Value, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
        let detail = if known.is_empty() { String::new() } else { format!("supported values: {}", known.join(", ")) };
        Self::new(field, "FieldValueNotSupported", with_detail(format!("Unsupported value: {}", shown(value)), &detail))
    }

    /// A value may not be set here.
    pub fn forbidden(field: impl fmt::Display, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", with_detail("Forbidden".into(), detail))
    }

    /// A value occurs twice.
    pub fn duplicate(field: impl fmt::Display, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {}", shown(value)))
    }

    /// Something that is named does not exist.
    pub fn not_found(field: impl fmt::Display, value: &Value) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {}", shown(value)))
    }

    /// Text is longer than `max` bytes.
    pub fn too_long(field: impl fmt::Display, max: usize) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {max} bytes"))
    }

    /// A list has more than `max` elements.
    pub fn too_many(field: impl fmt::Display, actual: usize, max: usize) -> Self {
        Self::new(field, "FieldValueTooMany", format!("Too many: {actual}: must have at most {max} items"))
    }
}

impl From<FieldError> for StatusCause {
    fn from(error: FieldError) -> Self {
        Self { reason: error.reason.into(), message: error.message, field: error.field }
    }
}

/// All that is wrong, in the order found.
#[derive(Debug, Default)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    /// Adds one.
    pub fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    /// Adds all of `others`.
    pub fn append(&mut self, mut others: Errors) {
        self.0.append(&mut others.0);
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

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As causes of a `Status`; what was said twice is said once.
    pub fn into_causes(self) -> Vec<StatusCause> {
        let mut seen = HashSet::new();
        self.0.into_iter().filter(|error| seen.insert(error.clone())).map(StatusCause::from).collect()
    }
}
