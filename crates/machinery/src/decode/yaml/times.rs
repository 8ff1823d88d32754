//! Times, as Go's `yaml.v2` knows them by their form. They stay texts; only the tag `!!timestamp` asks whether a text is one.

/// Whether a text is one of the times that Go reads: a date, behind `T`, `t` or a space a time of day with a fraction, and behind
/// one of the letters a zone. Months, days and times of day may have one digit.
pub(super) fn is_one(text: &str) -> bool {
    let (date, time) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some((&text[at..=at], &text[at + 1..]))),
        None => (text, None),
    };
    let is_time = |(mark, time): (&str, &str)| if mark == " " { is_time_of_day(time) } else { is_zoned(time) };
    is_date(date) && time.is_none_or(is_time)
}

fn is_date(text: &str) -> bool {
    // A fourth part is enough to say that it is none.
    let parts: Vec<&str> = text.splitn(4, '-').collect();
    let [year, month, day] = parts[..] else { return false };
    let is_year = year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit());
    match (is_year, year.parse(), short(month), short(day)) {
        (true, Ok(year), Some(month), Some(day)) => jiff::civil::Date::new(year, month, day).is_ok(),
        _ => false,
    }
}

/// A number of one or two digits.
fn short(text: &str) -> Option<i8> {
    let is_short = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_short)
}

fn is_time_of_day(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(4, ':').collect();
    let [hour, minute, second] = parts[..] else { return false };
    let (second, fraction) = second.split_once(['.', ',']).unwrap_or((second, "0"));
    let below = |text: &str, bound: i8| short(text).is_some_and(|number| number < bound);
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    below(hour, 24) && below(minute, 60) && below(second, 60) && is_fraction
}

fn is_zoned(text: &str) -> bool {
    if let Some(time) = text.strip_suffix('Z') {
        return is_time_of_day(time);
    }
    let Some(at) = text.rfind(['+', '-']) else { return false };
    let zone = &text[at + 1..];
    let Some((hours, minutes)) = zone.split_once(':') else { return false };
    // As Go has it: some people write zones of 24 hours, and of 60 minutes.
    let within = |text: &str, bound: i8| text.len() == 2 && short(text).is_some_and(|number| number <= bound);
    within(hours, 24) && within(minutes, 60) && is_time_of_day(&text[..at])
}
