//! Kinds of each logical cluster, read from the definitions in the store.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use portolan_kinds::{
    Kinds, Surface,
    custom::{self, Definition, RulesWatch},
};
use portolan_store::{DynStore, Event, RangeRequest, RangeScope, StoreError, StoredObject, WatchScope};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ObjectKey, ObjectName, ResourceVersion, Status, apis,
};
use prometheus::IntCounter;

use crate::{
    authz::shared_objects,
    errors::{damaged, status_for},
    kinds::ApiDocuments,
    reach,
    request::{DefinitionIdentity, computed::computed_uid},
    sync::{Follower, follow},
};

use super::{
    ServedKinds,
    bound::{self, all_bound, is_binding, is_bound, name_in_cache},
    compiled::{CompiledDefinitions, LoadedDefinition},
    definition_cache::{DefinitionCache, MissingDefinitions},
    documents::RecentDocuments,
    viewed::ViewedSchemas,
};

/// Resource of bindings, beside that of definitions.
fn bindings() -> GroupResource {
    apis::resource(apis::BINDINGS)
}

/// Size in bytes from which definitions are read on a blocking thread.
const LONG_READ: usize = 64 * 1024;

/// Catalog of the kinds that each logical cluster serves.
#[derive(Clone)]
pub(crate) struct DefinitionCatalog(pub(super) Arc<CatalogState>);

pub(super) struct CatalogState {
    pub(super) store: DynStore,
    state: Mutex<DefinitionCache>,
    documents: Mutex<RecentDocuments>,
    /// Documents of the built-in kinds, which most surfaces share.
    builtin: Arc<ApiDocuments>,
    pub(super) compiled: CompiledDefinitions,
    pub(super) viewed: Mutex<ViewedSchemas>,
}

pub(super) type Definitions = BTreeMap<ObjectName, LoadedDefinition>;
/// Served kinds and the definitions that they come from.
type ServedRead = (Arc<ServedKinds>, Vec<LoadedDefinition>);

/// Returns the resource of definitions.
fn resource() -> GroupResource {
    GroupResource::new(custom::GROUP, custom::RESOURCE)
}

impl DefinitionCatalog {
    /// Returns the catalog of a store. `compilations` counts compiled definitions, `watch` measures the evaluation of
    /// rules.
    pub(crate) fn new(
        store: DynStore,
        compilations: IntCounter,
        watch: Arc<dyn RulesWatch>,
        computes_nodes: bool,
    ) -> Self {
        let compiled = CompiledDefinitions::new(compilations, watch, computes_nodes);
        let builtin = compiled.served(Vec::new()).documents();
        let (state, documents, viewed) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self(Arc::new(CatalogState { store, state, documents, builtin, compiled, viewed }))
    }

    /// Returns the resources whose writes have to be followed.
    pub(crate) fn followed() -> [GroupResource; 2] {
        [resource(), bindings()]
    }

    /// Follows the writes of other servers to one of these resources, forever.
    pub(crate) async fn follow(self, resource: GroupResource) {
        let store = self.0.store.clone();
        follow(store, WatchScope::Resource(resource, None), Arc::new(self)).await;
    }

    /// Returns the kinds that a logical cluster serves now.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn served(&self, cluster: LogicalClusterId) -> Result<Arc<ServedKinds>, Status> {
        // Every request calls this, and there may be many definitions.
        let known = self.0.state.lock().served(cluster);
        match known {
            Some(served) => Ok(served),
            None => Ok(self.read(cluster).await?.0),
        }
    }

    /// Returns the current definition of a name such as `widgets.example.dev`.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(crate) async fn definition(
        &self,
        cluster: LogicalClusterId,
        name: &str,
    ) -> Result<Option<DefinitionIdentity>, Status> {
        let Ok(name) = name.parse::<ObjectName>() else { return Ok(None) };
        let known = self.0.state.lock().definition(cluster, &name);
        let own = match known {
            Some(own) => own,
            // Those of bindings come first.
            None => self.read(cluster).await?.1.into_iter().find(|own| *own.held.definition.name == *name),
        };
        Ok(own.map(|own| DefinitionIdentity {
            key: match own.binding {
                Some(binding) => ObjectKey::cluster_scoped(cluster, bindings(), binding),
                None => ObjectKey::cluster_scoped(cluster, resource(), name.clone()),
            },
            name: Arc::from(name.as_str()),
            created: own.created,
            revision: own.revision,
            is_deleting: own.held.definition.is_deleting,
        }))
    }

    /// Returns true if nodes are computed from physical clusters.
    pub(crate) fn computes_nodes(&self) -> bool {
        self.0.compiled.computes_nodes()
    }

    /// Returns the kinds of a logical cluster without definitions.
    pub(crate) fn builtin(&self) -> Arc<ServedKinds> {
        self.0.compiled.served(Vec::new())
    }

    /// Returns the OpenAPI and discovery documents of the served kinds.
    pub(crate) fn documents(&self, served: &ServedKinds) -> Arc<ApiDocuments> {
        let documents = served.documents();
        // Those of a view are small, and made for one request.
        if served.shown.is_none() && !Arc::ptr_eq(&documents, &self.0.builtin) {
            self.0.documents.lock().keep(&documents);
        }
        documents
    }

    /// Returns the estimated bytes of cached definitions.
    pub(crate) fn definition_bytes(&self) -> usize {
        self.0.state.lock().bytes() + self.0.viewed.lock().bytes()
    }

    /// Returns the estimated bytes of cached documents.
    pub(crate) fn document_bytes(&self) -> usize {
        self.0.builtin.bytes() + self.0.documents.lock().bytes()
    }

    /// Marks a definition as stale, because another server may have written it.
    pub(crate) fn mark_stale(&self, cluster: LogicalClusterId, name: &str) {
        let mut state = self.0.state.lock();
        if let Ok(name) = name.parse() {
            state.wrote(cluster, &name);
        }
        state.wrote(cluster, &all_bound());
    }

    /// Returns true for the key of a definition or binding.
    pub(crate) fn is_about(key: &ObjectKey) -> bool {
        let is_definition = *key.resource.group == *custom::GROUP && *key.resource.resource == *custom::RESOURCE;
        is_definition || is_binding(key)
    }

    /// Returns a guard to hold while a definition is written.
    pub(crate) fn change(&self, key: &ObjectKey) -> DefinitionWriteGuard {
        let name = name_in_cache(key);
        self.0.state.lock().begin(key.cluster, &name);
        DefinitionWriteGuard { catalog: self.clone(), cluster: key.cluster, name }
    }

    async fn read(&self, cluster: LogicalClusterId) -> Result<ServedRead, Status> {
        loop {
            let (missing, token) = {
                let mut state = self.0.state.lock();
                let missing = state.missing(cluster);
                let known = state.entry(cluster);
                if let (None, Some(served)) = (&missing, &known.served) {
                    return Ok((served.clone(), known.definitions.values().cloned().collect()));
                }
                (missing.unwrap_or(MissingDefinitions::Some(Vec::new())), known.token)
            };
            let fresh = match &missing {
                MissingDefinitions::All => Box::pin(self.all(cluster)).await?,
                MissingDefinitions::Some(names) => Box::pin(self.some(cluster, names)).await?,
            };
            if let Some(read) = self.install(cluster, token, &missing, fresh) {
                return Ok(read);
            }
        }
    }

    async fn all(&self, cluster: LogicalClusterId) -> Result<Definitions, Status> {
        let mut all = Definitions::new();
        // A damaged definition is not served, but all others are, and it can be deleted.
        let mut request = RangeRequest::slices(RangeScope::Cluster(cluster, resource())).skip_damaged();
        loop {
            let page = self.0.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            let next = request.next(&page);
            all.extend(self.understood(page.objects).await?);
            match next {
                Some(next) => request = next,
                None => break,
            }
        }
        all.extend(Box::pin(bound::read(&self.0, cluster)).await?);
        Ok(all)
    }

    async fn some(&self, cluster: LogicalClusterId, names: &[(ObjectName, u64)]) -> Result<Definitions, Status> {
        let mut found = Vec::new();
        let (bound, own): (Vec<_>, Vec<_>) = names.iter().partition(|(name, _)| *name == all_bound());
        for (name, _) in own {
            let key = ObjectKey::cluster_scoped(cluster, resource(), name.clone());
            match self.0.store.get(&key).await {
                Ok(stored) => found.extend(stored),
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(status_for(&error)),
            }
        }
        let mut all = self.understood(found).await?;
        if !bound.is_empty() {
            all.extend(Box::pin(bound::read(&self.0, cluster)).await?);
        }
        Ok(all)
    }

    async fn understood(&self, stored: Vec<StoredObject>) -> Result<Definitions, Status> {
        let bytes: usize = stored.iter().map(|object| object.record.body().len()).sum();
        if bytes <= LONG_READ {
            return self.0.understand(stored);
        }
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || inner.understand(stored)).await.map_err(Status::internal)?
    }

    /// Caches what was read unless it changed meanwhile. Returns `None` if the answer needs definitions that were
    /// evicted.
    fn install(
        &self,
        cluster: LogicalClusterId,
        token: u64,
        missing: &MissingDefinitions,
        fresh: Definitions,
    ) -> Option<ServedRead> {
        let mut state = self.0.state.lock();
        let is_followed = state.followed == Self::followed().len();
        let known = state.entry(cluster);
        let is_same = known.token == token;
        match missing {
            MissingDefinitions::All if is_same && !known.is_whole => state.keep_all(cluster, fresh),
            // It cannot be cached, but it was true when it was read.
            MissingDefinitions::All if !is_same => return Some(self.0.served(&fresh)),
            MissingDefinitions::All => return None,
            MissingDefinitions::Some(_) if !is_same => return None,
            MissingDefinitions::Some(names) => {
                let mut fresh = fresh;
                let is_last = |(name, write): &(ObjectName, u64)| known.stale.get(name) == Some(write);
                if !names.iter().all(is_last) {
                    // Definitions were read or written concurrently: the result is at least as new as the request, but
                    // may be older than the cache.
                    let mut seen = known.definitions.clone();
                    for (name, _) in names {
                        if *name == all_bound() {
                            seen.retain(|name, _| !is_bound(name));
                            continue;
                        }
                        match fresh.remove(name) {
                            Some(held) => drop(seen.insert(name.clone(), held)),
                            None => drop(seen.remove(name)),
                        }
                    }
                    seen.extend(fresh);
                    return Some(self.0.served(&seen));
                }
                for (name, _) in names {
                    if *name == all_bound() {
                        state.keep_bound(cluster, fresh.extract_if(.., |name, _| is_bound(name)).collect());
                        continue;
                    }
                    state.keep(cluster, name, fresh.remove(name));
                }
            }
        }
        let known = state.entry(cluster);
        let read = self.0.served(&known.definitions);
        known.served = Some(read.0.clone());
        if !is_followed {
            state.forget(cluster);
        }
        Some(read)
    }
}

impl CatalogState {
    fn served(&self, definitions: &Definitions) -> ServedRead {
        let tables = definitions.values().filter_map(|own| own.held.definition.table.clone()).collect();
        (self.compiled.served(tables), definitions.values().cloned().collect())
    }

    fn understand(&self, stored: Vec<StoredObject>) -> Result<Definitions, Status> {
        let read = |object: StoredObject| {
            let crd = object.record.to_value(object.revision).map_err(|e| damaged(&object.key, &e))?;
            let held = self.compiled.definition(&crd);
            let (created, revision) = (object.created, object.revision);
            Ok((object.key.name, LoadedDefinition { held, created, revision, binding: None }))
        };
        stored.into_iter().map(read).collect()
    }
}

/// Guard of a write of a definition.
pub(crate) struct DefinitionWriteGuard {
    catalog: DefinitionCatalog,
    cluster: LogicalClusterId,
    name: ObjectName,
}

impl Drop for DefinitionWriteGuard {
    fn drop(&mut self) {
        self.catalog.0.state.lock().end(self.cluster, &self.name);
    }
}

impl Kinds for DefinitionCatalog {
    fn of(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>> {
        Box::pin(async move { Ok(self.served(cluster).await?.surface.clone()) })
    }

    fn definitions(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>> {
        Box::pin(async move { Ok(self.read(cluster).await?.1.iter().map(|own| own.held.definition.clone()).collect()) })
    }

    fn changing(&self, key: &ObjectKey) -> Box<dyn Send> {
        Box::new(self.change(key))
    }

    fn uid_unstored(&self, key: &ObjectKey) -> Option<String> {
        shared_objects::uid_of(key).or_else(|| computed_uid(key))
    }

    fn is_computed(&self, key: &ObjectKey) -> bool {
        let resource = &key.resource;
        // Root inherits no physical clusters.
        (*resource == reach::physical_clusters() && key.cluster != LogicalClusterId::ROOT)
            || (self.0.compiled.computes_nodes() && resource.group.is_empty() && *resource.resource == *"nodes")
    }
}

impl Follower for DefinitionCatalog {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(std::future::ready(Ok(self.0.store.current())))
    }

    fn following(&self) {
        let mut state = self.0.state.lock();
        // Anything may have been written between two watches.
        state.forget_all();
        state.followed += 1;
    }

    fn take(&self, event: &Event) {
        self.0.state.lock().wrote(event.key.cluster, &name_in_cache(&event.key));
    }

    fn lost(&self) {
        let mut state = self.0.state.lock();
        state.forget_all();
        state.followed = state.followed.saturating_sub(1);
    }
}
