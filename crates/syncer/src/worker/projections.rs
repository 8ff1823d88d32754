//! Projections: objects that the physical cluster makes from copies are shown upstream, and deletes of them are passed
//! downstream.

use std::{sync::atomic::Ordering, time::Duration};

use portolan_types::{
    GroupResource, NamespaceName, ObjectKey, annotations, fingerprint, object,
    placement::ProjectionSource,
    upstream::{Projection, UpstreamObject},
    work::WorkOutcome,
};
use serde_json::Value;

use super::{SyncError, Work, Worker, reflector_cache::ObjectRef, session::Session, state::ProjectedEntry};
use crate::{
    naming::NamespaceIdentity,
    plan::{self, CopyDeletion, Proof},
    project::{self, PodLookup, PodTarget, ProjectionOrigin, ProjectionOwner},
};

/// Delay of another look at an EndpointSlice that names pods which are about to be projected.
const NAMES_COME: Duration = Duration::from_secs(5);

/// Upstream owner of a downstream object.
enum MakerLookup {
    /// The object is projected without an owner.
    NoMaker,
    /// This upstream object owns it.
    Known(Box<UpstreamObject>),
    /// The owner is not known yet.
    Later,
    /// The object is not projected.
    NotShown,
}

impl Worker {
    pub(super) async fn reconcile_projection(&self, place: &ObjectRef) -> Result<WorkOutcome, SyncError> {
        let session = self.session()?;
        if !session.cache.is_synced(&place.resource) {
            return Err(SyncError::NotSynced(place.resource.to_string()));
        }
        // The existing projections and their names are not known before.
        if !self.is_view_synced.load(Ordering::Acquire) {
            return Err(SyncError::NotSynced("upstream's objects".into()));
        }
        let found =
            session.cache.get(place).filter(|found| project::is_made_downstream(&found.object, &self.config.uid));
        let shown_uid = self.state().shown.get(place).map(|shown| shown.uid.clone());
        if let Some(uid) = shown_uid.filter(|uid| found.as_ref().is_none_or(|found| found.uid() != uid))
            && !self.remove_projection(&session, place, &uid).await?
        {
            return Err(SyncError::StillThere(place.name.clone()));
        }
        match found {
            Some(found) => self.project_object(&session, place, &found.object).await,
            None => {
                // The end of an object that is not projected may also be the end of the last one in its namespace.
                self.enqueue_namespace_cleanup(&place.namespace);
                Ok(WorkOutcome::Done)
            }
        }
    }

    /// Removes a projected object once its downstream object is proven gone. Returns false while it is still there.
    async fn remove_projection(&self, session: &Session, place: &ObjectRef, uid: &str) -> Result<bool, SyncError> {
        let Some(served) = session.served(&place.resource) else { return Ok(false) };
        match session.api.get(&served.path(place.namespace(), Some(&place.name))).await {
            // Its label was removed: the object is no longer followed, but it exists.
            Ok(live) if object::meta_text(&live, "uid") == uid => return Ok(false),
            Ok(_) => {}
            Err(error) if error.is_absent(&place.name) => {}
            Err(error) => return Err(error.into()),
        }
        if &*place.resource.resource == "pods" {
            self.record_gone_pod(session, place, uid);
        }
        let key = self.state().shown.get(place).map(|shown| shown.key.clone());
        if let Some(key) = key {
            let projection = Projection { gone: vec![key.clone()], ..Projection::default() };
            self.upstream.project(&self.config.uid, projection).await?;
            self.state().shown.remove(place);
            self.forget(&key);
            self.enqueue_namespace_cleanup(&place.namespace);
        }
        Ok(true)
    }

    async fn project_object(
        &self,
        session: &Session,
        place: &ObjectRef,
        found: &Value,
    ) -> Result<WorkOutcome, SyncError> {
        let Some((cluster, namespace)) = self.upstream_namespace(session, &place.namespace) else {
            return Ok(WorkOutcome::Done);
        };
        let maker = match self.find_maker(session, place, found).await? {
            MakerLookup::Later => return Err(SyncError::OwnerUnknown(format!("the owner of {}", place.name))),
            MakerLookup::NotShown if object::controller_of(found).is_none() => {
                return self.project_orphan(session, place, found).await;
            }
            MakerLookup::NotShown => return Ok(WorkOutcome::Done),
            MakerLookup::NoMaker => None,
            MakerLookup::Known(upstream) if plan::is_orphaning(&upstream.object) && self.is_shown(place, found) => {
                return self.project_orphan(session, place, found).await;
            }
            MakerLookup::Known(upstream) => Some(upstream),
        };
        let owner = maker.as_deref().map(|upstream| ProjectionOwner { key: &upstream.key, object: &upstream.object });
        let origin = ProjectionOrigin { name: &self.config.name, uid: &self.config.uid };
        let is_set = &*place.resource.resource == "replicasets";
        let shown = match (&*place.resource.resource, owner) {
            ("replicasets", Some(deployment)) => {
                let entry = maker.as_deref().and_then(|upstream| self.entry(upstream));
                let shares = entry.is_some_and(|entry| entry.replicas.is_some());
                project::replica_set(found, &namespace, deployment, shares, origin)
            }
            ("controllerrevisions", Some(owner)) => project::revision(found, &namespace, owner, origin),
            _ => project::projected_object(found, &namespace, owner, origin),
        };
        let Some(mut shown) = shown else {
            tracing::warn!(cluster = %self.config.name, name = place.name, "an object is too large to be shown upstream");
            return Ok(WorkOutcome::Done);
        };
        let is_claim = &*place.resource.resource == "persistentvolumeclaims";
        if is_claim && self.is_used_by_pod(session, place) {
            project::mark_used(&mut shown, &self.config.uid);
        }
        if !is_claim && !matches!(&*place.resource.resource, "replicasets" | "controllerrevisions") {
            self.assign_name(place, (cluster, &namespace), found, &mut shown).await?;
        }
        let is_whole = &*place.resource.resource != "endpointslices"
            || project::rename_targets(&mut shown, &namespace, |pod| self.upstream_pod(session, place, &pod));
        let Ok(name) = object::name(&shown).parse() else { return Ok(WorkOutcome::Done) };
        let key = ObjectKey::namespaced(cluster, place.resource.clone(), namespace, name);
        if let Err(error) = self.put(session, place, key.clone(), found, shown).await {
            if let Some(maker) = &maker {
                self.record_not_projected(maker, &error).await?;
            }
            return Err(error);
        }
        if is_set {
            self.report_replica_set(&key, found).await?;
        }
        Ok(if is_whole { WorkOutcome::Done } else { WorkOutcome::RequeueAfter(NAMES_COME) })
    }

    /// Writes a projection, unless the same was written before.
    pub(super) async fn put(
        &self,
        session: &Session,
        place: &ObjectRef,
        key: ObjectKey,
        found: &Value,
        shown: Value,
    ) -> Result<(), SyncError> {
        let print = fingerprint(&shown);
        let is_known = self.state().shown.get(place).is_some_and(|known| known.fingerprint == print);
        if is_known {
            return Ok(());
        }
        if !self.permits_write(&key, Work::Projection(place.clone())) {
            return Ok(());
        }
        let projection = Projection { put: vec![(key.clone(), shown)], ..Projection::default() };
        self.upstream.project(&self.config.uid, projection).await?;
        let uid = object::meta_text(found, "uid").to_owned();
        let entry = ProjectedEntry { key, uid: uid.clone(), fingerprint: print };
        let (is_new, shown) = {
            let shown = &mut self.state().shown;
            (shown.insert(place.clone(), entry).is_none(), shown.len())
        };
        if is_new && u64::try_from(shown).is_ok_and(|shown| shown > self.config.limits.objects) {
            session.cache.set_exceeded();
        }
        if is_new {
            self.enqueue_owned(session, place, &uid);
        }
        Ok(())
    }

    /// Returns the upstream Pod of a downstream one in the namespace of `slice`.
    fn upstream_pod(&self, session: &Session, slice: &ObjectRef, pod: &PodTarget<'_>) -> PodLookup {
        if self.state().gone_pods.contains(pod.uid) {
            return PodLookup::Gone;
        }
        let resource = GroupResource::new("", "pods");
        let at = ObjectRef { resource, namespace: slice.namespace.clone(), name: pod.name.to_owned() };
        let Some(found) = session.cache.get(&at) else { return PodLookup::Not };
        match self.upstream_address(&at, &found.object) {
            Some(key) => PodLookup::As(key.name.to_string(), self.state().known.get(&key).cloned()),
            None if project::is_made_downstream(&found.object, &self.config.uid) => PodLookup::Later,
            None => PodLookup::Not,
        }
    }

    /// Returns the upstream address of a downstream object, once it is known: of the object that it is a copy of, or of
    /// its projection.
    pub(super) fn upstream_address(&self, at: &ObjectRef, found: &Value) -> Option<ObjectKey> {
        match plan::copy_identity(found, &self.config.uid) {
            Some(_) => self.key_of_copy(at, found),
            None => self.state().shown.get(at).map(|shown| shown.key.clone()),
        }
    }

    /// Enqueues the objects that waited for the projection of their owner.
    fn enqueue_owned(&self, session: &Session, owner: &ObjectRef, uid: &str) {
        let resource = match &*owner.resource.resource {
            "replicasets" | "jobs" => GroupResource::new("", "pods"),
            "pods" => GroupResource::new("", "persistentvolumeclaims"),
            _ => return,
        };
        for owned in session.cache.all(&resource, owner.namespace()) {
            if object::controller_of(&owned.object).is_some_and(|controller| controller["uid"] == *uid) {
                self.queue.add(Work::Projection(ObjectRef::of(&resource, &owned.object)));
            }
        }
    }

    /// Reports the status of a ReplicaSet, which is merged over all physical clusters as that of a copy.
    pub(super) async fn report_replica_set(&self, key: &ObjectKey, found: &Value) -> Result<(), SyncError> {
        match self.read_placed(key).await? {
            Some(upstream) => {
                let state = portolan_types::upstream::CopyState::Synced {
                    stamp: object::generation(&upstream.object).max(1),
                    is_current: crate::status::is_current(&upstream.kind.group_kind(), found),
                    scaled: None,
                    revision: None,
                    status: crate::status::bounded(found.get("status").unwrap_or(&Value::Null)),
                };
                self.report(&upstream, state, None).await
            }
            None => Ok(()),
        }
    }

    /// Returns the upstream namespace of a downstream one.
    pub(super) fn upstream_namespace(
        &self,
        session: &Session,
        name: &str,
    ) -> Option<(portolan_types::LogicalClusterId, NamespaceName)> {
        let at = ObjectRef {
            resource: GroupResource::new("", "namespaces"),
            namespace: String::new(),
            name: name.to_owned(),
        };
        let known = session.cache.get(&at)?;
        let identity = NamespaceIdentity::of(&known.object).filter(|identity| identity.physical == self.config.uid)?;
        Some((identity.cluster.parse().ok()?, identity.namespace.parse().ok()?))
    }

    async fn find_maker(&self, session: &Session, place: &ObjectRef, found: &Value) -> Result<MakerLookup, SyncError> {
        let controller = object::controller_of(found);
        match (&*place.resource.resource, controller.and_then(|c| c["kind"].as_str())) {
            ("pods", Some(_))
            | ("replicasets", Some("Deployment"))
            | ("controllerrevisions", Some("StatefulSet" | "DaemonSet"))
            | ("jobs", Some("CronJob"))
            | ("endpointslices", Some("Service"))
            | ("persistentvolumeclaims", Some("Pod")) => {}
            ("persistentvolumeclaims", None | Some("StatefulSet")) => return Ok(MakerLookup::NoMaker),
            _ => return Ok(MakerLookup::NotShown),
        }
        let Some(controller) = controller else { return Ok(MakerLookup::NotShown) };
        let resource = controller["kind"].as_str().and_then(project::controller_resource);
        let (Some((group, resource)), Some(name)) = (resource, controller["name"].as_str()) else {
            return Ok(MakerLookup::NotShown);
        };
        let at = ObjectRef {
            resource: GroupResource::new(group, resource),
            namespace: place.namespace.clone(),
            name: name.into(),
        };
        let Some(owner) = session.cache.get(&at).filter(|owner| controller["uid"] == *owner.uid()) else {
            return Ok(if object::is_deleting(found) { MakerLookup::NotShown } else { MakerLookup::Later });
        };
        let Some(key) = self.upstream_address(&at, &owner.object) else { return Ok(MakerLookup::Later) };
        Ok(match self.read_placed(&key).await? {
            Some(upstream) => MakerLookup::Known(Box::new(upstream)),
            None => MakerLookup::NotShown,
        })
    }

    pub(super) fn key_of_copy(&self, at: &ObjectRef, copy: &Value) -> Option<ObjectKey> {
        let identity = plan::copy_identity(copy, &self.config.uid)?;
        let namespace: NamespaceName = identity.namespace.parse().ok()?;
        let (cluster, name) = (identity.cluster.parse().ok()?, identity.name.parse().ok()?);
        Some(ObjectKey::namespaced(cluster, at.resource.clone(), namespace, name))
    }

    /// Reconciles an upstream projection: passes a delete downstream, and looks for an end there.
    pub(super) async fn reconcile_projected(&self, upstream: &UpstreamObject) -> Result<WorkOutcome, SyncError> {
        let Some(source) = ProjectionSource::on(&upstream.object, &self.config.uid) else {
            return Ok(WorkOutcome::Done);
        };
        let session = self.session()?;
        let place = ObjectRef::at(&upstream.key.resource, &source);
        if !session.cache.is_synced(&place.resource) {
            return Err(SyncError::NotSynced(place.resource.to_string()));
        }
        if self.end_duplicate(upstream, &place, &source).await? {
            return Ok(WorkOutcome::Done);
        }
        {
            let mut state = self.state();
            let entry =
                ProjectedEntry { key: upstream.key.clone(), uid: source.uid.clone(), fingerprint: String::new() };
            let known = state.shown.entry(place.clone()).or_insert(entry);
            if project::is_next_to_show(&upstream.object, &self.config.uid) {
                known.fingerprint.clear();
                drop(state);
                self.queue.add(Work::Projection(place.clone()));
            }
        }
        let found = session.cache.get(&place).filter(|found| found.uid() == source.uid);
        let Some(found) = found else {
            self.queue.add(Work::Projection(place));
            return Ok(WorkOutcome::Done);
        };
        match (object::is_deleting(&upstream.object), object::is_deleting(&found.object)) {
            (true, false) => self.delete_downstream(&session, upstream, &place, &found.object).await?,
            // The physical cluster may refuse the changed fields: that is not a reason to keep the object.
            (true, true) => {}
            (false, _) => {
                self.forward_metadata(&session, upstream, &place, &found.object).await?;
                self.forward_pod_changes(&session, upstream, &place).await?;
            }
        }
        Ok(WorkOutcome::Done)
    }

    async fn delete_downstream(
        &self,
        session: &Session,
        upstream: &UpstreamObject,
        place: &ObjectRef,
        found: &Value,
    ) -> Result<(), SyncError> {
        let Some(served) = session.served(&place.resource) else { return Ok(()) };
        let is_ours = object::label(found, annotations::DOWN_CLUSTER) == Some(&upstream.key.cluster.to_string());
        if !is_ours {
            return Ok(());
        }
        let deletion = CopyDeletion {
            uid: object::meta_text(found, "uid").to_owned(),
            resource_version: object::meta_text(found, "resourceVersion").to_owned(),
            proof: Proof::Deleting,
            grace: plan::grace_of(upstream),
        };
        let path = served.path(place.namespace(), Some(&place.name));
        let propagation = if plan::is_orphaning(&upstream.object) { "Orphan" } else { "Background" };
        match session.api.delete(&path, &deletion, propagation).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_absent(&place.name) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
