//! Upkeep of the index of subjects. A task reads the bindings of all logical clusters after the start, and those of one
//! after a write; until then every logical cluster, or that one, is a candidate for all users.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portolan_store::{RangeRequest, RangeScope};
use portolan_strategy::rbac::MASTERS;
use portolan_types::{GroupResource, LogicalClusterId, Status};
use tokio::sync::Notify;

use crate::{
    authz::{AuthorizationSubject, snapshot::own_subjects},
    errors::{damaged, status_for},
    requester::{self, CLUSTER_NAME_EXTRA},
};

use super::{
    BINDINGS, GROUP, RbacAuthorizer,
    effective::has_warrants,
    subjects::{SubjectHash, SubjectIndex, hash_of, hashes_of_user},
};

/// Pause after a failed read.
const PAUSE: Duration = Duration::from_secs(1);

/// Index of subjects, and the signal that it is to be read again.
#[derive(Default)]
pub(super) struct MemberIndex {
    index: Mutex<SubjectIndex>,
    outdated: Notify,
}

impl MemberIndex {
    /// Notes a write of a binding.
    pub(super) fn change(&self, cluster: LogicalClusterId) {
        self.index.lock().change(cluster);
        self.outdated.notify_one();
    }

    /// Forgets all; `is_followed` is true if all writes are followed from here on, so that it can be read.
    pub(super) fn reset(&self, is_followed: bool) {
        self.index.lock().reset(is_followed);
        self.outdated.notify_one();
    }
}

impl RbacAuthorizer {
    /// Keeps the index of subjects current, forever.
    pub(crate) async fn keep_index(self: Arc<Self>) {
        loop {
            self.index.outdated.notified().await;
            while let Err(error) = self.update_index().await {
                tracing::warn!(%error, "the index of subjects cannot be read, retrying");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn update_index(&self) -> Result<(), Status> {
        let wanted = self.index.index.lock().wanted_load();
        if let Some(generation) = wanted {
            let all = self.all_subjects().await?;
            self.index.index.lock().load(generation, all);
        }
        loop {
            let next = self.index.index.lock().next_changed();
            let Some((cluster, version)) = next else { return Ok(()) };
            let subjects = self.subjects_in(cluster).await?;
            self.index.index.lock().settle(cluster, version, subjects);
        }
    }

    async fn subjects_in(&self, cluster: LogicalClusterId) -> Result<Vec<SubjectHash>, Status> {
        let mut subjects = Vec::new();
        for resource in BINDINGS {
            let bindings = self.read(cluster, resource, None).await?.objects;
            subjects.extend(bindings.iter().flat_map(own_subjects).map(|subject| hash_of(&subject)));
        }
        Ok(subjects)
    }

    /// Reads the subjects of all logical clusters, a slice of bindings at a time.
    async fn all_subjects(&self) -> Result<HashMap<LogicalClusterId, Vec<SubjectHash>>, Status> {
        let mut all: HashMap<LogicalClusterId, Vec<SubjectHash>> = HashMap::new();
        for resource in BINDINGS {
            let scope = RangeScope::AllClusters(GroupResource::new(GROUP, resource));
            let mut next = Some(RangeRequest::slices(scope).skip_damaged());
            while let Some(slice) = next {
                let page = self.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
                next = slice.next(&page);
                for object in page.objects {
                    let value = object.record.to_value(object.revision).map_err(|e| damaged(&object.key, &e))?;
                    let subjects = own_subjects(&value);
                    all.entry(object.key.cluster).or_default().extend(subjects.iter().map(hash_of));
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(all)
    }

    /// Returns the first logical clusters after `after`, at most `limit` and in order, in which an identity of the
    /// whole control plane may have rights; `None` if any may be one. The authorizer decides on each.
    pub(crate) fn candidates(
        &self,
        subject: &impl AuthorizationSubject,
        after: LogicalClusterId,
        limit: usize,
    ) -> Option<Vec<LogicalClusterId>> {
        let user = subject.user();
        let knows_bindings_only = self.chain.is_none()
            && !subject.is_impersonated()
            && !user.is_in(MASTERS)
            && !requester::is_account(user)
            && !has_warrants(user)
            && !user.extra.contains_key(CLUSTER_NAME_EXTRA);
        if !knows_bindings_only {
            return None;
        }
        let subjects: Vec<SubjectHash> = hashes_of_user(user).collect();
        let mut found = self.index.index.lock().candidates(&subjects, after, limit)?;
        // All authenticated users know root.
        if after < LogicalClusterId::ROOT && found.first() != Some(&LogicalClusterId::ROOT) {
            found.insert(0, LogicalClusterId::ROOT);
            found.truncate(limit);
        }
        Some(found)
    }
}
