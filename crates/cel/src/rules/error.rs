//! Errors of rules about fields.

use serde_json::Value as Json;
use std::fmt;

/// Error of one field, as in a Status.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleError {
    /// Path of the field; empty for the object itself.
    pub path: String,
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Value in the message.
    pub value: BadValue,
    /// Detail of the message.
    pub detail: String,
}

/// Kind of an error about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// `Invalid value`
    Invalid,
    /// `Forbidden`
    Forbidden,
    /// `Required value`
    Required,
    /// `Duplicate value`
    Duplicate,
    /// `Internal error`
    Internal,
}

/// Value in an error.
#[derive(Clone, Debug, PartialEq)]
pub enum BadValue {
    /// Omitted, because it would be too large.
    Omitted,
    /// A value.
    Json(Json),
}

impl RuleError {
    pub(super) fn invalid(path: &str, value: &str, detail: String) -> Self {
        Self { path: path.to_owned(), kind: ErrorKind::Invalid, value: BadValue::Json(value.into()), detail }
    }

    pub(super) fn forbidden(path: &str, detail: String) -> Self {
        Self { path: path.to_owned(), kind: ErrorKind::Forbidden, value: BadValue::Omitted, detail }
    }

    /// Returns the text without the field.
    #[must_use]
    pub fn body(&self) -> String {
        let kind = match self.kind {
            ErrorKind::Invalid => "Invalid value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::Required => "Required value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Internal => "Internal error",
        };
        let mut text = kind.to_owned();
        if let (ErrorKind::Invalid | ErrorKind::Duplicate, BadValue::Json(value)) = (self.kind, &self.value) {
            text += &format!(": {value}");
        }
        if !self.detail.is_empty() {
            text += &format!(": {}", self.detail);
        }
        text
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "<nil>" } else { &self.path };
        write!(formatter, "{path}: {}", self.body())
    }
}

/// `path.name`
pub(super) fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
