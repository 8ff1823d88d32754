//! Cells of columns that a definition declares (apiextensions `tableconvertor`).

use jiff::Timestamp;
use portolan_gocompat::{
    print::{go_general, go_print},
    time::{self, Layout},
};
use serde_json::Value;

use super::age_of;
use portolan_kinds::custom::Column;

/// Returns the cell of an object.
pub(super) fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let found = column.path.find(object);
    let Some(value) = found.first() else { return Value::Null };
    match (&*column.kind, value) {
        ("string", Value::Null) => "<no value>".into(),
        ("string", Value::Array(_) | Value::Object(_)) => value.to_string().into(),
        ("string", Value::Number(number)) if number.is_f64() => number.as_f64().map(go_general).into(),
        ("string", other) => go_print(other).into(),
        ("integer", Value::Number(number)) => {
            number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)).into()
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => Value::clone(value),
        ("date", Value::String(text)) => age(text, now).into(),
        _ => Value::Null,
    }
}

/// Returns the age of a time. As in a query, an empty text is not a time.
fn age(text: &str, now: Timestamp) -> String {
    match (text, time::parse(text, Layout::Seconds)) {
        ("" | "null", _) => age_of("", now),
        (_, Ok(moment)) if moment.is_zero() => age_of("", now),
        (_, Ok(moment)) => age_of(&moment.text(Layout::Seconds), now),
        (_, Err(_)) => "<invalid>".into(),
    }
}
