//! Copies that former registrations of this physical cluster left: a `PhysicalCluster` that was removed by force and
//! returned under a new one. Such copies may still run, while upstream runs them elsewhere. So they are counted, and
//! adopted or deleted only on an administrator's order.

use std::{collections::BTreeMap, time::Duration};

use portolan_types::{Uid, annotations, object, placement::CopyIdentity, work::WorkOutcome};
use serde_json::json;

use super::{SyncError, Worker, reflector_cache::ObservedObject, session::Session};
use crate::{
    client::ServedResource,
    naming::NamespaceIdentity,
    plan::{CopyDeletion, Proof},
};

/// Time between two looks: other registrations may go later.
const CHECK: Duration = Duration::from_secs(60);

/// Administrator's order about the copies that were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBehindOrder {
    /// Take the copies over: those that upstream places here continue, and the others go as any copy that nothing
    /// accounts for.
    Adopt,
    /// Delete the namespaces with all that is in them.
    Delete,
}

impl LeftBehindOrder {
    /// Reads the value of the annotation [`annotations::LEFT_BEHIND`].
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "adopt" => Some(Self::Adopt),
            "delete" => Some(Self::Delete),
            _ => None,
        }
    }
}

impl Worker {
    /// Counts the copies that were left, and executes the order about them.
    pub(super) async fn reconcile_left_behind(&self) -> Result<WorkOutcome, SyncError> {
        let session = self.session()?;
        let resources = session.all_served().into_iter().map(|served| served.resource);
        for resource in resources.chain([ServedResource::namespaces().resource]) {
            if !session.cache.is_synced(&resource) {
                return Err(SyncError::NotSynced(resource.to_string()));
            }
        }
        let order = self.state().left_behind_order;
        let mut left = BTreeMap::new();
        for (name, identity, live) in self.namespaces_left_behind(&session).await? {
            match order {
                None => drop(left.insert(name, identity.physical)),
                Some(LeftBehindOrder::Adopt) => self.adopt_left_behind(&session, &name, &identity, &live).await?,
                Some(LeftBehindOrder::Delete) => self.delete_left_behind(&session, &name, &live).await?,
            }
        }
        let is_new = {
            let mut state = self.state();
            if state.left_behind_order == order {
                state.left_behind_order = None;
            }
            state.left_behind != left && !left.is_empty()
        };
        if is_new {
            let namespaces = left.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            tracing::warn!(cluster = %self.config.name, namespaces, "copies of a deleted registration were found");
        }
        self.state().left_behind = left;
        Ok(WorkOutcome::RequeueAfter(CHECK))
    }

    /// Namespaces of this control plane whose copies belong to a deleted `PhysicalCluster`.
    async fn namespaces_left_behind(
        &self,
        session: &Session,
    ) -> Result<Vec<(String, NamespaceIdentity, std::sync::Arc<ObservedObject>)>, SyncError> {
        let mut found = Vec::new();
        for observed in session.cache.all(&ServedResource::namespaces().resource, None) {
            let Some(identity) = NamespaceIdentity::of(&observed.object) else { continue };
            let is_ours = identity.plane.as_deref() == self.upstream.plane();
            if !is_ours || identity.physical == self.config.uid || object::is_deleting(&observed.object) {
                continue;
            }
            let name = object::name(&observed.object).to_owned();
            let has_copies = session.cache.is_used(&name, super::namespaces::is_no_content);
            if has_copies && !self.is_registered(&identity.physical).await? {
                found.push((name, identity, observed));
            }
        }
        Ok(found)
    }

    /// Adopts the copies in a namespace, then the namespace, so that a failed try is continued by the next.
    async fn adopt_left_behind(
        &self,
        session: &Session,
        name: &str,
        identity: &NamespaceIdentity,
        live: &ObservedObject,
    ) -> Result<(), SyncError> {
        for served in session.all_served() {
            for copy in session.cache.all(&served.resource, Some(name)) {
                if let Some(own) = self.adopted_identity(&copy, &identity.physical) {
                    let path = served.path(Some(name), Some(object::name(&copy.object)));
                    let annotation = json!({(annotations::DOWN_IDENTITY): own});
                    self.merge_on(session, &path, &copy, json!({"annotations": annotation})).await?;
                }
            }
        }
        let wanted = NamespaceIdentity { physical: self.config.uid.clone(), ..identity.clone() };
        let path = ServedResource::namespaces().path(None, Some(name));
        self.merge_on(session, &path, live, wanted.to_metadata()).await?;
        tracing::info!(cluster = %self.config.name, namespace = name, "copies of a deleted registration were adopted");
        self.enqueue_everything();
        Ok(())
    }

    /// Returns the identity of a copy of the registration `former` under this one, with the earliest epoch: placements
    /// of upstream are newer.
    fn adopted_identity(&self, copy: &ObservedObject, former: &Uid) -> Option<String> {
        let identity = CopyIdentity::of(&copy.object).filter(|identity| identity.physical == *former)?;
        let (physical, syncer_epoch) = (self.config.uid.clone(), self.config.syncer_epoch);
        serde_json::to_string(&CopyIdentity { physical, syncer_epoch, epoch: 0, ..identity }).ok()
    }

    /// Changes metadata of exactly the object that was read. If it is gone or has changed since, it is read again.
    async fn merge_on(
        &self,
        session: &Session,
        path: &str,
        read: &ObservedObject,
        mut metadata: serde_json::Value,
    ) -> Result<(), SyncError> {
        for field in ["uid", "resourceVersion"] {
            metadata[field] = object::meta_text(&read.object, field).into();
        }
        match session.api.merge_patch(path, &json!({"metadata": metadata})).await {
            Err(error) if !error.is_absent(object::name(&read.object)) => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn delete_left_behind(&self, session: &Session, name: &str, live: &ObservedObject) -> Result<(), SyncError> {
        let deletion = CopyDeletion {
            uid: live.uid().to_owned(),
            resource_version: object::meta_text(&live.object, "resourceVersion").to_owned(),
            proof: Proof::Tombstone,
            grace: None,
        };
        match session.api.delete(&ServedResource::namespaces().path(None, Some(name)), &deletion, "Background").await {
            Err(error) if !error.is_absent(name) => Err(error.into()),
            Ok(_) | Err(_) => {
                tracing::info!(cluster = %self.config.name, namespace = name, "copies of a deleted registration were deleted");
                Ok(())
            }
        }
    }
}
