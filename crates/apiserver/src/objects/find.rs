//! One object: stored, shared, or the logical cluster's own face.

use std::sync::Arc;

use portolan_store::{Expect, StoredObject};
use portolan_types::{ObjectKey, Status};

use crate::{ApiServer, bootstrap, call::Call, call::Target, conversion::is_in, errors::status_for, reach::Reach};

/// An object with what a write of it must expect.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) stored: StoredObject,
    pub(crate) expect: Expect,
    /// It is not stored in the version that it would be stored in now.
    pub(crate) is_outdated: bool,
}

impl Found {
    /// One that is stored as it would be now.
    pub(crate) fn current(stored: StoredObject, expect: Expect) -> Self {
        Self { stored, expect, is_outdated: false }
    }
}

impl ApiServer {
    /// The latest state of an object.
    pub(crate) async fn find(&self, call: &Call, target: &Target, key: &ObjectKey) -> Result<Option<Found>, Status> {
        if let Some(own) = super::own::objects(&call.cluster, target, Some(&key.name)) {
            return Ok(own
                .into_iter()
                .next()
                .map(|stored| Found::current(stored.clone(), Expect::At(stored.revision))));
        }
        // What is stored of a logical cluster's own comes first.
        if let Some(reach) = Reach::of(self, &call.cluster, target).await? {
            let shown = reach.get(self, key).await?;
            return Ok(shown.map(|stored| Found::current(stored.clone(), Expect::At(stored.revision))));
        }
        let stored = self.store.get(key).await.map_err(|e| status_for(&e))?;
        if let Some(stored) = stored {
            return Box::pin(self.understood(target, stored)).await;
        }
        if !bootstrap::is_shared(key) {
            return Ok(None);
        }
        let roles = self.rbac.roles(call.cluster.id).await?;
        let shared = bootstrap::one(self, &call.cluster, key, &roles);
        Ok(shared.map(|stored| Found::current(stored, Expect::Absent)))
    }

    /// A stored object in the version that is asked for.
    async fn understood(&self, target: &Target, stored: StoredObject) -> Result<Option<Found>, Status> {
        let expect = Expect::At(stored.revision);
        if target.table.conversion().is_none() {
            return Ok(Some(Found::current(stored, expect)));
        }
        let storage = &target.kind.storage;
        let is_outdated = !is_in(&stored.record, &format!("{}/{}", storage.group, storage.version));
        let stored = self.in_version(target, vec![stored]).await?.pop();
        Ok(stored.map(|stored| Found { stored, expect, is_outdated }))
    }

    /// The latest state of an object that the request names.
    ///
    /// # Errors
    /// 404 when there is none.
    pub(crate) async fn found(&self, call: &Arc<Call>, target: &Target) -> Result<(ObjectKey, Found), Status> {
        let key = target.key(call, &call.captures.name)?;
        let found = self.find(call, target, &key).await?;
        let found = found.ok_or_else(|| Status::not_found(&target.missing(), &key.name))?;
        Ok((key, found))
    }
}
