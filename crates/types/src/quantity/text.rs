//! Text of quantities: as written if kube-apiserver takes that for canonical, and else in the canonical form.

use std::borrow::Cow;

use super::{DECIMAL, InvalidQuantity, Notation, Quantity, read::ParsedQuantity};

/// Returns the quantity as Kubernetes stores it. Amounts without a binary suffix are exact, however large.
///
/// # Errors
/// Fails if `text` is not a quantity.
pub fn settled(text: &str) -> Result<Cow<'_, str>, InvalidQuantity> {
    let read = ParsedQuantity::of(text)?;
    Ok(match read.form {
        _ if read.is_kept() => text.into(),
        Notation::BinarySi => read.amount().to_string().into(),
        Notation::DecimalSi | Notation::DecimalExponent => {
            decimal(read.negative, read.digits(), read.scale().into(), read.form).into()
        }
    })
}

/// Returns the quantity as a whole number, as `Quantity.Value` of apimachinery does: rounded up, and small numbers of
/// digits away from zero. Beyond 64 bits the value wraps, or is 0 for small numbers of digits.
///
/// # Errors
/// Fails if `text` is not a quantity.
pub fn value(text: &str) -> Result<i64, InvalidQuantity> {
    let read = ParsedQuantity::of(text)?;
    let amount = read.amount();
    let units = amount.units();
    let is_beyond = units == i64::MAX || units == i64::MIN;
    Ok(match (read.form, read.is_quick()) {
        (Notation::DecimalSi | Notation::DecimalExponent, true) if is_beyond => 0,
        (Notation::DecimalSi | Notation::DecimalExponent, is_quick) if is_beyond || is_quick => wrapped(&read),
        // kube-apiserver rounds a negative fraction up twice.
        _ => units + i64::from(amount.nanos() < 0 && amount != Quantity::from_units(units)),
    })
}

/// Returns the low 64 bits, rounded away from zero.
fn wrapped(read: &ParsedQuantity<'_>) -> i64 {
    let scale = i64::from(read.scale());
    let digits = rounded(read.digits(), scale.min(0).unsigned_abs());
    // The 64th power of ten has no bits among the lowest 64.
    let zeros = vec![b'0'; usize::try_from(scale.clamp(0, 64)).unwrap_or_default()];
    let all = digits.bytes().chain(zeros);
    let value = all.fold(0_i64, |value, digit| value.wrapping_mul(10).wrapping_add(i64::from(digit - b'0')));
    if read.negative { value.wrapping_neg() } else { value }
}

/// Returns the canonical form of `digits × 10^scale`, rounded up to billionths.
pub(super) fn decimal(negative: bool, digits: String, scale: i64, form: Notation) -> String {
    let mut digits = rounded(digits, (-9 - scale).max(0).unsigned_abs());
    let mut exponent = scale.max(-9);
    let significant = digits.trim_end_matches('0').len();
    exponent += i64::try_from(digits.len() - significant).unwrap_or_default();
    digits.truncate(significant);
    while exponent % 3 != 0 {
        digits.push('0');
        exponent -= 1;
    }
    let number = match digits.trim_start_matches('0') {
        "" => return "0".into(),
        number => format!("{}{number}", if negative { "-" } else { "" }),
    };
    match form {
        Notation::DecimalExponent if exponent == 0 => number,
        Notation::DecimalExponent => format!("{number}e{exponent}"),
        // kube-apiserver writes no suffix if none is large enough.
        Notation::DecimalSi | Notation::BinarySi => {
            let suffix = DECIMAL.iter().find(|(_, power)| i64::from(*power) == exponent);
            number + suffix.map_or("", |(suffix, _)| suffix)
        }
    }
}

/// Drops the last `count` digits, rounding up.
pub(super) fn rounded(mut digits: String, count: u64) -> String {
    let keep = digits.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
    let is_exact = digits[keep..].bytes().all(|digit| digit == b'0');
    digits.truncate(keep);
    if is_exact {
        return digits;
    }
    let nines = digits.len() - digits.trim_end_matches('9').len();
    digits.truncate(keep - nines);
    let next = digits.pop().and_then(|last| last.to_digit(10)).and_then(|last| char::from_digit(last + 1, 10));
    digits.push(next.unwrap_or('1'));
    digits + &"0".repeat(nines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_quantities_of_kube_apiserver_are_kept() {
        for (text, expected) in [
            ("1Gi", "1Gi"),
            ("8Gi", "8Gi"),
            ("1024Mi", "1Gi"),
            ("1025Ki", "1025Ki"),
            ("+1", "+1"),
            ("1.", "1."),
            ("00012", "00012"),
            ("1E3", "1E3"),
            ("1e3", "1e3"),
            ("1e4", "10e3"),
            ("1e100", "10e99"),
            ("1e0", "1e0"),
            ("1.500", "1.500"),
            ("1.50", "1500m"),
            ("0.500", "500m"),
            ("-5", "-5"),
            ("1e4294967299", "1e4294967299"),
        ] {
            assert_eq!(settled(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_become_canonical() {
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("+", "0"),
            (".", "0"),
            ("m", "0"),
            ("e3", "0"),
            ("1000", "1k"),
            ("99999999999999999999", "99999999999999999999"),
            ("9223372036854775808", "9223372036854775808"),
            ("-123456789012345678901k", "-123456789012345678901k"),
            ("100000000000000000000", "100E"),
            ("1000000000000000000000", "1"),
            ("1000E", "1"),
            ("1234567890123456789012e1", "12345678901234567890120"),
            ("0.1n", "1n"),
            ("1e-2147483647", "1e-9"),
            ("-9.9999999999", "-10"),
            ("0.99999999999999999999e3", "1e3"),
            ("1234567890.12345678901", "1234567890123456790n"),
            ("99999999999Gi", "9223372036854775807"),
            ("0.0001Ki", "102400u"),
        ] {
            assert_eq!(settled(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_have_kube_apiservers_messages() {
        for (text, expected) in [
            ("", InvalidQuantity::Shape),
            ("1x", InvalidQuantity::Shape),
            ("1 Gi", InvalidQuantity::Shape),
            ("1.2.3", InvalidQuantity::Shape),
            ("1g", InvalidQuantity::Shape),
            ("true", InvalidQuantity::Shape),
            ("{}", InvalidQuantity::Shape),
            ("1ee", InvalidQuantity::Suffix),
            ("1ei", InvalidQuantity::Suffix),
            ("1mm", InvalidQuantity::Suffix),
            ("1Gi1", InvalidQuantity::Suffix),
            ("--1", InvalidQuantity::Suffix),
            ("e-20", InvalidQuantity::Number),
            (".e-20", InvalidQuantity::Number),
        ] {
            assert_eq!(settled(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn values_wrap_at_64_bits() {
        for (text, expected) in [
            ("1500m", 2),
            ("-1500m", -2),
            ("-1.5000000000000000000", 0),
            ("9223372036854775807", i64::MAX),
            ("9223372036854775808", i64::MIN),
            ("99999999999999999999", 7_766_279_631_452_241_919),
            ("1e100", 0),
            ("9999Ei", i64::MAX),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }
}
