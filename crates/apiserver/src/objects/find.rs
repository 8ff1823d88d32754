//! One object: stored, shared, or computed.

use std::sync::Arc;

use portolan_store::{Expect, StoredObject};
use portolan_types::{ObjectKey, Status};

use crate::{
    authz::{SharedObjects, shared_objects},
    conversion::{ConversionContext, is_in},
    errors::status_for,
    reach::{ClusterReach, ReachContext},
    request::{RequestContext, ResourceTarget, computed::computed_objects},
    storage::StorageContext,
};

/// Object with the precondition for a write of it.
#[derive(Clone)]
pub(crate) struct FoundObject {
    pub(crate) stored: StoredObject,
    pub(crate) expect: Expect,
    /// True if it is stored in another version than the current storage version.
    pub(crate) is_outdated: bool,
}

impl FoundObject {
    /// Returns an object that is stored in the current storage version.
    pub(crate) fn current(stored: StoredObject, expect: Expect) -> Self {
        Self { stored, expect, is_outdated: false }
    }
}

/// Context of reads: stored objects in the requested version, shared and computed ones.
pub(crate) struct ReadContext {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) reach: ReachContext,
    pub(crate) shared: SharedObjects,
    /// URL at which clients reach the server.
    pub(crate) url: String,
    pub(crate) conversion: Arc<ConversionContext>,
    /// Key that signs `continue` tokens.
    pub(crate) continue_key: Vec<u8>,
}

impl ReadContext {
    /// Returns the latest state of an object, or `None`.
    pub(crate) async fn find_object(
        &self,
        call: &RequestContext,
        target: &ResourceTarget,
        key: &ObjectKey,
    ) -> Result<Option<FoundObject>, Status> {
        if let Some(own) = computed_objects(&call.cluster, target, Some(&key.name), &self.url) {
            return Ok(own
                .into_iter()
                .next()
                .map(|stored| FoundObject::current(stored.clone(), Expect::At(stored.revision))));
        }
        // Objects of the logical cluster hide inherited ones.
        if let Some(reach) = ClusterReach::of(&self.reach, &call.cluster, target).await? {
            let shown = reach.get(&self.storage, key).await?;
            return Ok(shown.map(|stored| FoundObject::current(stored.clone(), Expect::At(stored.revision))));
        }
        let stored = self.storage.store.get(key).await.map_err(|e| status_for(&e))?;
        if let Some(stored) = stored {
            return Box::pin(self.understood(target, stored)).await;
        }
        if !shared_objects::is_shared(key) {
            return Ok(None);
        }
        // Boxed, because few requests are for shared objects.
        let shared = Box::pin(self.shared.one(&call.cluster, key)).await?;
        Ok(shared.map(|stored| FoundObject::current(stored, Expect::Absent)))
    }

    /// Converts a stored object to the requested version.
    async fn understood(&self, target: &ResourceTarget, stored: StoredObject) -> Result<Option<FoundObject>, Status> {
        let expect = Expect::At(stored.revision);
        if target.table.conversion().is_none() {
            return Ok(Some(FoundObject::current(stored, expect)));
        }
        let storage = &target.kind.storage;
        let is_outdated = !is_in(&stored.record, &format!("{}/{}", storage.group, storage.version));
        let stored = self.conversion.in_version(target, vec![stored]).await?.pop();
        Ok(stored.map(|stored| FoundObject { stored, expect, is_outdated }))
    }

    /// Returns the latest state of the object that the request names.
    ///
    /// # Errors
    /// 404 when it does not exist.
    pub(crate) async fn existing_object(
        &self,
        call: &Arc<RequestContext>,
        target: &ResourceTarget,
    ) -> Result<(ObjectKey, FoundObject), Status> {
        let key = target.key(call, &call.captures.name)?;
        let found = self.find_object(call, target, &key).await?;
        let found = found.ok_or_else(|| Status::not_found(&target.not_found_resource(), &key.name))?;
        Ok((key, found))
    }
}
