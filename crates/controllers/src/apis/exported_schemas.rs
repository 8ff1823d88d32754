//! Exports by the schemas that they name, kept in memory by the events of exports.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use portolan_types::{LogicalClusterId, ObjectKey, ObjectName, apis::ExportAddress};
use serde_json::Value;

/// Schemas of the exports of one logical cluster.
type SchemaNames = BTreeMap<ObjectName, BTreeSet<String>>;

/// Names of the schemas of all exports.
#[derive(Default)]
pub(super) struct ExportedSchemaNames(Mutex<HashMap<LogicalClusterId, SchemaNames>>);

impl ExportedSchemaNames {
    /// Records the schemas of an export; `None` for a deleted one.
    pub(super) fn set(&self, export: &ObjectKey, object: Option<&Value>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match object {
            Some(object) => {
                let resources = object.pointer("/spec/resources").and_then(Value::as_array).into_iter().flatten();
                let schemas = resources.filter_map(|own| Some(own.get("schema")?.as_str()?.to_owned())).collect();
                all.entry(export.cluster).or_default().insert(export.name.clone(), schemas);
            }
            None => {
                let Some(own) = all.get_mut(&export.cluster) else { return };
                own.remove(&export.name);
                if own.is_empty() {
                    all.remove(&export.cluster);
                }
            }
        }
    }

    /// Returns the exports that name a schema of their logical cluster.
    pub(super) fn exports_of(&self, schema: &ObjectKey) -> Vec<ExportAddress> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get(&schema.cluster).into_iter().flatten();
        let naming = own.filter(|(_, schemas)| schemas.contains(schema.name.as_str()));
        naming.map(|(name, _)| ExportAddress { cluster: schema.cluster, name: name.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::apis;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_names_the_exports_of_its_workspace() {
        let names = ExportedSchemaNames::default();
        let key = |cluster, resource, name: &str| {
            ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), apis::resource(resource), name.parse().unwrap())
        };
        let export = json!({"spec": {"resources": [{"schema": "v1.widgets.example.dev"}]}});
        names.set(&key(7, apis::EXPORTS, "a"), Some(&export));
        names.set(&key(7, apis::EXPORTS, "b"), Some(&json!({"spec": {}})));
        names.set(&key(8, apis::EXPORTS, "c"), Some(&export));
        let found = |cluster| {
            let exports = names.exports_of(&key(cluster, apis::SCHEMAS, "v1.widgets.example.dev"));
            exports.into_iter().map(|export| export.name.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!((found(7), found(8), found(9)), (vec!["a".to_owned()], vec!["c".to_owned()], vec![]));
        names.set(&key(8, apis::EXPORTS, "c"), None);
        assert_eq!(found(8), Vec::<String>::new());
    }
}
