//! Values of literals.

use super::Literal;

/// Returns the value of a string literal, quotes and prefix included.
pub(super) fn string(text: &str) -> Result<Literal, String> {
    let bytes = unescape(text, false)?;
    String::from_utf8(bytes)
        .map(|value| Literal::String(value.into()))
        .map_err(|_| "unable to unescape string".to_owned())
}

/// Returns the value of a bytes literal, without its `b`.
pub(super) fn bytes(text: &str) -> Result<Literal, String> {
    unescape(text, true).map(|value| Literal::Bytes(value.into()))
}

/// Returns the value of `12` or `0x1f`; with `negative`, its negation.
pub(super) fn int(text: &str, negative: bool) -> Result<Literal, String> {
    let sign = if negative { "-" } else { "" };
    let value = match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(&format!("{sign}{hex}"), 16),
        None => format!("{sign}{text}").parse(),
    };
    value.map(Literal::Int).map_err(|_| "invalid int literal".to_owned())
}

/// Returns the value of `12u` or `0x1fu`.
pub(super) fn uint(text: &str) -> Result<Literal, String> {
    let digits = &text[..text.len() - 1];
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    value.map(Literal::Uint).map_err(|_| "invalid uint literal".to_owned())
}

/// Returns the value of `1.5e3`.
pub(super) fn double(text: &str, negative: bool) -> Result<Literal, String> {
    let value: f64 = text.parse().map_err(|_| "invalid double literal".to_owned())?;
    if value.is_infinite() {
        return Err("invalid double literal".to_owned());
    }
    Ok(Literal::Double(if negative { -value } else { value }))
}

fn unescape(text: &str, as_bytes: bool) -> Result<Vec<u8>, String> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let raw = text.starts_with(['r', 'R']);
    let quoted = if raw { &text[1..] } else { &text };
    let width = if quoted.len() >= 6 && (quoted.starts_with("'''") || quoted.starts_with("\"\"\"")) { 3 } else { 1 };
    let inner = &quoted[width..quoted.len() - width];
    if raw || !inner.contains('\\') {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut value = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        if character == '\\' {
            rest = escape(rest, as_bytes, &mut value)?;
        } else {
            push(&mut value, character);
        }
    }
    Ok(value)
}

fn push(value: &mut Vec<u8>, character: char) {
    value.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Reads one escape sequence after its backslash and returns the rest.
fn escape<'t>(rest: &'t str, as_bytes: bool, value: &mut Vec<u8>) -> Result<&'t str, String> {
    let wrong = || "unable to unescape string".to_owned();
    let code =
        *rest.as_bytes().first().ok_or_else(|| "unable to unescape string, found '\\' as last character".to_owned())?;
    let simple = match code {
        b'a' => Some(7),
        b'b' => Some(8),
        b'f' => Some(12),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        b'v' => Some(11),
        b'\\' | b'\'' | b'"' | b'`' | b'?' => Some(code),
        _ => None,
    };
    if let Some(byte) = simple {
        value.push(byte);
        return Ok(&rest[1..]);
    }
    let (skip, length, radix) = match code {
        b'x' | b'X' => (1, 2, 16),
        b'u' if !as_bytes => (1, 4, 16),
        b'U' if !as_bytes => (1, 8, 16),
        b'0'..=b'3' => (0, 3, 8),
        _ => return Err(wrong()),
    };
    let digits = rest.get(skip..skip + length).ok_or_else(wrong)?;
    let number = u32::from_str_radix(digits, radix).map_err(|_| wrong())?;
    if as_bytes {
        value.push(u8::try_from(number).map_err(|_| wrong())?);
    } else {
        push(value, char::from_u32(number).ok_or_else(|| "invalid unicode code point".to_owned())?);
    }
    Ok(&rest[skip + length..])
}
