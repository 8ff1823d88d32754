//! Columns of tables as a definition asks for them (apiextensions `tableconvertor`).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{jsonpath::Path, values::go_float};
use crate::{
    decode::{
        go_print,
        time::{self, Layout},
    },
    table,
};

/// The columns of a version, behind the name.
#[derive(Clone, Debug, Default)]
pub struct Columns(Box<[Column]>);

#[derive(Clone, Debug)]
struct Column {
    path: Path,
    kind: Box<str>,
    /// As it stands in `columnDefinitions`.
    definition: Value,
}

impl Columns {
    /// Reads them from a version. Where there are none, or one that cannot be read, upstream shows no more than the age or the name.
    pub(super) fn read(version: &Value) -> Self {
        let all = version.get("additionalPrinterColumns").and_then(Value::as_array).filter(|all| !all.is_empty());
        let age = json!([{
            "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
            "description": "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
        }]);
        let all = all.map_or_else(|| age.as_array().cloned().unwrap_or_default(), Vec::clone);
        // Up to the first that cannot be read.
        Self(all.iter().map_while(Column::read).collect())
    }

    /// As they stand in `columnDefinitions`.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|column| &column.definition)
    }

    /// The cells of an object.
    pub(crate) fn cells(&self, object: &Value, now: Timestamp) -> impl Iterator<Item = Value> {
        self.0.iter().map(move |column| column.cell(object, now))
    }
}

impl Column {
    fn read(column: &Value) -> Option<Self> {
        let text = |name: &str| column.get(name).and_then(Value::as_str).unwrap_or_default();
        let description = match text("description") {
            "" => format!("Custom resource definition column (in JSONPath format): {}", text("jsonPath")),
            own => own.to_owned(),
        };
        Some(Self {
            path: Path::parse(text("jsonPath"))?,
            kind: text("type").into(),
            definition: json!({
                "name": text("name"), "type": text("type"), "format": text("format"), "description": description,
                "priority": column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            }),
        })
    }

    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.path.find(object);
        let Some(value) = found.first() else { return Value::Null };
        match (&*self.kind, value) {
            ("string", Value::Null) => "<no value>".into(),
            ("string", Value::Array(_) | Value::Object(_)) => value.to_string().into(),
            ("string", Value::Number(number)) if number.is_f64() => number.as_f64().map(go_float).into(),
            ("string", other) => go_print(other).into(),
            ("integer", Value::Number(number)) => {
                number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)).into()
            }
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => Value::clone(value),
            ("date", Value::String(text)) => age(text, now).into(),
            _ => Value::Null,
        }
    }
}

/// The age of a time. As in a query, an empty text is no time.
fn age(text: &str, now: Timestamp) -> String {
    match (text, time::parse(text, Layout::Seconds)) {
        ("" | "null", _) => table::age_of("", now),
        (_, Ok(moment)) if moment.is_zero() => table::age_of("", now),
        (_, Ok(moment)) => table::age_of(&moment.text(Layout::Seconds), now),
        (_, Err(_)) => "<invalid>".into(),
    }
}
