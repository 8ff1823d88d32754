//! Tables of several physical clusters in one: a column for the physical cluster, then those of all, by their names.

use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{
    items::{GarbledAnswer, MemberItem},
    raw::RawFields,
};

/// Most columns of one table.
const MAX_COLUMNS: usize = 64;

/// Part of a table: a page of a list, or the table of one event.
#[derive(Deserialize)]
pub(super) struct MemberTable<'a> {
    #[serde(borrow, default, rename = "columnDefinitions")]
    columns: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    pub(super) rows: Option<Vec<&'a RawValue>>,
}

/// Row of a table.
#[derive(Deserialize)]
struct MemberRow<'a> {
    #[serde(borrow)]
    cells: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
}

/// Columns of a merged table, and the columns of each physical cluster among them.
#[derive(Default)]
pub(super) struct TableColumns {
    /// Names and definitions.
    merged: Vec<(String, String)>,
    /// Index of each column in the merged table, by physical cluster; `None` for a column that is not shown.
    members: Vec<(usize, Vec<Option<usize>>)>,
    is_fixed: bool,
}

impl<'a> MemberTable<'a> {
    /// Parses the text of a table.
    ///
    /// # Errors
    /// Text that is not a table.
    pub(super) fn parse(text: &'a str) -> Result<Self, GarbledAnswer> {
        let kind = RawFields::parse(text)?.string("kind");
        if kind.as_deref() != Some("Table") {
            return Err(GarbledAnswer("it is not a table".into()));
        }
        Ok(serde_json::from_str(text)?)
    }
}

impl TableColumns {
    /// Takes the columns of a table of the physical cluster with the index `member`. Only the first table of a list or
    /// watch has them.
    ///
    /// # Errors
    /// Columns without names, and too many.
    pub(super) fn learn(&mut self, member: usize, table: &MemberTable<'_>) -> Result<(), GarbledAnswer> {
        #[derive(Deserialize)]
        struct NamedColumn {
            name: String,
        }
        let Some(columns) = table.columns.as_ref().filter(|columns| !columns.is_empty()) else { return Ok(()) };
        if columns.len() > MAX_COLUMNS {
            return Err(GarbledAnswer("a table with too many columns".into()));
        }
        let mut own = Vec::with_capacity(columns.len());
        for column in columns {
            let NamedColumn { name } = serde_json::from_str(column.get())?;
            own.push(self.index_of(name, column.get()));
        }
        self.members.retain(|(known, _)| *known != member);
        self.members.push((member, own));
        Ok(())
    }

    fn index_of(&mut self, name: String, definition: &str) -> Option<usize> {
        if let Some(at) = self.merged.iter().position(|(known, _)| *known == name) {
            return Some(at);
        }
        let is_free = !self.is_fixed && self.merged.len() < MAX_COLUMNS;
        is_free.then(|| {
            self.merged.push((name, definition.to_owned()));
            self.merged.len() - 1
        })
    }

    /// Fixes the columns: a client of a watch takes them from the first event. Returns true at the first call.
    pub(super) fn fix(&mut self) -> bool {
        !std::mem::replace(&mut self.is_fixed, true)
    }

    /// Returns the text of the definitions.
    pub(super) fn definitions(&self) -> String {
        let description = "Physical cluster that has the object.";
        let own = json!({"name": "Cluster", "type": "string", "format": "", "description": description, "priority": 0});
        let all: Vec<String> =
            [own.to_string()].into_iter().chain(self.merged.iter().map(|(_, text)| text.clone())).collect();
        format!("[{}]", all.join(","))
    }

    /// Returns the text of a row with the name of its physical cluster. `version` replaces the resourceVersion of the
    /// row's object.
    ///
    /// # Errors
    /// A row that does not fit the columns.
    pub(super) fn row(
        &self,
        (member, cluster): (usize, &str),
        text: &str,
        version: Option<&str>,
    ) -> Result<String, GarbledAnswer> {
        let row: MemberRow<'_> = serde_json::from_str(text)?;
        let own = self.members.iter().find(|(known, _)| *known == member).map(|(_, own)| own.as_slice());
        let own = own.filter(|own| own.len() == row.cells.len());
        let own = own.ok_or_else(|| GarbledAnswer("a row that does not fit its table".into()))?;
        let mut cells = vec!["null"; self.merged.len()];
        for (at, cell) in own.iter().zip(&row.cells) {
            if let Some(shown) = at.and_then(|at| cells.get_mut(at)) {
                *shown = cell.get();
            }
        }
        let object = match row.object {
            None => "null".to_owned(),
            Some(object) => {
                let mut item = MemberItem::parse(object.get())?;
                version.iter().for_each(|version| item.set_version(version));
                item.shown(cluster)
            }
        };
        let comma = if cells.is_empty() { "" } else { "," };
        Ok(format!(r#"{{"cells":[{}{comma}{}],"object":{object}}}"#, super::raw::quoted(cluster), cells.join(",")))
    }
}

/// Returns the object of a row.
///
/// # Errors
/// A row without an object.
pub(super) fn object_of(row: &RawValue) -> Result<&RawValue, GarbledAnswer> {
    let MemberRow { object, .. } = serde_json::from_str(row.get())?;
    object.ok_or_else(|| GarbledAnswer("a row without an object".into()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn table(columns: &[&str], cells: &Value) -> String {
        let columns: Vec<Value> = columns.iter().map(|name| json!({"name": name})).collect();
        let row = json!({"cells": cells, "object": {"metadata": {"name": cells[0]}}});
        json!({"kind": "Table", "columnDefinitions": columns, "rows": [row]}).to_string()
    }

    #[test]
    fn columns_are_joined_by_their_names() {
        let (east, west) =
            (table(&["Name", "Age"], &json!(["a", "1d"])), table(&["Name", "IP", "Age"], &json!(["b", "::1", "2d"])));
        let (east, west) = (MemberTable::parse(&east).unwrap(), MemberTable::parse(&west).unwrap());
        let mut columns = TableColumns::default();
        columns.learn(0, &east).unwrap();
        columns.learn(1, &west).unwrap();
        let names: Value = serde_json::from_str(&columns.definitions()).unwrap();
        let names: Vec<&str> =
            names.as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["Cluster", "Name", "Age", "IP"]);
        let cells = |member: (usize, &str), table: &MemberTable<'_>| {
            let row = columns.row(member, table.rows.as_ref().unwrap()[0].get(), None).unwrap();
            let row: Value = serde_json::from_str(&row).unwrap();
            assert_eq!(row["object"]["metadata"]["annotations"]["portolan.dev/cluster"], member.1);
            row["cells"].clone()
        };
        assert_eq!(cells((0, "east"), &east), json!(["east", "a", "1d", null]));
        assert_eq!(cells((1, "west"), &west), json!(["west", "b", "2d", "::1"]));
        assert!(columns.row((1, "west"), r#"{"cells":["b"],"object":null}"#, None).is_err(), "too few cells");
        assert!(columns.row((2, "new"), r#"{"cells":[],"object":null}"#, None).is_err(), "no columns yet");
        assert!(columns.fix() && !columns.fix());
        let late = table(&["Name", "Late"], &json!(["c", "x"]));
        let late = MemberTable::parse(&late).unwrap();
        columns.learn(2, &late).unwrap();
        let row = columns.row((2, "late"), late.rows.as_ref().unwrap()[0].get(), None).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&row).unwrap()["cells"], json!(["late", "c", null, null]));
    }
}
