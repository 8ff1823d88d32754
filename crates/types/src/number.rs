//! Numbers as Go parses them (`strconv.ParseInt`, `ParseUint` and `ParseFloat`).

use std::num::IntErrorKind;

use crate::quoted::go_quoted;

/// Parses a decimal number.
///
/// # Errors
/// Go's message for text that is not a number, or does not fit.
pub fn parse(text: &str) -> Result<i64, String> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseInt: parsing {}: {why}", go_quoted(text))
    })
}

/// Parses a number of 64 bits in a base. Without one, the prefix gives it: `0x`, `0o`, `0b`, or `0` for octal.
/// Underscores are not accepted. `None` for text that is not a number, or does not fit.
pub fn signed(text: &str, base: Option<u32>) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = i128::from(unsigned(digits, base)?);
    i64::try_from(if is_negative { -number } else { number }).ok()
}

/// Parses as [`signed`] does, without a sign.
pub fn unsigned(text: &str, base: Option<u32>) -> Option<u64> {
    let (digits, base) = base.map_or_else(|| prefixed(text), |base| (text, base));
    let is_signed = digits.starts_with(['+', '-']);
    u64::from_str_radix(digits, base).ok().filter(|_| !is_signed)
}

/// Splits off the prefix, and returns the base that it gives.
fn prefixed(text: &str) -> (&str, u32) {
    match text.as_bytes() {
        [b'0', b'b' | b'B', _, ..] => (&text[2..], 2),
        [b'0', b'o' | b'O', _, ..] => (&text[2..], 8),
        [b'0', b'x' | b'X', _, ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    }
}

/// Parses a float: decimal, or hexadecimal with an exponent of two (`0x1p-2`), with underscores between digits. Too
/// large numbers are infinite. `None` for text that is not a float.
pub fn float(text: &str) -> Option<f64> {
    let (is_signed, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(unsigned) => (true, unsigned),
        None => (false, text),
    };
    // Rust accepts `-nan` too.
    if !has_fit_underscores(unsigned) || (is_signed && unsigned.eq_ignore_ascii_case("nan")) {
        return None;
    }
    let plain = unsigned.replace('_', "");
    let number = match plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X")) {
        Some(digits) => hexadecimal(digits),
        None if plain.starts_with(['+', '-']) => None,
        None => plain.parse().ok(),
    };
    number.map(|number| if text.starts_with('-') { -number } else { number })
}

/// Returns true if underscores are between digits only. The prefix of a base counts as a digit.
fn has_fit_underscores(unsigned: &str) -> bool {
    let bytes = unsigned.as_bytes();
    let is_hexadecimal = matches!(bytes, [b'0', b'x' | b'X', ..]);
    let is_digit = |at: usize| {
        let byte = bytes.get(at).copied().unwrap_or_default();
        byte.is_ascii_digit() || (is_hexadecimal && (byte.is_ascii_hexdigit() || at == 1))
    };
    let between_digits = |at: usize| at > 0 && is_digit(at - 1) && is_digit(at + 1);
    unsigned.match_indices('_').all(|(at, _)| between_digits(at))
}

/// Parses the part after `0x`: hexadecimal digits, and the required power of two.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let no_digits = (whole.is_empty() && fraction.is_empty()) || power.is_empty();
    if no_digits || !power.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut number = 0.0;
    for digit in whole.chars().chain(fraction.chars()) {
        number = number * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let power: i32 = power.parse().unwrap_or(i32::MAX);
    let power = if exponent.starts_with('-') { -power } else { power };
    let power = power.saturating_sub(i32::try_from(fraction.len() * 4).unwrap_or(i32::MAX));
    // Two steps, because half of the largest power is still a number; beyond it the result is infinite or zero.
    let power = power.clamp(-2000, 2000);
    Some(number * 2f64.powi(power / 2) * 2f64.powi(power - power / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_in_their_base() {
        for (text, base, expected) in [
            ("0", None, Some(0)),
            ("-0", None, Some(0)),
            ("017", None, Some(15)),
            ("08", None, None),
            ("0o17", None, Some(15)),
            ("0O17", None, Some(15)),
            ("0x1F", None, Some(31)),
            ("-0X1f", None, Some(-31)),
            ("+0b11", None, Some(3)),
            ("0x", None, None),
            ("0x-1", None, None),
            ("--1", None, None),
            ("1_0", None, None),
            ("", None, None),
            ("-9223372036854775808", None, Some(i64::MIN)),
            ("9223372036854775808", None, None),
            ("-101", Some(2), Some(-5)),
            ("0b1", Some(2), None),
        ] {
            assert_eq!(signed(text, base), expected, "{text}");
        }
        assert_eq!(unsigned("18446744073709551615", None), Some(u64::MAX));
        assert_eq!(unsigned("18446744073709551616", None), None);
        assert_eq!(unsigned("+1", None), None);
    }

    #[test]
    fn floats_are_read_with_underscores_and_in_hexadecimal() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("+1.", Some(1.0)),
            ("-.5e1", Some(-5.0)),
            ("1e999", Some(f64::INFINITY)),
            ("-Inf", Some(f64::NEG_INFINITY)),
            ("infinity", Some(f64::INFINITY)),
            ("infin", None),
            ("-nan", None),
            ("--1", None),
            ("", None),
            (".", None),
            ("1e", None),
            ("1_0.5_0", Some(10.5)),
            ("1_.5", None),
            ("_1", None),
            ("1_", None),
            ("1__0", None),
            ("in_f", None),
            ("0x1p-2", Some(0.25)),
            ("-0X1.8P+1", Some(-3.0)),
            ("0x_1p0", Some(1.0)),
            ("0x.8p0", Some(0.5)),
            ("0x1", None),
            ("0xp1", None),
            ("0x1p", None),
            ("0x1p99999999999", Some(f64::INFINITY)),
            ("0x1p-99999999999", Some(0.0)),
            ("0x+1p0", None),
        ] {
            assert_eq!(float(text), expected, "{text}");
        }
        assert!(float("NaN").is_some_and(f64::is_nan));
    }

    #[test]
    fn invalid_numbers_have_gos_error_text() {
        for (text, expected) in [
            ("7", Ok(7)),
            ("-7", Ok(-7)),
            ("+7", Ok(7)),
            ("", Err("strconv.ParseInt: parsing \"\": invalid syntax")),
            ("7\u{7f}", Err("strconv.ParseInt: parsing \"7\\x7f\": invalid syntax")),
            ("9223372036854775808", Err("strconv.ParseInt: parsing \"9223372036854775808\": value out of range")),
            ("-9223372036854775809", Err("strconv.ParseInt: parsing \"-9223372036854775809\": value out of range")),
        ] {
            assert_eq!(parse(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
