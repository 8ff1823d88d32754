//! Cron schedules of five fields, in UTC, as `CronJob` has them.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// A parsed schedule: for each field, which values match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Cron's rule: when both day fields are restricted, either may match.
    either_day: bool,
}

impl Schedule {
    /// `None` when the text is not a schedule.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = match text {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else { return None };
        let weekday_bits = field(weekdays, 0, 7, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"])?;
        Some(Self {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            weekdays: weekday_bits | (weekday_bits >> 7),
            either_day: !days.starts_with('*') && !weekdays.starts_with('*'),
        })
    }

    fn matches(&self, at: DateTime) -> bool {
        let has = |bits: u64, value: i8| u32::try_from(value).is_ok_and(|v| bits & (1 << v) != 0);
        let day = has(self.days, at.day());
        let weekday = has(self.weekdays, at.weekday().to_sunday_zero_offset());
        let days = if self.either_day { day || weekday } else { day && weekday };
        days && has(self.minutes, at.minute()) && has(self.hours, at.hour()) && has(self.months, at.month())
    }

    /// The first matching minute after `after`, within two years.
    pub(crate) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        const MINUTE: i64 = 60;
        let mut seconds = after.as_second().div_euclid(MINUTE) * MINUTE + MINUTE;
        let end = seconds.saturating_add(2 * 366 * 24 * 60 * MINUTE);
        while seconds < end {
            let at = Timestamp::from_second(seconds).ok()?;
            let civil = at.to_zoned(TimeZone::UTC).datetime();
            if self.matches(civil) {
                return Some(at);
            }
            // A day that cannot match is skipped as a whole.
            let whole_day = Self { minutes: u64::MAX, hours: u64::MAX, ..self.clone() };
            let to_midnight = 24 * 60 * MINUTE - seconds.rem_euclid(24 * 60 * MINUTE);
            seconds += if whole_day.matches(civil) { MINUTE } else { to_midnight };
        }
        None
    }
}

const MONTHS: [&str; 13] = ["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// A field such as `*/5`, `1-5`, `1,2,mon`: one bit per value.
fn field(text: &str, low: u32, high: u32, names: &[&str]) -> Option<u64> {
    let value = |text: &str| {
        let lower = text.to_ascii_lowercase();
        let named = names.iter().position(|name| !name.is_empty() && *name == lower);
        let number = named.and_then(|at| u32::try_from(at).ok()).or_else(|| text.parse().ok())?;
        (low..=high).contains(&number).then_some(number)
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let step: usize = step.map_or(Some(1), |s| s.parse().ok()).filter(|s| *s > 0)?;
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (low, high),
            Some((from, to)) => (value(from)?, value(to)?),
            None if step > 1 => (value(range)?, high),
            None => (value(range)?, value(range)?),
        };
        (from..=to).step_by(step).for_each(|v| bits |= 1 << v);
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_found() {
        for (schedule, after, expected) in [
            ("*/5 * * * *", "2026-01-01T00:02:30Z", "2026-01-01T00:05:00Z"),
            ("0 3 * * mon", "2026-01-01T00:00:00Z", "2026-01-05T03:00:00Z"),
            ("30 12 31 * *", "2026-02-01T00:00:00Z", "2026-03-31T12:30:00Z"),
            ("0 0 1 1 *", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("0 0 13 * fri", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
        ] {
            let next = Schedule::parse(schedule).unwrap().next_after(after.parse().unwrap());
            assert_eq!(next, expected.parse().ok(), "{schedule}");
        }
    }

    #[test]
    fn an_invalid_schedule_is_refused() {
        for text in ["", "* * * *", "60 * * * *", "*/0 * * * *", "a * * * *", "5-x * * * *"] {
            assert_eq!(Schedule::parse(text), None, "{text}");
        }
    }
}
