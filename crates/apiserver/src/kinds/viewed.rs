//! Kinds that a view shows: those of its export's schemas, of claimed resources, and bindings.

use std::sync::Arc;

use portolan_kinds::custom;
use portolan_types::{ObjectKey, Status, apis};
use serde_json::Value;

use crate::{errors::status_for, request::RequestContext, views::ApiView};

use super::{DefinitionCatalog, ServedKinds};

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
            let schema = stored.to_value().map_err(|e| status_for(&e))?;
            let held = self.0.compiled.bound_definition(&custom::definition_of_schema(&schema));
            tables.extend(held.definition.table.clone());
        }
        Ok(self.0.compiled.served(tables))
    }
}
