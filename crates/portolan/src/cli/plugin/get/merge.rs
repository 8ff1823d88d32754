//! Pages of a list that the server merges, and events of a watch, as one table or as objects. Pure.

use anyhow::bail;
use kube::core::WatchEvent;
use portolan_types::object;
use serde_json::{Map, Value, json};

use crate::cli::plugin::resources::ResourceType;

/// Column of the physical cluster, as the server names it.
const CLUSTER: &str = "Cluster";
const NAMESPACE: &str = "Namespace";

/// Table of several pages: all columns that any page has, in the order in which they come.
pub(super) struct PaneTable {
    has_namespace: bool,
    columns: Vec<Value>,
    /// Names of the columns of the latest page; those of a watch come with its first event only.
    latest: Vec<String>,
    /// Cells by the names of their columns.
    rows: Vec<Map<String, Value>>,
}

impl PaneTable {
    /// Makes a table without rows, with a column for the namespace if wanted.
    pub(super) fn new(has_namespace: bool) -> Self {
        Self { has_namespace, columns: Vec::new(), latest: Vec::new(), rows: Vec::new() }
    }

    /// Adds the rows of a page.
    pub(super) fn add(&mut self, page: &Value) {
        let list = |key: &str| page[key].as_array().map_or(&[][..], Vec::as_slice);
        let definitions = list("columnDefinitions");
        if !definitions.is_empty() {
            self.latest = definitions.iter().map(name_of).collect();
        }
        for column in definitions {
            self.learn(column.clone());
            if self.has_namespace && name_of(column) == CLUSTER {
                self.learn(json!({"name": NAMESPACE, "type": "string", "priority": 0}));
            }
        }
        for row in list("rows") {
            let cells = row["cells"].as_array().cloned().unwrap_or_default();
            let mut cells: Map<String, Value> = self.latest.iter().cloned().zip(cells).collect();
            if self.has_namespace {
                cells.insert(NAMESPACE.into(), object::namespace(&row["object"]).into());
            }
            self.rows.push(cells);
        }
    }

    fn learn(&mut self, column: Value) {
        if !self.columns.iter().any(|known| known["name"] == column["name"]) {
            self.columns.push(column);
        }
    }

    /// Takes the rows out, as a `meta.k8s.io/v1 Table`.
    pub(super) fn take(&mut self) -> Value {
        let rows: Vec<Value> = std::mem::take(&mut self.rows)
            .iter()
            .map(|cells| {
                let cell = |column: &Value| cells.get(&name_of(column)).cloned().unwrap_or_default();
                json!({"cells": self.columns.iter().map(cell).collect::<Vec<_>>()})
            })
            .collect();
        json!({"columnDefinitions": self.columns, "rows": rows})
    }
}

fn name_of(column: &Value) -> String {
    column["name"].as_str().unwrap_or_default().to_owned()
}

/// Returns the objects of pages; those without a type get that of the list.
pub(super) fn objects(of: &ResourceType, pages: Vec<Value>) -> Vec<Value> {
    let mut all = Vec::new();
    for mut page in pages {
        let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) else { continue };
        all.extend(items.into_iter().map(|mut item| {
            if let Some(fields) = item.as_object_mut() {
                fields.entry("apiVersion").or_insert_with(|| of.api_version().into());
                fields.entry("kind").or_insert_with(|| of.kind.as_str().into());
            }
            item
        }));
    }
    all
}

/// Returns the table of an event; `None` for one without a change.
///
/// # Errors
/// The error that ends the watch.
pub(super) fn changed(event: WatchEvent<Value>) -> anyhow::Result<Option<Value>> {
    match event {
        WatchEvent::Added(table) | WatchEvent::Modified(table) | WatchEvent::Deleted(table) => Ok(Some(table)),
        WatchEvent::Bookmark(_) => Ok(None),
        WatchEvent::Error(status) => bail!("the watch ends: {}", status.message),
    }
}

/// Returns the version that a watch continues from after the table of an event.
pub(super) fn version_of(table: &Value) -> Option<String> {
    let row = table["rows"].as_array()?.last()?;
    Some(object::meta_text(&row["object"], "resourceVersion").to_owned()).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plugin::text_table::TextTable;

    fn page(columns: &[&str], rows: &[(&[&str], &str)]) -> Value {
        let columns: Vec<Value> = columns.iter().map(|name| json!({"name": name, "priority": 0})).collect();
        let row = |(cells, namespace): &(&[&str], &str)| json!({"cells": cells, "object": {"metadata": {"namespace": namespace, "resourceVersion": "7"}}});
        json!({"columnDefinitions": columns, "rows": rows.iter().map(row).collect::<Vec<_>>()})
    }

    #[test]
    fn pages_are_one_table_with_all_columns() {
        let mut table = PaneTable::new(true);
        table.add(&page(&["Cluster", "Name", "Ready"], &[(&["east", "a", "1/1"], "shop")]));
        table.add(&page(&["Cluster", "Name", "Phase", "Ready"], &[(&["west", "b", "Up", "0/1"], "web")]));
        let expected = "CLUSTER   NAMESPACE   NAME   READY   PHASE
east      shop        a      1/1     <none>
west      web         b      0/1     Up
";
        assert_eq!(TextTable::from_server(&table.take(), false).text(true), expected);
        // An event has the columns of the one before.
        let event = page(&[], &[(&["west", "b", "Up", "1/1"], "web")]);
        table.add(&event);
        assert_eq!(TextTable::from_server(&table.take(), false).text(false), "west   web   b   1/1   Up\n");
        assert_eq!(version_of(&event).as_deref(), Some("7"));
    }

    #[test]
    fn items_of_lists_have_their_type() {
        let of = ResourceType {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            ..ResourceType::default()
        };
        let pages = vec![
            json!({"items": [{"metadata": {"name": "a"}}]}),
            json!({"items": [{"apiVersion": "x/v2", "kind": "Own", "metadata": {"name": "b"}}]}),
            json!({"items": null}),
        ];
        let all = objects(&of, pages);
        let shown: Vec<_> = all.iter().map(|own| (own["apiVersion"].as_str(), own["kind"].as_str())).collect();
        assert_eq!(shown, [(Some("apps/v1"), Some("Deployment")), (Some("x/v2"), Some("Own"))]);
    }
}
