//! What is known of a physical cluster when a decision is made.

use std::{collections::BTreeMap, sync::Arc};

use portolan_types::{
    Uid,
    placement::{PhysicalClusterSpec, PhysicalClusterStatus, Resources, Taint},
    quantity::Quantity,
};

/// Whether a physical cluster answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Its condition `Ready` is `True`.
    Ready,
    /// It is not, or nobody has said so yet: one sentence why.
    NotReady(String),
}

/// A taint and since when it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintFact {
    /// The taint.
    pub taint: Taint,
    /// Seconds since the epoch at which it was first seen.
    pub since: i64,
}

/// The slowly changing facts of a physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Name, unique among those that a workspace reaches.
    pub name: String,
    /// Uid: another cluster of the same name is another one.
    pub uid: Uid,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<TaintFact>,
    /// Cordoned: takes nothing new, keeps what is there.
    pub unschedulable: bool,
    /// Its deletion has been asked for: takes nothing new, and everything there moves off.
    pub deleting: bool,
    /// Whether it answers.
    pub readiness: Readiness,
    /// The most that Portolan may place here.
    pub bounds: Resources,
    /// What its schedulable nodes hold; empty when unknown.
    pub allocatable: Resources,
    /// Resources that may go down, as `deployments.apps`; the syncer's default when empty.
    pub synced: Vec<String>,
}

impl ClusterInfo {
    /// From the parts of a `PhysicalCluster`. `since` tells when a taint was first seen.
    pub fn new(
        name: &str,
        uid: Uid,
        spec: PhysicalClusterSpec,
        status: PhysicalClusterStatus,
        since: impl Fn(&Taint) -> i64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            uid,
            labels: BTreeMap::new(),
            taints: spec.taints.into_iter().map(|taint| TaintFact { since: since(&taint), taint }).collect(),
            unschedulable: spec.unschedulable,
            deleting: false,
            readiness: readiness(&status),
            bounds: spec.bounds,
            allocatable: status.allocatable,
            synced: spec.synced_resources,
        }
    }

    /// Whether whoever runs it empties it: it is being deleted, or has a taint that drives out (`NoExecute`).
    pub fn is_drained(&self) -> bool {
        self.deleting || self.taints.iter().any(|fact| fact.taint.effect == "NoExecute")
    }

    /// Whether it answers.
    pub fn is_ready(&self) -> bool {
        self.readiness == Readiness::Ready
    }
}

fn readiness(status: &PhysicalClusterStatus) -> Readiness {
    match status.conditions.iter().find(|c| c.kind == "Ready") {
        Some(ready) if ready.status == "True" => Readiness::Ready,
        Some(other) if !other.message.is_empty() => Readiness::NotReady(other.message.clone()),
        Some(other) => Readiness::NotReady(other.reason.clone()),
        None => Readiness::NotReady("it has not reported yet".into()),
    }
}

/// A physical cluster as one workload sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The slowly changing facts, shared.
    pub info: Arc<ClusterInfo>,
    /// Sum of requests that Portolan has placed here, the asking workload included.
    pub used: Resources,
    /// Whether it is registered in the workload's workspace or above.
    pub in_reach: bool,
    /// Whether the workspace may `use` it.
    pub may_use: bool,
}

/// A decimal amount of `amounts`; nothing where it is not named.
pub(crate) fn amount(amounts: &Resources, resource: &str) -> Quantity {
    amounts.get(resource).copied().unwrap_or(Quantity::ZERO)
}

impl ClusterFacts {
    /// How many pods of `requests` fit in `limits` in total, when `own` of what is used are theirs already.
    /// `None` is no limit. Each pod counts as one of `pods`.
    pub(crate) fn room(&self, limits: &Resources, requests: &Resources, own: i64) -> Option<i64> {
        let one = Quantity::from_units(1);
        let per_pod = |resource: &str| match resource {
            "pods" => one,
            _ => amount(requests, resource),
        };
        let fits = |(resource, limit): (&String, &Quantity)| {
            let need = per_pod(resource);
            let others = amount(&self.used, resource).minus(need.times(own));
            let free = limit.minus(others).nanos().max(0);
            let pods = (need.nanos() > 0).then(|| free / need.nanos())?;
            Some(i64::try_from(pods).unwrap_or(i64::MAX))
        };
        limits.iter().filter_map(fits).min()
    }

    /// The fullest of cpu, memory and pods, in percent of bounds or, where there are none, of what the nodes hold.
    /// 50 when nothing is known.
    pub(crate) fn load_percent(&self) -> i64 {
        self.load_percent_without(&Resources::new())
    }

    /// As [`Self::load_percent`], without the part of what is used that is `own`.
    pub(crate) fn load_percent_without(&self, own: &Resources) -> i64 {
        let percent = |resource: &str| {
            let limits = [self.info.bounds.get(resource), self.info.allocatable.get(resource)];
            let limit = limits.into_iter().flatten().min().map(|q| q.nanos()).filter(|n| *n > 0)?;
            let used = amount(&self.used, resource).minus(amount(own, resource));
            let share = used.nanos().max(0).saturating_mul(100) / limit;
            Some(i64::try_from(share).unwrap_or(i64::MAX).min(100))
        };
        ["cpu", "memory", "pods"].into_iter().filter_map(percent).max().unwrap_or(50)
    }
}
