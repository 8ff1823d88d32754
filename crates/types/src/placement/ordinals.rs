//! Ordinals of a StatefulSet whose copies share its replicas.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Range of ordinals: `first` belongs to it, `end` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrdinalRange {
    /// First ordinal.
    pub first: i64,
    /// Ordinal after the last one; `first` if the range is empty.
    pub end: i64,
}

impl OrdinalRange {
    /// Creates the range of `count` ordinals that starts at `first`. A negative count gives an empty range.
    pub fn starting_at(first: i64, count: i64) -> Self {
        Self { first, end: first.saturating_add(count.max(0)) }
    }

    /// Returns the ordinals that a StatefulSet asks for: as many as `spec.replicas`, from `spec.ordinals.start` on.
    pub fn of(set: &Value) -> Self {
        let number = |path: &str| set.pointer(path).and_then(Value::as_i64);
        let first = number("/spec/ordinals/start").unwrap_or(0).max(0);
        Self::starting_at(first, number("/spec/replicas").unwrap_or(1))
    }

    /// Returns the number of ordinals.
    pub fn count(self) -> i64 {
        self.end.saturating_sub(self.first).max(0)
    }

    /// Returns the ordinals that are in both ranges.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        let first = self.first.max(other.first);
        Self { first, end: self.end.min(other.end).max(first) }
    }

    /// Returns true if an ordinal is in both ranges.
    pub fn overlaps(self, other: Self) -> bool {
        self.within(other).count() > 0
    }

    /// Returns true if every ordinal of `other` is in this range.
    pub fn contains(self, other: Self) -> bool {
        other.count() == 0 || self.within(other) == other
    }
}
