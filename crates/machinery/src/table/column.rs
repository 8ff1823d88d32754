//! Columns, and what their cells are made of.

use jiff::Timestamp;
use portolan_types::{annotations, object, placement::PlacementRecord};
use serde_json::{Value, json};

use super::age;

/// What stands where there is nothing.
pub(super) const NONE: &str = "<none>";
/// What stands where something was not set.
pub(super) const UNSET: &str = "<unset>";
/// What stands where something is not known.
pub(super) const UNKNOWN: &str = "<unknown>";

/// A column.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    /// `string`, `integer`, `boolean` or `date`.
    kind: &'static str,
    format: &'static str,
    description: &'static str,
    /// Shown with `-o wide` only.
    wide: bool,
    /// Rows have its cell, and no definition tells of it.
    hidden: bool,
    cell: fn(&Row<'_>) -> Value,
}

/// A column of texts.
pub(super) const fn text(name: &'static str, description: &'static str, cell: fn(&Row<'_>) -> Value) -> Column {
    Column { name, kind: "string", format: "", description, wide: false, hidden: false, cell }
}

/// A column of whole numbers.
pub(super) const fn number(name: &'static str, description: &'static str, cell: fn(&Row<'_>) -> Value) -> Column {
    Column { kind: "integer", ..text(name, description, cell) }
}

/// A column of truth values.
pub(super) const fn flag(name: &'static str, description: &'static str, cell: fn(&Row<'_>) -> Value) -> Column {
    Column { kind: "boolean", ..text(name, description, cell) }
}

/// `metadata.name`.
pub(super) const NAME: Column =
    text("Name", "Name of the object, unique within its namespace.", |row| object::name(row.object).into()).named();
/// Time since creation.
pub(super) const AGE: Column = text("Age", "Time since the object was created.", |row| row.age(CREATED).into());
/// Time of creation.
pub(super) const CREATED_AT: Column =
    Column { kind: "date", ..text("Created At", "When the object was created.", |row| row.text(CREATED).into()) };
/// The physical clusters that a placed object runs on.
pub(super) const CLUSTERS: Column = text("Clusters", "Physical clusters that the object is placed on.", |row| {
    object::annotation(row.object, annotations::CLUSTERS).map_or_else(|| made_on(row.object), Into::into)
})
.wide();

/// The physical clusters that made an object.
fn made_on(object: &Value) -> Value {
    let record = PlacementRecord::of(object).filter(PlacementRecord::is_projected).unwrap_or_default();
    let names: Vec<&str> = record.clusters.iter().map(|copy| copy.name.as_str()).collect();
    if names.is_empty() { NONE.into() } else { names.join(",").into() }
}

const CREATED: &str = "/metadata/creationTimestamp";

impl Column {
    pub(super) const fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    /// A column of which upstream's printer fills cells without defining it.
    pub(super) const fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    /// The column that tells which object a row is about.
    pub(super) const fn named(self) -> Self {
        Self { format: "name", ..self }
    }

    /// The column without a format.
    pub(super) const fn plain(self) -> Self {
        Self { format: "", ..self }
    }

    pub(super) fn cell(&self, row: &Row<'_>) -> Value {
        (self.cell)(row)
    }

    pub(super) const fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// The column as it stands in `columnDefinitions`.
    pub(super) fn definition(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind,
            "format": self.format,
            "description": self.description,
            "priority": i32::from(self.wide),
        })
    }
}

/// An object that is printed. Paths are JSON pointers.
pub(super) struct Row<'a> {
    pub(super) object: &'a Value,
    pub(super) now: Timestamp,
}

impl<'a> Row<'a> {
    pub(super) fn at(&self, path: &str) -> Option<&'a Value> {
        self.object.pointer(path).filter(|value| !value.is_null())
    }

    /// Text, empty where there is none.
    pub(super) fn text(&self, path: &str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// The first of several texts that is not empty.
    pub(super) fn first_text(&self, paths: &[&str]) -> &'a str {
        paths.iter().map(|path| self.text(path)).find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// Text, or something else where there is none.
    pub(super) fn text_or(&self, path: &str, other: &'a str) -> &'a str {
        Some(self.text(path)).filter(|text| !text.is_empty()).unwrap_or(other)
    }

    /// Text that may be empty, or something else where there is none.
    pub(super) fn given_or(&self, path: &str, other: &'a str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or(other)
    }

    pub(super) fn int(&self, path: &str) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or(0)
    }

    pub(super) fn flag(&self, path: &str) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(super) fn list(&self, path: &str) -> &'a [Value] {
        self.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The texts of a list.
    pub(super) fn texts(&self, path: &str) -> Vec<&'a str> {
        self.list(path).iter().filter_map(Value::as_str).collect()
    }

    /// Number of entries of a map.
    pub(super) fn entries(&self, path: &str) -> usize {
        self.at(path).and_then(Value::as_object).map_or(0, serde_json::Map::len)
    }

    /// Time since the timestamp.
    pub(super) fn age(&self, path: &str) -> String {
        age::since(self.text(path), self.now)
    }

    pub(super) fn is_deleting(&self) -> bool {
        object::is_deleting(self.object)
    }

    /// The status of a condition.
    pub(super) fn condition(&self, kind: &str) -> Option<&'a str> {
        let found = self.list("/status/conditions").iter().find(|condition| condition["type"] == kind)?;
        Some(found["status"].as_str().unwrap_or_default())
    }
}
