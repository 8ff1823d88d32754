//! Shows above what the physical cluster makes from copies, and hands down deletes of it.

use std::{sync::atomic::Ordering, time::Duration};

use portolan_types::{
    GroupResource, NamespaceName, ObjectKey, annotations, fingerprint, object,
    placement::Source,
    upstream::{Projection, UpstreamObject},
    work::Outcome,
};
use serde_json::Value;

use super::{SyncError, Work, Worker, mirror::Place, session::Session, state::Shown};
use crate::{
    naming::NamespaceIdentity,
    plan::{self, Deletion, Proof},
    project::{self, Named, Origin, Owner},
};

/// How soon a slice is looked at again that names pods which are shown just now.
const NAMES_COME: Duration = Duration::from_secs(5);

/// Who made a downstream object, as far as it is known above.
enum Maker {
    /// It is shown without an owner.
    Nobody,
    /// This upstream object.
    Known(Box<UpstreamObject>),
    /// Its owner is not known yet.
    Later,
    /// It is not to be shown.
    NotShown,
}

impl Worker {
    pub(super) async fn reconcile_below(&self, place: &Place) -> Result<Outcome, SyncError> {
        let session = self.session()?;
        if !session.mirror.is_synced(&place.resource) {
            return Err(SyncError::NotSynced(place.resource.to_string()));
        }
        // What is shown already, and by which name, is not known before.
        if !self.is_view_synced.load(Ordering::Acquire) {
            return Err(SyncError::NotSynced("upstream's objects".into()));
        }
        let found = session.mirror.get(place).filter(|found| project::is_made_below(&found.object, &self.config.uid));
        let shown_uid = self.state().shown.get(place).map(|shown| shown.uid.clone());
        if let Some(uid) = shown_uid.filter(|uid| found.as_ref().is_none_or(|found| found.uid() != uid))
            && !self.end_shown(&session, place, &uid).await?
        {
            return Err(SyncError::StillThere(place.name.clone()));
        }
        match found {
            Some(found) => self.show(&session, place, &found.object).await,
            None => {
                // Also the end of what was never shown, or is shown no more, may be that of the last one there.
                self.tidy_namespace(&place.namespace);
                Ok(Outcome::Done)
            }
        }
    }

    /// Takes a projected object off once its downstream object is proven gone. `false`: it is still there.
    async fn end_shown(&self, session: &Session, place: &Place, uid: &str) -> Result<bool, SyncError> {
        let Some(served) = session.served(&place.resource) else { return Ok(false) };
        match session.api.get(&served.path(place.namespace(), Some(&place.name))).await {
            // Its label was taken off: it is followed no more, but it is there.
            Ok(live) if object::meta_text(&live, "uid") == uid => return Ok(false),
            Ok(_) => {}
            Err(error) if error.is_absent(&place.name) => {}
            Err(error) => return Err(error.into()),
        }
        let key = self.state().shown.get(place).map(|shown| shown.key.clone());
        if let Some(key) = key {
            let projection = Projection { gone: vec![key.clone()], ..Projection::default() };
            self.upstream.project(&self.config.uid, projection).await?;
            self.state().shown.remove(place);
            self.forget(&key);
            self.tidy_namespace(&place.namespace);
        }
        Ok(true)
    }

    async fn show(&self, session: &Session, place: &Place, found: &Value) -> Result<Outcome, SyncError> {
        let Some((cluster, namespace)) = self.namespace_above(session, &place.namespace) else {
            return Ok(Outcome::Done);
        };
        let maker = match self.maker(session, place, found).await? {
            Maker::Later => return Err(SyncError::OwnerUnknown(format!("the owner of {}", place.name))),
            Maker::NotShown if object::controller_of(found).is_none() => {
                return self.show_orphan(session, place, found).await;
            }
            Maker::NotShown => return Ok(Outcome::Done),
            Maker::Nobody => None,
            Maker::Known(upstream) if plan::is_orphaning(&upstream.object) && self.is_shown(place, found) => {
                return self.show_orphan(session, place, found).await;
            }
            Maker::Known(upstream) => Some(upstream),
        };
        let owner = maker.as_deref().map(|upstream| Owner { key: &upstream.key, object: &upstream.object });
        let origin = Origin { name: &self.config.name, uid: &self.config.uid };
        let is_set = &*place.resource.resource == "replicasets";
        let shown = match (&*place.resource.resource, owner) {
            ("replicasets", Some(deployment)) => {
                let entry = maker.as_deref().and_then(|upstream| self.entry(upstream));
                let shares = entry.is_some_and(|entry| entry.replicas.is_some());
                project::replica_set(found, &namespace, deployment, shares, origin)
            }
            ("controllerrevisions", Some(owner)) => project::revision(found, &namespace, owner, origin),
            _ => project::made_below(found, &namespace, owner, origin),
        };
        let Some(mut shown) = shown else {
            tracing::warn!(cluster = %self.config.name, name = place.name, "an object is too large to be shown above");
            return Ok(Outcome::Done);
        };
        let is_claim = &*place.resource.resource == "persistentvolumeclaims";
        if is_claim && self.is_used_by_pod(session, place) {
            project::mark_used(&mut shown, &self.config.uid);
        }
        if !is_claim && !matches!(&*place.resource.resource, "replicasets" | "controllerrevisions") {
            self.settle_name(place, (cluster, &namespace), found, &mut shown).await?;
        }
        let is_whole = &*place.resource.resource != "endpointslices"
            || project::rename_targets(&mut shown, &namespace, |pod| self.pod_above(session, place, pod));
        let Ok(name) = object::name(&shown).parse() else { return Ok(Outcome::Done) };
        let key = ObjectKey::namespaced(cluster, place.resource.clone(), namespace, name);
        if let Err(error) = self.put(session, place, key.clone(), found, shown).await {
            if let Some(maker) = &maker {
                self.note_not_shown(maker, &error).await?;
            }
            return Err(error);
        }
        if is_set {
            self.report_set(&key, found).await?;
        }
        Ok(if is_whole { Outcome::Done } else { Outcome::CheckAgainIn(NAMES_COME) })
    }

    /// Writes what is shown, unless the same has been written.
    pub(super) async fn put(
        &self,
        session: &Session,
        place: &Place,
        key: ObjectKey,
        found: &Value,
        shown: Value,
    ) -> Result<(), SyncError> {
        let print = fingerprint(&shown);
        let is_known = self.state().shown.get(place).is_some_and(|known| known.fingerprint == print);
        if is_known {
            return Ok(());
        }
        if !self.permits_write(&key, Work::Below(place.clone())) {
            return Ok(());
        }
        let projection = Projection { put: vec![(key.clone(), shown)], ..Projection::default() };
        self.upstream.project(&self.config.uid, projection).await?;
        let uid = object::meta_text(found, "uid").to_owned();
        let entry = Shown { key, uid: uid.clone(), fingerprint: print };
        let (is_new, shown) = {
            let shown = &mut self.state().shown;
            (shown.insert(place.clone(), entry).is_none(), shown.len())
        };
        if is_new && u64::try_from(shown).is_ok_and(|shown| shown > self.config.limits.objects) {
            session.mirror.set_exceeded();
        }
        if is_new {
            self.wake_owned(session, place, &uid);
        }
        Ok(())
    }

    /// What a pod beside `slice` is above.
    fn pod_above(&self, session: &Session, slice: &Place, pod: &str) -> Named {
        let resource = GroupResource::new("", "pods");
        let at = Place { resource, namespace: slice.namespace.clone(), name: pod.to_owned() };
        let Some(found) = session.mirror.get(&at) else { return Named::Not };
        match self.key_above(&at, &found.object) {
            Some(key) => Named::As(key.name.to_string(), self.state().known.get(&key).cloned()),
            None if project::is_made_below(&found.object, &self.config.uid) => Named::Later,
            None => Named::Not,
        }
    }

    /// What an object of below is above, as far as that is known: what it is a copy of, or what shows it.
    pub(super) fn key_above(&self, at: &Place, found: &Value) -> Option<ObjectKey> {
        match plan::copy_identity(found, &self.config.uid) {
            Some(_) => self.key_of_copy(at, found),
            None => self.state().shown.get(at).map(|shown| shown.key.clone()),
        }
    }

    /// What was waiting for its owner to be shown can be shown now.
    fn wake_owned(&self, session: &Session, owner: &Place, uid: &str) {
        let resource = match &*owner.resource.resource {
            "replicasets" | "jobs" => GroupResource::new("", "pods"),
            "pods" => GroupResource::new("", "persistentvolumeclaims"),
            _ => return,
        };
        for owned in session.mirror.all(&resource, owner.namespace()) {
            if object::controller_of(&owned.object).is_some_and(|controller| controller["uid"] == *uid) {
                self.queue.add(Work::Below(Place::of(&resource, &owned.object)));
            }
        }
    }

    /// The status of a ReplicaSet is merged over all physical clusters, as that of a copy.
    pub(super) async fn report_set(&self, key: &ObjectKey, found: &Value) -> Result<(), SyncError> {
        match self.upstream.get(key).await? {
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

    /// The upstream namespace of a downstream one of ours.
    pub(super) fn namespace_above(
        &self,
        session: &Session,
        name: &str,
    ) -> Option<(portolan_types::LogicalClusterId, NamespaceName)> {
        let at =
            Place { resource: GroupResource::new("", "namespaces"), namespace: String::new(), name: name.to_owned() };
        let known = session.mirror.get(&at)?;
        let identity = NamespaceIdentity::of(&known.object).filter(|identity| identity.physical == self.config.uid)?;
        Some((identity.cluster.parse().ok()?, identity.namespace.parse().ok()?))
    }

    async fn maker(&self, session: &Session, place: &Place, found: &Value) -> Result<Maker, SyncError> {
        let controller = object::controller_of(found);
        match (&*place.resource.resource, controller.and_then(|c| c["kind"].as_str())) {
            ("pods", Some(_))
            | ("replicasets", Some("Deployment"))
            | ("controllerrevisions", Some("StatefulSet" | "DaemonSet"))
            | ("jobs", Some("CronJob"))
            | ("endpointslices", Some("Service"))
            | ("persistentvolumeclaims", Some("Pod")) => {}
            ("persistentvolumeclaims", None | Some("StatefulSet")) => return Ok(Maker::Nobody),
            _ => return Ok(Maker::NotShown),
        }
        let Some(controller) = controller else { return Ok(Maker::NotShown) };
        let resource = controller["kind"].as_str().and_then(project::controller_resource);
        let (Some((group, resource)), Some(name)) = (resource, controller["name"].as_str()) else {
            return Ok(Maker::NotShown);
        };
        let at = Place {
            resource: GroupResource::new(group, resource),
            namespace: place.namespace.clone(),
            name: name.into(),
        };
        let Some(owner) = session.mirror.get(&at).filter(|owner| controller["uid"] == *owner.uid()) else {
            return Ok(if object::is_deleting(found) { Maker::NotShown } else { Maker::Later });
        };
        let Some(key) = self.key_above(&at, &owner.object) else { return Ok(Maker::Later) };
        Ok(match self.upstream.get(&key).await? {
            Some(upstream) => Maker::Known(Box::new(upstream)),
            None => Maker::NotShown,
        })
    }

    pub(super) fn key_of_copy(&self, at: &Place, copy: &Value) -> Option<ObjectKey> {
        let identity = plan::copy_identity(copy, &self.config.uid)?;
        let namespace: NamespaceName = identity.namespace.parse().ok()?;
        let (cluster, name) = (identity.cluster.parse().ok()?, identity.name.parse().ok()?);
        Some(ObjectKey::namespaced(cluster, at.resource.clone(), namespace, name))
    }

    /// An upstream object that shows one of below: a delete above is handed down, an end below is looked for.
    pub(super) async fn reconcile_projected(&self, upstream: &UpstreamObject) -> Result<Outcome, SyncError> {
        let Some(source) = Source::on(&upstream.object, &self.config.uid) else { return Ok(Outcome::Done) };
        let session = self.session()?;
        let place = Place::at(&upstream.key.resource, &source);
        if !session.mirror.is_synced(&place.resource) {
            return Err(SyncError::NotSynced(place.resource.to_string()));
        }
        if self.end_duplicate(upstream, &place, &source).await? {
            return Ok(Outcome::Done);
        }
        {
            let mut state = self.state();
            let entry = Shown { key: upstream.key.clone(), uid: source.uid.clone(), fingerprint: String::new() };
            let known = state.shown.entry(place.clone()).or_insert(entry);
            if project::is_next_to_show(&upstream.object, &self.config.uid) {
                known.fingerprint.clear();
                drop(state);
                self.queue.add(Work::Below(place.clone()));
            }
        }
        let found = session.mirror.get(&place).filter(|found| found.uid() == source.uid);
        let Some(found) = found else {
            self.queue.add(Work::Below(place));
            return Ok(Outcome::Done);
        };
        match (object::is_deleting(&upstream.object), object::is_deleting(&found.object)) {
            (true, false) => self.hand_down(&session, upstream, &place, &found.object).await?,
            // What was changed may be refused there: that is no reason to keep it.
            (true, true) => {}
            (false, _) => self.hand_down_metadata(&session, upstream, &place, &found.object).await?,
        }
        Ok(Outcome::Done)
    }

    async fn hand_down(
        &self,
        session: &Session,
        upstream: &UpstreamObject,
        place: &Place,
        found: &Value,
    ) -> Result<(), SyncError> {
        let Some(served) = session.served(&place.resource) else { return Ok(()) };
        let is_ours = object::label(found, annotations::DOWN_CLUSTER) == Some(&upstream.key.cluster.to_string());
        if !is_ours {
            return Ok(());
        }
        let deletion = Deletion {
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
