//! Downstream namespaces: made as needed, removed when nothing is in them any more.

use std::{collections::HashSet, time::Duration};

use portolan_types::{GroupResource, ObjectKey, Uid, object, work::WorkOutcome};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{SyncError, Work, Worker, reflector_cache::ObjectRef, session::Session};
use crate::{
    client::ServedResource,
    naming::{ADOPTABLE_NAMESPACE, NamespaceIdentity},
    plan::{CopyDeletion, Proof},
    rules::{SyncRefusal, is_local},
};

/// Resources that Kubernetes itself puts into a namespace, or leaves there after its objects.
const NOT_CONTENT: [&str; 3] = ["events", "events.events.k8s.io", "endpointslices.discovery.k8s.io"];

/// Interval of checks of a namespace with foreign or ending content, which no watch covers.
const CONTENT_CHECK: Duration = Duration::from_secs(10);

/// Lifetime of a cached answer about another `PhysicalCluster`.
const REGISTRATION_CHECK: Duration = Duration::from_secs(60);

/// Maximum number of cached answers.
const MAX_REGISTRATIONS: usize = 1000;

/// Why a namespace cannot be used.
struct NamespaceObstacle {
    /// Text for every tenant, after the name of the namespace.
    what: String,
    /// Additional text for administrators only, because it names objects of another tenant.
    whose: String,
}

impl From<&str> for NamespaceObstacle {
    fn from(what: &str) -> Self {
        Self { what: what.to_owned(), whose: String::new() }
    }
}

pub(super) fn is_no_content(resource: &GroupResource) -> bool {
    NOT_CONTENT.contains(&resource.to_string().as_str())
}

fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

fn place_of(name: &str) -> ObjectRef {
    ObjectRef { resource: namespaces(), namespace: String::new(), name: name.to_owned() }
}

/// Returns true for a namespace that its owner downstream lets Portolan use.
fn is_released(live: &Value) -> bool {
    object::annotation(live, ADOPTABLE_NAMESPACE) == Some("true")
}

impl Worker {
    /// Creates the namespace of `place` if it is missing.
    ///
    /// An existing foreign namespace is never used but refused. An empty one of a deleted `PhysicalCluster` is adopted.
    pub(super) async fn ensure_namespace(
        &self,
        session: &Session,
        key: &ObjectKey,
        place: &ObjectRef,
    ) -> Result<Option<SyncRefusal>, SyncError> {
        let Some(upstream_namespace) = key.namespace() else { return Ok(None) };
        let wanted = NamespaceIdentity {
            cluster: key.cluster.to_string(),
            namespace: upstream_namespace.to_string(),
            physical: self.config.uid.clone(),
            plane: self.upstream.plane().map(str::to_owned),
        };
        if !session.cache.is_synced(&namespaces()) {
            return Err(SyncError::NotSynced("namespaces".into()));
        }
        let at = place_of(&place.namespace);
        let live = match session.cache.get(&at) {
            Some(known) => known.object.clone(),
            None => {
                let labels = self.namespace_labels(key).await?.ok_or(SyncError::KeepsChanging)?;
                self.make_namespace(session, &wanted, &at, labels).await?
            }
        };
        if NamespaceIdentity::of(&live).as_ref() == Some(&wanted) {
            self.state().namespace_conflicts.remove(&at.name);
            return if object::is_deleting(&live) { Err(SyncError::NamespaceEnding) } else { Ok(None) };
        }
        match self.namespace_obstacle(session, &live).await? {
            None => {
                self.adopt(session, &wanted, &at, &live).await?;
                self.queue.add(Work::NamespaceLabels(at.name.clone()));
                self.state().namespace_conflicts.remove(&at.name);
                Ok(None)
            }
            Some(obstacle) => {
                let told = format!("the namespace {} {}", at.name, obstacle.what);
                self.record_conflict(at.name, format!("{told}{}", obstacle.whose));
                Ok(Some(SyncRefusal::conflict(told)))
            }
        }
    }

    /// Records a namespace conflict in the log and for the report of the physical cluster.
    fn record_conflict(&self, namespace: String, why: String) {
        let before = self.state().namespace_conflicts.insert(namespace.clone(), why.clone());
        if before.as_ref() != Some(&why) {
            tracing::warn!(cluster = %self.config.name, namespace, why, "a namespace downstream cannot be used");
        }
    }

    /// Returns why a foreign namespace cannot be used; `None` for an empty one that a deleted `PhysicalCluster` has
    /// left, and for one that is released by [`ADOPTABLE_NAMESPACE`].
    async fn namespace_obstacle(
        &self,
        session: &Session,
        live: &Value,
    ) -> Result<Option<NamespaceObstacle>, SyncError> {
        let Some(identity) = NamespaceIdentity::of(live) else {
            if is_released(live) && !object::is_deleting(live) {
                return Ok(None);
            }
            return Ok(Some("is there and not Portolan's".into()));
        };
        if identity.plane.as_deref() != self.upstream.plane() {
            return Ok(Some("belongs to another control plane, which places on the same physical cluster".into()));
        }
        if identity.physical == self.config.uid {
            let whose =
                format!(", for the namespace {} of the logical cluster {}", identity.namespace, identity.cluster);
            return Ok(Some(NamespaceObstacle { what: "is in use".into(), whose }));
        }
        if self.is_registered(&identity.physical).await? {
            return Ok(Some("belongs to another PhysicalCluster, which leads to the same API server".into()));
        }
        if object::is_deleting(live) {
            return Err(SyncError::NamespaceEnding);
        }
        Ok(self.has_content(session, object::name(live)).await?.then(|| {
            let uid = &identity.physical;
            let what = format!("holds objects that the PhysicalCluster of uid {uid}, which is gone, has left");
            let how = portolan_types::annotations::LEFT_BEHIND;
            NamespaceObstacle::from(
                format!("{what}: take them over by the annotation {how}=adopt, or delete them there").as_str(),
            )
        }))
    }

    /// Adopts a namespace that has no other owner.
    async fn adopt(
        &self,
        session: &Session,
        wanted: &NamespaceIdentity,
        at: &ObjectRef,
        live: &Value,
    ) -> Result<(), SyncError> {
        let mut metadata = wanted.to_metadata();
        // The preconditions ensure that the checked object is deleted; otherwise it is checked again.
        for field in ["uid", "resourceVersion"] {
            metadata[field] = object::meta_text(live, field).into();
        }
        let path = ServedResource::namespaces().path(None, Some(&at.name));
        let adopted = session.api.merge_patch(&path, &json!({"metadata": metadata})).await?;
        tracing::info!(cluster = %self.config.name, namespace = at.name, "a namespace without another owner was adopted");
        session.cache.put(at, adopted);
        Ok(())
    }

    async fn make_namespace(
        &self,
        session: &Session,
        wanted: &NamespaceIdentity,
        at: &ObjectRef,
        labels: Map<String, Value>,
    ) -> Result<Value, SyncError> {
        let served = ServedResource::namespaces();
        let name = at.name.parse().map_err(|_| SyncError::NotSynced("a namespace without a name".into()))?;
        let mut namespace = wanted.to_namespace(&name);
        object::child_mut(object::metadata_mut(&mut namespace), "labels").extend(labels);
        match session.api.create(&served.path(None, None), &namespace).await {
            Ok(made) => {
                portolan_types::failpoint!("syncer/namespace-made");
                session.cache.put(at, made.clone());
                Ok(made)
            }
            Err(error) if error.is_reason("AlreadyExists") => {
                Ok(session.api.get(&served.path(None, Some(&at.name))).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true when a namespace is known to be missing downstream.
    pub(super) fn lacks_namespace(&self, name: &str) -> bool {
        let Ok(session) = self.session() else { return false };
        session.cache.is_synced(&namespaces()) && session.cache.get(&place_of(name)).is_none()
    }

    /// Deletes a namespace that this control plane created, when upstream places nothing in it and it is empty.
    pub(super) async fn reconcile_namespace(&self, name: &str) -> Result<WorkOutcome, SyncError> {
        let session = self.session()?;
        let is_synced = self.is_view_synced.load(std::sync::atomic::Ordering::Acquire)
            && session.cache.is_synced(&namespaces())
            && session.all_served().iter().all(|served| session.cache.is_synced(&served.resource));
        if !is_synced {
            return Err(SyncError::NotSynced("the objects of a namespace".into()));
        }
        let Some(known) = session.cache.get(&place_of(name)) else { return Ok(WorkOutcome::Done) };
        // A released namespace existed before, and stays.
        let is_removed = !object::is_deleting(&known.object) && !is_released(&known.object);
        let identity = NamespaceIdentity::of(&known.object).filter(|_| is_removed);
        let Some(identity) = identity else { return Ok(WorkOutcome::Done) };
        if !self.may_remove(&identity).await? {
            return Ok(WorkOutcome::Done);
        }
        if self.is_placed_in(&identity) || session.cache.is_used(name, is_no_content) {
            return Ok(WorkOutcome::Done); // the end of the last of them comes back here
        }
        // The resource of a debt may be unreadable now.
        if self.has_debts(name).await? || self.has_content(&session, name).await? {
            return Ok(WorkOutcome::RequeueAfter(CONTENT_CHECK));
        }
        let deletion = CopyDeletion {
            uid: known.uid().to_owned(),
            resource_version: object::meta_text(&known.object, "resourceVersion").to_owned(),
            proof: Proof::Tombstone,
            grace: None,
        };
        match session.api.delete(&ServedResource::namespaces().path(None, Some(name)), &deletion, "Background").await {
            Ok(_) => {
                portolan_types::failpoint!("syncer/namespace-deleted");
                tracing::info!(cluster = %self.config.name, namespace = name, "empty namespace deleted");
            }
            Err(error) if error.is_absent(name) || error.code() == 409 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(WorkOutcome::Done)
    }

    /// Returns true when this worker may remove a namespace: it, or a deleted `PhysicalCluster`, created it.
    async fn may_remove(&self, identity: &NamespaceIdentity) -> Result<bool, SyncError> {
        if identity.physical == self.config.uid {
            return Ok(true);
        }
        Ok(identity.plane.as_deref() == self.upstream.plane() && !self.is_registered(&identity.physical).await?)
    }

    /// Returns true when a `PhysicalCluster` of this uid exists. The answer is cached for a minute: many namespaces
    /// name few clusters, and upstream searches all logical clusters. A deleted uid never returns.
    pub(super) async fn is_registered(&self, physical: &Uid) -> Result<bool, SyncError> {
        let now = Instant::now();
        let is_fresh = |asked_at: &Instant| now.duration_since(*asked_at) < REGISTRATION_CHECK;
        let known = self.state().registrations.get(physical).copied();
        if let Some((is_registered, _)) = known.filter(|(_, asked_at)| is_fresh(asked_at)) {
            return Ok(is_registered);
        }
        let is_registered = self.upstream.exists(physical).await?;
        let mut state = self.state();
        // Anybody may write the marks downstream, so they are cached only briefly.
        state.registrations.retain(|_, (_, asked_at)| is_fresh(asked_at));
        if state.registrations.len() >= MAX_REGISTRATIONS {
            state.registrations.clear();
        }
        state.registrations.insert(physical.clone(), (is_registered, now));
        Ok(is_registered)
    }

    /// Returns the conflicts of namespaces that objects are still to be synced to.
    pub(super) fn namespace_conflicts(&self) -> Vec<String> {
        let mut state = self.state();
        if state.namespace_conflicts.is_empty() {
            return Vec::new();
        }
        let namespaces = state.known.keys().filter_map(|key| Some(self.downstream_ref(key).ok()?.namespace));
        let wanted: HashSet<String> = namespaces.collect();
        state.namespace_conflicts.retain(|name, _| wanted.contains(name));
        state.namespace_conflicts.values().cloned().collect()
    }

    fn is_placed_in(&self, identity: &NamespaceIdentity) -> bool {
        let state = self.state();
        let is_in = |key: &ObjectKey| {
            key.namespace().is_some_and(|namespace| namespace.as_str() == identity.namespace)
                && key.cluster.to_string() == identity.cluster
        };
        state.known.keys().any(is_in)
    }

    async fn has_debts(&self, namespace: &str) -> Result<bool, SyncError> {
        let debts = self.upstream.debts(&self.config.uid).await?;
        Ok(debts.iter().any(|debt| self.debt_ref(debt).is_ok_and(|place| place.namespace == namespace)))
    }

    /// Queries the physical cluster itself, for all labels: foreign objects must not be deleted with the namespace.
    async fn has_content(&self, session: &Session, namespace: &str) -> Result<bool, SyncError> {
        for served in session.all_served() {
            let resource = &served.resource;
            let counts = |found: &Value| !is_local(resource, found);
            let is_content = served.namespaced && !is_no_content(resource);
            if is_content && session.api.any(&served.path(Some(namespace), None), counts).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
