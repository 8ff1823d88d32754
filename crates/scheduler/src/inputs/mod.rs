//! Inputs of a decision, read from the store and the facts.

pub(crate) mod move_gates;
pub(crate) mod namespace_places;
pub(crate) mod neighbors;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use portolan_placement::{
    AdmissionRecord, ClusterPin, MoveGates, PinScope, Role, Workload, is_made_by_hand, is_managed_elsewhere,
    placed_condition,
};
use portolan_store::{RangeRequest, RangeScope, StoreError};
use portolan_types::{
    LogicalClusterId, NamespaceName, ObjectKey, ResourceVersion, Uid, annotations, object,
    placement::{PlacementRecord, placement_name},
};
use serde_json::Value;

use self::volumes::read_volumes;
use crate::{context::SchedulerContext, facts::ClusterLineage, kinds, observe::kind_of, scheduler::SchedulerError};

/// Most objects of one controller that are read for their physical clusters.
const MAX_SIBLINGS: usize = 64;

/// Default decision of a namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceDefault {
    pub(crate) uids: Vec<Uid>,
    pub(crate) revision: Option<ResourceVersion>,
}

/// Object and all inputs of its decision except the facts in memory.
pub(crate) struct DecisionInputs {
    pub(crate) key: ObjectKey,
    pub(crate) namespace: NamespaceName,
    pub(crate) namespace_uid: String,
    pub(crate) object: Value,
    pub(crate) revision: ResourceVersion,
    pub(crate) workload: Workload,
    pub(crate) record: PlacementRecord,
    pub(crate) reach: ClusterLineage,
    pub(crate) home: NamespaceDefault,
    pub(crate) placement: Option<(Value, ResourceVersion)>,
    pub(crate) gone: BTreeSet<Uid>,
    /// Conditions of a departure. They are open until it is known that a copy is to depart.
    pub(crate) gates: MoveGates,
}

impl DecisionInputs {
    /// Returns the pods of each copy that has all replicas and no limit: its part of the last admission, or of the
    /// status. Pods that are not ready or cannot be seen count as well.
    pub(crate) fn existing(&self) -> BTreeMap<Uid, i64> {
        let placement = self.placement.as_ref().map(|(placement, _)| placement);
        let admitted =
            AdmissionRecord::of(placement, object::meta_text(&self.object, "uid")).pods.map(|pods| pods.count);
        let counted = || self.object.pointer("/status/replicas").and_then(Value::as_i64);
        let all = admitted.or_else(counted).unwrap_or(0);
        let limits = &self.record.limits;
        let (limited, whole): (Vec<_>, Vec<_>) = self
            .record
            .active()
            .filter(|copy| copy.replicas.is_none())
            .map(|copy| &copy.uid)
            .partition(|uid| limits.contains_key(*uid));
        // While an object moves, staying and leaving copies each have all pods, and only the staying ones were
        // counted.
        let is_moving = placement.and_then(placed_condition).is_some_and(|(reason, _)| reason == "Moving");
        let parts = if is_moving { 1 } else { i64::try_from(whole.len()).unwrap_or(i64::MAX).max(1) };
        let rest = all - limited.iter().filter_map(|uid| limits.get(*uid)).sum::<i64>();
        let each = rest.max(0).saturating_add(parts - 1) / parts;
        whole.into_iter().map(|uid| (uid.clone(), each)).collect()
    }
}

/// Reads the inputs of a decision about `object`. Returns `None` if it is not placed: its owner is placed, no policy
/// is about its kind, or its namespace or logical cluster is being deleted.
pub(crate) async fn read_inputs(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    object: Value,
    revision: ResourceVersion,
) -> Result<Option<DecisionInputs>, SchedulerError> {
    let (Some(kind), Some(namespace)) = (kind_of(&object), key.namespace().cloned()) else { return Ok(None) };
    let reach = ctx.lineage_of(key.cluster);
    let record = PlacementRecord::of(&object).unwrap_or_default();
    let mut workload = ctx.workload_of(kind, key, &object);
    workload.namespace = namespace.to_string();
    if ctx.facts().reads_objects(&reach, &workload.kind.group, &workload.kind.kind) {
        workload = workload.with_object(&object);
    }
    if matches!(workload.role, Role::Never(_)) && is_of_a_foreign_job(ctx, key, &object).await? {
        workload.role = Role::Workload;
    }
    let selected = ctx.facts().is_kind_selected(&reach, &workload.kind.group, &workload.kind.kind);
    let is_placed = !record.clusters.is_empty();
    let matters = match workload.role {
        Role::Workload | Role::Content | Role::Claim | Role::Network | Role::Autoscaler => true,
        Role::Explicit => selected || is_placed,
        Role::Never(_) => false,
    };
    if reach.lineage.is_empty() || !matters || is_owner_placed(ctx, key, &object).await? {
        return Ok(None);
    }
    check_readable(ctx, &reach, &namespace)?;
    let found = ctx.objects.get_value(&namespace_key(key.cluster, &namespace)).await?;
    let (around, _) = found.unwrap_or((Value::Null, revision));
    if object::is_deleting(&around) && !is_placed {
        return Ok(None);
    }
    workload.pin = workload.pin.or_else(|| ClusterPin::of(&around, PinScope::Namespace));
    workload.siblings = sibling_clusters(ctx, key, &object).await?;
    workload.neighbors = neighbors::read_neighbors(ctx, key, &workload, &reach).await?;
    read_volumes(ctx, key, &object, &mut workload).await?;
    let namespace_uid = object::meta_text(&around, "uid").to_owned();
    let home = namespace_default(ctx, key.cluster, &namespace, &namespace_uid).await?;
    let placement = ctx.objects.get_value(&placement_key(key)).await?;
    let gone = gone_clusters(ctx, &record, &reach).await?;
    let key = key.clone();
    let inputs = DecisionInputs {
        key,
        namespace,
        namespace_uid,
        object,
        revision,
        workload,
        record,
        reach,
        home,
        placement,
        gone,
        gates: MoveGates::default(),
    };
    Ok(Some(inputs))
}

/// Checks that all policies and rights are readable. An unreadable one must not look absent: copies would move for it.
///
/// # Errors
/// `Unreadable` for a policy that may hold, or for the rights to physical clusters within reach.
fn check_readable(ctx: &SchedulerContext, reach: &ClusterLineage, namespace: &str) -> Result<(), SchedulerError> {
    let facts = ctx.facts();
    if let Some(key) = facts.unreadable_policy(reach, namespace) {
        return Err(SchedulerError::Unreadable(key.to_string()));
    }
    match facts.unknown_home(reach, &*ctx.rights) {
        None => Ok(()),
        Some(home) => Err(SchedulerError::Unreadable(format!("who may use the physical clusters of {home}"))),
    }
}

/// Returns true if the controller of an object is placed itself: then the object is made downstream. A Job that a user
/// made of a CronJob (`kubectl create job --from`) is placed by itself.
async fn is_owner_placed(ctx: &SchedulerContext, key: &ObjectKey, object: &Value) -> Result<bool, StoreError> {
    let Some(owner) = object::controller_of(object) else { return Ok(false) };
    if is_made_by_hand(object) {
        return Ok(false);
    }
    let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let (Some(resource), Ok(name)) = (ctx.resource_in(key.cluster, group, text("kind")), text("name").parse()) else {
        return Ok(false);
    };
    let owner_key = ObjectKey { resource, name, ..key.clone() };
    let stored = ctx.objects.store().get(&owner_key).await?;
    Ok(stored.is_some_and(|s| s.record.header.uid == text("uid") && !s.record.header.placed_on.is_empty()))
}

/// Returns true for a Pod of a Job with another controller than Kubernetes' own. That controller runs upstream and
/// made the Pod.
async fn is_of_a_foreign_job(ctx: &SchedulerContext, key: &ObjectKey, object: &Value) -> Result<bool, StoreError> {
    let is_shown = object::label(object, annotations::PROJECTED_FROM).is_some();
    let Some(owner) = object::controller_of(object).filter(|owner| owner["kind"] == "Job" && !is_shown) else {
        return Ok(false);
    };
    let (true, Some(Ok(name))) = (key.resource == kinds::pods(), owner["name"].as_str().map(str::parse)) else {
        return Ok(false);
    };
    let job = ctx.objects.get_value(&ObjectKey { resource: kinds::jobs(), name, ..key.clone() }).await?;
    let is_own = |job: &Value| owner["uid"] == *object::meta_text(job, "uid");
    Ok(job.is_some_and(|(job, _)| is_own(&job) && is_managed_elsewhere(job.get("spec"))))
}

/// Returns the physical clusters of the other objects of the same controller.
async fn sibling_clusters(ctx: &SchedulerContext, key: &ObjectKey, object: &Value) -> Result<Vec<Uid>, StoreError> {
    let Some(owner) = object::controller_of(object).and_then(|o| o.get("uid")).and_then(Value::as_str) else {
        return Ok(Vec::new());
    };
    let scope = RangeScope::OwnedBy(key.cluster, owner.to_owned());
    let page = ctx
        .objects
        .store()
        .range(RangeRequest { limit: Some(MAX_SIBLINGS), ..RangeRequest::all(scope).skip_damaged() })
        .await?;
    let others = page.objects.iter().filter(|s| s.key != *key && s.key.resource == key.resource);
    let uids: BTreeSet<Uid> =
        others.flat_map(|s| &s.record.header.placed_on).filter_map(|uid| uid.parse().ok()).collect();
    Ok(uids.into_iter().collect())
}

/// Returns the key of the default decision of a namespace.
pub(crate) fn namespace_default_key(cluster: LogicalClusterId, namespace: NamespaceName) -> ObjectKey {
    let name = "default".parse().expect("the name is a constant");
    ObjectKey::namespaced(cluster, kinds::decisions(), namespace, name)
}

/// Reads the default decision of a namespace. One of an earlier namespace of the same name does not count.
async fn namespace_default(
    ctx: &SchedulerContext,
    cluster: LogicalClusterId,
    namespace: &NamespaceName,
    uid: &str,
) -> Result<NamespaceDefault, StoreError> {
    let Some((kept, revision)) = ctx.objects.get_value(&namespace_default_key(cluster, namespace.clone())).await?
    else {
        return Ok(NamespaceDefault::default());
    };
    let valid = kept.get("namespaceUid").and_then(Value::as_str) == Some(uid);
    let uids = kept.get("physical").and_then(Value::as_array).filter(|_| valid);
    let uids = uids.into_iter().flatten().filter_map(|uid| uid.as_str()?.parse().ok()).collect();
    Ok(NamespaceDefault { uids, revision: Some(revision) })
}

/// Returns the physical clusters of a record that are proven not to exist. For one that is not in the facts, the store
/// is asked.
///
/// # Errors
/// `Behind` if one exists that is not in the facts yet: nothing can be decided until it is.
pub(crate) async fn gone_clusters(
    ctx: &SchedulerContext,
    record: &PlacementRecord,
    reach: &ClusterLineage,
) -> Result<BTreeSet<Uid>, SchedulerError> {
    let unknown: BTreeSet<Uid> = {
        let facts = ctx.facts();
        record.clusters.iter().map(|c| &c.uid).filter(|uid| facts.physical(uid).is_none()).cloned().collect()
    };
    if unknown.is_empty() {
        return Ok(unknown);
    }
    if let Some(key) = ctx.facts().unreadable_physical(reach) {
        return Err(SchedulerError::Unreadable(key.to_string()));
    }
    let all = RangeRequest::all(RangeScope::AllClusters(kinds::physical_clusters())).skip_damaged();
    let page = ctx.objects.store().range(all).await?;
    // A damaged one may be any of those that are registered in its workspace.
    if let Some(found) = page.damaged.iter().find(|found| reach.may_contain(found.key.cluster)) {
        return Err(SchedulerError::Unreadable(found.key.to_string()));
    }
    let exists = |uid: &Uid| page.objects.iter().any(|s| s.record.header.uid == uid.as_str());
    if unknown.iter().any(exists) { Err(SchedulerError::Behind) } else { Ok(unknown) }
}

pub(crate) fn namespace_key(cluster: LogicalClusterId, namespace: &NamespaceName) -> ObjectKey {
    let name = namespace.parse().expect("the name of a namespace is the name of an object");
    ObjectKey::cluster_scoped(cluster, kinds::namespaces(), name)
}

/// Returns the key of the `Placement` of an object.
pub(crate) fn placement_key(key: &ObjectKey) -> ObjectKey {
    let name = placement_name(&key.resource, &key.name);
    let name = name.parse().expect("the name is made of characters that names may have");
    ObjectKey { resource: kinds::placements(), name, ..key.clone() }
}

/// Returns `apiVersion` and `kind` of an object.
pub(crate) fn api_version(object: &Value) -> (String, String) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("apiVersion"), text("kind"))
}
