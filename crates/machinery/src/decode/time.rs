//! Why a text is no time, in the words of Go's `time.Parse`. Only asked when it is none.

/// `time.RFC3339`.
pub(super) const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
/// `metav1.RFC3339Micro`.
pub(super) const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// A part of a layout: how it is spelled there, and what may stand for it.
enum Part {
    Literal(char),
    Year,
    /// Two digits between bounds, and the word for what they are.
    Two(&'static str, u32, u32, &'static str),
    Seconds,
    Micros,
    Zone,
}

/// Go's error about a text that this layout does not fit.
pub(super) fn error(text: &str, layout: &str) -> String {
    let mut parts = vec![
        Part::Year,
        Part::Literal('-'),
        Part::Two("01", 1, 12, "month"),
        Part::Literal('-'),
        // Which days there are is asked last.
        Part::Two("02", 0, 99, "day"),
        Part::Literal('T'),
        Part::Two("15", 0, 23, "hour"),
        Part::Literal(':'),
        Part::Two("04", 0, 59, "minute"),
        Part::Literal(':'),
        Part::Seconds,
    ];
    parts.extend((layout == MICROS).then_some(Part::Micros));
    parts.push(Part::Zone);
    let mut rest = text;
    for part in &parts {
        rest = match part.read(rest, layout == MICROS) {
            Ok(rest) => rest,
            Err(Misfit::Range(what)) => return format!("parsing time {text:?}: {what} out of range"),
            Err(Misfit::Form(wanted)) => {
                return format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {wanted:?}");
            }
        };
    }
    match rest {
        "" => format!("parsing time {text:?}: day out of range"),
        more => format!("parsing time {text:?}: extra text: {more:?}"),
    }
}

enum Misfit {
    Form(String),
    Range(&'static str),
}

fn digits(text: &str, count: usize) -> Option<(u32, &str)> {
    let (number, rest) = text.split_at_checked(count)?;
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| plain).map(|number| (number, rest))
}

fn two<'t>(text: &'t str, layout: &str, bounds: (u32, u32), what: &'static str) -> Result<&'t str, Misfit> {
    // Only the hour may have one digit.
    let found = digits(text, 2).or_else(|| digits(text, 1).filter(|_| layout == "15"));
    match found {
        Some((number, rest)) if (bounds.0..=bounds.1).contains(&number) => Ok(rest),
        Some(_) => Err(Misfit::Range(what)),
        None => Err(Misfit::Form(layout.into())),
    }
}

impl Part {
    /// What follows this part.
    fn read<'t>(&self, text: &'t str, has_fraction: bool) -> Result<&'t str, Misfit> {
        let form = |wanted: &str| Misfit::Form(wanted.to_owned());
        match self {
            Self::Literal(wanted) => text.strip_prefix(*wanted).ok_or_else(|| form(&wanted.to_string())),
            Self::Year => digits(text, 4).map(|(_, rest)| rest).ok_or_else(|| form("2006")),
            Self::Two(layout, least, most, what) => two(text, layout, (*least, *most), what),
            Self::Seconds => {
                let rest = two(text, "05", (0, 59), "second")?;
                let fraction = rest.strip_prefix(['.', ',']).filter(|_| !has_fraction);
                let after = fraction.map(|fraction| fraction.trim_start_matches(|c: char| c.is_ascii_digit()));
                Ok(after.filter(|after| fraction.is_some_and(|all| all.len() > after.len())).unwrap_or(rest))
            }
            Self::Micros => {
                let digits = text.strip_prefix(['.', ',']).and_then(|fraction| digits(fraction, 6));
                digits.map(|(_, rest)| rest).ok_or_else(|| form(".000000"))
            }
            Self::Zone => zone(text).ok_or_else(|| form("Z07:00"))?,
        }
    }
}

/// What follows the offset; nothing when there is none.
fn zone(text: &str) -> Option<Result<&str, Misfit>> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Some(Ok(rest));
    }
    let (hours, rest) = digits(text.strip_prefix(['+', '-'])?, 2)?;
    let (minutes, rest) = digits(rest.strip_prefix(':')?, 2)?;
    Some(match (hours, minutes) {
        (25.., _) => Err(Misfit::Range("time zone offset hour")),
        (_, 61..) => Err(Misfit::Range("time zone offset minute")),
        _ => Ok(rest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_is_told_as_go_does() {
        for (text, layout, expected) in [
            ("Mon", SECONDS, r#" as "2006-01-02T15:04:05Z07:00": cannot parse "Mon" as "2006""#),
            ("", SECONDS, r#" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006""#),
            ("99999-99", MICROS, r#" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "9-99" as "-""#),
            ("2026-1-02", SECONDS, r#" as "2006-01-02T15:04:05Z07:00": cannot parse "1-02" as "01""#),
            ("2026-13-02T00:00:00Z", SECONDS, ": month out of range"),
            ("2026-02-30T00:00:00Z", SECONDS, ": day out of range"),
            ("2026-02-03 00:00:00Z", SECONDS, r#" as "2006-01-02T15:04:05Z07:00": cannot parse " 00:00:00Z" as "T""#),
            ("2026-02-03T24:00:00Z", SECONDS, ": hour out of range"),
            ("2026-02-03T23:60:00Z", SECONDS, ": minute out of range"),
            ("2026-02-03T23:59:60Z", SECONDS, ": second out of range"),
            ("2026-02-03T23:59:59", SECONDS, r#" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00""#),
            ("2026-02-03T23:59:59.5", SECONDS, r#" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00""#),
            ("2026-02-03T23:59:59Zx", SECONDS, r#": extra text: "x""#),
            ("2026-02-03T23:59:59+25:00", SECONDS, ": time zone offset hour out of range"),
            (
                "2026-02-03T23:59:59.12Z",
                MICROS,
                r#" as "2006-01-02T15:04:05.000000Z07:00": cannot parse ".12Z" as ".000000""#,
            ),
        ] {
            assert_eq!(error(text, layout), format!("parsing time {text:?}{expected}"));
        }
    }
}
