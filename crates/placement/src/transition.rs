//! From where an object is to where it should be, in legal steps: none → A, A → A+B, A+B → B, A → none, and A → none → B
//! for what must not run twice.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{Phase, PlacedCopy, PlacementRecord},
};

use crate::{
    decide::{Decision, Outcome},
    role::Role,
    workload::Workload,
};

/// What is known of the copies when a step is taken.
#[derive(Clone, Copy, Debug)]
pub struct Health<'a> {
    /// Pods per copy that are available, as far as the kind tells that from ready, or 1 for a synced object without any. 0 says
    /// that nothing is ready there.
    pub ready: &'a BTreeMap<Uid, i64>,
    /// Physical clusters that answer.
    pub up: &'a BTreeSet<Uid>,
    /// Physical clusters that whoever runs them empties.
    pub drained: &'a BTreeSet<Uid>,
    /// Physical clusters that are proven not to exist any more: nobody can delete copies there, or ever will.
    pub gone: &'a BTreeSet<Uid>,
    /// Epoch of copies that arrive in this step: larger than any before.
    pub epoch: u64,
}

impl Health<'_> {
    /// Whether a copy does its part.
    pub fn is_healthy(&self, workload: &Workload, copy: &PlacedCopy, limit: Option<i64>) -> bool {
        let ready = self.ready.get(&copy.uid).copied().unwrap_or(0);
        self.up.contains(&copy.uid) && ready >= workload.needed(copy.replicas, limit)
    }

    /// Whether a copy is in the way of whoever empties its physical cluster, and does nothing there: that one answers, and is known to
    /// have nothing of it that is ready. What never gets ready anywhere would keep it from being emptied for good.
    pub fn is_in_the_way(&self, copy: &PlacedCopy) -> bool {
        self.drained.contains(&copy.uid) && self.up.contains(&copy.uid) && self.ready.get(&copy.uid) == Some(&0)
    }
}

/// The next legal record on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The record; equal to the one before when nothing is to be done.
    pub record: PlacementRecord,
    /// What changed, in a few words; `None` when nothing did.
    pub cause: Option<String>,
    /// What the next step waits for.
    pub waiting: Option<String>,
}

/// The next step from `previous` towards `decision`. Nothing arrives and leaves in the same step; a copy leaves only when the
/// rest is healthy, or when a policy stops the object, when two must not run at once, or when it is in the way and the rest can be
/// seen.
pub fn transition(workload: &Workload, previous: &PlacementRecord, decision: &Decision, health: &Health) -> Step {
    if previous.is_projected() {
        return Step { record: previous.clone(), cause: None, waiting: None };
    }
    let mut walk =
        Walk { workload, decision, health, copies: previous.clusters.clone(), causes: Vec::new(), waiting: None };
    walk.drop_gone();
    walk.arrive_and_leave();
    walk.share_out(previous);
    walk.finish(previous)
}

struct Walk<'a> {
    workload: &'a Workload,
    decision: &'a Decision,
    health: &'a Health<'a>,
    copies: Vec<PlacedCopy>,
    causes: Vec<String>,
    waiting: Option<String>,
}

impl Walk<'_> {
    /// Returns true for a copy that stays on the record though its physical cluster is gone: without it nothing would show that the
    /// object had volumes.
    fn is_lost(&self, uid: &Uid) -> bool {
        !self.decision.is_to_end() && self.decision.lost.contains(uid)
    }

    /// Force: a physical cluster that does not exist keeps nobody waiting.
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
        let is_active = |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid && c.phase == Phase::Active);
        let arriving: Vec<_> = self.decision.chosen.iter().filter(|c| !is_active(&c.uid)).cloned().collect();
        let leaves = |c: &&PlacedCopy| c.phase == Phase::Active && !self.is_wanted(&c.uid) && !self.is_lost(&c.uid);
        let departing: Vec<Uid> = self.copies.iter().filter(leaves).map(|c| c.uid.clone()).collect();
        let leaving = |c: &PlacedCopy| c.phase == Phase::Leaving && !self.is_wanted(&c.uid);
        let still_there = self.copies.iter().any(leaving);
        match (self.decision.is_to_end(), departing.is_empty(), arriving.is_empty()) {
            (true, false, _) if self.decision.outcome == Outcome::Finished => self.leave(&departing, "ended"),
            (true, false, _) => self.leave(&departing, "stopped"),
            // Having nowhere else to go is no reason to leave.
            (false, false, true) if self.decision.chosen.is_empty() => {
                let stays = self.names(|c| c.phase == Phase::Active);
                self.waiting = Some(match self.decision.outcome {
                    Outcome::Refused(_) => format!("stays as it was on {stays}"),
                    _ => format!("stays on {stays} until a physical cluster fits"),
                });
            }
            (false, false, _) if self.workload.moves.one_at_a_time() => {
                self.leave(&departing, "moved");
                self.wait_for_the_end();
            }
            (false, false, true) => self.leave_when_healthy(&departing),
            (false, _, false) if self.workload.moves.one_at_a_time() && still_there => {
                self.wait_for_the_end();
            }
            (false, no_move, false) => self.arrive(&arriving, no_move),
            (_, true, _) => {}
        }
    }

    fn arrive(&mut self, arriving: &[crate::decide::Chosen], is_new: bool) {
        for chosen in arriving {
            self.copies.retain(|c| c.uid != chosen.uid);
            self.copies.push(PlacedCopy {
                name: chosen.name.clone(),
                uid: chosen.uid.clone(),
                phase: Phase::Active,
                replicas: chosen.replicas,
                epoch: self.health.epoch,
            });
        }
        let by = &self.decision.by;
        self.causes.push(if is_new { format!("placed {by}") } else { format!("moving {by}") });
        if !is_new {
            let names: Vec<_> = arriving.iter().map(|c| c.name.as_str()).collect();
            self.waiting = Some(format!("waiting for {} to be ready", names.join(",")));
        }
    }

    fn wait_for_the_end(&mut self) {
        self.waiting = Some(format!("waiting for {} to be gone", self.names(|c| c.phase == Phase::Leaving)));
    }

    fn leave_when_healthy(&mut self, departing: &[Uid]) {
        // The rest must bear what it will have, not what it has.
        let will_have = |c: &PlacedCopy| {
            let part =
                self.decision.chosen.iter().find(|chosen| chosen.uid == c.uid).and_then(|chosen| chosen.replicas);
            PlacedCopy { replicas: part, ..c.clone() }
        };
        let rest = |c: &PlacedCopy| c.phase == Phase::Active && !departing.contains(&c.uid);
        let limit = |c: &PlacedCopy| self.decision.limits.get(&c.uid).copied();
        let weak = |c: &PlacedCopy| rest(c) && !self.health.is_healthy(self.workload, &will_have(c), limit(c));
        if !self.copies.iter().any(weak) {
            return self.leave(departing, "moved");
        }
        let waiting = format!("waiting for {} to be ready", self.names(weak));
        let is_in_the_way = |c: &&PlacedCopy| departing.contains(&c.uid) && self.health.is_in_the_way(c);
        let in_the_way: Vec<Uid> = self.copies.iter().filter(is_in_the_way).map(|c| c.uid.clone()).collect();
        let stays = |c: &&PlacedCopy| c.phase == Phase::Active && !in_the_way.contains(&c.uid);
        let is_seen = self.copies.iter().filter(stays).all(|c| self.health.up.contains(&c.uid));
        if is_seen && !in_the_way.is_empty() {
            self.leave(&in_the_way, "moved though it is ready nowhere,");
        }
        self.waiting = Some(waiting);
    }

    fn leave(&mut self, departing: &[Uid], what: &str) {
        for copy in self.copies.iter_mut().filter(|c| departing.contains(&c.uid)) {
            copy.phase = Phase::Leaving;
        }
        self.causes.push(format!("{what} {}", self.decision.by));
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
        for copy in self.copies.iter_mut().filter(|c| c.phase == Phase::Active) {
            let Some(part) = goal.get(&copy.uid) else { continue };
            let had = previous.on(&copy.uid).filter(|c| c.phase == Phase::Active).map(|c| c.replicas.unwrap_or(all));
            let surplus = match (had, part) {
                (Some(had), Some(part)) => had.min(ready(&copy.uid)) - part,
                _ => 0,
            };
            let kept = surplus.clamp(0, lacking);
            lacking -= kept;
            copy.replicas = part.map(|part| part + kept);
            if kept > 0 {
                self.waiting.get_or_insert_with(|| format!("waiting to take {kept} replicas off {}", copy.name));
            }
        }
    }

    /// Returns the limits of the chosen copies as decided; those of others stay while they are there.
    fn limits(&self, previous: &PlacementRecord) -> BTreeMap<Uid, i64> {
        let stays = |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid);
        let others = previous.limits.iter().filter(|(uid, _)| !self.is_wanted(uid));
        let all = others.chain(&self.decision.limits).filter(|(uid, _)| stays(uid));
        all.map(|(uid, limit)| (uid.clone(), *limit)).collect()
    }

    /// Returns true when exactly the chosen physical clusters have active copies, each with its part.
    fn is_divided_as_decided(&self) -> bool {
        let active = || self.copies.iter().filter(|c| c.phase == Phase::Active);
        let chosen = &self.decision.chosen;
        let has_part = |c: &PlacedCopy| chosen.iter().any(|one| one.uid == c.uid && one.replicas == c.replicas);
        active().count() == chosen.len() && active().all(has_part)
    }

    fn finish(mut self, previous: &PlacementRecord) -> Step {
        self.copies.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        let policy = if self.copies.is_empty() { None } else { self.decision.policy.clone() };
        let divided_by = if self.is_divided_as_decided() { &self.decision.divided_by } else { &previous.divided_by };
        let divided_by = divided_by.clone().filter(|_| !self.copies.is_empty());
        let generation = self.decision.generation;
        let next = PlacementRecord {
            limits: self.limits(previous),
            preferred_since: self.decision.preferred_since.filter(|_| !self.copies.is_empty()),
            clusters: self.copies.clone(),
            policy,
            divided_by,
            ..previous.clone()
        };
        if next == *previous {
            return Step { record: next, cause: None, waiting: self.waiting };
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
        Step { record, cause: Some(self.causes.join(", ")), waiting: self.waiting }
    }
}

fn drop_gone(copies: &mut Vec<PlacedCopy>, gone: &BTreeSet<Uid>) -> bool {
    let before = copies.len();
    copies.retain(|c| !gone.contains(&c.uid));
    copies.len() < before
}

/// Where a follower is needed.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Physical clusters where something that names it is, or where a policy wants it, by uid.
    pub needed: BTreeMap<Uid, String>,
    /// Physical clusters where its namespace has a workload, leaving ones included.
    pub inhabited: BTreeSet<Uid>,
    /// Physical clusters whose deletion has been asked for.
    pub deleting: BTreeSet<Uid>,
    /// It is pinned, and `needed` is the pin.
    pub pinned: bool,
}

/// The next record of an object that goes where others go. It comes with what needs it, and leaves after that has left:
/// content when the namespace has no workload there any more, network objects when it has one elsewhere, and volume claims,
/// which hold data, only by a pin of their own.
pub fn follow(role: Role, previous: &PlacementRecord, demand: &Demand, health: &Health) -> Step {
    let mut copies = previous.clusters.clone();
    let mut causes = Vec::new();
    if previous.is_projected() {
        return Step { record: previous.clone(), cause: None, waiting: None };
    }
    if drop_gone(&mut copies, health.gone) {
        causes.push("its physical cluster is gone");
    }
    let active = |copies: &[PlacedCopy], uid: &Uid| copies.iter().any(|c| c.uid == *uid && c.phase == Phase::Active);
    let arriving: Vec<_> = demand.needed.iter().filter(|(uid, _)| !active(&copies, uid)).collect();
    if arriving.is_empty() {
        let leaves = |c: &PlacedCopy| c.phase == Phase::Active && may_leave(role, demand, &c.uid);
        for copy in copies.iter_mut().filter(|c| leaves(c)) {
            copy.phase = Phase::Leaving;
            causes.push("nothing needs it there any more");
        }
    } else {
        causes.push("follows what needs it");
    }
    for (uid, name) in arriving {
        copies.retain(|c| c.uid != *uid);
        let (name, uid) = (name.clone(), uid.clone());
        copies.push(PlacedCopy { name, uid, phase: Phase::Active, replicas: None, epoch: health.epoch });
    }
    copies.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
    causes.dedup();
    let cause = (!causes.is_empty()).then(|| causes.join(", "));
    let record = match cause {
        Some(_) => PlacementRecord { clusters: copies, ..previous.clone() },
        None => previous.clone(),
    };
    Step { record, cause, waiting: None }
}

fn may_leave(role: Role, demand: &Demand, uid: &Uid) -> bool {
    let elsewhere = || !demand.inhabited.is_empty() || demand.deleting.contains(uid);
    let unused = !demand.needed.contains_key(uid) && !demand.inhabited.contains(uid);
    unused
        && match role {
            Role::Content => true,
            Role::Network => elsewhere(),
            Role::Claim => demand.pinned,
            Role::Workload | Role::Explicit | Role::Never(_) => false,
        }
}

#[cfg(test)]
mod tests;
