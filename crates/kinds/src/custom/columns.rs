//! Table columns that a definition requests (apiextensions `tableconvertor`).

use portolan_gocompat::jsonpath::JsonPathQuery;
use serde_json::{Value, json};

/// The columns of a version, behind the name.
#[derive(Clone, Debug, Default)]
pub struct Columns(Box<[Column]>);

/// One column of a definition.
#[derive(Clone, Debug)]
pub struct Column {
    /// Path of the value in an object.
    pub path: JsonPathQuery,
    /// Type of the cells, such as `date`.
    pub kind: Box<str>,
    /// The entry of `columnDefinitions`.
    pub definition: Value,
}

impl Columns {
    /// Reads the columns of a version. If it has none, or one that cannot be read, kube-apiserver shows only the age or
    /// the name.
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

    /// Returns the columns in order.
    pub fn iter(&self) -> impl Iterator<Item = &Column> {
        self.0.iter()
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
            path: JsonPathQuery::parse(text("jsonPath"))?,
            kind: text("type").into(),
            definition: json!({
                "name": text("name"), "type": text("type"), "format": text("format"), "description": description,
                "priority": column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            }),
        })
    }
}
