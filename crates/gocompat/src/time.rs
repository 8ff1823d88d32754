//! Times and durations of Go's `time`. Texts are accepted and refused with the messages of `time.Parse`. RFC 3339
//! is narrower in places (hours of one digit, commas, offsets of 24 hours), and other parsers are wider.

/// Format of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `time.RFC3339`; a fraction may follow the seconds.
    Seconds,
    /// `metav1.RFC3339Micro`: six digits follow the seconds.
    Micros,
}

impl Layout {
    fn text(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// A moment: seconds since 1970, and nanoseconds after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`.
    pub nanos: u32,
}

/// Seconds of the first day of the year 1, Go's zero time.
const ZERO: i64 = -62_135_596_800;
const DAY: i64 = 24 * 3600;
/// The element of a time of microseconds that has them.
const MICROS: &str = ".000000";
/// Digits of a fraction that count.
const NANOS: usize = 9;
/// Bytes of a text that an error repeats, of which Go repeats all.
const MAX_SHOWN: usize = 64 * 1024;

/// # Errors
/// Go's, when the text is not a time of this layout.
pub fn parse(text: &str, layout: Layout) -> Result<Moment, String> {
    let mut read = Reading { text, rest: text, layout };
    let year = read.year()?;
    read.literal('-')?;
    let month = read.two("01", (1, 12), "month")?;
    read.literal('-')?;
    // The day of the month is checked last.
    let day = read.two("02", (0, 99), "day")?;
    read.literal('T')?;
    let hour = read.hour()?;
    read.literal(':')?;
    let minute = read.two("04", (0, 59), "minute")?;
    read.literal(':')?;
    let second = read.two("05", (0, 59), "second")?;
    let nanos = read.fraction()?;
    let offset = read.offset()?;
    read.end()?;
    if day < 1 || day > days_in(year, month) {
        return Err(read.out_of_range("day"));
    }
    let seconds = days_from_civil(year, month, day) * DAY + (hour * 60 + minute) * 60 + second - offset;
    Ok(Moment { seconds, nanos })
}

impl Moment {
    /// Returns true for Go's zero time, which means no time.
    pub fn is_zero(self) -> bool {
        (self.seconds, self.nanos) == (ZERO, 0)
    }

    /// Returns the time in UTC, as Go writes it in this layout.
    pub fn text(self, layout: Layout) -> String {
        let (days, second) = (self.seconds.div_euclid(DAY), self.seconds.rem_euclid(DAY));
        let (year, month, day) = civil_from_days(days);
        let sign = if year < 0 { "-" } else { "" };
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let fraction = match layout {
            Layout::Seconds => String::new(),
            Layout::Micros => format!(".{:06}", self.nanos / 1000),
        };
        format!("{sign}{:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z", year.abs())
    }
}

/// A text that is read from its beginning.
struct Reading<'t> {
    text: &'t str,
    rest: &'t str,
    layout: Layout,
}

impl Reading<'_> {
    fn year(&mut self) -> Result<i64, String> {
        self.digits(4).ok_or_else(|| self.misfit("2006"))
    }

    fn literal(&mut self, wanted: char) -> Result<(), String> {
        self.rest = self.rest.strip_prefix(wanted).ok_or_else(|| self.misfit(&wanted.to_string()))?;
        Ok(())
    }

    /// Parses two digits between bounds; `what` names them in errors.
    fn two(&mut self, element: &str, (least, most): (i64, i64), what: &str) -> Result<i64, String> {
        match self.digits(2) {
            Some(number) if (least..=most).contains(&number) => Ok(number),
            Some(_) => Err(self.out_of_range(what)),
            None => Err(self.misfit(element)),
        }
    }

    /// Parses the hour, the only number that may have one digit.
    fn hour(&mut self) -> Result<i64, String> {
        match self.digits(2).or_else(|| self.digits(1)) {
            Some(hour) if hour < 24 => Ok(hour),
            Some(_) => Err(self.out_of_range("hour")),
            None => Err(self.misfit("15")),
        }
    }

    /// Parses the nanoseconds. If the layout has a fraction, the text needs one with exactly its number of digits.
    fn fraction(&mut self) -> Result<u32, String> {
        match self.layout {
            Layout::Micros => self.micros(),
            Layout::Seconds => {
                let Some(digits) = self.rest.strip_prefix(['.', ',']) else { return Ok(0) };
                let after = digits.trim_start_matches(|c: char| c.is_ascii_digit());
                let digits = &digits[..digits.len() - after.len()];
                if !digits.is_empty() {
                    self.rest = after;
                }
                Ok(nanos(&digits[..digits.len().min(NANOS)]))
            }
        }
    }

    fn micros(&mut self) -> Result<u32, String> {
        let bad = || self.misfit(MICROS);
        let (fraction, after) = self.rest.split_at_checked(MICROS.len()).ok_or_else(bad)?;
        let digits = fraction.strip_prefix(['.', ',']).ok_or_else(bad)?;
        // Go reads a number, which may have a sign.
        let (digits, is_below_zero) = match digits.strip_prefix(['+', '-']) {
            Some(unsigned) => (unsigned, digits.starts_with('-')),
            None => (digits, false),
        };
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let number: u32 = digits.parse().map_err(|_| bad())?;
        if is_below_zero && number > 0 {
            return Err(self.out_of_range("fractional second"));
        }
        self.rest = after;
        Ok(number * 1000)
    }

    /// Seconds from UTC.
    fn offset(&mut self) -> Result<i64, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let element = "Z07:00";
        let Some([sign, hour @ .., b':', m1, m2]) = self.rest.as_bytes().first_chunk::<6>() else {
            return Err(self.misfit(element));
        };
        let hours = number(hour);
        let minutes = hours.and_then(|_| number(&[*m1, *m2]));
        // A value out of range is reported before a malformed one.
        if minutes.is_some_and(|minutes| minutes > 60) {
            return Err(self.out_of_range("time zone offset minute"));
        }
        if hours.is_some_and(|hours| hours > 24) {
            return Err(self.out_of_range("time zone offset hour"));
        }
        let seconds = hours.zip(minutes).map(|(hours, minutes)| (hours * 60 + minutes) * 60);
        let offset = match (sign, seconds) {
            (b'+', Some(seconds)) => seconds,
            (b'-', Some(seconds)) => -seconds,
            _ => return Err(self.misfit(element)),
        };
        self.rest = self.rest.get(6..).unwrap_or_default();
        Ok(offset)
    }

    fn end(&self) -> Result<(), String> {
        match self.rest {
            "" => Ok(()),
            more => Err(format!("parsing time {}: extra text: {}", quoted(self.text), quoted(more))),
        }
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.rest.split_at_checked(count)?;
        let number = number(digits.as_bytes())?;
        self.rest = rest;
        Some(number)
    }

    fn misfit(&self, element: &str) -> String {
        let (text, rest) = (quoted(self.text), quoted(self.rest));
        format!("parsing time {text} as {}: cannot parse {rest} as {}", quoted(self.layout.text()), quoted(element))
    }

    fn out_of_range(&self, what: &str) -> String {
        format!("parsing time {}: {what} out of range", quoted(self.text))
    }
}

/// Parses a few digits.
fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
}

/// Digits behind a point, up to nine, as nanoseconds.
fn nanos(digits: &str) -> u32 {
    (0..NANOS).fold(0, |nanos, at| nanos * 10 + digits.as_bytes().get(at).map_or(0, |digit| u32::from(digit - b'0')))
}

/// Quotes like Go's `time` package: non-ASCII characters byte by byte.
fn quoted(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_SHOWN)];
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=0x7f => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

fn days_in(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of 400 years, after which the calendar repeats itself.
const ERA: i64 = 146_097;
/// Days from the 1st of March of the year 0 to the 1st of January 1970.
const EPOCH: i64 = 719_468;

/// Days since 1970 of a day of the Gregorian calendar. Years are counted from March, so that leap days come last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA + year * 365 + year / 4 - year / 100 + day_of_year - EPOCH
}

/// Returns the year, month and day of a number of days since 1970.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// Prints nanoseconds as `time.Duration.String` does, such as `1m30s`.
pub fn duration_text(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let fraction = |nanos: u64, unit: u64| {
        let (whole, rest) = (nanos / unit, nanos % unit);
        let digits = format!("{rest:0width$}", width = unit.ilog10() as usize);
        match digits.trim_end_matches('0') {
            "" => whole.to_string(),
            digits => format!("{whole}.{digits}"),
        }
    };
    match nanos {
        0 => "0s".into(),
        1..1_000 => format!("{sign}{nanos}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", fraction(nanos, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", fraction(nanos, 1_000_000)),
        _ => {
            let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
            let seconds = fraction(rest, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("2026-02-03T04:05:06Z", "2026-02-03T04:05:06Z"),
            ("2026-02-03T3:04:05Z", "2026-02-03T03:04:05Z"),
            ("2026-02-03T04:05:06.5Z", "2026-02-03T04:05:06Z"),
            ("2026-02-03T04:05:06,999999999999Z", "2026-02-03T04:05:06Z"),
            ("2026-02-03T04:05:06+01:30", "2026-02-03T02:35:06Z"),
            ("2026-02-03T04:05:06-24:60", "2026-02-04T05:05:06Z"),
            ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("9999-12-31T23:59:59-01:00", "10000-01-01T00:59:59Z"),
            ("0000-01-01T00:00:00+01:00", "-0001-12-31T23:00:00Z"),
        ] {
            let read = parse(text, Layout::Seconds).map(|moment| moment.text(Layout::Seconds));
            assert_eq!(read, Ok(expected.to_owned()), "{text}");
        }
        for (text, expected) in [
            ("2026-02-03T04:05:06.123456Z", "2026-02-03T04:05:06.123456Z"),
            ("2026-02-03T4:05:06,000001-00:01", "2026-02-03T04:06:06.000001Z"),
            // Six digits are a number to Go, which may have a sign.
            ("2026-02-03T04:05:06.+00012Z", "2026-02-03T04:05:06.000012Z"),
            ("2026-02-03T04:05:06.-00000Z", "2026-02-03T04:05:06.000000Z"),
        ] {
            let read = parse(text, Layout::Micros).map(|moment| moment.text(Layout::Micros));
            assert_eq!(read, Ok(expected.to_owned()), "{text}");
        }
        for zero in ["0001-01-01T00:00:00Z", "0001-01-01T01:00:00+01:00"] {
            assert!(parse(zero, Layout::Seconds).is_ok_and(Moment::is_zero), "{zero}");
        }
        assert!(parse("0001-01-01T00:00:00.000001Z", Layout::Micros).is_ok_and(|moment| !moment.is_zero()));
    }

    #[test]
    fn invalid_times_have_gos_errors() {
        let seconds = r#" as "2006-01-02T15:04:05Z07:00": cannot parse "#;
        let micros = r#" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "#;
        for (text, layout, expected) in [
            ("Mon", Layout::Seconds, format!(r#"{seconds}"Mon" as "2006""#)),
            ("", Layout::Seconds, format!(r#"{seconds}"" as "2006""#)),
            ("99999-99", Layout::Micros, format!(r#"{micros}"9-99" as "-""#)),
            ("2026-1-02", Layout::Seconds, format!(r#"{seconds}"1-02" as "01""#)),
            ("2026-13-02T00:00:00Z", Layout::Seconds, ": month out of range".into()),
            ("2026-02-30T00:00:00Z", Layout::Seconds, ": day out of range".into()),
            ("2023-02-29T00:00:00Z", Layout::Seconds, ": day out of range".into()),
            ("2026-02-00T00:00:00Z", Layout::Seconds, ": day out of range".into()),
            ("2026-02-03 00:00:00Z", Layout::Seconds, format!(r#"{seconds}" 00:00:00Z" as "T""#)),
            ("2026-02-03t00:00:00Z", Layout::Seconds, format!(r#"{seconds}"t00:00:00Z" as "T""#)),
            ("2026-02-03T24:00:00Z", Layout::Seconds, ": hour out of range".into()),
            ("2026-02-03T23:60:00Z", Layout::Seconds, ": minute out of range".into()),
            ("2026-02-03T23:59:60Z", Layout::Seconds, ": second out of range".into()),
            ("2026-02-03T23:59:59", Layout::Seconds, format!(r#"{seconds}"" as "Z07:00""#)),
            ("2026-02-03T23:59:59.5", Layout::Seconds, format!(r#"{seconds}"" as "Z07:00""#)),
            ("2026-02-03T23:59:59.Z", Layout::Seconds, format!(r#"{seconds}".Z" as "Z07:00""#)),
            ("2026-02-03T23:59:59z", Layout::Seconds, format!(r#"{seconds}"z" as "Z07:00""#)),
            ("2026-02-03T23:59:59+0500", Layout::Seconds, format!(r#"{seconds}"+0500" as "Z07:00""#)),
            ("2026-02-03T23:59:59Zx", Layout::Seconds, r#": extra text: "x""#.into()),
            ("2026-02-03T23:59:59+05:00[UTC]", Layout::Seconds, r#": extra text: "[UTC]""#.into()),
            ("2026-02-03T23:59:59+25:00", Layout::Seconds, ": time zone offset hour out of range".into()),
            ("2026-02-03T23:59:59+25:xx", Layout::Seconds, ": time zone offset hour out of range".into()),
            ("2026-02-03T23:59:59x25:61", Layout::Seconds, ": time zone offset minute out of range".into()),
            ("2026-02-03T23:59:59.12Z", Layout::Micros, format!(r#"{micros}".12Z" as ".000000""#)),
            ("2026-02-03T23:59:59.-00001Z", Layout::Micros, ": fractional second out of range".into()),
        ] {
            assert_eq!(parse(text, layout), Err(format!("parsing time {text:?}{expected}")));
        }
        let odd = parse("é\"\\\u{1}", Layout::Seconds).unwrap_err();
        assert!(odd.starts_with(r#"parsing time "\xc3\xa9\"\\\x01" as "#), "{odd}");
    }

    #[test]
    fn every_day_is_itself() {
        let first = days_from_civil(-1, 1, 1);
        let (mut year, mut month, mut day) = (-1, 1, 1);
        for days in first..days_from_civil(10_001, 1, 1) {
            assert_eq!(civil_from_days(days), (year, month, day));
            assert_eq!(days_from_civil(year, month, day), days);
            day += 1;
            if day > days_in(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    #[test]
    fn errors_of_a_long_text_are_bounded() {
        let why = parse(&"é".repeat(1 << 20), Layout::Seconds).unwrap_err();
        assert!(why.len() < 9 * MAX_SHOWN, "{}", why.len());
    }
}
