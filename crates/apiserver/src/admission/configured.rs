//! What a logical cluster has configured for admission: kept in memory for those that are active, read when it is needed.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_store::{Change, Damage, Damaged, DynStore, Event, RangeRequest, RangeScope, StoredObject, WatchScope};
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, ResourceVersion, Status,
    object::{self, Object},
};
use serde_json::Value;

use crate::{
    errors::{corrupt, status_for},
    follow::{Follower, follow},
};

use super::{
    policies::{Policy, policies_of, policy_name},
    webhooks::{Webhook, webhooks_of},
};

/// Logical clusters that are known to have nothing configured.
const MAX_PLAIN: usize = 16_384;
/// Logical clusters whose configuration is kept in memory.
const MAX_KEPT: usize = 1024;
/// Bytes of what they have stored for it, in all, and in one of them: more than that is read again with each request.
const MAX_BYTES: usize = 32 << 20;
const MAX_OWN_BYTES: usize = MAX_BYTES / 8;

/// Group and name of a resource.
pub(super) type Resource = (&'static str, &'static str);

const QUOTAS: Resource = ("", "resourcequotas");
pub(super) const MUTATING: Resource = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
pub(super) const VALIDATING: Resource = ("admissionregistration.k8s.io", "validatingwebhookconfigurations");
/// The policies, and what binds them.
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

/// What one logical cluster has configured.
#[derive(Default)]
pub(crate) struct Configuration {
    /// What it was read from.
    bytes: usize,
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
    /// What of all that cannot be read, but for policies that nothing binds. Whoever decides by it refuses what it may be about.
    damaged: Vec<(Resource, Damaged)>,
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
            && self.damaged.is_empty()
    }

    /// The objects of a resource that cannot be read.
    pub(super) fn damaged(&self, resource: Resource) -> impl Iterator<Item = &Damaged> {
        self.damaged.iter().filter(move |(of, _)| *of == resource).map(|(_, found)| found)
    }

    /// For those whom any object of these resources may ask for anything.
    ///
    /// # Errors
    /// 500 with the name of one that cannot be read.
    pub(super) fn check_readable(&self, resources: &[Resource]) -> Result<(), Status> {
        match resources.iter().find_map(|resource| self.damaged(*resource).next()) {
            Some(found) => Err(corrupt(&found.key, found.why)),
            None => Ok(()),
        }
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
    /// Of those others.
    bytes: usize,
    /// Counts invalidations: what was read before one must not be kept after it.
    epoch: u64,
    /// How many of the resources are followed. Nothing is kept unless all are: it could be outdated for ever.
    followed: usize,
}

impl Kept {
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

    fn keep(&mut self, cluster: LogicalClusterId, read: &Arc<Configuration>) {
        // Of what cannot be read no event tells that it can be again: it is looked at with each request.
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

impl Configured {
    /// Over a store.
    pub(crate) fn new(store: DynStore) -> Self {
        Self { store, kept: Mutex::default() }
    }

    /// Bytes of what is kept.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().bytes
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
        self.kept.lock().forget(cluster);
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
        let mut reading = Reading { store: &self.store, cluster, bytes: 0, damaged: Vec::new() };
        Ok(Configuration {
            with_quotas: reading.with_quotas().await?,
            limits: reading.limits().await?,
            priorities: reading.trees(PRIORITIES).await?,
            mutating: reading.webhooks(MUTATING).await?,
            validating: reading.webhooks(VALIDATING).await?,
            mutating_policies: reading.policies(MUTATING_POLICIES).await?,
            validating_policies: reading.policies(VALIDATING_POLICIES).await?,
            bytes: reading.bytes,
            damaged: reading.damaged,
        })
    }
}

/// The configuration of a logical cluster, while it is read.
struct Reading<'a> {
    store: &'a DynStore,
    cluster: LogicalClusterId,
    bytes: usize,
    damaged: Vec<(Resource, Damaged)>,
}

impl Reading<'_> {
    /// The namespaces of quotas. Who charges those reads them then, also what cannot be read.
    async fn with_quotas(&mut self) -> Result<HashSet<String>, Status> {
        let mut all = HashSet::new();
        let mut quotas = self.slices(QUOTAS);
        while let Some(slice) = self.next(QUOTAS, &mut quotas).await? {
            all.extend(slice.iter().filter_map(|quota| quota.key.namespace()).map(ToString::to_string));
        }
        let damaged = self.damaged.iter().filter(|(of, _)| *of == QUOTAS).map(|(_, found)| &found.key);
        all.extend(damaged.filter_map(|key| key.namespace()).map(ToString::to_string));
        Ok(all)
    }

    async fn limits(&mut self) -> Result<HashMap<String, Vec<Value>>, Status> {
        let mut limits: HashMap<String, Vec<Value>> = HashMap::new();
        for range in self.trees(LIMITS).await? {
            limits.entry(object::namespace(&range).to_owned()).or_default().push(range);
        }
        Ok(limits)
    }

    /// By the names of their configurations, as they are stored.
    async fn webhooks(&mut self, resource: Resource) -> Result<Vec<Webhook>, Status> {
        Ok(self.trees(resource).await?.iter().flat_map(webhooks_of).collect())
    }

    /// The policies that have bindings.
    async fn policies(&mut self, [policies, bindings]: [Resource; 2]) -> Result<Vec<Policy>, Status> {
        let before = self.damaged.len();
        let readable = self.trees(bindings).await?;
        let any_may_be_bound = self.damaged.len() > before;
        if readable.is_empty() && !any_may_be_bound {
            return Ok(Vec::new());
        }
        let trees = self.trees(policies).await?;
        let is_bound = |name: &str| any_may_be_bound || readable.iter().any(|binding| policy_name(binding) == name);
        // What of a policy is damaged, its name is not, unless its key is.
        self.damaged.retain(|(of, found)| *of != policies || found.why == Damage::Key || is_bound(&found.key.name));
        if trees.is_empty() && !self.damaged.iter().any(|(of, _)| *of == policies) {
            self.damaged.retain(|(of, _)| *of != bindings);
        }
        Ok(policies_of(&trees, &readable))
    }

    async fn trees(&mut self, resource: Resource) -> Result<Vec<Value>, Status> {
        let mut trees = Vec::new();
        let mut slices = self.slices(resource);
        while let Some(slice) = self.next(resource, &mut slices).await? {
            for stored in slice {
                let Ok(mut tree) = stored.record.to_value(stored.revision) else {
                    self.damaged.push((resource, Damaged { key: stored.key, why: Damage::Body }));
                    continue;
                };
                self.bytes += stored.record.body().len().saturating_sub(reduce(resource, &mut tree));
                trees.push(tree);
            }
        }
        Ok(trees)
    }

    fn slices(&self, (group, resource): Resource) -> Option<RangeRequest> {
        let scope = RangeScope::Cluster(self.cluster, GroupResource::new(group, resource));
        Some(RangeRequest::slices(scope).past_damage())
    }

    /// The objects of the next slice; `None` behind the last.
    async fn next(
        &mut self,
        resource: Resource,
        slice: &mut Option<RangeRequest>,
    ) -> Result<Option<Vec<StoredObject>>, Status> {
        let Some(request) = slice.take() else { return Ok(None) };
        let page = self.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        *slice = request.next(&page);
        self.damaged.extend(page.damaged.into_iter().map(|found| (resource, found)));
        Ok(Some(page.objects))
    }
}

/// Takes out of an object what nobody looks at here, a status and what a class says of itself; how many bytes these were.
fn reduce(resource: Resource, tree: &mut Value) -> usize {
    let kept: Option<&[&str]> = match resource {
        PRIORITIES => Some(&["globalDefault", "metadata", "preemptionPolicy", "value"]),
        LIMITS => Some(&["metadata", "spec"]),
        _ => None,
    };
    let Some(fields) = tree.as_object_mut() else { return 0 };
    let mut gone = Vec::new();
    let is_kept = |name: &str| kept.map_or(name != "status", |kept| kept.contains(&name));
    take(fields, is_kept, &mut gone);
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| kept.is_some()) {
        take(metadata, |name| matches!(name, "name" | "namespace"), &mut gone);
    }
    gone.iter().map(|value| value.to_string().len()).sum()
}

fn take(fields: &mut Object, is_kept: impl Fn(&str) -> bool, gone: &mut Vec<Value>) {
    fields.retain(|name, value| {
        let keep = is_kept(name);
        if !keep {
            gone.push(value.take());
        }
        keep
    });
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

#[cfg(test)]
mod tests {
    use portolan_store::{Engine, Expect, StoreConfig, Transaction};
    use portolan_types::{ObjectKey, Record, Seams};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn what_was_damaged_is_known_as_mended_at_once() {
        const MARK: &str = "nobody will read this";
        let folder = tempfile::tempdir().unwrap();
        let config = || StoreConfig::new(Engine::Redb, Some(folder.path().to_owned()));
        let (cluster, namespace) = (LogicalClusterId::ROOT, "default".parse().unwrap());
        let key = ObjectKey::namespaced(cluster, GroupResource::new("", LIMITS.1), namespace, "l".parse().unwrap());
        let range = Record::of(&json!({"metadata": {"name": "l", "namespace": "default", "annotations": {"a": MARK}}}));
        let store = portolan_store::open(config(), Seams::system()).unwrap();
        store.commit(Transaction::one(key.clone(), Expect::Absent, Some(range))).await.unwrap();
        store.close().await;
        drop(store);
        assert!(portolan_store::testing::damage(folder.path(), MARK).unwrap() > 0);

        let store = portolan_store::open(config(), Seams::system()).unwrap();
        let configured = Configured::new(store.clone());
        FOLLOWED.iter().for_each(|_| configured.following());
        let damaged = async || configured.of(cluster).await.unwrap().map_or(0, |read| read.damaged(LIMITS).count());
        assert_eq!(damaged().await, 1);
        // Nobody tells of this one.
        store.commit(Transaction::one(key, Expect::Damaged, None)).await.unwrap();
        assert_eq!(damaged().await, 0);
        store.close().await;
    }

    #[test]
    fn of_classes_and_limits_is_kept_what_admission_looks_at() {
        let metadata = json!({"name": "a", "annotations": {"why": "x".repeat(10_000)}});
        let class = json!({"metadata": metadata, "value": 7, "description": "y".repeat(10_000)});
        let range = json!({"metadata": metadata, "spec": {"limits": []}, "kind": "LimitRange"});
        let hook = json!({"metadata": metadata, "webhooks": [], "status": {"a": 1}});
        for (resource, mut tree, expected, least) in [
            (PRIORITIES, class, json!({"metadata": {"name": "a"}, "value": 7}), 20_000),
            (LIMITS, range, json!({"metadata": {"name": "a"}, "spec": {"limits": []}}), 10_000),
            (MUTATING, hook, json!({"metadata": metadata, "webhooks": []}), 7),
        ] {
            let gone = reduce(resource, &mut tree);
            assert_eq!(tree, expected);
            assert!((least..least + 100).contains(&gone), "{resource:?}: {gone}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes() {
        let configuration = |bytes| {
            Arc::new(Configuration { bytes, with_quotas: HashSet::from(["a".to_owned()]), ..Configuration::default() })
        };
        let mut kept = Kept::default();
        for n in 1..100 {
            kept.keep(LogicalClusterId::new(n), &configuration(MAX_OWN_BYTES));
            kept.keep(LogicalClusterId::new(n), &configuration(MAX_OWN_BYTES));
            assert!(kept.bytes <= MAX_BYTES);
            assert_eq!(kept.bytes, kept.others.len() * MAX_OWN_BYTES);
        }
        kept.keep(LogicalClusterId::new(200), &configuration(MAX_OWN_BYTES + 1));
        assert!(!kept.others.contains_key(&LogicalClusterId::new(200)), "one does not drive all others out");
        let all: Vec<LogicalClusterId> = kept.others.keys().copied().collect();
        all.into_iter().for_each(|cluster| kept.forget(cluster));
        assert_eq!(kept.bytes, 0);
    }
}
