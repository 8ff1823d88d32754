//! Legal steps from the present copies of an object to the decided ones: none → A, A → A+B, A+B → B, A → none, and A →
//! none → B for objects that must not run twice.

mod completions;
mod departures;
mod followers;
mod gates;
mod ordinals;

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{CopyPhase, OrdinalRange, PlacedCopy, PlacementRecord, RecordedCopy},
};

use self::gates::MoveProgress;
pub use self::{
    followers::{Demand, follow, with_withdrawn},
    gates::{DisruptionBound, FrontEnd, MoveGates},
};
use crate::{
    decide::{ChosenCluster, DecisionOutcome, PlacementDecision},
    workload::Workload,
};

/// Health of the copies at a step.
#[derive(Clone, Copy, Debug)]
pub struct CopyHealth<'a> {
    /// Available pods per copy, if the kind tells them from ready ones, or 1 for a synced object without pods. 0 means
    /// that nothing is ready there.
    pub ready: &'a BTreeMap<Uid, i64>,
    /// Physical clusters that answer.
    pub up: &'a BTreeSet<Uid>,
    /// Physical clusters that are drained.
    pub drained: &'a BTreeSet<Uid>,
    /// Physical clusters that are proven not to exist, so copies there are gone.
    pub gone: &'a BTreeSet<Uid>,
    /// Epoch of copies that arrive in this step: larger than any before.
    pub epoch: u64,
    /// Pace of the move, and the conditions of a departure besides health.
    pub gates: &'a MoveGates,
}

impl CopyHealth<'_> {
    /// Returns true if a copy is available.
    pub fn is_healthy(&self, workload: &Workload, copy: &PlacedCopy, limit: Option<i64>) -> bool {
        let ready = self.ready.get(&copy.uid).copied().unwrap_or(0);
        self.up.contains(&copy.uid) && ready >= workload.needed(copy.replicas, limit)
    }

    /// Returns true if a copy is on a drained physical cluster that answers, and has nothing ready there. A copy that
    /// never gets ready anywhere would keep the drain from ending.
    pub fn is_in_the_way(&self, copy: &PlacedCopy) -> bool {
        self.drained.contains(&copy.uid) && self.up.contains(&copy.uid) && self.ready.get(&copy.uid) == Some(&0)
    }
}

/// Next legal record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementStep {
    /// Record; equal to the one before if nothing changes.
    pub record: PlacementRecord,
    /// Cause in a few words; `None` if nothing changed.
    pub cause: Option<String>,
    /// Condition that the next step waits for.
    pub waiting: Option<String>,
    /// Seconds after which the next step may be due without another event.
    pub recheck_in: Option<i64>,
    /// Condition that the rollout of a change waits for.
    pub rolling_out: Option<String>,
}

impl PlacementStep {
    /// Returns the step that changes nothing.
    fn unchanged(previous: &PlacementRecord) -> Self {
        Self { record: previous.clone(), cause: None, waiting: None, recheck_in: None, rolling_out: None }
    }
}

/// Returns the next step from `previous` towards `decision`. No step both adds and removes copies. A copy leaves only
/// if the rest is healthy, if a policy stops the object, if two copies must not run at once, or if it is drained with
/// nothing ready and the rest can be seen.
pub fn transition(
    workload: &Workload,
    previous: &PlacementRecord,
    decision: &PlacementDecision,
    health: &CopyHealth,
) -> PlacementStep {
    if previous.is_projected() {
        return PlacementStep::unchanged(previous);
    }
    let mut walk = TransitionBuilder {
        workload,
        decision,
        health,
        copies: previous.clusters.clone(),
        causes: Vec::new(),
        waiting: None,
        progress: MoveProgress::of(previous),
        recheck_in: None,
    };
    walk.drop_gone();
    walk.arrive_and_leave();
    walk.share_out(previous);
    let ordinals = walk.settle_ordinals(previous);
    let completions = walk.settle_completions(previous);
    walk.settle_progress();
    walk.finish(previous, SettledShares { ordinals, completions })
}

/// Shares of the copies besides their replicas, after a step.
struct SettledShares {
    ordinals: BTreeMap<Uid, OrdinalRange>,
    completions: BTreeMap<Uid, i64>,
}

struct TransitionBuilder<'a> {
    workload: &'a Workload,
    decision: &'a PlacementDecision,
    health: &'a CopyHealth<'a>,
    copies: Vec<PlacedCopy>,
    causes: Vec<String>,
    waiting: Option<String>,
    progress: MoveProgress,
    recheck_in: Option<i64>,
}

impl TransitionBuilder<'_> {
    /// Returns true for a copy that stays on the record although its physical cluster is gone: otherwise nothing would
    /// show that the object had volumes.
    fn is_lost(&self, uid: &Uid) -> bool {
        !self.decision.is_to_end() && self.decision.lost.contains(uid)
    }

    /// Removes copies on physical clusters that do not exist: they keep nothing waiting.
    fn drop_gone(&mut self) {
        let gone: BTreeSet<Uid> = self.health.gone.iter().filter(|uid| !self.is_lost(uid)).cloned().collect();
        if drop_gone(&mut self.copies, &gone) {
            self.causes.push("its physical cluster is gone".into());
        }
    }

    fn is_wanted(&self, uid: &Uid) -> bool {
        self.decision.chosen.iter().any(|c| c.uid == *uid)
    }

    fn arrive_and_leave(&mut self) {
        let is_active = |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid && c.phase == CopyPhase::Active);
        let arriving: Vec<_> = self.decision.chosen.iter().filter(|c| !is_active(&c.uid)).cloned().collect();
        let leaves = |c: &&PlacedCopy| c.phase == CopyPhase::Active && !self.is_wanted(&c.uid) && !self.is_lost(&c.uid);
        let departing: Vec<Uid> = self.copies.iter().filter(leaves).map(|c| c.uid.clone()).collect();
        let leaving = |c: &PlacedCopy| c.phase == CopyPhase::Leaving && !self.is_wanted(&c.uid);
        let still_there = self.copies.iter().any(leaving);
        match (self.decision.is_to_end(), departing.is_empty(), arriving.is_empty()) {
            (true, false, _) if self.decision.outcome == DecisionOutcome::Finished => self.leave(&departing, "ended"),
            (true, false, _) => self.leave(&departing, "stopped"),
            // A copy does not leave because nothing else fits.
            (false, false, true) if self.decision.chosen.is_empty() => {
                let stays = self.names(|c| c.phase == CopyPhase::Active);
                self.waiting = Some(match self.decision.outcome {
                    DecisionOutcome::Refused(_) | DecisionOutcome::Suspended(_) => {
                        format!("stays as it was on {stays}")
                    }
                    _ => format!("stays on {stays} until a physical cluster fits"),
                });
            }
            (false, false, _) if self.workload.moves.one_at_a_time() => self.stop_before_the_move(&departing),
            (false, false, true) => self.leave_when_healthy(&departing),
            (false, _, false) if self.workload.moves.one_at_a_time() && still_there => {
                self.wait_for_the_end();
            }
            (false, false, false) if self.is_held_back() => {}
            (false, no_move, false) => self.arrive(&arriving, no_move),
            (_, true, _) => {}
        }
    }

    fn arrive(&mut self, arriving: &[ChosenCluster], is_new: bool) {
        for chosen in arriving {
            self.copies.retain(|c| c.uid != chosen.uid);
            self.copies.push(PlacedCopy {
                name: chosen.name.clone(),
                uid: chosen.uid.clone(),
                phase: CopyPhase::Active,
                replicas: chosen.replicas,
                epoch: self.health.epoch,
            });
        }
        let by = &self.decision.by;
        self.causes.push(if is_new { format!("placed {by}") } else { format!("moving {by}") });
        if !is_new {
            self.start_move(arriving);
            let names: Vec<_> = arriving.iter().map(|c| c.name.as_str()).collect();
            self.waiting = Some(format!("waiting for {} to be ready", names.join(",")));
        }
    }

    fn wait_for_the_end(&mut self) {
        self.waiting = Some(format!("waiting for {} to be gone", self.names(|c| c.phase == CopyPhase::Leaving)));
    }

    fn leave(&mut self, departing: &[Uid], what: &str) {
        for copy in self.copies.iter_mut().filter(|c| departing.contains(&c.uid)) {
            copy.phase = CopyPhase::Leaving;
        }
        self.causes.push(format!("{what} {}", self.decision.by));
        self.causes.extend(self.decision.abandoned.clone());
    }

    fn names(&self, of: impl Fn(&PlacedCopy) -> bool) -> String {
        let mut names: Vec<_> = self.copies.iter().filter(|c| of(c)).map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names.join(",")
    }

    /// Gives each staying copy its part. One that shrinks keeps as many ready replicas as the others still lack.
    fn share_out(&mut self, previous: &PlacementRecord) {
        let goal: BTreeMap<&Uid, Option<i64>> = self.decision.chosen.iter().map(|c| (&c.uid, c.replicas)).collect();
        let ready = |uid: &Uid| self.health.ready.get(uid).copied().unwrap_or(0);
        let all = self.workload.replicas.unwrap_or(0);
        let will_serve: i64 = goal.iter().map(|(uid, part)| ready(uid).min(part.unwrap_or(all))).sum();
        let mut lacking = (all - will_serve).max(0);
        for copy in self.copies.iter_mut().filter(|c| c.phase == CopyPhase::Active) {
            let Some(part) = goal.get(&copy.uid) else { continue };
            let had =
                previous.on(&copy.uid).filter(|c| c.phase == CopyPhase::Active).map(|c| c.replicas.unwrap_or(all));
            let surplus = match (had, part) {
                (Some(had), Some(part)) => had.min(ready(&copy.uid)) - part,
                _ => 0,
            };
            // Other ordinals, or other pods of a Job, cannot replace those of a leaving copy.
            let stand_in = self.decision.ordinals.is_empty() && !self.workload.is_job();
            let kept = if stand_in { surplus.clamp(0, lacking) } else { 0 };
            lacking -= kept;
            copy.replicas = part.map(|part| part + kept);
            if kept > 0 {
                self.waiting.get_or_insert_with(|| format!("waiting to take {kept} replicas off {}", copy.name));
            }
        }
    }

    /// Returns the copies that arrive once the leaving copies are gone. While nothing fits, the last result stays
    /// valid.
    fn awaited(&self, previous: &PlacementRecord) -> Vec<RecordedCopy> {
        let is_active = |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid && c.phase == CopyPhase::Active);
        let leaves = self.copies.iter().any(|c| c.phase == CopyPhase::Leaving);
        if !leaves || !self.workload.moves.one_at_a_time() || self.decision.is_to_end() {
            return Vec::new();
        }
        if self.decision.chosen.is_empty() {
            return previous.awaited.clone();
        }
        let arriving = self.decision.chosen.iter().filter(|chosen| !is_active(&chosen.uid));
        let of = |chosen: &ChosenCluster| RecordedCopy {
            name: chosen.name.clone(),
            uid: chosen.uid.clone(),
            replicas: chosen.replicas,
        };
        arriving.map(of).collect()
    }

    /// Returns the limits of the chosen copies as decided; those of others stay while they are there.
    fn limits(&self, previous: &PlacementRecord) -> BTreeMap<Uid, i64> {
        let awaited = self.awaited(previous);
        let stays =
            |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid) || awaited.iter().any(|copy| copy.uid == *uid);
        let others = previous.limits.iter().filter(|(uid, _)| !self.is_wanted(uid));
        let all = others.chain(&self.decision.limits).filter(|(uid, _)| stays(uid));
        all.map(|(uid, limit)| (uid.clone(), *limit)).collect()
    }

    /// Returns true when exactly the chosen physical clusters have active copies, each with its part.
    fn is_divided_as_decided(&self) -> bool {
        let active = || self.copies.iter().filter(|c| c.phase == CopyPhase::Active);
        let chosen = &self.decision.chosen;
        let has_part = |c: &PlacedCopy| chosen.iter().any(|one| one.uid == c.uid && one.replicas == c.replicas);
        active().count() == chosen.len() && active().all(has_part)
    }

    fn finish(mut self, previous: &PlacementRecord, shares: SettledShares) -> PlacementStep {
        self.copies.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        let policy = if self.copies.is_empty() { None } else { self.decision.policy.clone() };
        let divided_by = if self.is_divided_as_decided() { &self.decision.divided_by } else { &previous.divided_by };
        let divided_by = divided_by.clone().filter(|_| !self.copies.is_empty());
        let generation = self.decision.generation;
        let next = PlacementRecord {
            limits: self.limits(previous),
            ordinals: shares.ordinals,
            completions: shares.completions,
            awaited: self.awaited(previous),
            retiring: self.progress.retiring.clone(),
            arriving: self.progress.arriving.clone(),
            moving: self.progress.attempt.clone(),
            preferred_since: self.decision.preferred_since.filter(|_| !self.copies.is_empty()),
            clusters: self.copies.clone(),
            policy,
            divided_by,
            ..previous.clone()
        };
        if next == *previous {
            return PlacementStep {
                record: next,
                cause: None,
                waiting: self.waiting,
                recheck_in: self.recheck_in,
                rolling_out: None,
            };
        }
        if self.causes.is_empty() {
            let divided = self.copies.iter().any(|c| c.replicas.is_some());
            self.causes.push(if divided {
                "replicas divided anew".into()
            } else {
                format!("kept {}", self.decision.by)
            });
        }
        let record = PlacementRecord { generation, ..next };
        let cause = Some(self.causes.join(", "));
        PlacementStep { record, cause, waiting: self.waiting, recheck_in: self.recheck_in, rolling_out: None }
    }
}

fn drop_gone(copies: &mut Vec<PlacedCopy>, gone: &BTreeSet<Uid>) -> bool {
    let before = copies.len();
    copies.retain(|c| !gone.contains(&c.uid));
    copies.len() < before
}

#[cfg(test)]
mod pace_tests;
#[cfg(test)]
mod tests;
