//! What a logical cluster has configured for admission: kept in memory for those that are active, read when it is needed.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_store::{Change, DynStore, Event, RangeRequest, RangeScope, StoredObject, WatchScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ResourceVersion, Status, object};
use serde_json::Value;

use crate::{
    errors::{damaged, status_for},
    follow::{Follower, follow},
};

use super::{
    policies::{Policy, policies_of},
    webhooks::{Webhook, webhooks_of},
};

/// Logical clusters that are known to have nothing configured.
const MAX_PLAIN: usize = 16_384;
/// Logical clusters whose configuration is kept in memory.
const MAX_KEPT: usize = 1024;
const QUOTAS: (&str, &str) = ("", "resourcequotas");
const MUTATING: (&str, &str) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
const VALIDATING: (&str, &str) = ("admissionregistration.k8s.io", "validatingwebhookconfigurations");
const VALIDATING_POLICIES: [(&str, &str); 2] = [
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
];
const MUTATING_POLICIES: [(&str, &str); 2] = [
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
];
const LIMITS: (&str, &str) = ("", "limitranges");
const PRIORITIES: (&str, &str) = ("scheduling.k8s.io", "priorityclasses");
const FOLLOWED: [(&str, &str); 9] = [
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

/// What one logical cluster has configured.
#[derive(Default)]
pub(crate) struct Configuration {
    /// Namespaces that have quotas.
    pub(super) with_quotas: HashSet<String>,
    /// LimitRanges by their namespaces.
    pub(super) limits: HashMap<String, Vec<Value>>,
    /// PriorityClasses by name.
    pub(super) priorities: Vec<Value>,
    /// In the order in which they are called.
    pub(super) mutating: Vec<Webhook>,
    pub(super) validating: Vec<Webhook>,
    /// By name; those that are bound.
    pub(super) mutating_policies: Vec<Policy>,
    pub(super) validating_policies: Vec<Policy>,
}

impl Configuration {
    fn is_plain(&self) -> bool {
        self.with_quotas.is_empty()
            && self.limits.is_empty()
            && self.priorities.is_empty()
            && self.mutating.is_empty()
            && self.validating.is_empty()
            && self.mutating_policies.is_empty()
            && self.validating_policies.is_empty()
    }
}

/// The configurations of all logical clusters. No task and no watch is any single one's.
pub(crate) struct Configured {
    store: DynStore,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    plain: HashSet<LogicalClusterId>,
    others: HashMap<LogicalClusterId, Arc<Configuration>>,
    /// Counts invalidations: what was read before one must not be kept after it.
    epoch: u64,
    /// How many of the resources are followed. Nothing is kept unless all are: it could be outdated for ever.
    followed: usize,
}

impl Kept {
    fn forget_all(&mut self) {
        self.epoch += 1;
        self.plain.clear();
        self.others.clear();
    }

    fn keep(&mut self, cluster: LogicalClusterId, read: &Arc<Configuration>) {
        if read.is_plain() {
            if self.plain.len() >= MAX_PLAIN {
                self.plain.clear();
            }
            self.plain.insert(cluster);
        } else {
            if self.others.len() >= MAX_KEPT {
                self.others.clear();
            }
            self.others.insert(cluster, read.clone());
        }
    }
}

impl Configured {
    /// Over a store.
    pub(crate) fn new(store: DynStore) -> Self {
        Self { store, kept: Mutex::default() }
    }

    /// The resources that are read here.
    pub(crate) fn resources() -> impl Iterator<Item = GroupResource> {
        FOLLOWED.into_iter().map(|(group, resource)| GroupResource::new(group, resource))
    }

    /// Whether objects of a resource are read here.
    pub(crate) fn follows(resource: &GroupResource) -> bool {
        FOLLOWED.contains(&(&*resource.group, &*resource.resource))
    }

    /// Follows the writes of others to one of the resources, for ever.
    pub(crate) async fn follow(self: Arc<Self>, resource: GroupResource) {
        follow(self.store.clone(), WatchScope::Resource(resource, None), self.clone()).await;
    }

    /// Forgets what is known of a logical cluster, because it was written.
    pub(crate) fn forget(&self, cluster: LogicalClusterId) {
        let mut kept = self.kept.lock();
        kept.epoch += 1;
        kept.plain.remove(&cluster);
        kept.others.remove(&cluster);
    }

    /// What a logical cluster has configured; `None` for nothing.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn of(&self, cluster: LogicalClusterId) -> Result<Option<Arc<Configuration>>, Status> {
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
        let read = Arc::new(self.configuration(cluster).await?);
        let mut kept = self.kept.lock();
        if kept.epoch == epoch && kept.followed == FOLLOWED.len() {
            kept.keep(cluster, &read);
        }
        Ok((!read.is_plain()).then_some(read))
    }

    async fn configuration(&self, cluster: LogicalClusterId) -> Result<Configuration, Status> {
        let quotas = self.read(cluster, QUOTAS).await?;
        Ok(Configuration {
            with_quotas: quotas.iter().filter_map(|quota| quota.key.namespace()).map(ToString::to_string).collect(),
            limits: self.limits(cluster).await?,
            priorities: self.trees(cluster, PRIORITIES).await?,
            mutating: self.webhooks(cluster, MUTATING).await?,
            validating: self.webhooks(cluster, VALIDATING).await?,
            mutating_policies: self.policies(cluster, MUTATING_POLICIES).await?,
            validating_policies: self.policies(cluster, VALIDATING_POLICIES).await?,
        })
    }

    async fn limits(&self, cluster: LogicalClusterId) -> Result<HashMap<String, Vec<Value>>, Status> {
        let mut limits: HashMap<String, Vec<Value>> = HashMap::new();
        for range in self.trees(cluster, LIMITS).await? {
            limits.entry(object::namespace(&range).to_owned()).or_default().push(range);
        }
        Ok(limits)
    }

    /// By the names of their configurations, as they are stored.
    async fn webhooks(&self, cluster: LogicalClusterId, resource: (&str, &str)) -> Result<Vec<Webhook>, Status> {
        Ok(self.trees(cluster, resource).await?.iter().flat_map(webhooks_of).collect())
    }

    /// The policies that have bindings.
    async fn policies(
        &self,
        cluster: LogicalClusterId,
        [policies, bindings]: [(&str, &str); 2],
    ) -> Result<Vec<Policy>, Status> {
        let bindings = self.trees(cluster, bindings).await?;
        match bindings.is_empty() {
            true => Ok(Vec::new()),
            false => Ok(policies_of(&self.trees(cluster, policies).await?, &bindings)),
        }
    }

    async fn trees(&self, cluster: LogicalClusterId, resource: (&str, &str)) -> Result<Vec<Value>, Status> {
        let tree =
            |stored: &StoredObject| stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e));
        self.read(cluster, resource).await?.iter().map(tree).collect()
    }

    async fn read(
        &self,
        cluster: LogicalClusterId,
        (group, resource): (&str, &str),
    ) -> Result<Vec<StoredObject>, Status> {
        let scope = RangeScope::Cluster(cluster, GroupResource::new(group, resource));
        Ok(self.store.range(RangeRequest::all(scope)).await.map_err(|e| status_for(&e))?.objects)
    }
}

impl Follower for Configured {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(std::future::ready(Ok(self.store.current())))
    }

    fn following(&self) {
        let mut kept = self.kept.lock();
        // Between two watches anything may have been written.
        kept.forget_all();
        kept.followed += 1;
    }

    fn take(&self, event: &Event) {
        // A quota is written with every object that it counts; here matters only whether there is one.
        let counts_on = event.change == Change::Updated && &*event.key.resource.resource == QUOTAS.1;
        if !counts_on {
            self.forget(event.key.cluster);
        }
    }

    fn lost(&self) {
        let mut kept = self.kept.lock();
        kept.forget_all();
        kept.followed -= 1;
    }
}
