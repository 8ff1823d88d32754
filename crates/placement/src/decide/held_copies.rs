//! Copies that stay on rejected physical clusters, and copies whose physical cluster is lost.

use portolan_types::{
    annotations,
    placement::{CopyPhase, PlacedCopy},
};

use super::{PlacementPlanner, job_parts};
use crate::{
    cluster_facts::ClusterFacts,
    exclusion_reason::ExclusionReason,
    select::Candidate,
    workload::{MoveStrategy, PinScope},
};

/// Reason for which an object with volumes does not move.
const VOLUMES_STAY: &str = "the data on its volumes do not move with it";

/// Returns true if a copy stays on a rejected physical cluster because no explicit request moves it.
pub(super) fn holds(planner: &PlacementPlanner, cluster: &ClusterFacts, reason: ExclusionReason) -> bool {
    if planner.keeps_volumes() && planner.ctx.is_here(cluster) {
        return true;
    }
    // An unreachable copy may still run: only a user's statement can replace the proof of its end.
    let (workload, info) = (planner.workload(), &cluster.info);
    let is_written_off = info.is_unreachable() && workload.written_off.contains(&info.name);
    let may_run = info.is_unreachable() && !is_written_off;
    let by_object = planner.workload().pin.as_ref().is_some_and(|pin| pin.on == PinScope::Object);
    let is_explicit = match reason {
        ExclusionReason::TaintNotTolerated => !may_run,
        ExclusionReason::PinnedElsewhere | ExclusionReason::Deleting | ExclusionReason::Draining => true,
        _ => false,
    };
    let wished = match workload.moves {
        MoveStrategy::Surge => true,
        MoveStrategy::Handover => reason != ExclusionReason::TaintNotTolerated || !may_run,
        MoveStrategy::Restart => is_explicit,
        MoveStrategy::Stay if workload.force.is_some() || is_written_off => is_explicit,
        MoveStrategy::Stay => reason == ExclusionReason::PinnedElsewhere && by_object,
    };
    planner.ctx.is_here(cluster) && !wished
}

/// Returns the copies that are lost with their physical cluster and had volumes that were not given up.
pub(super) fn lost_copies<'a>(planner: &PlacementPlanner<'a>) -> Vec<&'a PlacedCopy> {
    let question = planner.ctx.question;
    let exists = |copy: &PlacedCopy| question.clusters.iter().any(|cluster| cluster.info.uid == copy.uid);
    let keeps_volumes = planner.keeps_volumes() && !question.workload.finished;
    let copies = question.previous.clusters.iter().filter(|copy| copy.phase == CopyPhase::Active);
    copies.filter(|copy| keeps_volumes && !exists(copy)).collect()
}

/// Removes held copies beyond `count`. Held copies with volumes all stay.
pub(super) fn without_surplus<'a>(
    planner: &PlacementPlanner<'a>,
    candidates: Vec<Candidate<'a>>,
    count: usize,
) -> HeldSurplus<'a> {
    let wanted = candidates.iter().filter(|c| c.held.is_none()).count();
    let mut spare = if planner.keeps_volumes() { usize::MAX } else { count.saturating_sub(wanted) };
    let (mut stay, mut surplus) = (Vec::new(), Vec::new());
    for candidate in candidates {
        match candidate.held {
            Some(reason) if spare == 0 => surplus.push((candidate, reason)),
            Some(_) => {
                spare -= 1;
                stay.push(candidate);
            }
            None => stay.push(candidate),
        }
    }
    (stay, surplus)
}

/// Candidates that may be taken, and those that are left, with the reason.
type HeldSurplus<'a> = (Vec<Candidate<'a>>, Vec<(Candidate<'a>, ExclusionReason)>);

/// Returns the sentence about a copy that stays.
pub(super) fn line(planner: &PlacementPlanner, cluster: &ClusterFacts, reason: ExclusionReason) -> String {
    let workload = planner.workload();
    if planner.keeps_volumes() {
        return format!(
            "stays on {} ({}): {VOLUMES_STAY}; the annotation {}: \"true\" lets it start on new, empty volumes",
            cluster.info.name,
            reason.phrase(),
            annotations::ABANDON_VOLUMES
        );
    }
    let (info, key) = (&cluster.info, annotations::WRITE_OFF);
    if info.is_unreachable() && reason == ExclusionReason::TaintNotTolerated {
        return format!(
            "stays on {0}, which is not heard of: two must not run at once, and nothing proves that this copy has ended; the \
             annotation {key}: {0} declares it",
            info.name
        );
    }
    if job_parts::are_kept(&planner.ctx) && workload.moves != MoveStrategy::Stay {
        let reason = reason.phrase();
        return format!("stays on {} ({reason}): no other physical cluster takes its part of the Job", info.name);
    }
    let how = match workload.moves {
        MoveStrategy::Stay => "a started job does not move unless it is pinned itself",
        MoveStrategy::Surge | MoveStrategy::Handover | MoveStrategy::Restart => {
            "it moves only by pin or drain, as two must not run at once"
        }
    };
    format!("stays on {} ({}): {how}", cluster.info.name, reason.phrase())
}

/// Returns the sentence about a copy that is lost.
pub(super) fn line_of_lost(copy: &PlacedCopy) -> String {
    format!(
        "stays on {}, which does not exist any more: {VOLUMES_STAY}; the annotation {}: \"true\" lets it start on new, empty volumes",
        copy.name,
        annotations::ABANDON_VOLUMES
    )
}
