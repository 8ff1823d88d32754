//! Keys of maps. JSON takes texts only, so that Go makes texts of some others, and refuses the rest.

use portolan_types::quoted::go_quoted;
use serde_json::Value;

use super::scalar::Scalar;
use portolan_gocompat::print::go_general;

/// Most bytes shown of a key or of a value.
const MAX_SHOWN: usize = 1024;

/// A key as Go compares keys: the number 1 is another one than the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    /// Float, compared by its bits.
    Float(u64),
    Text(String),
}

impl From<Scalar<'_>> for Key {
    fn from(scalar: Scalar<'_>) -> Self {
        match scalar {
            Scalar::Null => Self::Null,
            Scalar::Bool(truth) => Self::Bool(truth),
            Scalar::Int(number) => Self::Int(number),
            Scalar::Uint(number) => Self::Uint(number),
            Scalar::Float(number) => Self::Float(number.to_bits()),
            Scalar::Text(text) => Self::Text(text.into_owned()),
        }
    }
}

impl Key {
    /// Returns the key as text in JSON.
    ///
    /// # Errors
    /// Go's name of the type, if JSON has no such keys.
    pub(super) fn text(&self) -> Result<String, &'static str> {
        Ok(match self {
            Self::Text(text) => text.clone(),
            Self::Bool(truth) => truth.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Float(bits) => float_text(f64::from_bits(*bits)),
            Self::Null => return Err("%!s(<nil>)"),
            Self::Uint(_) => return Err("uint64"),
        })
    }

    /// Returns Go's messages for a key of such a type, and for its value.
    pub(super) fn refused(&self, go_type: &str, value: &Value) -> String {
        let (key, value) = (self.source(), source(value));
        format!("unsupported map key of type: {go_type}, key: {key}, value: {value}")
    }

    /// Formats the key as Go source (`%#v`); a long text is cut.
    pub(super) fn source(&self) -> String {
        match self {
            Self::Null => "<nil>".into(),
            Self::Bool(truth) => truth.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Uint(number) => format!("{number:#x}"),
            Self::Float(bits) => go_general(f64::from_bits(*bits)),
            Self::Text(text) => go_quoted(beginning_of_key(text)),
        }
    }
}

/// Returns a float as Go's converter writes it as a key: `%g` of its 32 bits.
fn float_text(key: f64) -> String {
    match key as f32 {
        key if key.is_nan() => ".nan".into(),
        key if key.is_infinite() => if key > 0.0 { ".inf" } else { "-.inf" }.into(),
        key => go_general(key),
    }
}

/// Returns a value as Go's source would have it (`%#v`), cut if it is long.
pub(super) fn source(value: &Value) -> String {
    let whole = match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => go_quoted(beginning_of_key(text)),
        Value::Number(number) => number.as_f64().filter(|_| number.is_f64()).map_or(number.to_string(), go_general),
        Value::Bool(truth) => truth.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().take(MAX_SHOWN).map(inner).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(entries) => {
            let entry =
                |(key, value): (&String, &Value)| format!("{}:{}", go_quoted(beginning_of_key(key)), inner(value));
            let entries: Vec<String> = entries.iter().take(MAX_SHOWN).map(entry).collect();
            format!("map[interface {{}}]interface {{}}{{{}}}", entries.join(", "))
        }
    };
    beginning_of_key(&whole).to_owned()
}

/// Returns a value inside of another one.
fn inner(value: &Value) -> String {
    if value.is_null() { "interface {}(nil)".into() } else { source(value) }
}

fn beginning_of_key(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_SHOWN)]
}
