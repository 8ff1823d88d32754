//! Columns, and the source of their cells.

use jiff::Timestamp;
use portolan_types::{annotations, object, placement::PlacementRecord};
use serde_json::{Value, json};

use super::age;

/// Cell of an absent value.
pub(super) const NONE: &str = "<none>";
/// Cell of a value that was not set.
pub(super) const UNSET: &str = "<unset>";
/// Cell of an unknown value.
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
    /// True if rows have its cell, but the table does not define it.
    hidden: bool,
    cell: fn(&Row<'_>) -> Value,
}

/// Returns a column of strings.
pub(super) const fn text(name: &'static str, description: &'static str, cell: fn(&Row<'_>) -> Value) -> Column {
    Column { name, kind: "string", format: "", description, wide: false, hidden: false, cell }
}

/// Returns a column of whole numbers.
pub(super) const fn number(name: &'static str, description: &'static str, cell: fn(&Row<'_>) -> Value) -> Column {
    Column { kind: "integer", ..text(name, description, cell) }
}

/// Returns a column of truth values.
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

/// Returns the physical clusters that made an object.
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

    /// Marks a column whose cells kube-apiserver's printer fills without defining it.
    pub(super) const fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    /// Marks the column that names the object of a row.
    pub(super) const fn named(self) -> Self {
        Self { format: "name", ..self }
    }

    /// Returns the column without a format.
    pub(super) const fn plain(self) -> Self {
        Self { format: "", ..self }
    }

    pub(super) fn cell(&self, row: &Row<'_>) -> Value {
        (self.cell)(row)
    }

    pub(super) const fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// Returns the column in the form of `columnDefinitions`.
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

    /// Returns a text, or an empty one if it is absent.
    pub(super) fn text(&self, path: &str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the first of several texts that is not empty.
    pub(super) fn first_text(&self, paths: &[&str]) -> &'a str {
        paths.iter().map(|path| self.text(path)).find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// Returns a text, or `other` if it is empty or absent.
    pub(super) fn text_or(&self, path: &str, other: &'a str) -> &'a str {
        Some(self.text(path)).filter(|text| !text.is_empty()).unwrap_or(other)
    }

    /// Returns a text, which may be empty, or `other` if it is absent.
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

    /// Returns the texts of a list.
    pub(super) fn texts(&self, path: &str) -> Vec<&'a str> {
        self.list(path).iter().filter_map(Value::as_str).collect()
    }

    /// Returns the number of entries of a map.
    pub(super) fn entries(&self, path: &str) -> usize {
        self.at(path).and_then(Value::as_object).map_or(0, serde_json::Map::len)
    }

    /// Returns the time since a timestamp.
    pub(super) fn age(&self, path: &str) -> String {
        age::since(self.text(path), self.now)
    }

    pub(super) fn is_deleting(&self) -> bool {
        object::is_deleting(self.object)
    }

    /// Returns the status of a condition.
    pub(super) fn condition(&self, kind: &str) -> Option<&'a str> {
        let found = self.list("/status/conditions").iter().find(|condition| condition["type"] == kind)?;
        Some(found["status"].as_str().unwrap_or_default())
    }
}
