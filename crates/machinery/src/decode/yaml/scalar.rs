//! What a scalar is, by the rules of `resolve.go` of Go's `yaml.v2`.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_types::number;

use super::times;

/// A value that is neither list nor map.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// What does not fit into an [`Scalar::Int`].
    Uint(u64),
    Float(f64),
    Text(Cow<'a, str>),
}

/// Tags of YAML in their long form begin with this.
const CORE: &str = "tag:yaml.org,2002:";

/// What a scalar says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Binary,
    Bool,
    Float,
    Int,
    /// Of merges, which the key `<<` has by itself.
    Merge,
    Null,
    Timestamp,
    /// `!`, which only says that it is not what it looks like.
    NonSpecific,
    /// Texts, and what Go does not know.
    Other,
}

impl Tag {
    /// What the long form of a tag says. It is not kept, as directives make it longer than what stands in the body.
    pub(super) fn of(tag: &granit_parser::Tag) -> Self {
        match tag.suffix_in_namespace(CORE).as_deref() {
            Some("binary") => Self::Binary,
            Some("bool") => Self::Bool,
            Some("float") => Self::Float,
            Some("int") => Self::Int,
            Some("merge") => Self::Merge,
            Some("null") => Self::Null,
            Some("timestamp") => Self::Timestamp,
            None if matches!((tag.handle(), tag.suffix()), ("", "!") | ("!", "")) => Self::NonSpecific,
            Some(_) | None => Self::Other,
        }
    }
}

/// What a scalar without quotes and tag is.
pub(super) fn plain(text: &str) -> Scalar<'_> {
    found(text).unwrap_or(Scalar::Text(text.into()))
}

/// What a scalar with a tag is. Tags that Go does not know make texts.
///
/// # Errors
/// When it is not what its tag says.
pub(super) fn tagged(tag: Tag, text: &str) -> Result<Scalar<'_>, String> {
    let wanted = match tag {
        Tag::Binary => return binary(text).map(|bytes| Scalar::Text(bytes.into())),
        Tag::Timestamp if times::is_one(text) => return Ok(Scalar::Text(text.into())),
        Tag::Merge | Tag::NonSpecific | Tag::Other => return Ok(Scalar::Text(text.into())),
        Tag::Bool => "bool",
        Tag::Float => "float",
        Tag::Int => "int",
        Tag::Null => "null",
        Tag::Timestamp => "timestamp",
    };
    match (tag, named(plain(text))) {
        (Tag::Float, (_, Scalar::Int(number))) => Ok(Scalar::Float(number as f64)),
        (_, (is, scalar)) if is == wanted => Ok(scalar),
        (_, (is, _)) => Err(format!("yaml: cannot decode !!{is} `{text}` as a !!{wanted}")),
    }
}

/// A scalar behind the short tag of what it is.
fn named(scalar: Scalar<'_>) -> (&'static str, Scalar<'_>) {
    let tag = match scalar {
        Scalar::Null => "null",
        Scalar::Bool(_) => "bool",
        Scalar::Int(_) | Scalar::Uint(_) => "int",
        Scalar::Float(_) => "float",
        Scalar::Text(_) => "str",
    };
    (tag, scalar)
}

/// What a text is besides a text. Its first character says what it may be. Times stay texts.
fn found(text: &str) -> Option<Scalar<'static>> {
    match text.as_bytes().first() {
        None => Some(Scalar::Null),
        Some(b'+' | b'-' | b'0'..=b'9') => word(text).or_else(|| number(text)),
        Some(b'.') => word(text).or_else(|| number::float(text).and_then(finite)),
        Some(b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~') => word(text),
        Some(_) => None,
    }
}

/// Words that are more than texts, in the three spellings that each has.
fn word(text: &str) -> Option<Scalar<'static>> {
    Some(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        _ => return None,
    })
}

/// Underscores may stand anywhere in a number but at its start. There are no numbers to the base 60.
fn number(text: &str) -> Option<Scalar<'static>> {
    let plain = text.replace('_', "");
    let signed = |text: &str, base| number::signed(text, base).map(Scalar::Int);
    let unsigned = |text: &str, base| number::unsigned(text, base).map(Scalar::Uint);
    let whole = signed(&plain, None).or_else(|| unsigned(&plain, None));
    let whole_or_float = whole.or_else(|| plain.parse().ok().filter(|_| is_float(&plain)).and_then(finite));
    // Go looks at binary numbers once more by itself, and takes a sign behind the prefix.
    whole_or_float.or_else(|| match plain.strip_prefix("0b") {
        Some(digits) => signed(digits, Some(2)).or_else(|| unsigned(digits, Some(2))),
        None => plain.strip_prefix("-0b").and_then(|digits| signed(&format!("-{digits}"), Some(2))),
    })
}

/// What is too large for a float is a text.
fn finite(number: f64) -> Option<Scalar<'static>> {
    number.is_finite().then_some(Scalar::Float(number))
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = behind_sign(text).split_once(['e', 'E']).unwrap_or((behind_sign(text), "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let parts = [whole, fraction, behind_sign(exponent)];
    let no_digits = (whole.is_empty() && fraction.is_empty()) || parts[2].is_empty();
    !no_digits && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn behind_sign(text: &str) -> &str {
    text.strip_prefix(['+', '-']).unwrap_or(text)
}

/// Bytes that are no text are shown as such in JSON.
fn binary(text: &str) -> Result<String, String> {
    let plain = text.replace(['\n', '\r'], "");
    let bytes = STANDARD.decode(plain).map_err(|_| "yaml: !!binary value contains invalid base64 data".to_owned())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
