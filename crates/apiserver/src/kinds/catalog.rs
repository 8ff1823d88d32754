//! The kinds of each logical cluster, read from its definitions in the store.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use portolan_machinery::{
    custom::{self, Definition, RulesWatch},
    kinds::{Kinds, Surface},
};
use portolan_store::{DynStore, Event, RangeRequest, RangeScope, StoreError, StoredObject, WatchScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ObjectKey, ObjectName, ResourceVersion, Status};
use prometheus::IntCounter;

use crate::{
    bootstrap,
    errors::{damaged, status_for},
    follow::{Follower, follow},
    handlers::ApiDocuments,
    objects::computed_uid,
    reach,
};

use super::{
    ServedKinds,
    compiled::{Compiled, Own},
    documents::Recent,
    known::{Missing, State},
};

/// Definitions with more bytes than this are read on a thread that may take its time.
const LONG_READ: usize = 64 * 1024;

/// Knows what each logical cluster serves.
#[derive(Clone)]
pub(crate) struct Catalog(Arc<Inner>);

struct Inner {
    store: DynStore,
    state: Mutex<State>,
    documents: Mutex<Recent>,
    /// The documents of the built-in kinds, which most others share.
    builtin: Arc<ApiDocuments>,
    compiled: Compiled,
}

type Definitions = BTreeMap<ObjectName, Own>;
/// What is served, and by which definitions.
type Read = (Arc<ServedKinds>, Vec<Own>);

/// The resource of definitions.
fn resource() -> GroupResource {
    GroupResource::new(custom::GROUP, custom::RESOURCE)
}

impl Catalog {
    /// Over a store. `compilations` counts how often a definition had to be compiled, `watch` measures what rules take.
    pub(crate) fn new(
        store: DynStore,
        compilations: IntCounter,
        watch: Arc<dyn RulesWatch>,
        computes_nodes: bool,
    ) -> Self {
        let compiled = Compiled::new(compilations, watch, computes_nodes);
        let builtin = compiled.served(Vec::new()).documents();
        Self(Arc::new(Inner { store, state: Mutex::default(), documents: Mutex::default(), builtin, compiled }))
    }

    /// Follows the writes of others, for ever.
    pub(crate) async fn follow(self) {
        let store = self.0.store.clone();
        follow(store, WatchScope::Resource(resource(), None), Arc::new(self)).await;
    }

    /// What a logical cluster serves now.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn served(&self, cluster: LogicalClusterId) -> Result<Arc<ServedKinds>, Status> {
        // Every request asks, and there may be very many definitions.
        let known = self.0.state.lock().served(cluster);
        match known {
            Some(served) => Ok(served),
            None => Ok(self.read(cluster).await?.0),
        }
    }

    /// The definition of a name, such as `widgets.example.dev`, as a logical cluster has it now.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn definition(&self, cluster: LogicalClusterId, name: &str) -> Result<Option<Standing>, Status> {
        let Ok(name) = name.parse::<ObjectName>() else { return Ok(None) };
        let known = self.0.state.lock().definition(cluster, &name);
        let own = match known {
            Some(own) => own,
            None => self.read(cluster).await?.1.into_iter().find(|own| *own.held.definition.name == *name),
        };
        Ok(own.map(|own| Standing {
            key: ObjectKey::cluster_scoped(cluster, resource(), name),
            created: own.created,
            revision: own.revision,
            is_deleting: own.held.definition.is_deleting,
        }))
    }

    /// What a logical cluster without definitions serves.
    pub(crate) fn builtin(&self) -> Arc<ServedKinds> {
        self.0.compiled.served(Vec::new())
    }

    /// The documents of what is served, for OpenAPI and for discovery.
    pub(crate) fn documents(&self, served: &ServedKinds) -> Arc<ApiDocuments> {
        let documents = served.documents();
        if !Arc::ptr_eq(&documents, &self.0.builtin) {
            self.0.documents.lock().keep(&documents);
        }
        documents
    }

    /// Bytes of definitions that are kept, about.
    pub(crate) fn definition_bytes(&self) -> usize {
        self.0.state.lock().bytes()
    }

    /// Bytes of documents that are kept, about.
    pub(crate) fn document_bytes(&self) -> usize {
        self.0.builtin.bytes() + self.0.documents.lock().bytes()
    }

    /// Reads a definition again: another server may have written it.
    pub(crate) fn doubt(&self, cluster: LogicalClusterId, name: &str) {
        if let Ok(name) = name.parse() {
            self.0.state.lock().wrote(cluster, &name);
        }
    }

    /// Whether a key is that of a definition.
    pub(crate) fn is_about(key: &ObjectKey) -> bool {
        *key.resource.group == *custom::GROUP && *key.resource.resource == *custom::RESOURCE
    }

    /// To be held while a definition is written.
    pub(crate) fn change(&self, key: &ObjectKey) -> Changing {
        self.0.state.lock().begin(key.cluster, &key.name);
        Changing { catalog: self.clone(), cluster: key.cluster, name: key.name.clone() }
    }

    async fn read(&self, cluster: LogicalClusterId) -> Result<Read, Status> {
        loop {
            let (missing, token) = {
                let mut state = self.0.state.lock();
                let missing = state.missing(cluster);
                let known = state.known(cluster);
                if let (None, Some(served)) = (&missing, &known.served) {
                    return Ok((served.clone(), known.definitions.values().cloned().collect()));
                }
                (missing.unwrap_or(Missing::Some(Vec::new())), known.token)
            };
            let fresh = match &missing {
                Missing::All => self.all(cluster).await?,
                Missing::Some(names) => self.some(cluster, names).await?,
            };
            if let Some(read) = self.install(cluster, token, &missing, fresh) {
                return Ok(read);
            }
        }
    }

    async fn all(&self, cluster: LogicalClusterId) -> Result<Definitions, Status> {
        let mut all = Definitions::new();
        // A definition that is damaged is not served; all others are, and it can be deleted.
        let mut request = RangeRequest::slices(RangeScope::Cluster(cluster, resource())).past_damage();
        loop {
            let page = self.0.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
            let next = request.next(&page);
            all.extend(self.understood(page.objects).await?);
            match next {
                Some(next) => request = next,
                None => return Ok(all),
            }
        }
    }

    async fn some(&self, cluster: LogicalClusterId, names: &[(ObjectName, u64)]) -> Result<Definitions, Status> {
        let mut found = Vec::new();
        for (name, _) in names {
            let key = ObjectKey::cluster_scoped(cluster, resource(), name.clone());
            match self.0.store.get(&key).await {
                Ok(stored) => found.extend(stored),
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(status_for(&error)),
            }
        }
        self.understood(found).await
    }

    async fn understood(&self, stored: Vec<StoredObject>) -> Result<Definitions, Status> {
        let bytes: usize = stored.iter().map(|object| object.record.body().len()).sum();
        if bytes <= LONG_READ {
            return self.0.understand(stored);
        }
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || inner.understand(stored)).await.map_err(Status::internal)?
    }

    /// Keeps what was read, unless others have read or written meanwhile. `None` when it tells too little without what was
    /// known before.
    fn install(&self, cluster: LogicalClusterId, token: u64, missing: &Missing, fresh: Definitions) -> Option<Read> {
        let mut state = self.0.state.lock();
        let is_followed = state.is_followed;
        let known = state.known(cluster);
        let is_same = known.token == token;
        match missing {
            Missing::All if is_same && !known.is_whole => state.keep_all(cluster, fresh),
            // Nothing of it can be kept, but it was true when it was read.
            Missing::All if !is_same => return Some(self.0.served(&fresh)),
            Missing::All => return None,
            Missing::Some(_) if !is_same => return None,
            Missing::Some(names) => {
                let mut fresh = fresh;
                let is_last = |(name, write): &(ObjectName, u64)| known.stale.get(name) == Some(write);
                if !names.iter().all(is_last) {
                    // Others have read or written meanwhile. What was read is no older than the question, but may be older
                    // than what is known.
                    let mut seen = known.definitions.clone();
                    for (name, _) in names {
                        match fresh.remove(name) {
                            Some(held) => drop(seen.insert(name.clone(), held)),
                            None => drop(seen.remove(name)),
                        }
                    }
                    return Some(self.0.served(&seen));
                }
                for (name, _) in names {
                    state.keep(cluster, name, fresh.remove(name));
                }
            }
        }
        let known = state.known(cluster);
        let read = self.0.served(&known.definitions);
        known.served = Some(read.0.clone());
        if !is_followed {
            state.forget(cluster);
        }
        Some(read)
    }
}

impl Inner {
    fn served(&self, definitions: &Definitions) -> Read {
        let tables = definitions.values().filter_map(|own| own.held.definition.table.clone()).collect();
        (self.compiled.served(tables), definitions.values().cloned().collect())
    }

    fn understand(&self, stored: Vec<StoredObject>) -> Result<Definitions, Status> {
        let read = |object: StoredObject| {
            let crd = object.record.to_value(object.revision).map_err(|e| damaged(&object.key, &e))?;
            let held = self.compiled.definition(&crd);
            Ok((object.key.name, Own { held, created: object.created, revision: object.revision }))
        };
        stored.into_iter().map(read).collect()
    }
}

/// A definition as it stands in a logical cluster.
#[derive(Clone)]
pub(crate) struct Standing {
    pub(crate) key: ObjectKey,
    /// Its first write, which tells it from others of its name.
    pub(crate) created: ResourceVersion,
    /// Its last write.
    pub(crate) revision: ResourceVersion,
    pub(crate) is_deleting: bool,
}

/// A write of a definition under way.
pub(crate) struct Changing {
    catalog: Catalog,
    cluster: LogicalClusterId,
    name: ObjectName,
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.catalog.0.state.lock().end(self.cluster, &self.name);
    }
}

impl Kinds for Catalog {
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
        bootstrap::uid_of(key).or_else(|| computed_uid(key))
    }

    fn is_computed(&self, key: &ObjectKey) -> bool {
        let resource = &key.resource;
        // Root inherits no physical clusters.
        (*resource == reach::physical_clusters() && key.cluster != LogicalClusterId::ROOT)
            || (self.0.compiled.computes_nodes() && resource.group.is_empty() && *resource.resource == *"nodes")
    }
}

impl Follower for Catalog {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(std::future::ready(Ok(self.0.store.current())))
    }

    fn following(&self) {
        let mut state = self.0.state.lock();
        // Between two watches anything may have been written.
        state.forget_all();
        state.is_followed = true;
    }

    fn take(&self, event: &Event) {
        self.0.state.lock().wrote(event.key.cluster, &event.key.name);
    }

    fn lost(&self) {
        let mut state = self.0.state.lock();
        state.forget_all();
        state.is_followed = false;
    }
}
