//! Schedules of cron jobs: five fields, or a word such as `@daily` or `@every 1h30m`.

use portolan_types::duration;

/// The fields: name, least and greatest value, names of values (the first name is the least value).
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];
const WORDS: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Parses a schedule. Returns the reason if it is invalid.
pub(crate) fn check(schedule: &str) -> Result<(), String> {
    let schedule = match schedule.strip_prefix("TZ=").or_else(|| schedule.strip_prefix("CRON_TZ=")) {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest.trim()),
        None => schedule,
    };
    if schedule.starts_with('@') {
        return word(schedule);
    }
    let parts: Vec<&str> = schedule.split_whitespace().collect();
    if parts.len() != FIELDS.len() {
        let found = parts.len();
        return Err(format!("expected exactly 5 fields, found {found}: [{}]", parts.join(" ")));
    }
    parts.iter().zip(FIELDS).try_for_each(|(text, field)| text.split(',').try_for_each(|part| range(part, field)))
}

fn word(text: &str) -> Result<(), String> {
    if WORDS.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        Some(every) => {
            duration::parse(every).map(drop).map_err(|why| format!("failed to parse duration {text}: time: {why}"))
        }
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

fn range(text: &str, (least, greatest, names): (u32, u32, &[&str])) -> Result<(), String> {
    let (span, step) = match text.split_once('/') {
        Some((_, rest)) if rest.contains('/') => return Err(format!("too many slashes: {text}")),
        Some((span, step)) => (span, Some(number(step)?)),
        None => (text, None),
    };
    if step == Some(0) {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let value = |text: &str| {
        let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
        match named.and_then(|at| u32::try_from(at).ok()) {
            Some(at) => Ok(least + at),
            None => number(text),
        }
    };
    let (start, end) = match span.split_once('-') {
        _ if span == "*" || span == "?" => (least, greatest),
        Some((_, rest)) if rest.contains('-') => return Err(format!("too many hyphens: {text}")),
        Some((start, end)) => (value(start)?, value(end)?),
        None => {
            let one = value(span)?;
            (one, if step.is_some() { greatest } else { one })
        }
    };
    if start < least {
        return Err(format!("beginning of range ({start}) below minimum ({least}): {text}"));
    }
    if end > greatest {
        return Err(format!("end of range ({end}) above maximum ({greatest}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    Ok(())
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let parsed = if digits { text.parse().ok() } else { None };
    parsed.ok_or_else(|| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read_like_cron_does() {
        for good in ["* * * * *", "*/5 1-3,7 ? JAN-mar Sun", "@daily", "@every 1h30m", "0 0 31 12 6", "5/10 * * * *"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@every 1y", "failed to parse duration @every 1y: time: unknown unit \"y\" in duration \"1y\""),
            ("@weekdays", "unrecognized descriptor: @weekdays"),
            ("", "expected exactly 5 fields, found 0: []"),
        ] {
            assert_eq!(check(bad), Err(why.to_owned()), "{bad}");
        }
    }
}
