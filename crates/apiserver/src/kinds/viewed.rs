//! Kinds that a view shows: those of its export's schemas, of claimed resources, and bindings.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use portolan_kinds::{Kind, KindTable, Subresource, custom};
use portolan_types::{GroupResource, ObjectKey, ResourceVersion, Status, apis};
use serde_json::Value;

use crate::{errors::status_for, request::RequestContext, views::ApiView};

use super::{DefinitionCatalog, ServedKinds, compiled::CachedDefinition};

/// Most bytes of schemas that stay compiled for views, as [`CachedDefinition::weight`] estimates them.
const MAX_BYTES: usize = 64 << 20;
/// Most bytes of the schemas of one logical cluster: one provider evicts no other.
const MAX_BYTES_OF_ONE: usize = MAX_BYTES / 4;

/// Compiled schema as of one revision.
struct ViewedSchema {
    revision: ResourceVersion,
    held: Arc<CachedDefinition>,
    /// Number of the use that was the last one.
    used: u64,
}

/// Compiled schemas of views. The ones that were not used for longest are evicted.
#[derive(Default)]
pub(super) struct ViewedSchemas {
    schemas: HashMap<ObjectKey, ViewedSchema>,
    uses: u64,
}

impl ViewedSchemas {
    fn get(&mut self, key: &ObjectKey, revision: ResourceVersion) -> Option<Arc<CachedDefinition>> {
        self.uses += 1;
        let known = self.schemas.get_mut(key).filter(|known| known.revision == revision)?;
        known.used = self.uses;
        Some(known.held.clone())
    }

    fn put(&mut self, key: ObjectKey, revision: ResourceVersion, held: Arc<CachedDefinition>) {
        self.uses += 1;
        self.schemas.remove(&key);
        let weight = held.weight();
        if weight > MAX_BYTES_OF_ONE {
            return;
        }
        let cluster = key.cluster;
        while self.bytes_of(|own| own.cluster == cluster) + weight > MAX_BYTES_OF_ONE {
            self.evict(|own| own.cluster == cluster);
        }
        while self.bytes() + weight > MAX_BYTES {
            self.evict(|_| true);
        }
        self.schemas.insert(key, ViewedSchema { revision, held, used: self.uses });
    }

    /// Returns the estimated bytes of all schemas.
    pub(super) fn bytes(&self) -> usize {
        self.bytes_of(|_| true)
    }

    fn bytes_of(&self, is_of: impl Fn(&ObjectKey) -> bool) -> usize {
        self.schemas.iter().filter(|(key, _)| is_of(key)).map(|(_, known)| known.held.weight()).sum()
    }

    /// Evicts the one of these schemas that was not used for longest.
    fn evict(&mut self, is_of: impl Fn(&ObjectKey) -> bool) {
        let own = self.schemas.iter().filter(|(key, _)| is_of(key));
        if let Some(key) = own.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone()) {
            self.schemas.remove(&key);
        }
    }
}

/// Returns the kind LogicalCluster as the views of initializers and terminators serve it: it can be watched, and its
/// status written.
pub(crate) fn waiting_kind() -> &'static Arc<Kind> {
    static KIND: LazyLock<Arc<Kind>> = LazyLock::new(|| {
        let table = KindTable::builtin();
        let plain = table.kind_named("core.kcp.io", "v1alpha1", "LogicalCluster").expect("the table has core.kcp.io");
        let verbs = |all: &[&str]| all.iter().map(|verb| Arc::from(*verb)).collect();
        let status =
            Subresource { name: "status".into(), gvk: plain.gvk.clone(), verbs: verbs(&["get", "patch", "update"]) };
        let verbs = verbs(&["get", "list", "patch", "update", "watch"]);
        Arc::new(Kind { verbs, subresources: [status].into(), ..Kind::clone(plain) })
    });
    &KIND
}

impl DefinitionCatalog {
    /// Returns the kinds that a request is served: those of its logical cluster, or of its view.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn served_to(&self, call: &RequestContext) -> Result<Arc<ServedKinds>, Status> {
        if call.waiting().is_some() {
            return Ok(Arc::new(self.served(call.cluster.id).await?.of_kind(waiting_kind().clone())));
        }
        match &call.view {
            None => self.served(call.cluster.id).await,
            Some(view) if view.flattened.is_some() => self.flattened(view).await,
            Some(view) => Ok(Arc::new(self.viewed(view).await?.restricted(view.resources().into_iter().collect()))),
        }
    }

    /// Returns the built-in kinds and those of the schemas of a view's export. Built-in kinds are not secret.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn viewed(&self, view: &ApiView) -> Result<Arc<ServedKinds>, Status> {
        Ok(self.0.compiled.served(self.viewed_tables(view).await?))
    }

    /// Returns the kinds of a flattened view: those of the export's logical cluster, and those of the schemas of its
    /// export, which replace definitions of the same resources.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn flattened(&self, view: &ApiView) -> Result<Arc<ServedKinds>, Status> {
        let viewed = self.viewed_tables(view).await?;
        let own = self.served(view.export.address.cluster).await?;
        let mut tables: Vec<Arc<KindTable>> = Vec::new();
        let is_viewed = |resource: &GroupResource| viewed.iter().any(|table| table.stored(resource).is_some());
        for (table, kind) in own.surface.own_kinds() {
            let is_known = tables.last().is_some_and(|last| Arc::ptr_eq(last, table));
            if !is_known && !is_viewed(&kind.group_resource()) {
                tables.push(table.clone());
            }
        }
        tables.extend(viewed);
        Ok(self.0.compiled.served(tables))
    }

    async fn viewed_tables(&self, view: &ApiView) -> Result<Vec<Arc<KindTable>>, Status> {
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
        Ok(tables)
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
        let view = ApiView { export, target: None, grant: None, flattened: None };
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
        assert!(catalog.definition_bytes() > 0, "they are counted");
    }

    #[test]
    fn one_provider_evicts_its_own_schemas_only() {
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new()).expressions();
        let compilations = IntCounter::new("compilations", "Compiled definitions.").unwrap();
        let compiled = super::super::compiled::CompiledDefinitions::new(compilations, Arc::new(metrics), false);
        let key = |cluster: u64, number: usize| {
            let name = format!("v{number}.widgets.example.dev").parse().unwrap();
            ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), apis::resource(apis::SCHEMAS), name)
        };
        let schema = custom::definition_of_schema(&json!({"metadata": {"name": "v1.widgets.example.dev"}, "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"type": "object", "description": "x".repeat(64 << 10)}}],
        }}));
        let held = compiled.bound_definition(&schema);
        let most = MAX_BYTES_OF_ONE / held.weight();
        let (mut viewed, revision) = (ViewedSchemas::default(), ResourceVersion::FIRST);
        let other = key(8, 0);
        viewed.put(other.clone(), revision, held.clone());
        for number in 0..most + 2 {
            viewed.put(key(7, number), revision, held.clone());
            let bytes = viewed.bytes_of(|own| own.cluster == LogicalClusterId::new(7));
            assert!(bytes > 0 && bytes <= MAX_BYTES_OF_ONE, "{bytes}");
        }
        assert!(viewed.get(&other, revision).is_some(), "that of another provider stays");
        let is_there = [0, 1, 2, most + 1].map(|number| viewed.get(&key(7, number), revision).is_some());
        assert_eq!(is_there, [false, false, true, true], "the oldest ones go");
    }
}
