//! Result of a validation in kube-apiserver's order. The order, and the matching part of the value, determine which
//! errors of `oneOf` and similar are reported.

use serde_json::Value;

use crate::field::{Errors, FieldError, Path};

/// Maximum number of errors that are reported for one object.
const MAX_TOLD: usize = 200;

/// Fault of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    /// It is missing.
    Required,
    /// The value is not in the enumeration.
    Enum(Value, Vec<Value>),
    /// It is longer than this.
    TooLong(i64),
    /// It has more parts than it may.
    TooMany(usize, i64),
    /// The value is of another type, which is named here.
    Type(Value),
    /// It is not good in another way; the value that is reported.
    Invalid(Value),
    /// It is not good, and neither place nor value is reported.
    Whole,
}

/// One error.
#[derive(Clone, Debug)]
pub(super) struct ValueFault {
    /// Path in the notation of kube-apiserver's validator.
    pub(super) path: String,
    pub(super) fault: Fault,
    /// Message as kube-apiserver words it.
    pub(super) text: String,
}

/// Result of a validation.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) found: Vec<ValueFault>,
    /// Number of conditions that hold.
    pub(super) matches: usize,
}

impl Outcome {
    pub(super) fn is_valid(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds an error unless it is in the list.
    pub(super) fn add(&mut self, path: &str, fault: Fault, text: String) {
        self.push(ValueFault { path: path.to_owned(), fault, text });
    }

    fn push(&mut self, found: ValueFault) {
        if self.found.len() < MAX_TOLD && !self.found.iter().any(|own| own.text == found.text) {
            self.found.push(found);
        }
    }

    pub(super) fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        other.found.into_iter().for_each(|found| self.push(found));
    }

    /// Returns the errors as errors of fields below `base`.
    pub(super) fn tell(self, base: &Path, errors: &mut Errors) {
        for ValueFault { path, fault, text } in self.found {
            let at = match path.strip_prefix('.').unwrap_or(&path) {
                "" => base.clone(),
                path => base.child(path),
            };
            errors.push(match fault {
                Fault::Required => FieldError::required(at, ""),
                Fault::Enum(value, known) => {
                    let known: Vec<String> = known.iter().map(as_text).collect();
                    FieldError::not_supported(at, &value, &known.iter().map(String::as_str).collect::<Vec<_>>())
                }
                Fault::TooLong(most) => FieldError::longer_than(at, most),
                Fault::TooMany(actual, most) => {
                    FieldError::too_many(at, actual, usize::try_from(most).unwrap_or_default())
                }
                Fault::Type(value) => FieldError::type_invalid(at, &value, &text),
                Fault::Invalid(value) => FieldError::invalid(at, &value, &text),
                Fault::Whole => FieldError::invalid(base, &"".into(), &text),
            });
        }
    }
}

fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
