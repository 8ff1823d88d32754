//! Places in the order of all writes.

use std::{fmt, num::NonZeroU64, str::FromStr};

/// Place of a committed write in the order of all writes. Wire form: decimal string without leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceVersion(NonZeroU64);

/// Error for a text that is not a resourceVersion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid resource version {text:?}")]
pub struct InvalidResourceVersion {
    text: String,
}

impl ResourceVersion {
    /// First revision of a store.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// `None` for zero, which is not a place in the order.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the revision `n` places later. Saturates, which 2^64 writes do not reach.
    #[must_use]
    pub fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ResourceVersion {
    type Err = InvalidResourceVersion;

    fn from_str(text: &str) -> Result<Self, InvalidResourceVersion> {
        let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        let number = if plain { text.parse().ok() } else { None };
        number.map(Self).ok_or_else(|| InvalidResourceVersion { text: text.chars().take(64).collect() })
    }
}

/// `resourceVersion` and `resourceVersionMatch` of a read, combined once into what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// Most recent state at the time of the request.
    Latest,
    /// Any state, however old (`resourceVersion=0`).
    AnyCached,
    /// State that is not older than this.
    NotOlderThan(ResourceVersion),
    /// State right after this write, or an error if it is compacted.
    Exactly(ResourceVersion),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_positive_decimals_are_resource_versions() {
        for (text, expected) in [
            ("1", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("0", None),
            ("01", None),
            ("-1", None),
            ("+1", None),
            ("1e9", None),
            ("18446744073709551616", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<ResourceVersion>().ok().map(ResourceVersion::get), expected, "{text}");
        }
    }
}
