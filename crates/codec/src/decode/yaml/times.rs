//! Times, as Go's `yaml.v2` knows them by their form. They stay texts; only the tag `!!timestamp` asks whether a text
//! is one.

use portolan_gocompat::time::{self, Layout};

/// Returns true for a time that Go reads: a date; after `T`, `t` or a space a time of day with a fraction; and, after
/// one of the letters, a zone. Months, days and times of day may have one digit.
pub(super) fn is_one(text: &str) -> bool {
    let (date, (time, zone)) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], (&text[at + 1..], if text[at..].starts_with(' ') { "Z" } else { "" })),
        None => (text, ("0:0:0", "Z")),
    };
    let whole = in_full(date, '-').zip(in_full(time, ':'));
    whole.is_some_and(|(date, time)| time::parse(&format!("{date}T{time}{zone}"), Layout::Seconds).is_ok())
}

/// Pads three numbers to two digits each. More text may follow the last one.
fn in_full(text: &str, between: char) -> Option<String> {
    let mut parts = text.splitn(3, between);
    let (first, second, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (third, more) = rest.split_at(digits);
    let is_there = ![first, second, third].contains(&"");
    is_there.then(|| format!("{first:0>2}{between}{second:0>2}{between}{third:0>2}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_known_by_their_form() {
        for (text, is_time) in [
            ("2001-12-14", true),
            ("2001-1-2", true),
            ("0000-2-29", true),
            ("2001-1-2T3:4:5Z", true),
            ("2001-1-2t3:4:5.678+01:30", true),
            ("2001-1-2T3:4:5,6-24:60", true),
            ("2001-1-2 3:4:5", true),
            ("2001-1-2 3:4:5.6", true),
            ("2001-02-29", false),
            ("2001-1", false),
            ("2001-1-2-3", false),
            ("2001-001-2", false),
            ("2001-1-002", false),
            ("2001--2", false),
            ("2001-+1-2", false),
            ("201-1-2", false),
            ("20001-1-2", false),
            ("2001-1-2Z", false),
            ("2001-1-2T", false),
            ("2001-1-2T3:4", false),
            ("2001-1-2T:4:5Z", false),
            ("2001-1-2T3:4:Z", false),
            ("2001-1-2T3:4:5", false),
            ("2001-1-2T003:4:5Z", false),
            ("2001-1-2T24:4:5Z", false),
            ("2001-1-2T3:4:5+25:00", false),
            ("2001-1-2T3:4:5+1:00", false),
            ("2001-1-2T3:4:5.Z", false),
            ("2001-1-2 3:4:5Z", false),
            ("2001-1-2 3:4:5+01:00", false),
            ("2001-1-2 3:4:5 Z", false),
            ("é-1-2", false),
            ("", false),
        ] {
            assert_eq!(is_one(text), is_time, "{text}");
        }
    }
}
