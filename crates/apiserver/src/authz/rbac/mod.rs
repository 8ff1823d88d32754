//! RBAC authorizer over stored roles and bindings.

mod cache;
mod effective;
mod entry;
mod index;
mod subjects;

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use portolan_store::{DynStore, Event, RangeRequest, RangeScope, WatchScope};
use portolan_strategy::rbac::{self, MASTERS, PolicyRule, User};
use portolan_types::{BoxFuture, GroupResource, LogicalClusterId, ResourceVersion, Status, object};
use serde_json::Value;

use crate::{
    Directory,
    errors::{damaged, status_for},
    limits::{FairSeats, FlowKey},
    requester::{self, CLUSTER_NAME_EXTRA},
    routing::attributes::Attributes,
    sync::{CommitListener, Follower, follow},
};

use super::{
    AuthorizationDecision, AuthorizationSubject, AuthorizedSubject, Authorizer, AuthorizerChain, ClusterRoles,
    UseGrants, snapshot::OwnObjects,
};
use cache::{CachedRoles, RolesCache};
use effective::effective_users;
use entry::WorkspaceEntry;
use index::MemberIndex;

pub(crate) use effective::SCOPES;

/// API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// Resources of the group.
pub(crate) const RESOURCES: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Those of them that are bindings.
const BINDINGS: [&str; 2] = [RESOURCES[1], RESOURCES[3]];

/// RBAC authorizer: roles and bindings of the logical cluster and the shared ones. Members of `system:masters` may do
/// everything.
pub struct RbacAuthorizer {
    store: DynStore,
    cached: Mutex<RolesCache>,
    /// Lock for reading roles that exceed their share.
    large: tokio::sync::Mutex<()>,
    /// Queue for reading roles of the past, which are not cached. Tenants take turns.
    past: FairSeats,
    /// Webhooks that decide before or after the roles.
    chain: Option<AuthorizerChain>,
    /// Directory with the groups that workspaces require; without one, none requires any.
    directory: Option<Arc<Directory>>,
    index: MemberIndex,
}

/// Stored objects of one resource.
struct StoredRoles {
    objects: Vec<Value>,
    bytes: usize,
    /// Revision at which they were read.
    read_at: ResourceVersion,
}

impl CommitListener for RbacAuthorizer {
    fn depends_on(&self, resource: &GroupResource) -> bool {
        &*resource.group == "rbac.authorization.k8s.io"
    }

    fn evict(&self, cluster: LogicalClusterId) {
        self.forget(cluster);
        self.index.change(cluster);
    }
}

impl RbacAuthorizer {
    /// Creates an authorizer over a store.
    pub fn new(store: DynStore) -> Self {
        Self {
            store,
            cached: Mutex::default(),
            large: tokio::sync::Mutex::default(),
            past: FairSeats::new(1),
            chain: None,
            directory: None,
            index: MemberIndex::default(),
        }
    }

    /// Returns the authorizer with the directory of the logical clusters.
    #[must_use]
    pub(crate) fn within(self, directory: Arc<Directory>) -> Self {
        Self { directory: Some(directory), ..self }
    }

    /// Returns the authorizer with webhooks before and after the roles.
    #[must_use]
    pub(crate) fn with_chain(self, chain: Option<AuthorizerChain>) -> Self {
        Self { chain, ..self }
    }

    /// Invalidates a logical cluster whose roles or bindings were written.
    pub fn forget(&self, cluster: LogicalClusterId) {
        let mut cached = self.cached.lock();
        cached.forget(cluster);
    }

    /// Returns the approximate number of cached bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.cached.lock().bytes()
    }

    /// Follows the writes of one resource, forever.
    pub(crate) async fn follow(self: Arc<Self>, resource: &'static str) {
        let scope = WatchScope::Resource(GroupResource::new(GROUP, resource), None);
        follow(self.store.clone(), scope, self.clone()).await;
    }

    /// Returns the roles and bindings of a logical cluster. Damaged ones grant nothing.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn roles(&self, cluster: LogicalClusterId) -> Result<Arc<ClusterRoles>, Status> {
        let is_large = {
            let cached = self.cached.lock();
            if let Some(known) = cached.get(cluster) {
                return Ok(known.clone());
            }
            cached.is_large(cluster)
        };
        // Large ones are read one at a time; a waiter for the same ones finds them cached.
        let _reading = if is_large { Some(self.large.lock().await) } else { None };
        let epoch = {
            let cached = self.cached.lock();
            if let Some(known) = cached.get(cluster) {
                return Ok(known.clone());
            }
            cached.epoch()
        };
        // Boxed, because most roles are cached: the state of a read would take memory in every request.
        let read = Box::pin(self.read_all(cluster)).await?;
        let roles = read.roles.clone();
        let mut cached = self.cached.lock();
        if cached.epoch() == epoch && cached.follows_all() {
            cached.insert(cluster, read);
        }
        Ok(roles)
    }

    /// Returns the grants of `use` on the physical clusters of a logical cluster at an earlier revision.
    ///
    /// # Errors
    /// 410 if the revision is compacted; 429 if too many read the past; failure of the store.
    pub(crate) async fn use_grants_at(
        &self,
        cluster: LogicalClusterId,
        at: ResourceVersion,
        flow_key: &FlowKey<'_>,
    ) -> Result<UseGrants, Status> {
        let unchanged = self.cached.lock().unchanged_since(cluster, at);
        if let Some(roles) = unchanged {
            return Ok(UseGrants::of(&roles));
        }
        let _seat = self.past.wait(flow_key).await?;
        let cluster_roles = self.read(cluster, RESOURCES[0], Some(at)).await?.objects;
        let cluster_role_bindings = self.read(cluster, RESOURCES[1], Some(at)).await?.objects;
        let own = OwnObjects { cluster_roles, cluster_role_bindings, ..OwnObjects::default() };
        Ok(UseGrants::of(&ClusterRoles::new(own)))
    }

    /// Returns the roles as [`RbacAuthorizer::roles`] does, for callers that take a missing right for a revoked one.
    ///
    /// # Errors
    /// Failure of the store, or a damaged role or binding.
    pub(crate) async fn undamaged_roles(&self, cluster: LogicalClusterId) -> Result<Arc<ClusterRoles>, Status> {
        let roles = self.roles(cluster).await?;
        let known = self.store.known_damage();
        match known.iter().find(|found| found.key.cluster == cluster && *found.key.resource.group == *GROUP) {
            None => Ok(roles),
            Some(found) => Err(Status::internal(found)),
        }
    }

    async fn read_all(&self, cluster: LogicalClusterId) -> Result<CachedRoles, Status> {
        let stored = [
            self.read(cluster, RESOURCES[0], None).await?,
            self.read(cluster, RESOURCES[1], None).await?,
            self.read(cluster, RESOURCES[2], None).await?,
            self.read(cluster, RESOURCES[3], None).await?,
        ];
        let bytes = stored.iter().map(|one| one.bytes).sum();
        let read_at = stored.iter().map(|one| one.read_at).max().unwrap_or(ResourceVersion::FIRST);
        let [cluster_roles, cluster_role_bindings, roles, role_bindings] = stored.map(|one| one.objects);
        let roles = ClusterRoles::new(OwnObjects { cluster_roles, cluster_role_bindings, roles, role_bindings });
        Ok(CachedRoles::new(roles, bytes, read_at))
    }

    /// Reads the objects of a resource at a revision, or at the latest.
    async fn read(
        &self,
        cluster: LogicalClusterId,
        resource: &str,
        at: Option<ResourceVersion>,
    ) -> Result<StoredRoles, Status> {
        let scope = RangeScope::Cluster(cluster, GroupResource::new(GROUP, resource));
        let mut next = Some(RangeRequest { at, ..RangeRequest::slices(scope).skip_damaged() });
        let mut all = StoredRoles { objects: Vec::new(), bytes: 0, read_at: ResourceVersion::FIRST };
        while let Some(slice) = next {
            let page = self.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
            next = slice.next(&page);
            all.read_at = page.revision;
            for object in page.objects {
                all.bytes += object.record.body().len();
                let mut value = object.record.to_value(object.revision).map_err(|e| damaged(&object.key, &e))?;
                // They grant nothing, and may be most of the object.
                for name in ["annotations", "managedFields"] {
                    object::metadata_mut(&mut value).remove(name);
                }
                all.objects.push(value);
            }
        }
        Ok(all)
    }

    /// Decides on a request of `user`, by the roles and bindings of a logical cluster.
    pub(crate) fn decide(
        cluster: LogicalClusterId,
        roles: &ClusterRoles,
        user: &User,
        attributes: &Attributes,
    ) -> AuthorizationDecision {
        if user.is_in(MASTERS) {
            return AuthorizationDecision::Allowed(String::new());
        }
        let decide_of = |user: &User| {
            let is_member = is_member(cluster, roles, user);
            is_member.then(|| decide_of_member(roles, user, attributes))
        };
        first_allowed(effective_users(cluster, user).iter().filter_map(decide_of))
    }

    /// Decides on a request of an identity. An impersonated identity counts as a member of the logical cluster, so
    /// shared bindings apply to it.
    ///
    /// # Errors
    /// Failure to read the rules.
    pub(crate) async fn authorize_identity(
        &self,
        cluster: LogicalClusterId,
        subject: &impl AuthorizationSubject,
        attributes: &Attributes,
    ) -> Result<AuthorizationDecision, Status> {
        let user = subject.user();
        if user.is_in(MASTERS) {
            return Ok(AuthorizationDecision::Allowed(String::new()));
        }
        let by_roles =
            async { Ok(self.decide_of_identity(cluster, &*self.roles(cluster).await?, subject, attributes)) };
        match &self.chain {
            None => by_roles.await,
            Some(chain) => {
                Box::pin(chain.decide(self.webhook_subject(cluster, user, attributes), Box::pin(by_roles))).await
            }
        }
    }

    /// Decides by the roles on a request of an identity that may enter the logical cluster.
    fn decide_of_identity(
        &self,
        cluster: LogicalClusterId,
        roles: &ClusterRoles,
        subject: &impl AuthorizationSubject,
        attributes: &Attributes,
    ) -> AuthorizationDecision {
        let (user, is_impersonated) = (subject.user(), subject.is_impersonated());
        let users = effective_users(cluster, user);
        let found = self.directory.as_ref().and_then(|directory| directory.by_id(cluster));
        let required_groups = found.as_ref().and_then(|found| found.required_groups());
        let entry = WorkspaceEntry { cluster, roles, required_groups };
        if let Some(why) = entry.refusal(&users, is_impersonated) {
            // A stranger learns nothing of the logical cluster.
            let is_known = is_impersonated || users.iter().any(|user| is_member(cluster, roles, user));
            return AuthorizationDecision::Denied(if is_known { why } else { String::new() });
        }
        if is_impersonated {
            first_allowed(users.iter().map(|user| decide_of_member(roles, user, attributes)))
        } else {
            Self::decide(cluster, roles, user, attributes)
        }
    }

    /// Returns the rules of an identity in a namespace, with the same shared bindings as
    /// [`RbacAuthorizer::authorize_identity`].
    ///
    /// # Errors
    /// Failure to read the rules.
    pub(crate) async fn rules_of_identity(
        &self,
        cluster: LogicalClusterId,
        subject: &impl AuthorizationSubject,
        namespace: &str,
    ) -> Result<Vec<PolicyRule>, Status> {
        if subject.is_impersonated() {
            Ok(rbac::rules_for(&*self.roles(cluster).await?, subject.user(), namespace))
        } else {
            self.rules_of_user(cluster, subject.user(), namespace).await
        }
    }

    async fn decide_for_user(
        &self,
        cluster: LogicalClusterId,
        user: &User,
        attributes: &Attributes,
    ) -> Result<AuthorizationDecision, Status> {
        if user.is_in(MASTERS) {
            return Ok(AuthorizationDecision::Allowed(String::new()));
        }
        let by_roles = async { Ok(Self::decide(cluster, &*self.roles(cluster).await?, user, attributes)) };
        match &self.chain {
            None => by_roles.await,
            Some(chain) => {
                Box::pin(chain.decide(self.webhook_subject(cluster, user, attributes), Box::pin(by_roles))).await
            }
        }
    }

    /// Returns the request that webhooks decide on.
    fn webhook_subject<'a>(
        &self,
        cluster: LogicalClusterId,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> AuthorizedSubject<'a> {
        let tenant = self.directory.as_ref().and_then(|known| Some(known.tenant(&*known.by_id(cluster)?)));
        AuthorizedSubject { cluster, tenant: tenant.unwrap_or(cluster), user, attributes }
    }

    async fn rules_of_user(
        &self,
        cluster: LogicalClusterId,
        user: &User,
        namespace: &str,
    ) -> Result<Vec<PolicyRule>, Status> {
        let roles = self.roles(cluster).await?;
        let users = effective_users(cluster, user);
        let counts = |user: &&User| user.is_in(MASTERS) || is_member(cluster, &roles, user);
        Ok(users.iter().filter(counts).flat_map(|user| rbac::rules_for(&*roles, user, namespace)).collect())
    }
}

/// Returns the first decision that allows, or else the first one.
fn first_allowed(decisions: impl Iterator<Item = AuthorizationDecision>) -> AuthorizationDecision {
    let mut first = None;
    for decision in decisions {
        if decision.is_allowed() {
            return decision;
        }
        first.get_or_insert(decision);
    }
    first.unwrap_or(AuthorizationDecision::Denied(String::new()))
}

fn decide_of_member(roles: &ClusterRoles, user: &User, attributes: &Attributes) -> AuthorizationDecision {
    match rbac::authorize(roles, user, attributes.action()) {
        rbac::Verdict::Allowed(why) => AuthorizationDecision::Allowed(why),
        rbac::Verdict::NoOpinion(missing) => AuthorizationDecision::Denied(all_of(missing)),
    }
}

/// Formats errors as Go does: duplicates removed, in brackets if several (`utilerrors.NewAggregate`).
fn all_of(mut missing: Vec<String>) -> String {
    let mut seen = HashSet::new();
    missing.retain(|text| seen.insert(text.clone()));
    match missing.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        several => format!("RBAC: [{}]", several.join(", ")),
    }
}

/// Returns true if shared bindings apply to a user: in `root`, in the logical cluster of a service account, and in a
/// logical cluster with a binding of its own that names the user. For other users the logical cluster looks missing.
fn is_member(cluster: LogicalClusterId, roles: &ClusterRoles, user: &User) -> bool {
    let home = user.extra.get(CLUSTER_NAME_EXTRA).and_then(|names| names.first());
    cluster == LogicalClusterId::ROOT
        || home.is_some_and(|name| *name == cluster.to_string())
        || requester::is_account(user)
        || roles.has_member(user)
}

impl Follower for RbacAuthorizer {
    fn catch_up(&self) -> BoxFuture<'_, Result<ResourceVersion, Status>> {
        Box::pin(std::future::ready(Ok(self.store.current())))
    }

    fn following(&self) {
        let mut cached = self.cached.lock();
        // Writes between two watches may have been missed.
        cached.follow();
        self.index.reset(cached.follows_all());
    }

    fn take(&self, event: &Event) {
        self.forget(event.key.cluster);
        if BINDINGS.contains(&&*event.key.resource.resource) {
            self.index.change(event.key.cluster);
        }
    }

    fn lost(&self) {
        let mut cached = self.cached.lock();
        cached.unfollow();
        self.index.reset(false);
    }
}

impl Authorizer for RbacAuthorizer {
    fn authorize<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        attributes: &'a Attributes,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Status>> {
        Box::pin(self.decide_for_user(cluster, user, attributes))
    }

    fn rules<'a>(
        &'a self,
        cluster: LogicalClusterId,
        user: &'a User,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<PolicyRule>, Status>> {
        Box::pin(self.rules_of_user(cluster, user, namespace))
    }
}
