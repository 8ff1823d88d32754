//! Whole numbers as Go reads them (`strconv.ParseInt`).

use std::num::IntErrorKind;

use crate::quoted::go_quoted;

/// The number that a text is.
///
/// # Errors
/// What Go says of text that is none, or does not fit.
pub fn parse(text: &str) -> Result<i64, String> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseInt: parsing {}: {why}", go_quoted(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_told_in_gos_words() {
        for (text, expected) in [
            ("7", Ok(7)),
            ("-7", Ok(-7)),
            ("+7", Ok(7)),
            ("", Err("strconv.ParseInt: parsing \"\": invalid syntax")),
            ("7\u{7f}", Err("strconv.ParseInt: parsing \"7\\x7f\": invalid syntax")),
            ("9223372036854775808", Err("strconv.ParseInt: parsing \"9223372036854775808\": value out of range")),
            ("-9223372036854775809", Err("strconv.ParseInt: parsing \"-9223372036854775809\": value out of range")),
        ] {
            assert_eq!(parse(text), expected.map_err(str::to_owned), "{text}");
        }
    }
}
