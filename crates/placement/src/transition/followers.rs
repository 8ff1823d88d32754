//! Steps of followers: they come with the objects that need them, and leave after them.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{CopyPhase, PlacedCopy, PlacementRecord},
};

use super::{CopyHealth, PlacementStep, drop_gone};
use crate::object_role::Role;

/// Physical clusters that a follower needs.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Physical clusters where an object that names it is, or where a policy wants it, by uid.
    pub needed: BTreeMap<Uid, String>,
    /// Physical clusters where it stays although nothing needs it.
    pub inhabited: BTreeSet<Uid>,
    /// Physical clusters whose deletion has been asked for.
    pub deleting: BTreeSet<Uid>,
    /// True if it is pinned; `needed` is the pin then.
    pub pinned: bool,
}

/// Returns the next step of a follower. It arrives with the objects that need it, and leaves after them: content once
/// nothing needs it, network objects once their namespace has a workload elsewhere, and volume claims, which hold
/// data, only by a pin of their own.
pub fn follow(role: Role, previous: &PlacementRecord, demand: &Demand, health: &CopyHealth) -> PlacementStep {
    let mut copies = previous.clusters.clone();
    let mut causes = Vec::new();
    if previous.is_projected() {
        return PlacementStep::unchanged(previous);
    }
    if drop_gone(&mut copies, health.gone) {
        causes.push("its physical cluster is gone");
    }
    let active =
        |copies: &[PlacedCopy], uid: &Uid| copies.iter().any(|c| c.uid == *uid && c.phase == CopyPhase::Active);
    let arriving: Vec<_> = demand.needed.iter().filter(|(uid, _)| !active(&copies, uid)).collect();
    if arriving.is_empty() {
        let leaves = |c: &PlacedCopy| c.phase == CopyPhase::Active && may_leave(role, demand, &c.uid);
        for copy in copies.iter_mut().filter(|c| leaves(c)) {
            copy.phase = CopyPhase::Leaving;
            causes.push("nothing needs it there any more");
        }
    } else {
        causes.push("follows what needs it");
    }
    for (uid, name) in arriving {
        copies.retain(|c| c.uid != *uid);
        let (name, uid) = (name.clone(), uid.clone());
        copies.push(PlacedCopy { name, uid, phase: CopyPhase::Active, replicas: None, epoch: health.epoch });
    }
    copies.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
    causes.dedup();
    let cause = (!causes.is_empty()).then(|| causes.join(", "));
    let record = match cause {
        Some(_) => PlacementRecord { clusters: copies, ..previous.clone() },
        None => previous.clone(),
    };
    PlacementStep { record, cause, waiting: None, recheck_in: None, rolling_out: None }
}

fn may_leave(role: Role, demand: &Demand, uid: &Uid) -> bool {
    let elsewhere = || !demand.inhabited.is_empty() || demand.deleting.contains(uid);
    let unused = !demand.needed.contains_key(uid) && !demand.inhabited.contains(uid);
    unused
        && match role {
            Role::Content | Role::Autoscaler => true,
            Role::Network => elsewhere(),
            Role::Claim => demand.pinned,
            Role::Workload | Role::Explicit | Role::Never(_) => false,
        }
}

/// Returns the step after which a Service or Ingress publishes no addresses of these physical clusters.
#[must_use]
pub fn with_withdrawn(step: PlacementStep, withdrawn: BTreeSet<Uid>) -> PlacementStep {
    if step.record.withdrawn == withdrawn {
        return step;
    }
    let cause = step.cause.unwrap_or_else(|| "its addresses follow what it serves".to_owned());
    PlacementStep { record: PlacementRecord { withdrawn, ..step.record }, cause: Some(cause), ..step }
}
