//! The authorizer over roles and bindings in the store.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_machinery::rbac::{self, MASTERS, PolicyRule, User};
use portolan_store::{DynStore, Event, RangeRequest, RangeScope, WatchScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ResourceVersion, Status, object};
use serde_json::Value;

use crate::{
    attributes::Attributes,
    authn::Identity,
    errors::{damaged, status_for},
    follow::{Follower, follow},
};

use super::{Authorizer, ClusterRoles, Verdict, snapshot::OwnObjects};

/// Logical clusters whose roles are kept in memory.
const MAX_KEPT: usize = 1024;
/// Bytes that these take, about, beside the one that has more than a quarter of it.
const MAX_BYTES: usize = 128 << 20;
/// What roles take for each byte that is stored of them, and what those of a logical cluster take at least, about: trees and tables
/// are so much larger than their text.
const GROWTH: usize = 4;
const LEAST: usize = 32 << 10;
/// The API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// Their resources.
pub(crate) const RESOURCES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Decides by the roles and bindings of the logical cluster and the shared table. Members of `system:masters` may do everything.
pub struct RbacAuthorizer {
    store: DynStore,
    kept: Mutex<Kept>,
    /// Held by who reads roles that have more than their share.
    large: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Kept {
    /// Each with the bytes that it takes.
    by_cluster: HashMap<LogicalClusterId, (Arc<ClusterRoles>, usize)>,
    /// Those that have more than their share. Of them only the last one is kept.
    large: HashSet<LogicalClusterId>,
    bytes: usize,
    /// Counts invalidations: what was read before one must not be kept after it.
    epoch: u64,
    /// How many of the resources are followed. Nothing is kept unless all are: it could be outdated for ever.
    followed: usize,
}

impl Kept {
    fn forget_all(&mut self) {
        self.epoch += 1;
        self.drop_all();
    }

    fn drop_all(&mut self) {
        self.by_cluster.clear();
        self.large.clear();
        self.bytes = 0;
    }

    fn get(&self, cluster: LogicalClusterId) -> Option<&Arc<ClusterRoles>> {
        self.by_cluster.get(&cluster).map(|(roles, _)| roles)
    }

    /// That they are large stays known: who writes them all the time has them read by one at a time, too.
    fn remove(&mut self, cluster: LogicalClusterId) {
        self.bytes -= self.by_cluster.remove(&cluster).map_or(0, |(_, bytes)| bytes);
    }

    fn keep(&mut self, cluster: LogicalClusterId, read: &Arc<ClusterRoles>, bytes: usize) {
        self.remove(cluster);
        if bytes > MAX_BYTES / 4 {
            if let Some((other, _)) = self.kept_large() {
                self.remove(other);
            }
            self.large.insert(cluster);
        } else {
            self.large.remove(&cluster);
            self.make_room(bytes);
        }
        self.bytes += bytes;
        self.by_cluster.insert(cluster, (read.clone(), bytes));
    }

    /// Who has most makes room, among those that share it.
    fn make_room(&mut self, bytes: usize) {
        let apart = self.kept_large();
        let (count, taken) = apart.map_or((0, 0), |(_, bytes)| (1, bytes));
        while self.by_cluster.len() - count >= MAX_KEPT || self.bytes - taken + bytes > MAX_BYTES {
            let others = self.by_cluster.iter().filter(|(cluster, _)| !self.large.contains(*cluster));
            let largest = others.max_by_key(|(_, (_, bytes))| *bytes).map(|(cluster, _)| *cluster);
            let Some(largest) = largest else { break };
            self.remove(largest);
        }
    }

    /// The large one that is kept, and its bytes.
    fn kept_large(&self) -> Option<(LogicalClusterId, usize)> {
        self.large.iter().find_map(|cluster| self.by_cluster.get(cluster).map(|(_, bytes)| (*cluster, *bytes)))
    }
}

impl RbacAuthorizer {
    /// Over a store.
    pub fn new(store: DynStore) -> Self {
        Self { store, kept: Mutex::default(), large: tokio::sync::Mutex::default() }
    }

    /// Forgets what is known of a logical cluster, because its roles or bindings were written.
    pub fn forget(&self, cluster: LogicalClusterId) {
        let mut kept = self.kept.lock();
        kept.epoch += 1;
        kept.remove(cluster);
    }

    /// Bytes of what is kept, about.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// Follows the writes of others to one of the resources, for ever.
    pub(crate) async fn follow(self: Arc<Self>, resource: &'static str) {
        let scope = WatchScope::Resource(GroupResource::new(GROUP, resource), None);
        follow(self.store.clone(), scope, self.clone()).await;
    }

    /// The roles and bindings of a logical cluster. Damaged ones grant nothing.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn roles(&self, cluster: LogicalClusterId) -> Result<Arc<ClusterRoles>, Status> {
        let is_large = {
            let kept = self.kept.lock();
            if let Some(known) = kept.get(cluster) {
                return Ok(known.clone());
            }
            kept.large.contains(&cluster)
        };
        // They are read one after the other: who waited for the same ones finds them.
        let _reading = if is_large { Some(self.large.lock().await) } else { None };
        let epoch = {
            let kept = self.kept.lock();
            if let Some(known) = kept.get(cluster) {
                return Ok(known.clone());
            }
            kept.epoch
        };
        let mut stored = 0;
        let [cluster_roles, cluster_role_bindings, roles, role_bindings] = [
            self.read(cluster, RESOURCES[0], &mut stored).await?,
            self.read(cluster, RESOURCES[1], &mut stored).await?,
            self.read(cluster, RESOURCES[2], &mut stored).await?,
            self.read(cluster, RESOURCES[3], &mut stored).await?,
        ];
        let read = ClusterRoles::new(OwnObjects { cluster_roles, cluster_role_bindings, roles, role_bindings });
        let mut kept = self.kept.lock();
        if kept.epoch == epoch && kept.followed == RESOURCES.len() {
            // What is untouched is shared by all.
            kept.keep(cluster, &read, if stored == 0 { 0 } else { LEAST + GROWTH * stored });
        }
        Ok(read)
    }

    /// As [`RbacAuthorizer::roles`], for whoever concludes from a right that is missing that it was taken back.
    ///
    /// # Errors
    /// When the store fails, or one of them is damaged.
    pub(crate) async fn whole_roles(&self, cluster: LogicalClusterId) -> Result<Arc<ClusterRoles>, Status> {
        let roles = self.roles(cluster).await?;
        let known = self.store.known_damage();
        match known.iter().find(|found| found.key.cluster == cluster && *found.key.resource.group == *GROUP) {
            None => Ok(roles),
            Some(found) => Err(Status::internal(found)),
        }
    }

    /// The objects of a resource; `stored` is raised by their bytes.
    async fn read(&self, cluster: LogicalClusterId, resource: &str, stored: &mut usize) -> Result<Vec<Value>, Status> {
        let scope = RangeScope::Cluster(cluster, GroupResource::new(GROUP, resource));
        let (mut next, mut all) = (Some(RangeRequest::slices(scope).past_damage()), Vec::new());
        while let Some(slice) = next {
            let page = self.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
            next = slice.next(&page);
            for object in page.objects {
                *stored += object.record.body().len();
                let mut value = object.record.to_value(object.revision).map_err(|e| damaged(&object.key, &e))?;
                // They grant nothing, and may be most of it.
                for name in ["annotations", "managedFields"] {
                    object::metadata_mut(&mut value).remove(name);
                }
                all.push(value);
            }
        }
        Ok(all)
    }

    /// Whether `user` may do it, by the roles and bindings of a logical cluster.
    pub(crate) fn decide(
        cluster: LogicalClusterId,
        roles: &ClusterRoles,
        user: &User,
        attributes: &Attributes,
    ) -> Verdict {
        if user.is_in(MASTERS) {
            return Verdict::Allowed(String::new());
        }
        match is_member(cluster, roles, user) {
            true => decide_of_member(roles, user, attributes),
            false => Verdict::Denied(String::new()),
        }
    }

    /// Whether an identity may do it. Whom somebody of the logical cluster acts as is no stranger there: for them the shared
    /// bindings count.
    ///
    /// # Errors
    /// When the rules cannot be read.
    pub(crate) async fn authorize_identity(
        &self,
        cluster: LogicalClusterId,
        identity: &Identity,
        attributes: &Attributes,
    ) -> Result<Verdict, Status> {
        match identity.impersonated && !identity.user.is_in(MASTERS) {
            true => Ok(decide_of_member(&*self.roles(cluster).await?, &identity.user, attributes)),
            false => self.ask(cluster, &identity.user, attributes).await,
        }
    }

    /// The rules that an identity holds in a namespace, as [`RbacAuthorizer::authorize_identity`] counts them.
    ///
    /// # Errors
    /// When the rules cannot be read.
    pub(crate) async fn rules_of_identity(
        &self,
        cluster: LogicalClusterId,
        identity: &Identity,
        namespace: &str,
    ) -> Result<Vec<PolicyRule>, Status> {
        match identity.impersonated {
            true => Ok(rbac::rules_for(&*self.roles(cluster).await?, &identity.user, namespace)),
            false => self.held(cluster, &identity.user, namespace).await,
        }
    }

    async fn ask(&self, cluster: LogicalClusterId, user: &User, attributes: &Attributes) -> Result<Verdict, Status> {
        if user.is_in(MASTERS) {
            return Ok(Verdict::Allowed(String::new()));
        }
        Ok(Self::decide(cluster, &*self.roles(cluster).await?, user, attributes))
    }

    async fn held(&self, cluster: LogicalClusterId, user: &User, namespace: &str) -> Result<Vec<PolicyRule>, Status> {
        let roles = self.roles(cluster).await?;
        let counts = user.is_in(MASTERS) || is_member(cluster, &roles, user);
        Ok(if counts { rbac::rules_for(&*roles, user, namespace) } else { Vec::new() })
    }
}

fn decide_of_member(roles: &ClusterRoles, user: &User, attributes: &Attributes) -> Verdict {
    match rbac::authorize(roles, user, attributes.action()) {
        rbac::Verdict::Allowed(why) => Verdict::Allowed(why),
        rbac::Verdict::NoOpinion(missing) => Verdict::Denied(all_of(missing)),
    }
}

/// Several errors as Go shows them: each once, in brackets where there are more than one (`utilerrors.NewAggregate`).
fn all_of(mut missing: Vec<String>) -> String {
    let mut seen = HashSet::new();
    missing.retain(|text| seen.insert(text.clone()));
    match missing.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        several => format!("RBAC: [{}]", several.join(", ")),
    }
}

/// Whether the shared bindings count for a user: in `root`, in the logical cluster of a service account, and wherever an own
/// binding names the user. To all others a logical cluster looks like one that is not there.
fn is_member(cluster: LogicalClusterId, roles: &ClusterRoles, user: &User) -> bool {
    let home = user.extra.get("authentication.kubernetes.io/cluster-name").and_then(|names| names.first());
    cluster == LogicalClusterId::ROOT
        || home.is_some_and(|name| *name == cluster.to_string())
        || user.name.starts_with("system:serviceaccount:")
        || roles.has_member(user)
}

impl Follower for RbacAuthorizer {
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
        self.forget(event.key.cluster);
    }

    fn lost(&self) {
        let mut kept = self.kept.lock();
        kept.forget_all();
        kept.followed -= 1;
    }
}

impl Authorizer for RbacAuthorizer {
    fn authorize<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Verdict, Status>> {
        Box::pin(self.ask(cluster, user, attributes))
    }

    fn rules<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PolicyRule>, Status>> {
        Box::pin(self.held(cluster, user, namespace))
    }
}

#[cfg(test)]
mod bounds {
    use super::*;

    #[test]
    fn roles_are_kept_up_to_a_bound_in_number_and_in_bytes() {
        let (mut kept, roles) = (Kept::default(), ClusterRoles::untouched());
        for (case, count, each) in [("many", 3 * MAX_KEPT, 0), ("large", 100, MAX_BYTES / 10), ("one again", 100, 7)] {
            for n in 0..count as u64 {
                let cluster = LogicalClusterId::new(if case == "one again" { 1 } else { n + 1 });
                kept.keep(cluster, &roles, each);
                assert!(kept.by_cluster.contains_key(&cluster), "{case}: what was asked for last is kept");
                let bytes: usize = kept.by_cluster.values().map(|(_, bytes)| bytes).sum();
                assert_eq!(kept.bytes, bytes, "{case}");
                assert!(bytes <= MAX_BYTES && kept.by_cluster.len() <= MAX_KEPT, "{case}");
            }
        }
        let own = LogicalClusterId::new(1);
        let (others, small) = (kept.by_cluster.len(), kept.bytes);
        for (large, bytes) in [(own, MAX_BYTES / 4 + 1), (LogicalClusterId::new(900_000), MAX_BYTES * 2)] {
            kept.keep(large, &roles, bytes);
            assert!(
                kept.get(large).is_some() && kept.by_cluster.len() + 1 >= others,
                "it does not drive all others out"
            );
            assert!(kept.bytes <= small + bytes, "of such there is one");
        }
        assert!(kept.get(own).is_none() && kept.large.contains(&own), "it is known for what it is");
        kept.remove(own);
        assert!(kept.large.contains(&own), "nor is that forgotten when they are written");
        kept.keep(own, &roles, 7);
        assert!(!kept.large.contains(&own));
        kept.forget_all();
        assert_eq!(kept.bytes, 0);
    }
}
