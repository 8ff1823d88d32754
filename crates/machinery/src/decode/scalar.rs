//! Plain and special values in their canonical form.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use portolan_types::{quantity::Quantity, seams};
use serde_json::Value;

use super::time;
use crate::kinds::{Scalar, Special};

/// A value that is neither list nor object, as it was read.
pub(super) enum Token {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
}

/// Why a value does not fit.
pub(super) enum Misfit {
    /// It is of another JSON type; the word for what it is.
    Type(String),
    /// It has the right JSON type, but does not parse; the whole text of the error.
    Text(String),
}

impl Token {
    /// The word for it in an error.
    pub(super) fn word(&self) -> String {
        match self {
            Self::Bool(_) => "bool".into(),
            Self::Int(_) | Self::Uint(_) | Self::Float(_) => "number".into(),
            Self::Text(_) => "string".into(),
        }
    }

    fn number(&self) -> String {
        match self {
            Self::Int(n) => format!("number {n}"),
            Self::Uint(n) => format!("number {n}"),
            Self::Float(n) => format!("number {n}"),
            Self::Bool(_) | Self::Text(_) => self.word(),
        }
    }

    fn integer(&self) -> Option<i128> {
        match self {
            Self::Int(n) => Some(i128::from(*n)),
            Self::Uint(n) => Some(i128::from(*n)),
            Self::Bool(_) | Self::Float(_) | Self::Text(_) => None,
        }
    }

    /// The value without any schema.
    pub(super) fn plain(self) -> Value {
        match self {
            Self::Bool(value) => value.into(),
            Self::Int(value) => value.into(),
            Self::Uint(value) => value.into(),
            Self::Float(value) => value.into(),
            Self::Text(value) => value.into(),
        }
    }

    fn integer_within(self, low: i128, high: i128) -> Result<Value, Misfit> {
        match self.integer() {
            Some(n) if n >= low && n <= high => Ok(self.plain()),
            _ => Err(Misfit::Type(self.number())),
        }
    }

    pub(super) fn scalar(self, scalar: Scalar) -> Result<Value, Misfit> {
        match (scalar, self) {
            (Scalar::String, Token::Text(text)) => Ok(text.into()),
            (Scalar::Bool, Token::Bool(value)) => Ok(value.into()),
            (Scalar::Int32, token) => token.integer_within(i32::MIN.into(), i32::MAX.into()),
            (Scalar::Int64, token) => token.integer_within(i64::MIN.into(), i64::MAX.into()),
            (Scalar::Uint32, token) => token.integer_within(0, u32::MAX.into()),
            (Scalar::Uint64, token) => token.integer_within(0, u64::MAX.into()),
            (Scalar::Double, token @ (Token::Int(_) | Token::Uint(_) | Token::Float(_))) => Ok(token.plain()),
            (Scalar::Bytes, Token::Text(text)) => bytes(text),
            (Scalar::String | Scalar::Bool | Scalar::Double | Scalar::Bytes, token) => Err(Misfit::Type(token.word())),
        }
    }

    /// `None` reads as null.
    pub(super) fn special(self, special: Special) -> Result<Option<Value>, Misfit> {
        match (special, self) {
            (Special::Quantity, token) => quantity(token).map(Some),
            (Special::Time, Token::Text(text)) => time(&text, time::SECONDS, seams::seconds_text),
            (Special::MicroTime, Token::Text(text)) => micro_time(&text),
            (Special::IntOrString, Token::Text(text)) => Ok(Some(text.into())),
            (Special::IntOrString, token) => token.integer_within(i32::MIN.into(), i32::MAX.into()).map(Some),
            (Special::Duration, Token::Text(text)) => Ok(Some(text.into())),
            (Special::Json | Special::Any | Special::RawExtension | Special::SchemaOrBool, token) => {
                Ok(Some(token.plain()))
            }
            (
                Special::Time
                | Special::MicroTime
                | Special::Duration
                | Special::FieldsV1
                | Special::SchemaOrArray
                | Special::SchemaOrStrings
                | Special::Strings,
                token,
            ) => Err(Misfit::Type(token.word())),
        }
    }
}

fn bytes(text: String) -> Result<Value, Misfit> {
    match STANDARD.decode(text.as_bytes()) {
        Ok(_) => Ok(text.into()),
        Err(_) if text.contains(['\n', '\r']) => bytes(text.replace(['\n', '\r'], "")),
        Err(error) => {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                base64::DecodeError::InvalidLength(at) => at / 4 * 4,
                base64::DecodeError::InvalidPadding => text.len(),
            };
            Err(Misfit::Text(format!("illegal base64 data at input byte {at}")))
        }
    }
}

fn quantity(token: Token) -> Result<Value, Misfit> {
    let text = match token {
        Token::Text(text) => text,
        Token::Int(n) => n.to_string(),
        Token::Uint(n) => n.to_string(),
        Token::Float(n) => n.to_string(),
        Token::Bool(_) => "true".into(),
    };
    let parsed: Quantity =
        text.parse().map_err(|error: portolan_types::quantity::InvalidQuantity| Misfit::Text(error.to_string()))?;
    Ok(parsed.to_string().into())
}

/// Bytes of a time before its fraction.
const SECONDS: usize = "2006-01-02T15:04:05".len();

/// A time of which Go wants six digits behind the seconds, no more and no fewer.
fn micro_time(text: &str) -> Result<Option<Value>, Misfit> {
    let plain = time(text, time::MICROS, seams::micros_text)?;
    let (fraction, zone) = match text.get(SECONDS..) {
        Some(rest) => rest.split_at_checked(".000000".len()).unwrap_or((rest, "")),
        None => return Ok(plain),
    };
    let digits = fraction.strip_prefix('.').filter(|digits| digits.len() == 6);
    let is_exact = digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match is_exact && zone.starts_with(['Z', '+', '-']) {
        true => Ok(plain),
        false => Err(Misfit::Text(time::error(text, time::MICROS))),
    }
}

/// RFC 3339 as Go reads it: a date, `T`, a time, an offset that is not left out. The zero time reads as null.
fn time(text: &str, layout: &str, render: impl Fn(Timestamp) -> String) -> Result<Option<Value>, Misfit> {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|b| b.iter().all(u8::is_ascii_digit));
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let shaped = marks.iter().all(|(at, mark)| bytes.get(*at) == Some(mark))
        && [0..4, 5..7, 8..10, 11..13, 14..16, 17..19].into_iter().all(digits);
    let parsed = if shaped { text.parse::<Timestamp>().ok() } else { None };
    match parsed {
        Some(at) if text.starts_with("0001-01-01T00:00:00") && at.as_second() == -62_135_596_800 => Ok(None),
        Some(at) => Ok(Some(render(at).into())),
        None => Err(Misfit::Text(time::error(text, layout))),
    }
}
