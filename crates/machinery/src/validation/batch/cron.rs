//! Schedules of cron jobs: five fields, or a word such as `@daily` or `@every 1h30m`.

/// The fields: name, least and greatest value, names of values (the first stands for the least).
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];
const WORDS: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Whether a schedule can be understood; if not, why.
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
        Some(duration) if is_duration(duration) => Ok(()),
        Some(duration) => Err(format!("failed to parse duration {text}: time: invalid duration {duration:?}")),
        None => Err(format!("unrecognized descriptor: {text}")),
    }
}

/// A Go duration: numbers with units.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let units = ["ns", "us", "µs", "ms", "s", "m", "h"];
        let Some(unit) = units.iter().find(|unit| after.starts_with(**unit)) else { return false };
        if number.parse::<f64>().is_err() {
            return false;
        }
        rest = &after[unit.len()..];
    }
    true
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
