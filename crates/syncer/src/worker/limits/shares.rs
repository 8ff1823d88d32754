//! Shares of the logical clusters in the cache of one physical cluster: the copies of one of them must not end the
//! syncing of all.

use std::collections::HashMap;

use portolan_types::{LogicalClusterId, placement::CopyIdentity};
use serde_json::Value;

use super::{HeldObjects, SyncLimits};
use crate::client::weight;

/// Part of the limits that the copies of one logical cluster may take: a quarter.
const CLUSTER_PART: (u64, u64) = (1, 4);
/// Part of the limits that all copies may take: three quarters. The rest is for objects that the physical cluster adds.
const COPIES_PART: (u64, u64) = (3, 4);

/// Memory that one copy takes, with the pods that are made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) struct CopyDemand {
    /// Logical cluster of the copy.
    pub(in crate::worker) cluster: LogicalClusterId,
    amount: HeldObjects,
}

impl CopyDemand {
    /// Returns the demand of an observed object; `None` when it is not a copy.
    pub(in crate::worker) fn of_copy(object: &Value) -> Option<Self> {
        let cluster = CopyIdentity::of(object)?.cluster.parse().ok()?;
        Some(Self::of(cluster, object))
    }

    /// Returns the demand of a copy of a logical cluster's object. Each replica counts as large as the template.
    pub(in crate::worker) fn of(cluster: LogicalClusterId, copy: &Value) -> Self {
        let pods = ["/spec/replicas", "/spec/parallelism"].iter().find_map(|field| copy.pointer(field)?.as_u64());
        let template = copy.pointer("/spec/template").map_or(0, weight::of);
        let pods = pods.filter(|_| copy.pointer("/spec/template").is_some()).unwrap_or(0);
        let bytes = |weight: usize| u64::try_from(weight).unwrap_or(u64::MAX);
        let bytes = bytes(weight::of(copy)).saturating_add(bytes(template).saturating_mul(pods));
        Self { cluster, amount: HeldObjects { objects: pods.saturating_add(1), bytes } }
    }
}

/// Demands of all copies, by logical cluster.
#[derive(Default)]
pub(in crate::worker) struct ClusterShares {
    by_cluster: HashMap<LogicalClusterId, HeldObjects>,
    all: HeldObjects,
}

impl ClusterShares {
    pub(in crate::worker) fn add(&mut self, demand: Option<&CopyDemand>) {
        let Some(demand) = demand else { return };
        *self.by_cluster.entry(demand.cluster).or_default() += demand.amount;
        self.all += demand.amount;
    }

    pub(in crate::worker) fn remove(&mut self, demand: Option<&CopyDemand>) {
        let Some(demand) = demand else { return };
        self.all -= demand.amount;
        if let Some(held) = self.by_cluster.get_mut(&demand.cluster) {
            *held -= demand.amount;
            if *held == HeldObjects::default() {
                self.by_cluster.remove(&demand.cluster);
            }
        }
    }

    /// Returns the reason if the demand `wanted`, which replaces `before`, exceeds a share. `held` is the demand of all
    /// copies.
    pub(in crate::worker) fn excess(
        &self,
        limits: &SyncLimits,
        held: HeldObjects,
        wanted: &CopyDemand,
        before: Option<&CopyDemand>,
    ) -> Option<String> {
        let before = before.map(|demand| demand.amount).unwrap_or_default();
        if wanted.amount.objects <= before.objects && wanted.amount.bytes <= before.bytes {
            return None;
        }
        let share = limits.part(CLUSTER_PART);
        let own = self.by_cluster.get(&wanted.cluster).copied().unwrap_or_default();
        if !share.permit(own - before + wanted.amount) {
            let SyncLimits { objects, bytes } = share;
            return Some(format!(
                "the copies of this workspace and their pods would be more than {objects} objects or take more than {bytes} bytes of \
                 memory, which is its share of what is held of the physical cluster"
            ));
        }
        let most = limits.part(COPIES_PART);
        let is_full = !most.permit(self.all - before + wanted.amount) || !most.permit(held - before + wanted.amount);
        is_full.then(|| "the physical cluster has nearly as many objects as are held of one".to_owned())
    }
}

impl SyncLimits {
    fn part(&self, (numerator, denominator): (u64, u64)) -> Self {
        let part = |whole: u64| (whole / denominator).saturating_mul(numerator);
        Self { objects: part(self.objects), bytes: part(self.bytes) }
    }
}
