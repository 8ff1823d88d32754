//! Plain and special values in their canonical form.

use ::base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_gocompat::{
    base64,
    print::go_float,
    time::{self, Layout, Moment},
};
use portolan_types::quantity::settled;
use serde_json::Value;

use portolan_kinds::{FieldKind, Scalar, Special};

/// Parsed value that is neither a list nor an object.
pub(super) enum Token {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// Number that no float can represent, as written.
    Huge(String),
    Text(String),
}

/// Go's name for a number that is not an integer.
pub(super) const FLOAT: &str = "float64";

/// Why a value does not fit.
pub(super) enum Misfit {
    /// The value is of another JSON type, which is named here.
    Type(String),
    /// It has the right JSON type, but does not parse; the whole text of the error.
    Text(String),
}

impl Token {
    /// Returns the value as errors show it.
    pub(super) fn word(&self) -> String {
        match self {
            Self::Bool(_) => "bool".into(),
            Self::Int(_) | Self::Uint(_) | Self::Float(_) | Self::Huge(_) => "number".into(),
            Self::Text(_) => "string".into(),
        }
    }

    fn number(&self) -> String {
        match self {
            Self::Int(n) => format!("number {n}"),
            Self::Uint(n) => format!("number {n}"),
            Self::Float(n) => format!("number {}", go_float(*n)),
            Self::Huge(text) => format!("number {text}"),
            Self::Bool(_) | Self::Text(_) => self.word(),
        }
    }

    fn integer(&self) -> Option<i128> {
        match self {
            Self::Int(n) => Some(i128::from(*n)),
            Self::Uint(n) => Some(i128::from(*n)),
            Self::Bool(_) | Self::Float(_) | Self::Huge(_) | Self::Text(_) => None,
        }
    }

    /// Converts a value to `kind` as Go's converter from maps does. Numbers beyond 64 bits are floats there, whole
    /// floats are integers, and an integer is cut to the size of its field. Types with their own JSON reader get it
    /// serialized again.
    pub(super) fn converted(self, kind: &FieldKind) -> Result<Self, Misfit> {
        let token = match self {
            Self::Uint(n) => i64::try_from(n).map_or(Self::Float(n as f64), Self::Int),
            other => other,
        };
        match (kind, token) {
            (FieldKind::Scalar(Scalar::Int32), token) => token.whole().map(|n| n.wrapped(|n| i64::from(n as i32))),
            (FieldKind::Scalar(Scalar::Uint32), token) => token.whole().map(|n| n.wrapped(|n| i64::from(n as u32))),
            (FieldKind::Scalar(Scalar::Int64 | Scalar::Uint64), token) => token.whole(),
            (FieldKind::Scalar(Scalar::String), Self::Float(_)) => Err(Misfit::Type(FLOAT.into())),
            (FieldKind::Special(Special::Quantity), Self::Float(n)) => Ok(Self::Text(go_float(n))),
            (FieldKind::Special(Special::IntOrString), Self::Float(n)) => {
                Ok(go_float(n).parse().map_or(Self::Float(n), Self::Int))
            }
            (_, token) => Ok(token),
        }
    }

    /// Returns a whole float as an integer. One beyond 64 bits becomes the smallest integer, as the processor converts
    /// it.
    fn whole(self) -> Result<Self, Misfit> {
        match self {
            Self::Float(n) if n.trunc() != n => Err(Misfit::Type(FLOAT.into())),
            Self::Float(n) if n.abs() >= -(i64::MIN as f64) => Ok(Self::Int(i64::MIN)),
            Self::Float(n) => Ok(Self::Int(n as i64)),
            other => Ok(other),
        }
    }

    fn wrapped(self, wrap: impl Fn(i64) -> i64) -> Self {
        match self {
            Self::Int(n) => Self::Int(wrap(n)),
            other => other,
        }
    }

    /// Returns the value without any schema.
    pub(super) fn plain(self) -> Value {
        match self {
            Self::Bool(value) => value.into(),
            Self::Int(value) => value.into(),
            Self::Uint(value) => value.into(),
            Self::Float(value) => value.into(),
            Self::Huge(value) | Self::Text(value) => value.into(),
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
            (Scalar::Double, Token::Huge(text)) => Err(Misfit::Type(format!("number {text}"))),
            (Scalar::Bytes, Token::Text(text)) => bytes(text),
            (Scalar::String | Scalar::Bool | Scalar::Double | Scalar::Bytes, token) => Err(Misfit::Type(token.word())),
        }
    }

    pub(super) fn special(self, special: Special) -> Result<Value, Misfit> {
        match (special, self) {
            (Special::Quantity, token) => quantity(token),
            (Special::Time, Token::Text(text)) => time(&text, Layout::Seconds),
            (Special::MicroTime, Token::Text(text)) => time(&text, Layout::Micros),
            (Special::IntOrString, Token::Text(text)) => Ok(text.into()),
            (Special::IntOrString, token) => token.integer_within(i32::MIN.into(), i32::MAX.into()),
            (Special::Duration, Token::Text(text)) => Ok(text.into()),
            (
                Special::Json | Special::Any | Special::RawExtension | Special::FieldsV1 | Special::SchemaOrBool,
                token,
            ) => Ok(token.plain()),
            (
                Special::Time
                | Special::MicroTime
                | Special::Duration
                | Special::SchemaOrArray
                | Special::SchemaOrStrings
                | Special::Strings,
                token,
            ) => Err(Misfit::Type(token.word())),
        }
    }
}

fn bytes(text: String) -> Result<Value, Misfit> {
    if STANDARD.decode(&text).is_ok() {
        return Ok(text.into());
    }
    base64::decode(&text).map(|bytes| STANDARD.encode(bytes).into()).map_err(Misfit::Text)
}

fn quantity(token: Token) -> Result<Value, Misfit> {
    quantity_text(match token {
        Token::Text(text) => text,
        Token::Int(n) => n.to_string(),
        Token::Uint(n) => n.to_string(),
        Token::Float(n) => go_float(n),
        Token::Huge(text) => text,
        Token::Bool(_) => "true".into(),
    })
}

/// Parses a quantity in JSON form: Go takes the text between the quotes without unescaping it.
pub(super) fn spelled_quantity(json: &str) -> Result<Option<Value>, Misfit> {
    let inner = json.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    match inner.unwrap_or(json) {
        "null" if inner.is_none() => Ok(None),
        text => quantity_text(text.into()).map(Some),
    }
}

fn quantity_text(text: String) -> Result<Value, Misfit> {
    // JSON escapes other white space with a backslash, which is part of no quantity.
    let trimmed = text.trim_matches(|c: char| c.is_whitespace() && !c.is_control());
    let settled = settled(trimmed).map_err(|why| Misfit::Text(why.to_string()))?;
    Ok(if settled == text { text.into() } else { settled.into_owned().into() })
}

/// Returns a time in its canonical form. The zero time is shown as null. A time in whole seconds has no fraction, so
/// its whole first second is the zero time.
fn time(text: &str, layout: Layout) -> Result<Value, Misfit> {
    let moment = time::parse(text, layout).map_err(Misfit::Text)?;
    let kept = match layout {
        Layout::Seconds => Moment { nanos: 0, ..moment },
        Layout::Micros => moment,
    };
    Ok(if kept.is_zero() { Value::Null } else { kept.text(layout).into() })
}
