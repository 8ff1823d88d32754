//! Kubernetes quantities: `100m`, `1.5Gi`, `2e3` (apimachinery `resource.Quantity`).

use std::{fmt, iter::Sum, ops::Add, str::FromStr};

/// Text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
pub struct InvalidQuantity;

/// An amount in billionths, with the form it is written in. Amounts below one billionth are rounded up, as upstream does.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Quantity {
    nanos: i128,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

const NANO: i128 = 1_000_000_000;
/// Largest magnitude: 2^63 - 1, as upstream caps amounts.
const MAX_NANOS: i128 = i64::MAX as i128 * NANO;
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nanos: 0, form: Form::DecimalSi };

    /// A whole number.
    pub fn from_units(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANO, form: Form::DecimalSi }
    }

    /// The amount in billionths.
    pub fn nanos(self) -> i128 {
        self.nanos
    }

    /// The amount as a whole number, rounded up.
    pub fn units(self) -> i64 {
        let up = self.nanos.div_euclid(NANO) + i128::from(self.nanos.rem_euclid(NANO) != 0);
        i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
    }

    /// The next whole number, in the same form.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        Self { nanos: i128::from(self.units()) * NANO, ..self }
    }

    /// The next thousandth away from nothing, in the same form: Kubernetes keeps no smaller parts of resources.
    #[must_use]
    pub fn in_thousandths(self) -> Self {
        const MILLI: i128 = NANO / 1_000;
        let whole = self.nanos / MILLI + (self.nanos % MILLI).signum();
        Self { nanos: whole * MILLI, ..self }
    }

    /// `n` times this amount. Saturates at the largest amount.
    #[must_use]
    pub fn times(self, n: i64) -> Self {
        Self { nanos: self.nanos.saturating_mul(i128::from(n)).clamp(-MAX_NANOS, MAX_NANOS), ..self }
    }

    /// This amount less `other`; may be negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos - other.nanos, ..self }
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
        let digits_end = text
            .char_indices()
            .find(|(at, c)| !(c.is_ascii_digit() || *c == '.' || (*at == 0 && (*c == '+' || *c == '-'))))
            .map_or(text.len(), |(at, _)| at);
        let (number, suffix) = text.split_at(digits_end);
        let (form, scale) = scale_of(suffix)?;
        let nanos = match scale {
            Scale::Binary(bits) => scaled(number, |whole| whole.checked_mul(NANO << bits)),
            Scale::Decimal(exponent) => scaled_decimal(number, exponent),
        }?;
        Ok(Self { nanos: nanos.clamp(-MAX_NANOS, MAX_NANOS), form })
    }
}

enum Scale {
    Binary(u32),
    Decimal(i32),
}

fn scale_of(suffix: &str) -> Result<(Form, Scale), InvalidQuantity> {
    if let Some((_, bits)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Ok((Form::BinarySi, Scale::Binary(*bits)));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Ok((Form::DecimalSi, Scale::Decimal(*exponent)));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).and_then(|e| e.parse::<i32>().ok()).ok_or(InvalidQuantity)?;
    Ok((Form::DecimalExponent, Scale::Decimal(exponent)))
}

/// Sign, digits and number of fraction digits of `number`, with at most 30 significant digits looked at.
fn parts(number: &str) -> Result<(bool, &str, &str), InvalidQuantity> {
    let negative = number.starts_with('-');
    let plain = number.trim_start_matches(['+', '-']);
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) {
        true => Ok((negative, whole, fraction)),
        false => Err(InvalidQuantity),
    }
}

/// `number × factor`, where `factor` maps a whole number to billionths; `None` of it is an overflow and saturates.
fn scaled(number: &str, factor: impl Fn(i128) -> Option<i128>) -> Result<i128, InvalidQuantity> {
    let (negative, whole, fraction) = parts(number)?;
    let fraction = &fraction[..fraction.len().min(9)];
    let denominator = 10_i128.pow(u32::try_from(fraction.len()).expect("at most 9"));
    let digits = format!("{}{fraction}", whole.trim_start_matches('0'));
    let nanos = match digits.is_empty() {
        true => 0,
        false => match digits.parse::<i128>().ok().and_then(factor) {
            Some(n) => n.div_euclid(denominator) + i128::from(n.rem_euclid(denominator) != 0),
            None => MAX_NANOS,
        },
    };
    Ok(if negative { -nanos } else { nanos })
}

/// `number × 10^exponent` in billionths, rounded up in magnitude.
fn scaled_decimal(number: &str, exponent: i32) -> Result<i128, InvalidQuantity> {
    let (negative, whole, fraction) = parts(number)?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let fraction_len = i32::try_from(fraction.len()).map_err(|_| InvalidQuantity)?;
    let shift = exponent.saturating_add(9).saturating_sub(fraction_len);
    let nanos = match (digits.is_empty(), shift) {
        (true, _) => 0,
        (false, 0..) => shifted_up(digits, shift),
        (false, _) => shifted_down(digits, shift.unsigned_abs()),
    };
    Ok(if negative { -nanos } else { nanos })
}

fn shifted_up(digits: &str, shift: i32) -> i128 {
    let factor = u32::try_from(shift).ok().and_then(|s| 10_i128.checked_pow(s));
    let number = digits.parse::<i128>().ok();
    factor.zip(number).and_then(|(f, n)| n.checked_mul(f)).unwrap_or(MAX_NANOS)
}

fn shifted_down(digits: &str, shift: u32) -> i128 {
    let shift = usize::try_from(shift).unwrap_or(usize::MAX);
    let keep = digits.len().saturating_sub(shift);
    let lost = digits[keep..].bytes().any(|b| b != b'0');
    let kept = if keep == 0 { 0 } else { digits[..keep].parse().unwrap_or(MAX_NANOS) };
    kept + i128::from(lost)
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest suffix that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole_units = self.nanos % NANO == 0;
        if self.form == Form::BinarySi && whole_units && self.nanos.abs() >= 1024 * NANO {
            let units = self.nanos / NANO;
            let fit = BINARY.iter().rev().find(|(_, bits)| units % (1 << bits) == 0);
            if let Some((suffix, bits)) = fit {
                return write!(f, "{}{suffix}", units >> bits);
            }
            return write!(f, "{units}");
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let fits = |exponent: &i32| self.nanos % power(exponent + 9) == 0;
        let (suffix, exponent) =
            DECIMAL.iter().rev().find(|(_, exponent)| fits(exponent)).expect("billionths always fit");
        let number = self.nanos / power(exponent + 9);
        match (self.form, exponent) {
            (Form::DecimalExponent, 0) => write!(f, "{number}"),
            (Form::DecimalExponent, exponent) => write!(f, "{number}e{exponent}"),
            _ => write!(f, "{number}{suffix}"),
        }
    }
}

fn power(exponent: i32) -> i128 {
    10_i128.pow(u32::try_from(exponent).expect("suffixes start at 10^-9"))
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
        enum Form {
            Text(String),
            Number(serde_json::Number),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Text(text) => text,
            Form::Number(number) => number.to_string(),
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
        ] {
            assert_eq!(text.parse::<Quantity>().map(|q| q.to_string()).as_deref(), Ok(expected), "{text}");
        }
        for text in ["", "m", "1x", "1 Gi", "--1", "1.2.3", "1ei", "e3", "1Gi1"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
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
        ] {
            let rounded = text.parse::<Quantity>().map(|quantity| quantity.in_thousandths().to_string());
            assert_eq!(rounded.as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn huge_amounts_saturate() {
        for text in ["1e99999", "99999999999999999999999999999999999999999999999999", "9999999Ei"] {
            assert_eq!(text.parse::<Quantity>().map(Quantity::units), Ok(i64::MAX), "{text}");
        }
    }
}
