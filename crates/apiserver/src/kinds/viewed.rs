//! Kinds that a view shows: those of its export's schemas, of claimed resources, and bindings.

use std::{collections::HashMap, sync::Arc};

use portolan_kinds::custom;
use portolan_types::{ObjectKey, ResourceVersion, Status, apis};
use serde_json::Value;

use crate::{errors::status_for, request::RequestContext, views::ApiView};

use super::{DefinitionCatalog, ServedKinds, compiled::CachedDefinition};

/// Most schemas that stay compiled for views.
const MAX_VIEWED: usize = 1024;

/// Compiled schemas of views, each as of one revision.
#[derive(Default)]
pub(super) struct ViewedSchemas(HashMap<ObjectKey, (ResourceVersion, Arc<CachedDefinition>)>);

impl ViewedSchemas {
    fn get(&self, key: &ObjectKey, revision: ResourceVersion) -> Option<Arc<CachedDefinition>> {
        self.0.get(key).filter(|(known, _)| *known == revision).map(|(_, held)| held.clone())
    }

    fn put(&mut self, key: ObjectKey, revision: ResourceVersion, held: Arc<CachedDefinition>) {
        if self.0.len() >= MAX_VIEWED {
            self.0.clear();
        }
        self.0.insert(key, (revision, held));
    }
}

impl DefinitionCatalog {
    /// Returns the kinds that a request is served: those of its logical cluster, or of its view.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn served_to(&self, call: &RequestContext) -> Result<Arc<ServedKinds>, Status> {
        match &call.view {
            None => self.served(call.cluster.id).await,
            Some(view) => Ok(Arc::new(self.viewed(view).await?.restricted(view.resources().into_iter().collect()))),
        }
    }

    /// Returns the built-in kinds and those of the schemas of a view's export. Built-in kinds are no secret.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn viewed(&self, view: &ApiView) -> Result<Arc<ServedKinds>, Status> {
        let mut tables = Vec::new();
        let offered = view.export.object.pointer("/spec/resources").and_then(Value::as_array);
        for resource in offered.into_iter().flatten() {
            let name = resource.get("schema").and_then(Value::as_str).and_then(|name| name.parse().ok());
            let Some(name) = name else { continue };
            let key = ObjectKey::cluster_scoped(view.export.address.cluster, apis::resource(apis::SCHEMAS), name);
            let Some(stored) = self.0.store.get(&key).await.map_err(|e| status_for(&e))? else { continue };
            let known = self.0.viewed.lock().get(&key, stored.revision);
            let held = match known {
                Some(held) => held,
                None => {
                    let schema = stored.to_value().map_err(|e| status_for(&e))?;
                    let held = self.0.compiled.bound_definition(&custom::definition_of_schema(&schema));
                    self.0.viewed.lock().put(key, stored.revision, held.clone());
                    held
                }
            };
            tables.extend(held.definition.table.clone());
        }
        Ok(self.0.compiled.served(tables))
    }
}

#[cfg(test)]
mod tests {
    use portolan_store::{Expect, Transaction};
    use portolan_types::{LogicalClusterId, Record, apis::ExportAddress};
    use prometheus::IntCounter;
    use serde_json::json;

    use crate::views::ViewedExport;

    use super::*;

    #[tokio::test]
    async fn a_schema_is_compiled_once_for_all_requests() {
        let (store, cluster) = (portolan_store::memory(), LogicalClusterId::new(7));
        let compilations = IntCounter::new("compilations", "Compiled definitions.").unwrap();
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new()).expressions();
        let catalog = DefinitionCatalog::new(store.clone(), compilations.clone(), Arc::new(metrics), false);
        let name = "v1.widgets.example.dev";
        let key = ObjectKey::cluster_scoped(cluster, apis::resource(apis::SCHEMAS), name.parse().unwrap());
        let object = json!({"spec": {"resources": [{"name": "widgets", "group": "example.dev", "schema": name}]}});
        let address = ExportAddress { cluster, name: "widgets".parse().unwrap() };
        let export = ViewedExport { address, object, identity: "id".into() };
        let view = ApiView { export, target: None, grant: None };
        let schema = |kind: &str| {
            json!({"metadata": {"name": name}, "spec": {
                "group": "example.dev", "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": kind, "listKind": format!("{kind}List")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"type": "object"}}],
            }})
        };
        let write = |kind: &str| Transaction::one(key.clone(), Expect::Anything, Some(Record::of(&schema(kind))));
        for (kind, expected) in [("Widget", 1), ("Gadget", 2)] {
            store.commit(write(kind)).await.unwrap();
            for _ in 0..3 {
                let served = catalog.viewed(&view).await.unwrap();
                assert!(served.surface.kinds().any(|(_, own)| *own.gvk.kind == *kind), "{kind} is served");
            }
            assert_eq!(compilations.get(), expected, "{kind}");
        }
    }
}
