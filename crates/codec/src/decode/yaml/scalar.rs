//! Types of scalars, by the rules of `resolve.go` of Go's `yaml.v2`.

use std::borrow::Cow;

use portolan_gocompat::base64;
use portolan_types::number;

use super::times;

/// A value that is neither list nor map.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Integer that does not fit into [`Scalar::Int`].
    Uint(u64),
    Float(f64),
    Text(Cow<'a, str>),
}

/// Tags of YAML in their long form begin with this.
const CORE: &str = "tag:yaml.org,2002:";

/// Tag of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Binary,
    Bool,
    Float,
    Int,
    /// Tag of merges, which the key `<<` has implicitly.
    Merge,
    Null,
    Timestamp,
    /// `!`, which only rules out the type that the text looks like.
    NonSpecific,
    /// Strings, and tags that Go does not know.
    Other,
}

impl Tag {
    /// Returns the meaning of a tag's long form. The long form is not stored, since directives can make it longer than
    /// the body.
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

/// Returns the value of a scalar without quotes and tag.
pub(super) fn plain(text: &str) -> Scalar<'_> {
    typed_scalar(text).unwrap_or(Scalar::Text(text.into()))
}

/// Returns the value of a scalar with a tag. A tag that Go does not know makes it a string.
///
/// # Errors
/// Fails if the text does not fit its tag.
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
    match (tag, with_tag(plain(text))) {
        (Tag::Float, (_, Scalar::Int(number))) => Ok(Scalar::Float(number as f64)),
        (_, (is, scalar)) if is == wanted => Ok(scalar),
        (_, (is, _)) => Err(format!("yaml: cannot decode !!{is} `{text}` as a !!{wanted}")),
    }
}

/// Returns a scalar with the short tag of its type.
fn with_tag(scalar: Scalar<'_>) -> (&'static str, Scalar<'_>) {
    let tag = match scalar {
        Scalar::Null => "null",
        Scalar::Bool(_) => "bool",
        Scalar::Int(_) | Scalar::Uint(_) => "int",
        Scalar::Float(_) => "float",
        Scalar::Text(_) => "str",
    };
    (tag, scalar)
}

/// Returns the value of a text that is no plain string. Its first character selects the candidates. Times stay text.
fn typed_scalar(text: &str) -> Option<Scalar<'static>> {
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

/// Parses a number. Underscores are allowed anywhere but at its start; base 60 is not supported.
fn number(text: &str) -> Option<Scalar<'static>> {
    let plain = text.replace('_', "");
    let signed = |text: &str, base| number::signed(text, base).map(Scalar::Int);
    let unsigned = |text: &str, base| number::unsigned(text, base).map(Scalar::Uint);
    let whole = signed(&plain, None).or_else(|| unsigned(&plain, None));
    let whole_or_float = whole.or_else(|| plain.parse().ok().filter(|_| is_float(&plain)).and_then(finite));
    // Go parses binary numbers again with its own code, and accepts a sign after the prefix.
    whole_or_float.or_else(|| match plain.strip_prefix("0b") {
        Some(digits) => signed(digits, Some(2)).or_else(|| unsigned(digits, Some(2))),
        None => plain.strip_prefix("-0b").and_then(|digits| signed(&format!("-{digits}"), Some(2))),
    })
}

/// Returns a number that is too large for a float as text.
fn finite(number: f64) -> Option<Scalar<'static>> {
    number.is_finite().then_some(Scalar::Float(number))
}

/// Matches `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
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
    let bytes = base64::read(&plain).map_err(|_| "yaml: !!binary value contains invalid base64 data".to_owned())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
