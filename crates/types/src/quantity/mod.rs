//! Kubernetes quantities: `100m`, `1.5Gi`, `2e3` (apimachinery `resource.Quantity`).

use std::{fmt, iter::Sum, ops::Add, str::FromStr};

mod read;
mod text;

use read::ParsedQuantity;
pub use text::{settled, value};

/// Reason that a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    /// The text does not have the form of a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Shape,
    /// Digits are missing.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// The text after the number is not a suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Amount in billionths, with its notation. Smaller parts are rounded up, as kube-apiserver does. Saturates at 10^28
/// units; [`settled`] keeps the text of larger ones.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Quantity {
    nanos: i128,
    form: Notation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

const NANO: i128 = 1_000_000_000;
/// Largest magnitude.
const MAX_NANOS: i128 = 10_000_000_000_000_000_000_000_000_000 * NANO;
/// Largest magnitude of an amount with a binary suffix: 2^63 - 1, as in kube-apiserver.
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;
/// One thousandth, in billionths.
const MILLI: i128 = NANO / 1_000;
const BINARY: [(&str, i32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nanos: 0, form: Notation::DecimalSi };

    /// Returns a whole number.
    pub fn from_units(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, form: Notation::DecimalSi }
    }

    /// Returns the amount in billionths.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// Returns true for a multiple of a thousandth.
    pub fn is_in_thousandths(self) -> bool {
        self.nanos % MILLI == 0
    }

    /// Returns the amount rounded up to a whole number. Saturates.
    pub fn units(self) -> i64 {
        let up = self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) != 0);
        i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns the amount rounded up to a whole number, in the same notation.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        Self { nanos: i128::from(self.units()) * NANO, ..self }
    }

    /// Returns the amount rounded away from zero to thousandths, the smallest part of resources in Kubernetes.
    #[must_use]
    pub fn in_thousandths(self) -> Self {
        let whole = self.nanos / MILLI + (self.nanos % MILLI).signum();
        Self { nanos: whole * MILLI, ..self }
    }

    /// Returns `n` times this amount. Saturates at the largest amount.
    #[must_use]
    pub fn times(self, n: i64) -> Self {
        Self { nanos: self.nanos.saturating_mul(i128::from(n)).clamp(-MAX_NANOS, MAX_NANOS), ..self }
    }

    /// Returns this amount minus `other`, which may be negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: (self.nanos - other.nanos).clamp(-MAX_NANOS, MAX_NANOS), ..self }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let form = if self.nanos == 0 { other.form } else { self.form };
        Self { nanos: (self.nanos + other.nanos).clamp(-MAX_NANOS, MAX_NANOS), form }
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        Ok(ParsedQuantity::of(text)?.amount())
    }
}

impl fmt::Display for Quantity {
    /// Writes the canonical form, with the largest suffix that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.nanos / NANO;
        if self.form == Notation::BinarySi && self.nanos % NANO == 0 && units.abs() >= 1024 {
            let fit = BINARY.iter().rev().find(|(_, bits)| units % (1 << bits) == 0);
            let (suffix, bits) = fit.copied().unwrap_or_default();
            return write!(f, "{}{suffix}", units >> bits);
        }
        let digits = self.nanos.unsigned_abs().to_string();
        f.write_str(&text::decimal(self.nanos < 0, digits, -9, self.form))
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum QuantityForm {
            Text(String),
            Number(serde_json::Number),
        }
        let text = match QuantityForm::deserialize(deserializer)? {
            QuantityForm::Text(text) => text,
            QuantityForm::Number(number) => number.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_canonically() {
        for (text, expected) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1.0000000001Gi", "1073741824107374183n"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("0", "0"),
            ("0Gi", "0"),
            ("2e3", "2e3"),
            ("1E", "1E"),
            ("100Ki", "100Ki"),
            ("1000Ki", "1000Ki"),
            ("1023", "1023"),
            ("0.1n", "1n"),
            ("-1.5", "-1500m"),
            ("+2", "2"),
            (".5", "500m"),
            ("5.", "5"),
            ("12e6", "12e6"),
            ("9999999Ei", "9223372036854775807"),
            ("-9999999Ei", "-9223372036854775807"),
            ("9223372036854775808", "9223372036854775808"),
        ] {
            assert_eq!(text.parse::<Quantity>().map(|q| q.to_string()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn parts_below_thousandths_are_rounded_away_from_nothing() {
        for (text, expected) in [
            ("100u", "1m"),
            ("1100u", "2m"),
            ("2m", "2m"),
            ("-1n", "-1m"),
            ("0", "0"),
            ("3e-6", "1e-3"),
            ("1Gi", "1Gi"),
            ("1e999", "10e27"),
        ] {
            let rounded = text.parse::<Quantity>().map(|quantity| quantity.in_thousandths());
            assert_eq!(rounded.map(|quantity| quantity.to_string()).as_deref(), Ok(expected), "{text}");
            assert_eq!(rounded.map(Quantity::is_in_thousandths), Ok(true), "{text}");
        }
        assert_eq!("1u".parse::<Quantity>().map(Quantity::is_in_thousandths), Ok(false));
    }

    #[test]
    fn huge_amounts_saturate() {
        for text in ["1e99999", "99999999999999999999999999999999999999999999999999", "9999999Ei"] {
            assert_eq!(text.parse::<Quantity>().map(Quantity::units), Ok(i64::MAX), "{text}");
        }
        let most: Quantity = "1e30".parse().unwrap();
        assert_eq!((most + most).times(i64::MIN).minus(most).units(), i64::MIN);
    }
}
