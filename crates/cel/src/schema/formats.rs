//! Parsers for the formats of values, as in Kubernetes' format registry.

use crate::time;
use jiff::Timestamp;
use portolan_types::duration;

const SECOND: i64 = 1_000_000_000;
/// Units by their short names. Any text that starts with the last name of a unit counts as that unit too.
const UNITS: [(&[&str], i64); 8] = [
    (&["ns", "nano"], 1),
    (&["us", "µs", "micro"], 1_000),
    (&["ms", "milli"], 1_000_000),
    (&["s", "sec"], SECOND),
    (&["m", "min"], 60 * SECOND),
    (&["h", "hr", "hour"], 3_600 * SECOND),
    (&["d", "day"], 86_400 * SECOND),
    (&["w", "wk", "week"], 604_800 * SECOND),
];

/// Parses a duration as Go does, or as numbers with units up to weeks. Returns nanoseconds.
#[must_use]
pub fn parse_duration(text: &str) -> Option<i64> {
    if let Ok(nanos) = duration::parse(text) {
        return Some(nanos);
    }
    let mut total: Option<i64> = None;
    let mut rest = text;
    while let Some(start) = rest.find(|character: char| character.is_ascii_digit()) {
        rest = &rest[start..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let unit_start = after.trim_start();
        let length = unit_start
            .find(|character: char| !(character.is_ascii_alphabetic() || character == 'µ'))
            .unwrap_or(unit_start.len());
        let unit = unit_start[..length].to_lowercase();
        rest = if unit.is_empty() { after } else { &unit_start[length..] };
        let number: i64 = number.parse().ok()?;
        for scale in UNITS.iter().filter(|(names, _)| is_unit(names, &unit)).map(|(_, scale)| scale) {
            total = Some(total.unwrap_or_default().wrapping_add(number.wrapping_mul(*scale)));
        }
    }
    total
}

fn is_unit(names: &[&str], unit: &str) -> bool {
    !unit.is_empty() && (names.contains(&unit) || names.last().is_some_and(|last| unit.starts_with(last)))
}

/// Parses a time in RFC 3339, or one without a zone.
pub(crate) fn parse_date_time(text: &str) -> Option<Timestamp> {
    if text.is_empty() {
        return Timestamp::from_second(0).ok();
    }
    time::parse_timestamp(text).or_else(|| time::parse_timestamp(&format!("{text}Z")))
}
