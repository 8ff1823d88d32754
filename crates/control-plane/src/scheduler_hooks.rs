//! Scheduler, connected to the API server's hooks and the store.

use std::sync::{Arc, OnceLock};

use portolan_apiserver::{
    ApiServer, LogicalCluster,
    hooks::{Hooks, Requester, ReviewHandler, WriteAdvisor},
};
use portolan_kinds::{Kind, KindTable};
use portolan_scheduler::{
    ClusterTree, FailoverTiming, KindCatalog, Plan, PlannedChange, Scheduler, SchedulerCollector, SchedulerParts,
};
use portolan_store::{DynStore, LeaderElection};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, LogicalClusterPath, ObjectKey, Status, object,
    placement::GROUP,
};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    gate::AdmissionGate,
    physical_clusters::FailoverMetrics,
    plans::{PlanLimiter, PlanRequest, planner_of},
    projected_writes::ProjectedWriteGuard,
    use_grants::UseGrantCache,
};

/// Hooks of the scheduler. They are made before it, because it needs the API server's directory.
#[derive(Clone, Default)]
pub(crate) struct SchedulerHooks {
    started: Arc<OnceLock<StartedScheduler>>,
    plans: Arc<PlanLimiter>,
    failover: FailoverTiming,
}

/// Scheduler and the API server that it decides for.
struct StartedScheduler {
    scheduler: Scheduler,
    api: Arc<ApiServer>,
}

impl SchedulerHooks {
    /// Makes hooks of a scheduler with these times of failover.
    pub(crate) fn timed(failover: FailoverTiming) -> Self {
        Self { failover, ..Self::default() }
    }

    /// Adds warnings, explanations and admission to the API server.
    pub(crate) fn hook_into(&self, hooks: &mut Hooks) {
        hooks.advisor = Some(Arc::new(self.clone()));
        hooks.planner = Some(planner_of(self));
        hooks.reviews.push(Arc::new(self.clone()));
        hooks.admission.push(Arc::new(ProjectedWriteGuard));
    }

    /// Returns a collector of the metrics of the scheduler, once that has started.
    pub(crate) fn metrics(&self) -> Option<SchedulerCollector> {
        self.started.get().map(|started| started.scheduler.metrics())
    }

    /// Returns a collector of the numbers of failover.
    pub(crate) fn failover_metrics(&self) -> FailoverMetrics {
        let hooks = self.clone();
        FailoverMetrics::new(Box::new(move || {
            hooks.started.get().map(|started| started.scheduler.failover_stats()).unwrap_or_default()
        }))
    }

    /// Starts the scheduler.
    pub(crate) fn start(
        &self,
        api: &Arc<ApiServer>,
        store: &DynStore,
        roles: &Arc<LeaderElection>,
        shutdown: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) {
        let rights = UseGrantCache::new(api.clone(), store.clone());
        let parts = SchedulerParts {
            store: store.clone(),
            seams: api.seams().clone(),
            tree: Arc::new(DirectoryTree(api.clone())),
            rights: Arc::new(rights.clone()),
            kinds: Arc::new(TableCatalog(KindTable::builtin())),
            gate: Some(Arc::new(AdmissionGate::new(api.clone()))),
            failover: self.failover,
        };
        let start = || StartedScheduler { scheduler: Scheduler::new(parts), api: api.clone() };
        let scheduler = self.started.get_or_init(start).scheduler.clone();
        let (shutdown, roles) = (shutdown.clone(), roles.clone());
        tasks.spawn(async move {
            // Grants are known before the first decision, so that nothing seems forbidden.
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

/// Lets the scheduler decide while this server leads.
async fn lead(scheduler: &Scheduler, roles: &LeaderElection) {
    loop {
        scheduler.lead(false);
        let term = roles.take("scheduler").await;
        scheduler.lead(true);
        term.lost().cancelled().await;
    }
}

impl WriteAdvisor for SchedulerHooks {
    fn advise(&self, cluster: &LogicalCluster, kind: &Kind, object: &Value) -> Vec<String> {
        let started = self.started.get();
        started.map(|started| started.scheduler.preview(cluster.id, &kind.gvk, object)).unwrap_or_default()
    }
}

impl ReviewHandler for SchedulerHooks {
    fn review<'a>(
        &'a self,
        cluster: &'a LogicalCluster,
        kind: &'a Kind,
        object: Value,
        caller: Requester<'a>,
    ) -> Option<BoxFuture<'a, Result<Value, Status>>> {
        if *kind.gvk.group != *GROUP {
            return None;
        }
        match &*kind.resource {
            "placementexplanations" => Some(Box::pin(self.explain(cluster.id, object))),
            "placementplans" => Some(Box::pin(self.answer_plan(cluster, object, caller))),
            _ => None,
        }
    }
}

impl SchedulerHooks {
    fn started(&self) -> Result<&StartedScheduler, Status> {
        self.started.get().ok_or_else(|| Status::internal("the scheduler has not started"))
    }

    /// Plans changes in a logical cluster.
    ///
    /// # Errors
    /// The errors of [`PlanLimiter::plan`].
    pub(crate) async fn plan_changes(&self, home: LogicalClusterId, changes: &[PlannedChange]) -> Result<Plan, Status> {
        self.plans.plan(&self.started()?.scheduler, home, changes).await
    }

    async fn answer_plan(
        &self,
        cluster: &LogicalCluster,
        review: Value,
        caller: Requester<'_>,
    ) -> Result<Value, Status> {
        let StartedScheduler { scheduler, api } = self.started()?;
        PlanRequest { api, scheduler, limiter: &self.plans, cluster, caller }.answer(review).await
    }

    async fn explain(&self, cluster: LogicalClusterId, mut review: Value) -> Result<Value, Status> {
        let text = |pointer: &str| review.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let named = |error: portolan_types::InvalidName| Status::bad_request(error.to_string());
        let gvk = GroupVersionKind::parse(text("/spec/object/apiVersion"), text("/spec/object/kind")).map_err(named)?;
        let started = self.started()?;
        let served = started.api.kinds().of(cluster).await?.kind(&gvk);
        let kind = served
            .map(|served| served.kind)
            .ok_or_else(|| Status::bad_request(format!("spec.object: {gvk} is none of the kinds that are placed")))?;
        let resource = kind.storage.group_resource();
        let name = text("/spec/object/name").parse().map_err(named)?;
        let namespace = object::namespace(&review).parse().map_err(named)?;
        let key = ObjectKey::namespaced(cluster, resource.clone(), namespace, name);
        let explained = started.scheduler.explain_object(&key).await.map_err(Status::internal)?;
        let explained = explained.ok_or_else(|| Status::not_found(&resource, &key.name))?;
        review["status"] = explained.get("status").cloned().unwrap_or(explained);
        Ok(review)
    }
}

/// Cluster tree from the API server's directory.
struct DirectoryTree(Arc<ApiServer>);

impl ClusterTree for DirectoryTree {
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)> {
        let directory = self.0.directory();
        let up = std::iter::successors(directory.by_id(cluster), |c| directory.by_id(c.parent?));
        let lineage: Vec<_> = up.collect();
        // With an unknown ancestor, the rules of the descendants are unknown too.
        let is_whole = lineage.last().is_some_and(|top| top.parent.is_none());
        if !is_whole || lineage.iter().any(|cluster| cluster.is_deleting()) {
            Vec::new()
        } else {
            lineage.iter().map(|cluster| (cluster.id, cluster.path.clone())).collect()
        }
    }

    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId> {
        self.0.directory().subtree(cluster)
    }
}

/// Kind catalog from the kind table.
struct TableCatalog(&'static KindTable);

impl KindCatalog for TableCatalog {
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        let named = |k: &&Arc<Kind>| k.served && k.namespaced && *k.gvk.group == *group && *k.gvk.kind == *kind;
        self.0.kinds().find(named).map(|kind| kind.storage.group_resource())
    }

    fn has_resource(&self, resource: &GroupResource) -> bool {
        self.0.kinds().any(|kind| kind.served && kind.namespaced && kind.storage.group_resource() == *resource)
    }
}
