//! The scheduler, put between the API server's hooks and the store; and readiness on `Placement` objects.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use portolan_apiserver::{
    ApiServer, LogicalCluster, User,
    hooks::{Hooks, Reviews, WriteAdvisor},
};
use portolan_controllers::{Found, Plane, PlaneError};
use portolan_machinery::kinds::{Kind, KindTable};
use portolan_scheduler::{ClusterTree, KindCatalog, Parts, Scheduler};
use portolan_store::{DynStore, Expect, Roles, Write};
use portolan_syncer::status::CopyStatus;
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, Status,
    object,
    placement::{GROUP, PlacementRecord, PlacementStatus, placement_name},
};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{gate::Gate, projected_writes::ProjectedWrites, rights::Rights};

/// The scheduler to be: the API server's hooks are made before it, since it needs the server's directory.
#[derive(Clone, Default)]
pub(crate) struct Placing(Arc<OnceLock<Scheduler>>);

impl Placing {
    /// Plugs warnings and explanations into the API server.
    pub(crate) fn hook_into(&self, hooks: &mut Hooks) {
        hooks.advisor = Some(Arc::new(self.clone()));
        hooks.reviews.push(Arc::new(self.clone()));
        hooks.admission.push(Arc::new(ProjectedWrites));
    }

    /// Starts the scheduler.
    pub(crate) fn start(
        &self,
        api: &Arc<ApiServer>,
        store: &DynStore,
        roles: &Arc<Roles>,
        shutdown: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) {
        let rights = Rights::new(api.clone(), store.clone());
        let parts = Parts {
            store: store.clone(),
            seams: api.seams().clone(),
            tree: Arc::new(Tree(api.clone())),
            rights: Arc::new(rights.clone()),
            kinds: Arc::new(Kinds(KindTable::builtin())),
            gate: Some(Arc::new(Gate::new(api.clone()))),
        };
        let scheduler = self.0.get_or_init(|| Scheduler::new(parts)).clone();
        let (shutdown, roles) = (shutdown.clone(), roles.clone());
        tasks.spawn(async move {
            // Before the first decision, so that nothing seems to be forbidden that is not.
            if shutdown.run_until_cancelled(rights.load()).await.is_some() {
                tokio::join!(
                    scheduler.run(shutdown.clone()),
                    shutdown.run_until_cancelled(rights.run(&scheduler)),
                    shutdown.run_until_cancelled(lead(&scheduler, &roles)),
                );
            }
        });
    }
}

/// Lets the scheduler decide whenever that is this server's to do.
async fn lead(scheduler: &Scheduler, roles: &Roles) {
    loop {
        scheduler.lead(false);
        let term = roles.take("scheduler").await;
        scheduler.lead(true);
        term.lost().cancelled().await;
    }
}

impl WriteAdvisor for Placing {
    fn advise(&self, cluster: &LogicalCluster, kind: &Kind, object: &Value) -> Vec<String> {
        self.0.get().map(|scheduler| scheduler.preview(cluster.id, &kind.gvk, object)).unwrap_or_default()
    }
}

impl Reviews for Placing {
    fn review<'a>(
        &'a self,
        cluster: &'a LogicalCluster,
        kind: &'a Kind,
        object: Value,
        _: &'a User,
    ) -> Option<BoxFuture<'a, Result<Value, Status>>> {
        let is_own = &*kind.gvk.group == GROUP && &*kind.resource == "placementexplanations";
        is_own.then(|| Box::pin(self.explain(cluster.id, object)) as BoxFuture<'a, _>)
    }
}

impl Placing {
    async fn explain(&self, cluster: LogicalClusterId, mut review: Value) -> Result<Value, Status> {
        let text = |pointer: &str| review.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let named = |error: portolan_types::InvalidName| Status::bad_request(error.to_string());
        let gvk = GroupVersionKind::parse(text("/spec/object/apiVersion"), text("/spec/object/kind")).map_err(named)?;
        let kind = KindTable::builtin().kind(&gvk);
        let kind = kind
            .ok_or_else(|| Status::bad_request(format!("spec.object: {gvk} is none of the kinds that are placed")))?;
        let resource = kind.storage.group_resource();
        let name = text("/spec/object/name").parse().map_err(named)?;
        let namespace = object::namespace(&review).parse().map_err(named)?;
        let key = ObjectKey::namespaced(cluster, resource.clone(), namespace, name);
        let scheduler = self.0.get().ok_or_else(|| Status::internal("the scheduler has not started"))?;
        let explained = scheduler.explain_object(&key).await.map_err(Status::internal)?;
        let explained = explained.ok_or_else(|| Status::not_found(&resource, &key.name))?;
        review["status"] = explained.get("status").cloned().unwrap_or(explained);
        Ok(review)
    }
}

/// The API server's directory, as the scheduler needs it.
struct Tree(Arc<ApiServer>);

impl ClusterTree for Tree {
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)> {
        let directory = self.0.directory();
        let up = std::iter::successors(directory.by_id(cluster), |c| directory.by_id(c.parent?));
        let lineage: Vec<_> = up.collect();
        // Where an ancestor is not known, neither is what holds for all below it.
        let is_whole = lineage.last().is_some_and(|top| top.parent.is_none());
        match !is_whole || lineage.iter().any(|cluster| cluster.is_deleting()) {
            true => Vec::new(),
            false => lineage.iter().map(|cluster| (cluster.id, cluster.path.clone())).collect(),
        }
    }

    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
        let mut children: HashMap<LogicalClusterId, Vec<LogicalClusterId>> = HashMap::new();
        for known in self.0.directory().all() {
            children.entry(known.parent.unwrap_or(known.id)).or_default().push(known.id);
        }
        let mut all = vec![cluster];
        let mut at = 0;
        while let Some(parent) = all.get(at).copied() {
            let below = children.remove(&parent).unwrap_or_default();
            all.extend(below.into_iter().filter(|id| *id != parent));
            at += 1;
        }
        all
    }
}

/// The kind table, as the scheduler needs it.
struct Kinds(&'static KindTable);

impl KindCatalog for Kinds {
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        let named = |k: &&Arc<Kind>| k.served && k.namespaced && *k.gvk.group == *group && *k.gvk.kind == *kind;
        self.0.kinds().find(named).map(|kind| kind.storage.group_resource())
    }
}

/// The `Placement` of an object.
pub(crate) async fn of(plane: &Plane, placed: &ObjectKey) -> Result<Option<Found>, PlaneError> {
    let name = placement_name(&placed.resource, &placed.name).parse();
    let name = name.map_err(|error: portolan_types::InvalidName| Status::internal(error))?;
    plane.get(&ObjectKey { resource: GroupResource::new(GROUP, "placements"), name, ..placed.clone() }).await
}

/// The write that brings the `Placement` of an object up to what its copies report; `None` when it says so already.
pub(crate) fn with_states(
    found: Found,
    of: &ObjectKey,
    placed: &Value,
    states: &[CopyStatus],
) -> Result<Option<Write>, PlaneError> {
    let Found { key, mut object, revision } = found;
    let Ok(mut status) = serde_json::from_value::<PlacementStatus>(object["status"].clone()) else { return Ok(None) };
    let before = status.clone();
    let limits = PlacementRecord::of(placed).unwrap_or_default().limits;
    for copy in &mut status.clusters {
        let state = states.iter().find(|state| *state.uid == *copy.uid);
        copy.ready = state.map_or(0, |state| ready(&of.resource, state));
        copy.available = state.and_then(|state| available(&of.resource, state));
        let limit = limits.iter().find(|(uid, _)| uid.as_str() == copy.uid).map_or(i64::MAX, |(_, limit)| *limit);
        copy.desired = copy.replicas.or_else(|| desired(&of.resource, placed, state).map(|all| all.min(limit)));
        (copy.reason, copy.message) = state.and_then(|state| state.failed.clone()).unwrap_or_default();
    }
    if status == before {
        return Ok(None);
    }
    object["status"] = serde_json::to_value(status).map_err(Status::internal)?;
    Ok(Some(Write { key, expect: Expect::At(revision), record: Some(Record::of(&object)) }))
}

/// How many pods a copy should have, where its kind counts them.
fn desired(resource: &GroupResource, placed: &Value, state: Option<&CopyStatus>) -> Option<i64> {
    match (&*resource.group, &*resource.resource) {
        ("apps", "daemonsets") => state?.status.get("desiredNumberScheduled").and_then(Value::as_i64),
        ("apps", _) | ("", "replicationcontrollers") => placed.pointer("/spec/replicas").and_then(Value::as_i64),
        _ => None,
    }
}

/// Available replicas of a copy, of kinds that tell them from ready ones by `minReadySeconds`.
fn available(resource: &GroupResource, state: &CopyStatus) -> Option<i64> {
    let number = |key: &str| state.status.get(key).and_then(Value::as_i64).unwrap_or(0);
    let is_reachable = !state.is_unreachable();
    let field = match (&*resource.group, &*resource.resource) {
        ("apps", "daemonsets") => "numberAvailable",
        ("apps", "deployments" | "replicasets" | "statefulsets") | ("", "replicationcontrollers") => {
            "availableReplicas"
        }
        _ => return None,
    };
    is_reachable.then(|| number(field))
}

/// Ready replicas of a copy; of a kind that has none, 1 when it is there as it should be.
fn ready(resource: &GroupResource, state: &CopyStatus) -> i64 {
    let number = |key: &str| state.status.get(key).and_then(Value::as_i64).unwrap_or(0);
    if state.is_unreachable() {
        return 0;
    }
    match (&*resource.group, &*resource.resource) {
        ("apps", "daemonsets") => number("numberReady"),
        ("apps", _) | ("", "replicationcontrollers") => number("readyReplicas"),
        _ => i64::from(state.failed.is_none() && state.is_current),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_workload_without_a_status_yet_is_not_ready() {
        let mut state = CopyStatus::unreported("east", "u".parse().unwrap(), None);
        state.is_current = true;
        for (group, resource, status, expected) in [
            ("apps", "deployments", Value::Null, 0),
            ("apps", "deployments", json!({"readyReplicas": 2}), 2),
            ("apps", "daemonsets", json!({"numberReady": 3}), 3),
            ("", "configmaps", Value::Null, 1),
        ] {
            state.status = status;
            assert_eq!(ready(&GroupResource::new(group, resource), &state), expected, "{resource}");
        }
    }
}
