//! Errors of Go's `net/netip` for texts that are not addresses. Other code decides which texts are; this one only
//! explains.

use portolan_types::quoted::go_quoted;

/// A reason, and the rest of the text at which it shows; empty where it is of the whole.
type Wrong<'a> = (&'static str, &'a str);

/// Returns the error of `netip.ParseAddr`.
pub fn address_error(text: &str) -> String {
    let first = text.bytes().find(|byte| matches!(byte, b'.' | b':' | b'%'));
    let wrong = match first {
        Some(b'.') => four(text),
        Some(b':') => six(text),
        Some(_) => Err(("missing IPv6 address", "")),
        None => Ok(()),
    };
    let (why, at) = wrong.err().unwrap_or(("unable to parse IP", ""));
    let at = if at.is_empty() { String::new() } else { format!(" (at {})", go_quoted(at)) };
    format!("ParseAddr({}): {why}{at}", go_quoted(text))
}

/// Returns true if the length of a prefix is a number in Go's form.
pub fn prefix_length(text: &str) -> Result<u64, String> {
    let is_plain = text.len() == 1 || text.starts_with(|first| matches!(first, '1'..='9'));
    let number = text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok()).filter(|_| is_plain);
    number.ok_or_else(|| format!("bad bits after slash: {}", go_quoted(text)))
}

/// Checks an IPv4 address, alone or at the end of an IPv6 address.
fn four(text: &str) -> Result<(), Wrong<'_>> {
    let bytes = text.as_bytes();
    let (mut value, mut digits, mut dots) = (0_u32, 0, 0);
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' if digits == 1 && value == 0 => return Err(("IPv4 field has octet with leading zero", "")),
            b'0'..=b'9' => {
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err(("IPv4 field has value >255", ""));
                }
            }
            b'.' if index == 0 || index + 1 == bytes.len() || bytes[index - 1] == b'.' => {
                return Err(("IPv4 field must have at least one digit", &text[index..]));
            }
            b'.' if dots == 3 => return Err(("IPv4 address too long", "")),
            b'.' => (value, digits, dots) = (0, 0, dots + 1),
            _ => return Err(("unexpected character", &text[index..])),
        }
    }
    if dots < 3 { Err(("IPv4 address too short", "")) } else { Ok(()) }
}

/// Checks an IPv6 address.
fn six(text: &str) -> Result<(), Wrong<'_>> {
    let mut rest = match text.split_once('%') {
        Some((_, "")) => return Err(("zone must be a non-empty string", "")),
        Some((address, _)) => address,
        None => text,
    };
    let (mut fields, mut gap) = (0, None);
    if let Some(after) = rest.strip_prefix("::") {
        (rest, gap) = (after, Some(0));
        if rest.is_empty() {
            return Ok(());
        }
    }
    while fields < 8 {
        let digits = field(rest)?;
        if rest[digits..].starts_with('.') {
            embedded(rest, fields, gap.is_some())?;
            (rest, fields) = ("", fields + 2);
            break;
        }
        (rest, fields) = (&rest[digits..], fields + 1);
        match rest.as_bytes() {
            [] => break,
            [b':'] => return Err(("colon must be followed by more characters", rest)),
            [b':', b':', ..] if gap.is_some() => return Err(("multiple :: in address", &rest[1..])),
            [b':', b':'] => {
                (rest, gap) = ("", Some(fields));
                break;
            }
            [b':', b':', ..] => (rest, gap) = (&rest[2..], Some(fields)),
            [b':', ..] => rest = &rest[1..],
            _ => return Err(("unexpected character, want colon", rest)),
        }
    }
    match (rest.is_empty(), fields < 8, gap) {
        (false, ..) => Err(("trailing garbage after address", rest)),
        (true, true, None) => Err(("address string too short", "")),
        (true, false, Some(_)) => Err(("the :: must expand to at least one field of zeros", "")),
        (true, ..) => Ok(()),
    }
}

/// Returns the number of digits of the first field.
fn field(rest: &str) -> Result<usize, Wrong<'_>> {
    let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
    match digits {
        0 => Err(("each colon-separated field must have at least one digit", rest)),
        1..=4 => Ok(digits),
        _ => Err(("each group must have 4 or less digits", rest)),
    }
}

fn embedded(rest: &str, fields: usize, has_gap: bool) -> Result<(), Wrong<'_>> {
    if !has_gap && fields != 6 {
        return Err(("embedded IPv4 address must replace the final 2 fields of the address", rest));
    }
    if fields > 6 {
        return Err(("too many hex fields to fit an embedded IPv4 at the end of the address", rest));
    }
    four(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_go() {
        for (text, expected) in [
            ("x", "unable to parse IP"),
            ("", "unable to parse IP"),
            ("%eth0", "missing IPv6 address"),
            ("1.2.3", "IPv4 address too short"),
            ("1.2.3.4.5", "IPv4 address too long"),
            ("1.2.3.04", "IPv4 field has octet with leading zero"),
            ("1.2.3.256", "IPv4 field has value >255"),
            ("1..2.3", r#"IPv4 field must have at least one digit (at ".2.3")"#),
            ("1.2.3.", r#"IPv4 field must have at least one digit (at ".")"#),
            ("1.2.3.é", r#"unexpected character (at "é")"#),
            ("1:2", "address string too short"),
            ("1:2:", r#"colon must be followed by more characters (at ":")"#),
            ("::1::2", r#"multiple :: in address (at ":2")"#),
            ("::12345", r#"each group must have 4 or less digits (at "12345")"#),
            ("::g", r#"each colon-separated field must have at least one digit (at "g")"#),
            ("1:2g", r#"unexpected character, want colon (at "g")"#),
            ("1:2:3:4:5:6:7:8:9", r#"trailing garbage after address (at "9")"#),
            ("1:2:3:4::5:6:7:8", "the :: must expand to at least one field of zeros"),
            ("fe80::1%", "zone must be a non-empty string"),
            ("1:2.3.4.5", r#"embedded IPv4 address must replace the final 2 fields of the address (at "2.3.4.5")"#),
            ("::1.2.3", "IPv4 address too short"),
        ] {
            assert_eq!(address_error(text), format!("ParseAddr({}): {expected}", go_quoted(text)));
        }
        assert_eq!(prefix_length("24"), Ok(24));
        for text in ["", "08", "+8", "x", "-1"] {
            assert_eq!(prefix_length(text), Err(format!("bad bits after slash: {}", go_quoted(text))));
        }
    }
}
