//! Formats of strings, checked as in kube-apiserver (kube-openapi `strfmt`).

use std::{net::IpAddr, sync::LazyLock};

use portolan_cel::parse_duration;
use portolan_gocompat::url::is_request_uri;
use regex::Regex;

use crate::custom::schema::Format;

/// A format's name without dashes, and how a text is checked by it.
type Check = (&'static str, fn(&str) -> bool);

static CHECKS: [Check; 26] = [
    ("bsonobjectid", |text| text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit())),
    ("byte", |text| BASE64.is_match(text)),
    ("cidr", is_cidr),
    ("creditcard", is_credit_card),
    ("date", is_date),
    ("datetime", is_date_time),
    ("duration", |text| parse_duration(text).is_some()),
    ("email", is_email),
    ("hexcolor", |text| HEX_COLOR.is_match(text)),
    ("hostname", is_hostname),
    ("ipv4", |text| sloppy_address(text).is_some() && text.contains('.')),
    ("ipv6", |text| text.contains(':') && !text.contains('%') && text.parse::<IpAddr>().is_ok()),
    ("isbn", |text| is_isbn10(text) || is_isbn13(text)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("k8slongname", |text| text.len() <= 253 && text.split('.').all(is_name_part)),
    ("k8sshortname", |text| text.len() <= 63 && is_name_part(text)),
    ("mac", is_mac),
    ("password", |_| true),
    ("rgbcolor", |text| RGB_COLOR.is_match(text)),
    ("ssn", |text| text.len() == 11 && SSN.is_match(text)),
    ("uri", is_request_uri),
    ("uuid", |text| UUID.is_match(text)),
    ("uuid3", |text| UUID3.is_match(text)),
    ("uuid4", |text| UUID4.is_match(text)),
    ("uuid5", |text| UUID5.is_match(text)),
];

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a test compiles all of them")
}

macro_rules! patterns {
    ($($name:ident = $text:expr;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| pattern($text));)*
    };
}

patterns! {
    BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$";
    CREDIT_CARD = "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$";
    DATE_TIME = "^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$";
    HEX_COLOR = "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    HOSTNAME = r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$";
    RGB_COLOR = r"^rgb\(\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*\)$";
    SSN = "^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$";
    UUID = "(?i-u)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID3 = "(?i-u)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID4 = "(?i-u)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    UUID5 = "(?i-u)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
}

fn of(name: &str) -> Option<&'static Check> {
    let plain = name.replace('-', "");
    CHECKS.iter().find(|(own, _)| *own == plain)
}

impl Format {
    /// Returns true for a format of strings.
    pub(super) fn is_of_text(&self) -> bool {
        of(&self.0).is_some()
    }

    /// Returns true if a text has the format.
    pub(super) fn holds(&self, text: &str) -> bool {
        of(&self.0).is_none_or(|(_, check)| check(text))
    }
}

/// Parses an address; a number with leading zeros is decimal.
fn sloppy_address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return if text.contains('%') { None } else { text.parse().ok() };
    }
    let mut parts = Vec::with_capacity(4);
    for part in text.split('.') {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let plain = part.trim_start_matches('0');
        let number = if plain.is_empty() { 0 } else { plain.parse::<u8>().ok()? };
        parts.push(is_number.then_some(number)?);
    }
    Some(IpAddr::from(<[u8; 4]>::try_from(parts).ok()?))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let most = if address.contains(':') { 128 } else { 32 };
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    is_number && sloppy_address(address).is_some() && length.parse::<u32>().is_ok_and(|length| length <= most)
}

fn digits(text: &str) -> impl DoubleEndedIterator<Item = u32> + '_ {
    text.bytes().map(|byte| u32::from(byte.wrapping_sub(b'0')))
}

fn is_credit_card(text: &str) -> bool {
    let number: String = text.chars().filter(char::is_ascii_digit).collect();
    let doubled = |digit: u32| if digit > 4 { digit * 2 - 9 } else { digit * 2 };
    let sum = || digits(&number).rev().enumerate().map(|(at, d)| if at % 2 == 1 { doubled(d) } else { d }).sum::<u32>();
    CREDIT_CARD.is_match(&number) && sum() % 10 == 0
}

/// Returns the number of a book without the separators between its digits.
fn isbn(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_whitespace() && *c != '-').collect()
}

fn is_isbn10(text: &str) -> bool {
    let number = isbn(text);
    let Some(body) = number.get(..9).filter(|_| number.len() == 10) else { return false };
    let last = match number.as_bytes()[9] {
        b'X' => 10,
        digit @ b'0'..=b'9' => u32::from(digit - b'0'),
        _ => return false,
    };
    let is_number = body.bytes().all(|byte| byte.is_ascii_digit());
    is_number && ((1..).zip(digits(body)).map(|(at, digit)| at * digit).sum::<u32>() + 10 * last).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let number = isbn(text);
    let is_number = number.len() == 13 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number && digits(&number).enumerate().map(|(at, digit)| digit * [1, 3][at % 2]).sum::<u32>().is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    let has_form = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    has_form && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(found) = DATE_TIME.captures(time).filter(|_| is_date(date)) else { return false };
    &found[1] <= "23" && &found[2] <= "59" && &found[3] <= "59"
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|part| part.len() <= 63) && HOSTNAME.is_match(text)
}

fn is_name_part(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| inner(*byte));
    let bytes = text.as_bytes();
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
}

/// Returns true for six, eight or twenty bytes, in pairs of digits, or in fours with dots.
fn is_mac(text: &str) -> bool {
    let (separator, length) = match text.as_bytes().get(2) {
        Some(b':') => (':', 2),
        Some(b'-') => ('-', 2),
        _ => ('.', 4),
    };
    let parts: Vec<&str> = text.split(separator).collect();
    let is_good = |part: &&str| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.iter().all(is_good) && matches!(parts.len() * length / 2, 6 | 8 | 20)
}

/// Returns true for an email address, with or without a display name.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = match text.strip_suffix('>') {
        Some(rest) => match rest.rsplit_once('<') {
            Some((name, address)) if is_phrase(name.trim()) => address,
            _ => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    (quoted || is_dotted(local)) && literal.map_or(is_dotted(domain), |inner| inner.parse::<IpAddr>().is_ok())
}

fn is_atom(text: &str) -> bool {
    let special = |c: char| c.is_ascii() && !c.is_ascii_alphanumeric() && !"!#$%&'*+-/=?^_`{|}~".contains(c);
    !text.is_empty() && !text.chars().any(special)
}

fn is_dotted(text: &str) -> bool {
    text.split('.').all(is_atom)
}

fn is_phrase(text: &str) -> bool {
    let quoted = text.len() >= 2 && text.starts_with('"') && text.ends_with('"');
    quoted || text.split_whitespace().all(|word| word.split('.').all(|part| part.is_empty() || is_atom(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_checked_as_in_kube_apiserver() {
        for (format, good, bad) in [
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901"),
            ("byte", "aGVsbG8=", "aGVsbG8"),
            ("cidr", "010.0.0.0/8", "10.0.0.0/33"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("date", "2024-02-29", "2023-02-29"),
            ("date-time", "2006-01-02t15:04:05.999+02:00", "2006-01-02 15:04:05Z"),
            ("duration", "3 weeks", "soon"),
            ("email", "A. Person <a.b@example.com>", "a..b@example.com"),
            ("hexcolor", "#FFF", "#FFFF"),
            ("hostname", "a-b.example.com", "a_b.example.com"),
            ("ipv4", "127.0.00.1", "127.0.0.256"),
            ("ipv6", "::1", "fe80::1%eth0"),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("isbn10", "0321751043", "0321751044"),
            ("isbn13", "9780321751041", "0321751043"),
            ("k8s-long-name", "a.b-c.d", "a.B"),
            ("k8s-short-name", "a-b", "a.b"),
            ("mac", "0123.4567.89ab", "01:23:45:67:89"),
            ("rgbcolor", "rgb(255, 0,1)", "rgb(256,0,0)"),
            ("ssn", "111-11-1111", "111111111"),
            ("uri", "https://example.com/a?b", "example.com"),
            ("uuid", "123E4567e89b12d3a456426614174000", "123e4567"),
            ("uuid3", "123e4567-e89b-32d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000"),
            ("uuid4", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-c456-426614174000"),
            ("uuid5", "123e4567-e89b-52d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000"),
        ] {
            let format = Format(format.into());
            assert!(format.is_of_text() && format.holds(good), "{format:?}: {good}");
            assert!(!format.holds(bad), "{format:?}: {bad}");
        }
    }
}
