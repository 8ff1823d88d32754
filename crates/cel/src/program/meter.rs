//! What bounds an evaluation beside its cost: memory and time that cel-go's costs do not tell of.

use super::{List, Map, OVER_LIMIT, Text, Value};
use std::cell::Cell;

/// Bytes that one evaluation may make.
const MAX_BYTES: u64 = 64 << 20;
/// Steps of comparing and reading that one evaluation may take; a step is about 64 bytes or one element.
const MAX_STEPS: u64 = 5_000_000;
/// Patterns that one evaluation may compile; a long one counts as one more for each `BYTES_OF_PATTERN`.
const MAX_PATTERNS: u64 = 1_000;
/// A byte of a pattern takes up to 3 µs.
const BYTES_OF_PATTERN: u64 = 256;

/// Why an evaluation has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The expression is wrong for these values. `&&`, `||` and folds may do without it.
    Error(String),
    /// The evaluation was stopped.
    Cancelled(&'static str),
}

impl Failure {
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Error(message) => message,
            Self::Cancelled(message) => message,
        }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Error(message)
    }
}

/// Counts what one evaluation has left.
#[derive(Debug)]
pub(crate) struct Meter {
    bytes: Cell<u64>,
    steps: Cell<u64>,
    patterns: Cell<u64>,
}

impl Default for Meter {
    fn default() -> Self {
        Self { bytes: Cell::new(MAX_BYTES), steps: Cell::new(MAX_STEPS), patterns: Cell::new(MAX_PATTERNS) }
    }
}

fn take(left: &Cell<u64>, amount: u64) -> Result<(), Failure> {
    match left.get().checked_sub(amount) {
        Some(rest) => {
            left.set(rest);
            Ok(())
        }
        None => Err(Failure::Cancelled(OVER_LIMIT)),
    }
}

impl Meter {
    /// Before a text or bytes are made.
    pub(crate) fn bytes(&self, count: usize) -> Result<(), Failure> {
        take(&self.bytes, count as u64)
    }

    /// Before a list or a map is made or copied.
    pub(crate) fn elements(&self, count: usize) -> Result<(), Failure> {
        take(&self.bytes, (count as u64).saturating_mul(std::mem::size_of::<Value<'_>>() as u64))
    }

    /// Before elements are looked at.
    pub(crate) fn steps(&self, count: u64) -> Result<(), Failure> {
        take(&self.steps, count)
    }

    /// Before a pattern is compiled.
    pub(crate) fn pattern(&self, pattern: &str) -> Result<(), Failure> {
        take(&self.patterns, 1 + pattern.len() as u64 / BYTES_OF_PATTERN)
    }

    /// Before a value is read through.
    pub(crate) fn reading(&self, value: &Value<'_>) -> Result<(), Failure> {
        match value {
            Value::String(text) => self.steps(text.len() as u64 / 64),
            Value::Bytes(bytes) => self.steps(bytes.len() as u64 / 64),
            _ => Ok(()),
        }
    }

    /// Before two values are compared: as many steps as the smaller of them has parts.
    pub(crate) fn comparing(&self, one: &Value<'_>, other: &Value<'_>) -> Result<(), Failure> {
        self.reading(one)?;
        match (one, other) {
            (Value::List(one), Value::List(other)) if one.len() == other.len() => self.parts_of_list(one),
            (Value::Map(one), Value::Map(other)) if one.len() == other.len() => self.parts_of_map(one),
            _ => Ok(()),
        }
    }

    fn parts_of_list(&self, list: &List<'_>) -> Result<(), Failure> {
        self.steps(list.len() as u64)?;
        list.iter().filter_map(Result::ok).try_for_each(|element| self.parts(&element))
    }

    fn parts_of_map(&self, map: &Map<'_>) -> Result<(), Failure> {
        self.steps(map.len() as u64)?;
        for key in map.keys() {
            if let Ok(Some(value)) = map.find(&key) {
                self.parts(&value)?;
            }
        }
        Ok(())
    }

    fn parts(&self, value: &Value<'_>) -> Result<(), Failure> {
        match value {
            Value::List(list) => self.parts_of_list(list),
            Value::Map(map) => self.parts_of_map(map),
            other => self.reading(other),
        }
    }

    /// Makes a text value.
    pub(crate) fn text<'a>(&self, text: String) -> Result<Value<'a>, Failure> {
        self.bytes(text.len())?;
        Ok(Value::String(Text::Shared(text.into())))
    }

    /// Makes a list value.
    pub(crate) fn list<'a>(&self, values: Vec<Value<'a>>) -> Result<Value<'a>, Failure> {
        self.elements(values.len())?;
        Ok(Value::List(List::owned(values)))
    }
}
