//! Cache of admission configuration: kept in memory for active logical clusters, read on demand for others.

mod reader;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_store::{ChangeKind, DamagedObject, DynStore, Event, WatchScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ResourceVersion, Status};
use serde_json::Value;

use crate::{
    errors::corrupt,
    sync::{CommitListener, Follower, follow},
};

use super::{policies::AdmissionPolicy, webhooks::WebhookConfig};
use reader::ConfigurationReader;

/// Limit of logical clusters that are remembered to have nothing configured.
const MAX_PLAIN: usize = 16_384;
/// Limit of logical clusters whose configuration is cached.
const MAX_KEPT: usize = 1024;
/// Limits of cached bytes, as stored: in all, and for one logical cluster. Larger configurations are read for each
/// request.
const MAX_BYTES: usize = 32 << 20;
const MAX_OWN_BYTES: usize = MAX_BYTES / 8;

/// Group and name of a resource.
pub(super) type Resource = (&'static str, &'static str);

const QUOTAS: Resource = ("", "resourcequotas");
pub(super) const MUTATING: Resource = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
pub(super) const VALIDATING: Resource = ("admissionregistration.k8s.io", "validatingwebhookconfigurations");
// Policies and their bindings.
pub(super) const VALIDATING_POLICIES: [Resource; 2] = [
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
];
pub(super) const MUTATING_POLICIES: [Resource; 2] = [
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
];
pub(super) const LIMITS: Resource = ("", "limitranges");
pub(super) const PRIORITIES: Resource = ("scheduling.k8s.io", "priorityclasses");
const FOLLOWED: [Resource; 9] = [
    QUOTAS,
    LIMITS,
    PRIORITIES,
    MUTATING,
    VALIDATING,
    VALIDATING_POLICIES[0],
    VALIDATING_POLICIES[1],
    MUTATING_POLICIES[0],
    MUTATING_POLICIES[1],
];

/// Admission configuration of one logical cluster.
#[derive(Default)]
pub(crate) struct AdmissionConfiguration {
    /// Stored bytes that it was read from.
    bytes: usize,
    /// Namespaces that have quotas.
    pub(super) with_quotas: HashSet<String>,
    /// LimitRanges by namespace.
    pub(super) limits: HashMap<String, Vec<Value>>,
    /// PriorityClasses, ordered by name.
    pub(super) priorities: Vec<Value>,
    /// Webhooks in call order.
    pub(super) mutating: Vec<WebhookConfig>,
    pub(super) validating: Vec<WebhookConfig>,
    /// Bound policies, ordered by name.
    pub(super) mutating_policies: Vec<AdmissionPolicy>,
    pub(super) validating_policies: Vec<AdmissionPolicy>,
    /// Damaged objects, except unbound policies. Decisions that depend on them are refused.
    damaged: Vec<(Resource, DamagedObject)>,
}

impl AdmissionConfiguration {
    fn is_plain(&self) -> bool {
        self.with_quotas.is_empty()
            && self.limits.is_empty()
            && self.priorities.is_empty()
            && self.mutating.is_empty()
            && self.validating.is_empty()
            && self.mutating_policies.is_empty()
            && self.validating_policies.is_empty()
            && self.damaged.is_empty()
    }

    /// Returns the damaged objects of a resource.
    pub(super) fn damaged(&self, resource: Resource) -> impl Iterator<Item = &DamagedObject> {
        self.damaged.iter().filter(move |(of, _)| *of == resource).map(|(_, found)| found)
    }

    /// Checks resources whose objects may apply to any request.
    ///
    /// # Errors
    /// 500 with the name of a damaged object.
    pub(super) fn check_readable(&self, resources: &[Resource]) -> Result<(), Status> {
        match resources.iter().find_map(|resource| self.damaged(*resource).next()) {
            Some(found) => Err(corrupt(&found.key, found.why)),
            None => Ok(()),
        }
    }
}

/// Cache over all logical clusters, with one follower per resource and none per logical cluster.
pub(crate) struct AdmissionConfigCache {
    store: DynStore,
    kept: Mutex<CachedConfigurations>,
}

#[derive(Default)]
struct CachedConfigurations {
    plain: HashSet<LogicalClusterId>,
    others: HashMap<LogicalClusterId, Arc<AdmissionConfiguration>>,
    /// Bytes of cached configurations.
    bytes: usize,
    /// Counter of invalidations. A configuration read before one is not cached after it.
    epoch: u64,
    /// Number of followed resources. Nothing is cached unless all are followed, since it could become stale.
    followed: usize,
}

impl CachedConfigurations {
    fn forget_all(&mut self) {
        self.epoch += 1;
        self.plain.clear();
        self.drop_others();
    }

    fn drop_others(&mut self) {
        self.others.clear();
        self.bytes = 0;
    }

    fn forget(&mut self, cluster: LogicalClusterId) {
        self.epoch += 1;
        self.plain.remove(&cluster);
        if let Some(known) = self.others.remove(&cluster) {
            self.bytes -= known.bytes;
        }
    }

    fn insert(&mut self, cluster: LogicalClusterId, read: &Arc<AdmissionConfiguration>) {
        // No event reports that a damaged object was repaired, so a configuration with one is read for each request.
        if !read.damaged.is_empty() {
            return;
        }
        if read.is_plain() {
            if self.plain.len() >= MAX_PLAIN {
                self.plain.clear();
            }
            self.plain.insert(cluster);
        } else if read.bytes <= MAX_OWN_BYTES {
            if self.others.len() >= MAX_KEPT || self.bytes + read.bytes > MAX_BYTES {
                self.drop_others();
            }
            self.bytes += read.bytes;
            if let Some(before) = self.others.insert(cluster, read.clone()) {
                self.bytes -= before.bytes;
            }
        }
    }
}

impl CommitListener for AdmissionConfigCache {
    fn depends_on(&self, resource: &GroupResource) -> bool {
        FOLLOWED.contains(&(&*resource.group, &*resource.resource))
    }

    fn evict(&self, cluster: LogicalClusterId) {
        self.kept.lock().forget(cluster);
    }
}

impl AdmissionConfigCache {
    /// Creates an empty cache over a store.
    pub(crate) fn new(store: DynStore) -> Self {
        Self { store, kept: Mutex::default() }
    }

    /// Returns the number of cached bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// Returns the resources that the configuration is read from.
    pub(crate) fn resources() -> impl Iterator<Item = GroupResource> {
        FOLLOWED.into_iter().map(|(group, resource)| GroupResource::new(group, resource))
    }

    /// Follows the writes of one resource, forever.
    pub(crate) async fn follow(self: Arc<Self>, resource: GroupResource) {
        follow(self.store.clone(), WatchScope::Resource(resource, None), self.clone()).await;
    }

    /// Returns the configuration of a logical cluster; `None` if it has none.
    ///
    /// # Errors
    /// Failure of the store.
    pub(super) async fn of(&self, cluster: LogicalClusterId) -> Result<Option<Arc<AdmissionConfiguration>>, Status> {
        let epoch = {
            let kept = self.kept.lock();
            if kept.plain.contains(&cluster) {
                return Ok(None);
            }
            if let Some(known) = kept.others.get(&cluster) {
                return Ok(Some(known.clone()));
            }
            kept.epoch
        };
        let read = Arc::new(ConfigurationReader::new(&self.store, cluster).read().await?);
        let mut kept = self.kept.lock();
        if kept.epoch == epoch && kept.followed == FOLLOWED.len() {
            kept.insert(cluster, &read);
        }
        Ok((!read.is_plain()).then_some(read))
    }
}

impl Follower for AdmissionConfigCache {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(std::future::ready(Ok(self.store.current())))
    }

    fn following(&self) {
        let mut kept = self.kept.lock();
        // Writes between two watches may have been missed.
        kept.forget_all();
        kept.followed += 1;
    }

    fn take(&self, event: &Event) {
        // Each charge updates a quota; the configuration depends only on its existence.
        let counts_on = event.change == ChangeKind::Updated && &*event.key.resource.resource == QUOTAS.1;
        if !counts_on {
            self.evict(event.key.cluster);
        }
    }

    fn lost(&self) {
        let mut kept = self.kept.lock();
        kept.forget_all();
        kept.followed -= 1;
    }
}
