//! Bounds of an evaluation beside its cost: memory and time, which cel-go's costs do not cover.

use super::{CelList, CelMap, CelText, CelValue, OVER_LIMIT};
use std::cell::Cell;

/// Maximum bytes that one evaluation allocates.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum steps of comparing and reading in one evaluation; a step is about 64 bytes or one element.
const MAX_STEPS: u64 = 5_000_000;
/// Maximum number of patterns that one evaluation compiles. Each `BYTES_OF_PATTERN` of a long one count as one more.
const MAX_PATTERNS: u64 = 1_000;
/// Bytes of a pattern that count as one. Compiling takes up to 3 µs per byte.
const BYTES_OF_PATTERN: u64 = 256;

/// Reason that an evaluation has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EvaluationFailure {
    /// Error of the expression for these values. `&&`, `||` and folds may ignore it.
    Error(String),
    /// The evaluation was stopped.
    Cancelled(&'static str),
}

impl EvaluationFailure {
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Error(message) => message,
            Self::Cancelled(message) => message,
        }
    }
}

impl From<String> for EvaluationFailure {
    fn from(message: String) -> Self {
        Self::Error(message)
    }
}

/// Remaining limits of one evaluation.
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

fn take(left: &Cell<u64>, amount: u64) -> Result<(), EvaluationFailure> {
    match left.get().checked_sub(amount) {
        Some(rest) => {
            left.set(rest);
            Ok(())
        }
        None => Err(EvaluationFailure::Cancelled(OVER_LIMIT)),
    }
}

impl Meter {
    /// Charges for a string or bytes before they are made.
    pub(crate) fn bytes(&self, count: usize) -> Result<(), EvaluationFailure> {
        take(&self.bytes, count as u64)
    }

    /// Charges for a list or a map before it is made or copied.
    pub(crate) fn elements(&self, count: usize) -> Result<(), EvaluationFailure> {
        take(&self.bytes, (count as u64).saturating_mul(std::mem::size_of::<CelValue<'_>>() as u64))
    }

    /// Charges for elements before they are visited.
    pub(crate) fn steps(&self, count: u64) -> Result<(), EvaluationFailure> {
        take(&self.steps, count)
    }

    /// Charges for a pattern before it is compiled.
    pub(crate) fn pattern(&self, pattern: &str) -> Result<(), EvaluationFailure> {
        take(&self.patterns, 1 + pattern.len() as u64 / BYTES_OF_PATTERN)
    }

    /// Charges for a value before it is traversed.
    pub(crate) fn reading(&self, value: &CelValue<'_>) -> Result<(), EvaluationFailure> {
        match value {
            CelValue::String(text) => self.steps(text.len() as u64 / 64),
            CelValue::Bytes(bytes) => self.steps(bytes.len() as u64 / 64),
            _ => Ok(()),
        }
    }

    /// Charges for a comparison: one step per part of the smaller value.
    pub(crate) fn comparing(&self, one: &CelValue<'_>, other: &CelValue<'_>) -> Result<(), EvaluationFailure> {
        self.reading(one)?;
        match (one, other) {
            (CelValue::List(one), CelValue::List(other)) if one.len() == other.len() => self.parts_of_list(one),
            (CelValue::Map(one), CelValue::Map(other)) if one.len() == other.len() => self.parts_of_map(one),
            _ => Ok(()),
        }
    }

    fn parts_of_list(&self, list: &CelList<'_>) -> Result<(), EvaluationFailure> {
        self.steps(list.len() as u64)?;
        list.iter().filter_map(Result::ok).try_for_each(|element| self.parts(&element))
    }

    fn parts_of_map(&self, map: &CelMap<'_>) -> Result<(), EvaluationFailure> {
        self.steps(map.len() as u64)?;
        for key in map.keys() {
            if let Ok(Some(value)) = map.find(&key) {
                self.parts(&value)?;
            }
        }
        Ok(())
    }

    fn parts(&self, value: &CelValue<'_>) -> Result<(), EvaluationFailure> {
        match value {
            CelValue::List(list) => self.parts_of_list(list),
            CelValue::Map(map) => self.parts_of_map(map),
            other => self.reading(other),
        }
    }

    /// Makes a text value.
    pub(crate) fn text<'a>(&self, text: String) -> Result<CelValue<'a>, EvaluationFailure> {
        self.bytes(text.len())?;
        Ok(CelValue::String(CelText::Shared(text.into())))
    }

    /// Makes a list value.
    pub(crate) fn list<'a>(&self, values: Vec<CelValue<'a>>) -> Result<CelValue<'a>, EvaluationFailure> {
        self.elements(values.len())?;
        Ok(CelValue::List(CelList::owned(values)))
    }
}
