//! Evictions from lost physical clusters: an object stays until its slot comes.

use std::sync::Arc;

use portolan_placement::{ClusterFacts, PlacementDecision, PlacementInputs, place};
use portolan_types::{ObjectKey, Uid};
use tokio::time::Instant;

use crate::failover::FailoverState;

/// Returns `decision`, or a decision that keeps the object on lost physical clusters until its slot comes.
pub(crate) fn defer_evictions(
    failover: &FailoverState,
    key: &ObjectKey,
    question: &PlacementInputs,
    decision: PlacementDecision,
) -> PlacementDecision {
    let lost = evicted_from(question, &decision);
    if lost.is_empty() {
        return decision;
    }
    let left = {
        let (mut slots, now) = (failover.slots(), Instant::now());
        lost.iter().map(|cluster| slots.time_left(&cluster.info.uid, key, now)).max().unwrap_or_default()
    };
    if left.is_zero() {
        return decision;
    }
    let names: Vec<&str> = lost.iter().map(|cluster| cluster.info.name.as_str()).collect();
    let uids: Vec<&Uid> = lost.iter().map(|cluster| &cluster.info.uid).collect();
    let tolerate = |cluster: &ClusterFacts| {
        let mut cluster = cluster.clone();
        if uids.contains(&&cluster.info.uid) {
            cluster.info = Arc::new(cluster.info.tolerated());
        }
        cluster
    };
    let clusters: Vec<_> = question.clusters.iter().map(tolerate).collect();
    let mut stays = place(&PlacementInputs { clusters: &clusters, ..*question });
    let seconds = i64::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX);
    stays.recheck_in = stays.recheck_in.into_iter().chain([seconds]).min();
    stays.held.push(format!("it leaves {} in about {seconds} s: evictions have a rate", names.join(",")));
    stays
}

/// Returns the lost physical clusters that a decision takes an active copy off.
fn evicted_from<'a>(question: &PlacementInputs<'a>, decision: &PlacementDecision) -> Vec<&'a ClusterFacts> {
    let stays = |uid: &Uid| decision.chosen.iter().any(|chosen| chosen.uid == *uid);
    let has_copy = |uid: &Uid| question.previous.active().any(|copy| copy.uid == *uid);
    let is_evicted = |cluster: &&ClusterFacts| {
        let info = &cluster.info;
        info.is_unreachable() && has_copy(&info.uid) && !stays(&info.uid)
    };
    // Nothing leaves for lack of another place.
    question.clusters.iter().filter(is_evicted).filter(|_| !decision.chosen.is_empty()).collect()
}
