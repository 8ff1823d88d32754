//! Parts of a divided Job: completions, and the pods that run at once.
//!
//! The completions of a Job cannot change, and a copy may have started before its report arrives. A Job is therefore
//! divided when it gets its first copies, and never again. The part of a copy that leaves goes to other physical
//! clusters, once the copy is gone. While none takes it, the copy stays.

use portolan_types::placement::{CopyPhase, PlacedCopy};

use super::{PlacementPlanner, RejectedCluster, replica_split};
use crate::{
    divide::divide,
    exclusion_reason::ExclusionReason,
    filters::FilterContext,
    select::{Candidate, ClusterSelection, select},
};

/// Returns true for a Job that is divided already.
pub(super) fn are_kept(ctx: &FilterContext<'_>) -> bool {
    let has_part = |copy: &PlacedCopy| copy.replicas.is_some();
    ctx.question.workload.is_job() && ctx.question.previous.clusters.iter().any(has_part)
}

/// Returns the reason for which a Job is not divided; `None` if it is, or may be.
pub(super) fn reason_to_run_whole(ctx: &FilterContext<'_>) -> Option<&'static str> {
    if are_kept(ctx) {
        return None;
    }
    let has_copy = !ctx.question.previous.clusters.is_empty();
    match ctx.question.workload.replicas {
        None => Some("with completionMode Indexed, the indexes of each part would start at 0"),
        Some(..2) => Some("it runs one pod at a time"),
        Some(_) => has_copy.then_some("its completions cannot change once it has a copy"),
    }
}

/// Adds rejected physical clusters that have a part to the candidates if nothing else fits, because their parts would
/// be lost.
pub(super) fn hold<'a>(
    planner: &PlacementPlanner<'a>,
    candidates: &mut Vec<Candidate<'a>>,
    rejected: &mut Vec<RejectedCluster>,
) {
    if !are_kept(&planner.ctx) || candidates.iter().any(|c| !c.here) {
        return;
    }
    let (held, others) = std::mem::take(rejected).into_iter().partition(|one| {
        let copy = planner.ctx.question.previous.on(&one.uid);
        copy.is_some_and(|copy| copy.phase == CopyPhase::Active)
    });
    *rejected = others;
    let facts = |one: &RejectedCluster| planner.clusters.iter().find(|c| c.info.uid == one.uid).copied();
    let held: Vec<RejectedCluster> = held;
    candidates.extend(held.iter().filter_map(|one| Some(planner.candidate(facts(one)?, Some(one.reason)))));
}

/// Takes the physical clusters with a part, and as many others as take the parts of those that leave.
pub(super) fn select_kept<'a>(planner: &PlacementPlanner<'a>, candidates: Vec<Candidate<'a>>) -> ClusterSelection<'a> {
    let (stay, rest): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.here);
    let takers = wanted_takers(planner, &stay);
    let mut selection = ClusterSelection::default();
    if takers == 0 {
        selection.left = rest.into_iter().map(|c| (c, ExclusionReason::NotNeeded)).collect();
    } else {
        selection = select(rest, takers, &[]);
    }
    selection.taken.splice(0..0, stay);
    selection
}

/// Returns the number of physical clusters that take parts of copies that leave or are gone.
fn wanted_takers(planner: &PlacementPlanner, stay: &[Candidate]) -> usize {
    let previous = planner.ctx.question.previous;
    let leaving = previous.clusters.iter().filter(|copy| !stay.iter().any(|c| c.facts.info.uid == copy.uid)).count();
    let is_incomplete = planner.workload().completions.is_some_and(|all| {
        let part = |c: &Candidate| previous.completions.get(&c.facts.info.uid).copied();
        // A copy without completions gets the remaining ones.
        stay.iter().map(part).sum::<Option<i64>>().is_some_and(|has| has < all)
    });
    if leaving > 0 || is_incomplete { leaving.max(previous.awaited.len()).max(1) } else { 0 }
}

/// Returns the pods of each part that run at once. The total may change while the Job runs. An increase reduces no
/// part, and a decrease enlarges none. Each part keeps at least one pod, because it could not finish without.
pub(super) fn parallel(planner: &PlacementPlanner, taken: &[Candidate]) -> Vec<i64> {
    let wanted = planner.workload().replicas.unwrap_or(0);
    let mut shares = replica_split::shares_within(planner, taken);
    for share in &mut shares {
        share.floor = wanted.min(1);
        share.cap = share.cap.map(|cap| cap.max(share.floor));
    }
    let total = if wanted == 0 { 0 } else { wanted.max(i64::try_from(taken.len()).unwrap_or(i64::MAX)) };
    let present: i64 = shares.iter().map(|share| share.previous).sum();
    for share in &mut shares {
        let had = share.previous.max(share.floor);
        if total >= present {
            share.floor = had;
        } else {
            share.cap = Some(had);
        }
    }
    divide(total, &shares)
}

#[cfg(test)]
mod tests;
