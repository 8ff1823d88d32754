//! Facts about physical clusters that decisions depend on.

use std::{collections::BTreeMap, sync::Arc};

use portolan_types::{
    Uid, annotations,
    placement::{CustomKindStatus, PhysicalClusterSpec, PhysicalClusterStatus, ResourceAmounts, Taint},
    quantity::Quantity,
};

use crate::expressions::ExpressionSubject;

/// Readiness of a physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Its condition `Ready` is `True`.
    Ready,
    /// Not ready, or not reported yet: the reason in one sentence.
    NotReady(String),
}

/// Taint with the time at which it was first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintFact {
    /// The taint.
    pub taint: Taint,
    /// Seconds since the epoch at which it was first seen.
    pub since: i64,
}

impl TaintFact {
    /// Returns true for the taint that the server sets on an unreachable physical cluster.
    pub fn is_unreachable(&self) -> bool {
        self.taint.key == annotations::UNREACHABLE_TAINT && self.taint.effect == "NoExecute"
    }
}

/// Slowly changing facts of a physical cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Name, unique among those that a workspace reaches.
    pub name: String,
    /// Uid, which tells it from another one of the same name.
    pub uid: Uid,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<TaintFact>,
    /// True if it is cordoned: it takes nothing new and keeps its copies.
    pub unschedulable: bool,
    /// True if it is being deleted: it takes nothing new and is drained.
    pub deleting: bool,
    /// True while a `Drain` empties it: it takes nothing new, and its objects leave as the `Drain` marks them.
    pub draining: bool,
    /// Readiness.
    pub readiness: Readiness,
    /// Most that Portolan may place there.
    pub bounds: ResourceAmounts,
    /// Allocatable resources of its schedulable nodes; empty if unknown.
    pub allocatable: ResourceAmounts,
    /// Resources that are synced, as `deployments.apps`; the syncer's default if empty.
    pub synced: Vec<String>,
    /// Custom kinds that it may take, and the versions of them that it serves.
    pub custom_kinds: Vec<CustomKindStatus>,
    /// The `PhysicalCluster` as expressions see it.
    pub subject: ExpressionSubject,
}

impl ClusterInfo {
    /// Makes the facts from the parts of a `PhysicalCluster`. `since` returns when a taint was first seen.
    pub fn new(
        name: &str,
        uid: Uid,
        spec: PhysicalClusterSpec,
        status: PhysicalClusterStatus,
        since: impl Fn(&Taint) -> i64,
    ) -> Self {
        let own = spec.taints.into_iter().map(|taint| TaintFact { since: since(&taint), taint });
        let from_server = status.taints.iter().map(|added| {
            let taint = added.as_taint();
            TaintFact { since: added.added_at().unwrap_or_else(|| since(&taint)), taint }
        });
        Self {
            name: name.to_owned(),
            uid,
            labels: BTreeMap::new(),
            taints: own.chain(from_server).collect(),
            unschedulable: spec.unschedulable,
            deleting: false,
            draining: false,
            readiness: readiness(&status),
            bounds: spec.bounds,
            allocatable: status.allocatable,
            synced: spec.synced_resources,
            custom_kinds: status.custom_kinds,
            subject: ExpressionSubject::default(),
        }
    }

    /// Returns true if it is being deleted, or has a `NoExecute` taint of an administrator.
    pub fn is_drained(&self) -> bool {
        let drains = |fact: &TaintFact| fact.taint.effect == "NoExecute" && !fact.is_unreachable();
        self.deleting || self.taints.iter().any(drains)
    }

    /// Returns true while the physical cluster has the taint of an unreachable one.
    pub fn is_unreachable(&self) -> bool {
        self.taints.iter().any(TaintFact::is_unreachable)
    }

    /// Returns the facts without the taint of an unreachable physical cluster.
    #[must_use]
    pub fn tolerated(&self) -> Self {
        let taints = self.taints.iter().filter(|fact| !fact.is_unreachable()).cloned().collect();
        Self { taints, ..self.clone() }
    }

    /// Returns true if the physical cluster is ready.
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

/// Physical cluster from the view of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Slowly changing facts, shared.
    pub info: Arc<ClusterInfo>,
    /// Sum of the requests that Portolan has placed there, including the workload's own.
    pub used: ResourceAmounts,
    /// True if it is registered in the workload's workspace or an ancestor.
    pub in_reach: bool,
    /// True if the workspace may `use` it.
    pub may_use: bool,
}

/// Returns an amount of `amounts`; zero if it is not named.
pub(crate) fn amount(amounts: &ResourceAmounts, resource: &str) -> Quantity {
    amounts.get(resource).copied().unwrap_or(Quantity::ZERO)
}

impl ClusterFacts {
    /// Returns the number of pods of `requests` that fit in `limits` in total, if `own` pods are there already. `None`
    /// is not a limit. Each pod counts as one of `pods`.
    pub(crate) fn room(&self, limits: &ResourceAmounts, requests: &ResourceAmounts, own: i64) -> Option<i64> {
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

    /// Returns the highest use of cpu, memory and pods in percent of the bounds or, without bounds, of the nodes.
    /// Unknown is 50.
    pub(crate) fn load_percent(&self) -> i64 {
        self.load_percent_without(&ResourceAmounts::new())
    }

    /// Returns [`Self::load_percent`] without `own` requests.
    pub(crate) fn load_percent_without(&self, own: &ResourceAmounts) -> i64 {
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

#[cfg(test)]
mod tests {
    use portolan_types::placement::ServerTaint;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{PlacementCase, chosen, cluster, deployment, policy, workload};

    const KEY: &str = annotations::UNREACHABLE_TAINT;

    /// Returns the case of a workload on `east` at the time `now`. `east` is unreachable since 1000 s.
    fn lost(workload: crate::Workload, now: i64) -> PlacementCase {
        let clusters = vec![cluster("east").down().tainted(KEY, "NoExecute", 1_000), cluster("west")];
        PlacementCase { now, ..PlacementCase::new(workload, clusters).on("east") }
    }

    #[test]
    fn the_servers_taints_count_from_when_they_were_set() {
        let added = |text: &str| ServerTaint { key: KEY.into(), effect: "NoExecute".into(), time_added: text.into() };
        for (time_added, expected) in [("1970-01-01T00:01:00Z", 60), ("yesterday", 7)] {
            let status = PhysicalClusterStatus { taints: vec![added(time_added)], ..Default::default() };
            let info = ClusterInfo::new("east", "u".parse().unwrap(), PhysicalClusterSpec::default(), status, |_| 7);
            assert_eq!(info.taints[0].since, expected, "{time_added}");
            assert!(info.is_unreachable() && !info.is_drained());
            assert!(info.tolerated().taints.is_empty());
        }
    }

    #[test]
    fn a_loss_is_tolerated_for_five_minutes_by_default() {
        let seconds = |n: i64| json!({"tolerations": [{"key": KEY, "operator": "Exists", "tolerationSeconds": n}]});
        let for_ever = json!({"tolerations": [{"key": KEY, "operator": "Exists"}]});
        let daemon_set = || workload("apps", "DaemonSet", json!({"metadata": {"name": "agent"}}));
        for (case, workload, spec, now, expected) in [
            ("the default holds", deployment(1), json!({}), 1_299, "east"),
            ("and ends", deployment(1), json!({}), 1_300, "west"),
            ("a policy shortens it", deployment(1), seconds(20), 1_020, "west"),
            ("or lengthens it", deployment(1), seconds(1_000), 1_999, "east"),
            ("or has it last for ever", deployment(1), for_ever, 9_999_999, "east"),
            ("a DaemonSet is for the nodes there", daemon_set(), json!({}), 9_999_999, "east"),
        ] {
            assert_eq!(chosen(&lost(workload, now).by(policy(1, "p", spec)).decide()), expected, "{case}");
        }
        let waits = lost(deployment(1), 1_100).decide();
        assert_eq!(waits.recheck_in, Some(200), "it is looked at again in time");
        assert_eq!(
            chosen(&PlacementCase { previous: Default::default(), ..lost(deployment(1), 1_100) }.decide()),
            "west"
        );
    }

    #[test]
    fn run_once_objects_stay_until_written_off() {
        let started = json!({"metadata": {"name": "x"}, "status": {"startTime": "2026-01-01T00:00:00Z"}});
        for (case, group, kind, object) in [
            ("a set", "apps", "StatefulSet", json!({"metadata": {"name": "x"}})),
            ("a pod", "", "Pod", json!({"metadata": {"name": "x"}, "spec": {"containers": [{}]}})),
            ("a Job to come", "batch", "Job", json!({"metadata": {"name": "x"}})),
            ("a started Job", "batch", "Job", started),
            ("a CronJob", "batch", "CronJob", json!({"metadata": {"name": "x"}})),
        ] {
            let held = lost(workload(group, kind, object.clone()), 9_999);
            let decision = held.decide();
            assert_eq!(chosen(&decision), "east", "{case}");
            assert!(
                decision.held[0].contains("portolan.dev/write-off: east declares it"),
                "{case}: {:?}",
                decision.held
            );
            let mut written_off = held.clone();
            written_off.workload.written_off = vec!["east".into()];
            written_off.now = 1_001;
            assert_eq!(chosen(&written_off.decide()), "west", "{case}, at once");
            written_off.clusters[0] = cluster("east");
            assert_eq!(chosen(&written_off.decide()), "east", "{case}: what is heard is not written off");
        }
    }
}
