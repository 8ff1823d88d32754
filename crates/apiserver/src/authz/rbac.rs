//! The authorizer over roles and bindings in the store.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use portolan_machinery::rbac::{self, MASTERS, PolicyRule, User};
use portolan_store::{DynStore, RangeRequest, RangeScope, WatchScope};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, Status};
use serde_json::Value;

use crate::{
    attributes::Attributes,
    errors::{damaged, status_for},
};

use super::{Authorizer, ClusterRoles, Verdict, snapshot::OwnObjects};

/// Logical clusters whose roles are kept in memory.
const MAX_KEPT: usize = 1024;
/// The API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// Their resources.
pub(crate) const RESOURCES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Decides by the roles and bindings of the logical cluster and the shared table. Members of `system:masters` may do everything.
pub struct RbacAuthorizer {
    store: DynStore,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_cluster: HashMap<LogicalClusterId, Arc<ClusterRoles>>,
    /// Counts invalidations: what was read before one must not be kept after it.
    epoch: u64,
}

impl RbacAuthorizer {
    /// Over a store.
    pub fn new(store: DynStore) -> Self {
        Self { store, kept: Mutex::default() }
    }

    /// Forgets what is known of a logical cluster, because its roles or bindings were written.
    pub fn forget(&self, cluster: LogicalClusterId) {
        let mut kept = self.kept.lock();
        kept.epoch += 1;
        kept.by_cluster.remove(&cluster);
    }

    fn forget_all(&self) {
        let mut kept = self.kept.lock();
        kept.epoch += 1;
        kept.by_cluster.clear();
    }

    /// Follows the writes of others to one of the resources. Ends when the store does.
    pub async fn follow(self: Arc<Self>, resource: &'static str) {
        let scope = WatchScope::Resource(GroupResource::new(GROUP, resource), None);
        while let Ok(mut events) = self.store.watch(scope.clone(), None).await {
            // Between two watches anything may have been written.
            self.forget_all();
            while let Ok(batch) = events.next().await {
                batch.events.iter().for_each(|event| self.forget(event.key.cluster));
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    /// The roles and bindings of a logical cluster.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn roles(&self, cluster: LogicalClusterId) -> Result<Arc<ClusterRoles>, Status> {
        let epoch = {
            let kept = self.kept.lock();
            if let Some(known) = kept.by_cluster.get(&cluster) {
                return Ok(known.clone());
            }
            kept.epoch
        };
        let [cluster_roles, cluster_role_bindings, roles, role_bindings] = [
            self.read(cluster, RESOURCES[0]).await?,
            self.read(cluster, RESOURCES[1]).await?,
            self.read(cluster, RESOURCES[2]).await?,
            self.read(cluster, RESOURCES[3]).await?,
        ];
        let read = ClusterRoles::new(OwnObjects { cluster_roles, cluster_role_bindings, roles, role_bindings });
        let mut kept = self.kept.lock();
        if kept.epoch == epoch {
            if kept.by_cluster.len() >= MAX_KEPT {
                kept.by_cluster.clear();
            }
            kept.by_cluster.insert(cluster, read.clone());
        }
        Ok(read)
    }

    async fn read(&self, cluster: LogicalClusterId, resource: &str) -> Result<Vec<Value>, Status> {
        let scope = RangeScope::Cluster(cluster, GroupResource::new(GROUP, resource));
        let page = self.store.range(RangeRequest::all(scope)).await.map_err(|e| status_for(&e))?;
        let value = |o: portolan_store::StoredObject| o.record.to_value(o.revision).map_err(|e| damaged(&o.key, &e));
        page.objects.into_iter().map(value).collect()
    }

    async fn decide(&self, cluster: LogicalClusterId, user: &User, attributes: &Attributes) -> Result<Verdict, Status> {
        if user.is_in(MASTERS) {
            return Ok(Verdict::Allowed(String::new()));
        }
        let roles = self.roles(cluster).await?;
        if !is_member(cluster, &roles, user) {
            return Ok(Verdict::Denied(String::new()));
        }
        Ok(match rbac::authorize(&*roles, user, attributes.action()) {
            rbac::Verdict::Allowed(why) => Verdict::Allowed(why),
            rbac::Verdict::NoOpinion(missing) if missing.is_empty() => Verdict::Denied(String::new()),
            rbac::Verdict::NoOpinion(missing) => Verdict::Denied(format!("RBAC: {}", missing.join(", "))),
        })
    }
}

/// Whether the shared bindings count for a user: in `root`, in the logical cluster of a service account, and wherever an own
/// binding names the user. To all others a logical cluster looks like one that is not there.
fn is_member(cluster: LogicalClusterId, roles: &ClusterRoles, user: &User) -> bool {
    let home = user.extra.get("authentication.kubernetes.io/cluster-name").and_then(|names| names.first());
    cluster == LogicalClusterId::ROOT
        || home.is_some_and(|name| *name == cluster.to_string())
        || user.name.starts_with("system:serviceaccount:")
        || roles.own_bindings().iter().any(|binding| names(binding, user))
}

fn names(binding: &Value, user: &User) -> bool {
    let subjects = binding.get("subjects").and_then(Value::as_array);
    subjects.into_iter().flatten().any(|subject| {
        let name = subject.get("name").and_then(Value::as_str).unwrap_or_default();
        match subject.get("kind").and_then(Value::as_str) {
            Some("User") => user.name == name,
            Some("Group") => user.is_in(name),
            _ => false,
        }
    })
}

impl Authorizer for RbacAuthorizer {
    fn authorize<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<Verdict, Status>> {
        Box::pin(self.decide(cluster, user, attributes))
    }

    fn rules<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PolicyRule>, Status>> {
        Box::pin(async move { Ok(rbac::rules_for(&*self.roles(cluster).await?, user, namespace)) })
    }
}
