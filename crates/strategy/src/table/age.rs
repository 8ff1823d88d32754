//! Durations as Kubernetes writes them: short, with two or three significant figures.

use jiff::Timestamp;

use super::column::UNKNOWN;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Returns the time from an RFC 3339 timestamp to `now`.
pub(super) fn since(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human(now.duration_since(then).as_secs()),
        Err(_) => UNKNOWN.into(),
    }
}

/// Returns the time between two RFC 3339 timestamps.
pub(super) fn between(start: &str, end: &str) -> String {
    match end.parse() {
        Ok(end) => since(start, end),
        Err(_) => UNKNOWN.into(),
    }
}

/// Returns a number of seconds. Clocks may differ by a second; a time further in the future is invalid.
pub(super) fn human(seconds: i64) -> String {
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

fn two(large: i64, unit: &str, small: i64, subunit: &str) -> String {
    match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{subunit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * MINUTE, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (3 * YEAR + DAY, "3y1d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(human(seconds), expected);
        }
    }

    #[test]
    fn a_missing_time_is_unknown() {
        let now = "2026-11-21T04:00:00Z";
        assert_eq!(since("", now.parse().unwrap()), "<unknown>");
        assert_eq!(between("2026-11-21T03:59:00Z", now), "60s");
    }
}
