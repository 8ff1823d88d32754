//! Copies that stay although their physical cluster is refused, and copies that are lost with theirs.

use portolan_types::{
    annotations,
    placement::{Phase, PlacedCopy},
};

use super::Planner;
use crate::{
    facts::ClusterFacts,
    reason::Reason,
    select::Candidate,
    workload::{Moves, PinOn, Workload},
};

/// Reason for which an object with volumes does not move.
const VOLUMES_STAY: &str = "the data on its volumes do not move with it";

impl<'a> Planner<'a> {
    /// Returns true when a copy stays where it is although its physical cluster is refused, for lack of an explicit wish.
    pub(super) fn holds(&self, cluster: &ClusterFacts, reason: Reason) -> bool {
        if self.workload().keeps_volumes && self.ctx.is_here(cluster) {
            return true;
        }
        let by_object = self.workload().pin.as_ref().is_some_and(|pin| pin.on == PinOn::Object);
        let wished = match self.workload().moves {
            Moves::Surge | Moves::Handover => true,
            Moves::Restart => matches!(reason, Reason::PinnedElsewhere | Reason::Deleting | Reason::TaintNotTolerated),
            Moves::Stay => reason == Reason::PinnedElsewhere && by_object,
        };
        self.ctx.is_here(cluster) && !wished
    }

    /// Returns the copies that are lost with their physical cluster and had volumes that nobody has given up.
    pub(super) fn lost(&self) -> Vec<&'a PlacedCopy> {
        let question = self.ctx.question;
        let exists = |copy: &PlacedCopy| question.clusters.iter().any(|cluster| cluster.info.uid == copy.uid);
        let keeps_volumes = question.workload.keeps_volumes && !question.workload.finished;
        let copies = question.previous.clusters.iter().filter(|copy| copy.phase == Phase::Active);
        copies.filter(|copy| keeps_volumes && !exists(copy)).collect()
    }

    /// Takes out held copies that are more than `count` together with the others. Those with volumes all stay.
    pub(super) fn without_surplus(&self, candidates: Vec<Candidate<'a>>, count: usize) -> HeldSurplus<'a> {
        let wanted = candidates.iter().filter(|c| c.held.is_none()).count();
        let mut spare = if self.workload().keeps_volumes { usize::MAX } else { count.saturating_sub(wanted) };
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
}

/// Candidates that may be taken, and those that are left, with the reason.
type HeldSurplus<'a> = (Vec<Candidate<'a>>, Vec<(Candidate<'a>, Reason)>);

/// Returns the sentence about a copy that stays.
pub(super) fn line(workload: &Workload, cluster: &ClusterFacts, reason: Reason) -> String {
    if workload.keeps_volumes {
        return format!(
            "stays on {} ({}): {VOLUMES_STAY}; the annotation {}: \"true\" lets it start on new, empty volumes",
            cluster.info.name,
            reason.phrase(),
            annotations::ABANDON_VOLUMES
        );
    }
    let how = match workload.moves {
        Moves::Stay => "a started job does not move unless it is pinned itself",
        Moves::Surge | Moves::Handover | Moves::Restart => "it moves only by pin or drain, as two must not run at once",
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
