//! Copies left by registrations of this physical cluster that are gone: a `PhysicalCluster` that was removed by force, and came back
//! under a new one. Its copies may still run, while upstream runs them elsewhere. So they are counted, and taken over or deleted once
//! somebody orders it: nothing of it happens by itself.

use std::{collections::BTreeMap, time::Duration};

use portolan_types::{Uid, annotations, object, placement::CopyIdentity, work::Outcome};
use serde_json::json;

use super::{SyncError, Worker, mirror::Observed, session::Session};
use crate::{
    client::Served,
    naming::NamespaceIdentity,
    plan::{Deletion, Proof},
};

/// Time between two looks: other registrations may go later.
const CHECK: Duration = Duration::from_secs(60);

/// Order of an administrator about what is left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBehindOrder {
    /// Take the copies over: those that upstream places here go on, and the others go as any copy that nothing accounts for.
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
    /// Counts what is left behind, and does what was ordered about it.
    pub(super) async fn reconcile_left_behind(&self) -> Result<Outcome, SyncError> {
        let session = self.session()?;
        let resources = session.all_served().into_iter().map(|served| served.resource);
        for resource in resources.chain([Served::namespaces().resource]) {
            if !session.mirror.is_synced(&resource) {
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
            tracing::warn!(cluster = %self.config.name, namespaces, "copies of a registration that is gone are there");
        }
        self.state().left_behind = left;
        Ok(Outcome::CheckAgainIn(CHECK))
    }

    /// Namespaces of this control plane with copies in them whose `PhysicalCluster` is gone.
    async fn namespaces_left_behind(
        &self,
        session: &Session,
    ) -> Result<Vec<(String, NamespaceIdentity, std::sync::Arc<Observed>)>, SyncError> {
        let mut found = Vec::new();
        for observed in session.mirror.all(&Served::namespaces().resource, None) {
            let Some(identity) = NamespaceIdentity::of(&observed.object) else { continue };
            let is_ours = identity.plane.as_deref() == self.upstream.plane();
            if !is_ours || identity.physical == self.config.uid || object::is_deleting(&observed.object) {
                continue;
            }
            let name = object::name(&observed.object).to_owned();
            let has_copies = session.mirror.is_used(&name, super::namespaces::is_no_content);
            if has_copies && !self.is_registered(&identity.physical).await? {
                found.push((name, identity, observed));
            }
        }
        Ok(found)
    }

    /// Makes the copies in a namespace this registration's, then the namespace: a try that fails goes on with the next one.
    async fn adopt_left_behind(
        &self,
        session: &Session,
        name: &str,
        identity: &NamespaceIdentity,
        live: &Observed,
    ) -> Result<(), SyncError> {
        for served in session.all_served() {
            for copy in session.mirror.all(&served.resource, Some(name)) {
                if let Some(own) = self.taken_over(&copy, &identity.physical) {
                    let path = served.path(Some(name), Some(object::name(&copy.object)));
                    let annotation = json!({(annotations::DOWN_IDENTITY): own});
                    self.merge_on(session, &path, &copy, json!({"annotations": annotation})).await?;
                }
            }
        }
        let wanted = NamespaceIdentity { physical: self.config.uid.clone(), ..identity.clone() };
        let path = Served::namespaces().path(None, Some(name));
        self.merge_on(session, &path, live, wanted.to_metadata()).await?;
        tracing::info!(cluster = %self.config.name, namespace = name, "copies of a registration that is gone were taken over");
        self.enqueue_everything();
        Ok(())
    }

    /// The identity of a copy of the registration `former` under this one, as of the earliest stay: what upstream places here is newer.
    fn taken_over(&self, copy: &Observed, former: &Uid) -> Option<String> {
        let identity = CopyIdentity::of(&copy.object).filter(|identity| identity.physical == *former)?;
        let (physical, syncer_epoch) = (self.config.uid.clone(), self.config.syncer_epoch);
        serde_json::to_string(&CopyIdentity { physical, syncer_epoch, epoch: 0, ..identity }).ok()
    }

    /// Changes metadata of exactly what was read. What is gone, or has changed since, is looked at again.
    async fn merge_on(
        &self,
        session: &Session,
        path: &str,
        read: &Observed,
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

    async fn delete_left_behind(&self, session: &Session, name: &str, live: &Observed) -> Result<(), SyncError> {
        let deletion = Deletion {
            uid: live.uid().to_owned(),
            resource_version: object::meta_text(&live.object, "resourceVersion").to_owned(),
            proof: Proof::Tombstone,
            grace: None,
        };
        match session.api.delete(&Served::namespaces().path(None, Some(name)), &deletion, "Background").await {
            Err(error) if !error.is_absent(name) => Err(error.into()),
            Ok(_) | Err(_) => {
                tracing::info!(cluster = %self.config.name, namespace = name, "what a registration that is gone left was deleted");
                Ok(())
            }
        }
    }
}
