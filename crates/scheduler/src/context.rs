//! State and collaborators that the scheduler's tasks share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use portolan_placement::{References, Workload};
use portolan_store::ObjectClient;
use portolan_types::{GroupKind, GroupResource, LogicalClusterId, ObjectKey, Seams};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    drain::{DrainScans, VerdictCache, events::requeue_all_drains},
    facts::{ClusterLineage, Facts},
    failover::FailoverState,
    kinds,
    metrics::SchedulerMetrics,
    observe::definition_events::DefinitionScan,
    observe::fact_barrier::{FactBarrier, FeedProgress},
    queue::SchedulerQueue,
    queue::budget_turns::BudgetTurns,
    queue::rescan::{RescanQueue, RescanScope},
    queue::waiting::WaitingObjects,
    reconcile::lost_placements::LostPlacements,
    scheduler::SchedulerParts,
    seams::{ClusterTree, KindCatalog, PodGate, UseRights},
};

/// State and collaborators that the scheduler's tasks share.
pub(crate) struct SchedulerContext {
    pub(crate) objects: ObjectClient,
    pub(crate) seams: Seams,
    pub(crate) tree: Arc<dyn ClusterTree>,
    pub(crate) rights: Arc<dyn UseRights>,
    pub(crate) kinds: Arc<dyn KindCatalog>,
    pub(crate) gate: Option<Arc<dyn PodGate>>,
    facts: Mutex<Facts>,
    /// Barrier that decisions pass once the facts are as new as their object.
    pub(crate) fact_barrier: FactBarrier,
    /// Barrier of the definitions of custom resources, for decisions about these.
    pub(crate) definition_barrier: FactBarrier,
    pub(crate) failover: FailoverState,
    /// Turns of departures that a disruption budget bounds: each is counted before the next one of its namespace.
    pub(crate) budgeted: BudgetTurns,
    pub(crate) queue: SchedulerQueue,
    /// Verdicts about objects on drained physical clusters.
    pub(crate) verdicts: VerdictCache,
    /// Objects of drains that wait.
    pub(crate) drain_scans: DrainScans,
    pub(crate) metrics: SchedulerMetrics,
    /// `Placement`s that were deleted, until they are made again.
    pub(crate) lost_placements: LostPlacements,
    pub(crate) rescans: RescanQueue,
    /// Objects whose pods are refused.
    pub(crate) refused: WaitingObjects,
    /// Objects that lack room within the bounds of physical clusters. They are decided again when room is freed.
    pub(crate) without_room: WaitingObjects,
    /// Objects that a policy places beside other workloads or away from them. They are decided again when those move.
    pub(crate) with_terms: WaitingObjects,
    /// Built-in resources beside the placeable ones that policies name.
    custom: Mutex<BTreeSet<GroupResource>>,
    /// Definitions of custom resources that are to be read.
    scans: Mutex<BTreeSet<DefinitionScan>>,
    /// Rescans that wait for the feeds of custom resources.
    arrivals: Mutex<BTreeSet<RescanScope>>,
    /// Custom resources of logical clusters of which other fields count the replicas than before.
    recounts: Mutex<BTreeSet<(LogicalClusterId, GroupResource)>>,
    /// Progress of the feeds.
    feeds: Mutex<BTreeMap<GroupResource, Arc<FeedProgress>>>,
    pub(crate) signals: ChangeSignals,
    /// True while this scheduler makes the decisions.
    leads: AtomicBool,
}

/// Wake-ups of tasks that collect changes before they act.
#[derive(Default)]
pub(crate) struct ChangeSignals {
    /// Policies name resources that have no feed yet.
    pub(crate) custom_resources: Notify,
    /// The status of a policy may have changed.
    pub(crate) policy_status: Notify,
    /// The usage of a physical cluster may have changed.
    pub(crate) usage_status: Notify,
}

impl SchedulerContext {
    pub(crate) fn new(parts: SchedulerParts) -> Self {
        let queue = SchedulerQueue::new(&parts.seams);
        Self {
            objects: ObjectClient::new(parts.store),
            seams: parts.seams,
            tree: parts.tree,
            rights: parts.rights,
            kinds: parts.kinds,
            gate: parts.gate,
            facts: Mutex::default(),
            fact_barrier: FactBarrier::default(),
            definition_barrier: FactBarrier::default(),
            failover: FailoverState::new(parts.failover),
            budgeted: BudgetTurns::default(),
            queue,
            verdicts: VerdictCache::default(),
            drain_scans: DrainScans::default(),
            metrics: SchedulerMetrics::default(),
            lost_placements: LostPlacements::default(),
            rescans: RescanQueue::default(),
            refused: WaitingObjects::default(),
            without_room: WaitingObjects::default(),
            with_terms: WaitingObjects::default(),
            custom: Mutex::default(),
            scans: Mutex::default(),
            arrivals: Mutex::default(),
            recounts: Mutex::default(),
            feeds: Mutex::default(),
            signals: ChangeSignals::default(),
            leads: AtomicBool::new(true),
        }
    }

    /// Locks the facts. The guard is held while a decision is made, never across an await.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        // Decisions may panic under this lock. They only read; facts are changed by code that does not panic.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the set of resources that policies name.
    pub(crate) fn custom(&self) -> MutexGuard<'_, BTreeSet<GroupResource>> {
        self.custom.lock().expect("no code panics under this lock")
    }

    /// Locks the set of definitions that are to be read.
    pub(crate) fn scans(&self) -> MutexGuard<'_, BTreeSet<DefinitionScan>> {
        self.scans.lock().expect("no code panics under this lock")
    }

    /// Locks the set of rescans that wait for feeds.
    pub(crate) fn arrivals(&self) -> MutexGuard<'_, BTreeSet<RescanScope>> {
        self.arrivals.lock().expect("no code panics under this lock")
    }

    /// Locks the set of resources that have to be counted again.
    pub(crate) fn recounts(&self) -> MutexGuard<'_, BTreeSet<(LogicalClusterId, GroupResource)>> {
        self.recounts.lock().expect("no code panics under this lock")
    }

    /// Locks the feeds.
    pub(crate) fn feeds(&self) -> MutexGuard<'_, BTreeMap<GroupResource, Arc<FeedProgress>>> {
        self.feeds.lock().expect("no code panics under this lock")
    }

    /// Returns true while this scheduler makes the decisions.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// Sets the leadership, and rescans everything when it begins: the former leader may have left work undone.
    pub(crate) fn set_leads(&self, leads: bool) {
        if !self.leads.swap(leads, Ordering::AcqRel) && leads {
            self.rescans.everything();
            requeue_all_drains(self);
            self.signals.policy_status.notify_one();
            self.signals.usage_status.notify_one();
        }
    }

    /// Returns a logical cluster and its ancestors.
    pub(crate) fn lineage_of(&self, cluster: LogicalClusterId) -> ClusterLineage {
        ClusterLineage { lineage: self.tree.lineage(cluster) }
    }

    /// Returns the present moment in seconds since the epoch.
    pub(crate) fn now(&self) -> i64 {
        self.seams.clock.now().as_second()
    }

    /// Returns the resource of a built-in kind, placeable ones first.
    pub(crate) fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        let builtin = kinds::PLACEABLE.iter().find(|p| p.group == group && p.kind == kind);
        builtin.map(kinds::Placeable::resource).or_else(|| self.kinds.resource_of(group, kind))
    }

    /// Returns the resource of a kind in a logical cluster, built-in ones first.
    pub(crate) fn resource_in(&self, cluster: LogicalClusterId, group: &str, kind: &str) -> Option<GroupResource> {
        self.resource_of(group, kind).or_else(|| {
            let facts = self.facts();
            let custom = facts.definitions.of(cluster).find(|own| *own.resource.group == *group && own.kind == kind);
            custom.map(|own| own.resource.clone())
        })
    }

    /// Returns the facts of an object. The number of replicas of a custom resource is where its definition says.
    pub(crate) fn workload_of(&self, kind: GroupKind, key: &ObjectKey, object: &Value) -> Workload {
        let mut workload = Workload::of(kind, key.resource.clone(), object);
        let custom = self.facts().definitions.get(key.cluster, &key.resource).cloned();
        if let Some(custom) = custom {
            workload.replicas = custom.replicas(object);
            if workload.pods > 0 {
                workload.pods = workload.replicas.unwrap_or(1);
            }
        }
        workload
    }

    /// Returns the references of an object, with those that the definition of a custom resource declares.
    pub(crate) fn references_of(&self, key: &ObjectKey, object: &Value) -> References {
        let custom = self.facts().definitions.get(key.cluster, &key.resource).cloned();
        let found = References::of(object);
        match custom {
            Some(custom) if !custom.references.is_empty() => found.declared_by(&custom.references, object),
            Some(_) | None => found,
        }
    }
}
