//! Downstream namespaces: made as needed, removed when nothing is in them any more.

use std::time::Duration;

use portolan_types::{GroupResource, ObjectKey, object, work::Outcome};
use serde_json::Value;

use super::{SyncError, Worker, mirror::Place, session::Session};
use crate::{
    client::Served,
    naming::NamespaceIdentity,
    plan::{Deletion, Proof},
    rules::{Refusal, is_local},
};

/// What Kubernetes itself puts into a namespace, or leaves there after its objects.
const NOT_CONTENT: [&str; 3] = ["events", "events.events.k8s.io", "endpointslices.discovery.k8s.io"];

/// When to look again at a namespace with something in it that nobody watches: what is foreign there, or is still ending.
const CONTENT_CHECK: Duration = Duration::from_secs(10);

fn is_no_content(resource: &GroupResource) -> bool {
    NOT_CONTENT.contains(&resource.to_string().as_str())
}

fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

fn place_of(name: &str) -> Place {
    Place { resource: namespaces(), namespace: String::new(), name: name.to_owned() }
}

impl Worker {
    /// Makes the namespace of `place` when it is missing.
    ///
    /// A namespace that is there and not ours is never used: that is a refusal.
    pub(super) async fn ensure_namespace(
        &self,
        session: &Session,
        key: &ObjectKey,
        place: &Place,
    ) -> Result<Option<Refusal>, SyncError> {
        let Some(upstream_namespace) = key.namespace() else { return Ok(None) };
        let wanted = NamespaceIdentity {
            cluster: key.cluster.to_string(),
            namespace: upstream_namespace.to_string(),
            physical: self.config.uid.clone(),
        };
        if !session.mirror.is_synced(&namespaces()) {
            return Err(SyncError::NotSynced("namespaces".into()));
        }
        let at = place_of(&place.namespace);
        let live = match session.mirror.get(&at) {
            Some(known) => known.object.clone(),
            None => self.make_namespace(session, &wanted, &at).await?,
        };
        if NamespaceIdentity::of(&live).as_ref() != Some(&wanted) {
            let text = format!("the namespace {} is there and not of this logical cluster", place.namespace);
            return Ok(Some(Refusal::conflict(text)));
        }
        if object::is_deleting(&live) {
            return Err(SyncError::NamespaceEnding);
        }
        Ok(None)
    }

    async fn make_namespace(
        &self,
        session: &Session,
        wanted: &NamespaceIdentity,
        at: &Place,
    ) -> Result<Value, SyncError> {
        let served = Served::namespaces();
        let name = at.name.parse().map_err(|_| SyncError::NotSynced("a namespace without a name".into()))?;
        match session.api.create(&served.path(None, None), &wanted.to_namespace(&name)).await {
            Ok(made) => {
                portolan_types::failpoint!("syncer/namespace-made");
                session.mirror.put(at, made.clone());
                Ok(made)
            }
            Err(error) if error.is_reason("AlreadyExists") => {
                Ok(session.api.get(&served.path(None, Some(&at.name))).await?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a namespace is known to be missing downstream.
    pub(super) fn lacks_namespace(&self, name: &str) -> bool {
        let Ok(session) = self.session() else { return false };
        session.mirror.is_synced(&namespaces()) && session.mirror.get(&place_of(name)).is_none()
    }

    /// Removes a namespace of ours when upstream places nothing in it and nothing, of ours or of others, is left in it.
    pub(super) async fn reconcile_namespace(&self, name: &str) -> Result<Outcome, SyncError> {
        let session = self.session()?;
        let is_synced = self.is_view_synced.load(std::sync::atomic::Ordering::Acquire)
            && session.mirror.is_synced(&namespaces())
            && session.all_served().iter().all(|served| session.mirror.is_synced(&served.resource));
        if !is_synced {
            return Err(SyncError::NotSynced("the objects of a namespace".into()));
        }
        let Some(known) = session.mirror.get(&place_of(name)) else { return Ok(Outcome::Done) };
        let identity = NamespaceIdentity::of(&known.object).filter(|identity| identity.physical == self.config.uid);
        let Some(identity) = identity.filter(|_| !object::is_deleting(&known.object)) else { return Ok(Outcome::Done) };
        if self.is_placed_in(&identity) || session.mirror.is_used(name, is_no_content) {
            return Ok(Outcome::Done); // the end of the last of them comes back here
        }
        // What a debt is about may be of a resource that cannot be read now.
        if self.has_debts(name).await? || self.has_content(&session, name).await? {
            return Ok(Outcome::CheckAgainIn(CONTENT_CHECK));
        }
        let deletion = Deletion {
            uid: known.uid().to_owned(),
            resource_version: object::meta_text(&known.object, "resourceVersion").to_owned(),
            proof: Proof::Tombstone,
            grace: None,
        };
        match session.api.delete(&Served::namespaces().path(None, Some(name)), &deletion, "Background").await {
            Ok(_) => {
                portolan_types::failpoint!("syncer/namespace-deleted");
                tracing::info!(cluster = %self.config.name, namespace = name, "empty namespace deleted");
            }
            Err(error) if error.is_absent(name) || error.code() == 409 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::Done)
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
        Ok(debts.iter().any(|debt| self.place_of_debt(debt).is_ok_and(|place| place.namespace == namespace)))
    }

    /// Asks the physical cluster itself, for all labels: what is not ours must not go with the namespace.
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
