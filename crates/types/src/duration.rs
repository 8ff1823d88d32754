//! Durations as Go's `time.ParseDuration` parses them.

const SECOND: i128 = 1_000_000_000;
/// Units, in nanoseconds.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
];

/// Parses `1h30m`, `-1.5s` or `0` into nanoseconds.
///
/// # Errors
/// Go's message for any other text.
pub fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid duration {text:?}");
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (number, behind) = DecimalNumber::read(rest).ok_or_else(invalid)?;
        let end = behind.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        if unit.is_empty() {
            return Err(format!("missing unit in duration {text:?}"));
        }
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, scale) = known.ok_or_else(|| format!("unknown unit {unit:?} in duration {text:?}"))?;
        total = number.times(*scale).and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        rest = behind;
    }
    i64::try_from(if text.starts_with('-') { -total } else { total }).map_err(|_| invalid())
}

/// Decimal number without a sign: digits on either side of a point.
struct DecimalNumber<'a> {
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> DecimalNumber<'a> {
    /// Splits off the leading number.
    fn read(text: &'a str) -> Option<(Self, &'a str)> {
        let (whole, rest) = split_digits(text);
        let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        (!whole.is_empty() || !fraction.is_empty()).then_some((Self { whole, fraction }, rest))
    }

    fn times(&self, scale: i128) -> Option<i128> {
        let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<i128>().ok() };
        let fraction = &self.fraction[..self.fraction.len().min(18)];
        let power = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        number(self.whole)?.checked_mul(scale)?.checked_add(number(fraction)? * scale / power)
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("1h30m", Some(5_400_000_000_000)),
            ("-1.5s", Some(-1_500_000_000)),
            (".5ms", Some(500_000)),
            ("1m1ns", Some(60_000_000_001)),
            ("0", Some(0)),
            ("", None),
            ("1", None),
            ("s", None),
            ("1d", None),
            ("9999999h", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text}");
        }
    }
}
