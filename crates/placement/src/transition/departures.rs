//! Departures: a copy leaves when the rest is healthy, its addresses are withdrawn, and no budget forbids it.

use std::collections::BTreeSet;

use portolan_types::{
    Uid,
    placement::{CopyPhase, MoveAttempt, PlacedCopy},
};

use super::TransitionBuilder;
use crate::decide::ChosenCluster;

/// Seconds after which a condition outside of the object is looked at again.
const LOOK_AGAIN: i64 = 1;
/// Seconds after which a disruption budget is looked at again.
const ASK_BUDGET_AGAIN: i64 = 10;

impl TransitionBuilder<'_> {
    /// Returns the uids of the active copies that do not depart.
    fn staying(&self, departing: &[Uid]) -> Vec<Uid> {
        let stays = |c: &&PlacedCopy| c.phase == CopyPhase::Active && !departing.contains(&c.uid);
        self.copies.iter().filter(stays).map(|c| c.uid.clone()).collect()
    }

    /// Returns true for a staying copy that lacks some of the replicas that it will have.
    fn is_weak(&self, copy: &PlacedCopy, departing: &[Uid]) -> bool {
        let part = self.decision.chosen.iter().find(|chosen| chosen.uid == copy.uid).and_then(|chosen| chosen.replicas);
        let will_be = PlacedCopy { replicas: part, ..copy.clone() };
        let limit = self.decision.limits.get(&copy.uid).copied();
        let stays = copy.phase == CopyPhase::Active && !departing.contains(&copy.uid);
        stays && !self.health.is_healthy(self.workload, &will_be, limit)
    }

    /// Lets copies leave of an object of which two must not run at once.
    pub(super) fn stop_before_the_move(&mut self, departing: &[Uid]) {
        if let Some(reason) = self.workload.force.clone() {
            self.leave(departing, &format!("forced ({reason})"));
        } else if let Some(blocked) = self.budget_forbids(departing) {
            self.recheck_in = Some(ASK_BUDGET_AGAIN);
            self.waiting = Some(blocked);
            return;
        } else {
            self.leave(departing, "moved");
        }
        self.wait_for_the_end();
    }

    /// Lets copies leave of an object of which two may run at once.
    pub(super) fn leave_when_healthy(&mut self, departing: &[Uid]) {
        if let Some(reason) = self.workload.force.clone() {
            return self.leave(departing, &format!("forced ({reason})"));
        }
        if self.copies.iter().any(|c| self.is_weak(c, departing)) {
            return self.wait_for_health(departing);
        }
        // Their addresses are published from now on, before any are withdrawn.
        let staying = self.staying(departing);
        let served: BTreeSet<Uid> =
            self.progress.arriving.iter().filter(|uid| staying.contains(uid)).cloned().collect();
        if self.lacks_endpoints(departing, &served) {
            return self.take_back_if_late(departing);
        }
        if !served.is_empty() {
            self.progress.arriving.retain(|uid| !served.contains(uid));
            self.causes.push(format!("{} is ready", self.names(|c| served.contains(&c.uid))));
        }
        let gates = self.health.gates;
        let without = gates.without_successor(departing, &staying).join(",");
        if !without.is_empty() {
            let stays = self.names(|c| staying.contains(&c.uid));
            self.waiting = Some(format!("waiting for an address of {without} on {stays}"));
            self.recheck_in = Some(LOOK_AGAIN);
            return self.take_back_if_late(departing);
        }
        if let Some(blocked) = self.budget_forbids(departing) {
            self.waiting = Some(blocked);
            self.recheck_in = Some(ASK_BUDGET_AGAIN);
            return;
        }
        self.retire(departing);
    }

    /// Returns true while a load balancer of an arriving copy would lead to nothing: its pods are ready, but no
    /// EndpointSlice has them yet.
    fn lacks_endpoints(&mut self, departing: &[Uid], arriving: &BTreeSet<Uid>) -> bool {
        let has_pods = |uid: &&Uid| self.health.ready.get(*uid).is_some_and(|ready| *ready > 0);
        let arriving: BTreeSet<Uid> = arriving.iter().filter(has_pods).cloned().collect();
        let lacking = self.health.gates.without_endpoint(departing, &arriving).join(",");
        if lacking.is_empty() {
            return false;
        }
        let names = self.names(|c| arriving.contains(&c.uid));
        self.waiting = Some(format!("waiting for a ready endpoint of {lacking} on {names}"));
        self.recheck_in = Some(LOOK_AGAIN);
        true
    }

    /// Waits until the staying copies are healthy. Copies that have nothing ready on a drained physical cluster leave
    /// before.
    fn wait_for_health(&mut self, departing: &[Uid]) {
        let waiting = format!("waiting for {} to be ready", self.names(|c| self.is_weak(c, departing)));
        let is_in_the_way = |c: &&PlacedCopy| departing.contains(&c.uid) && self.health.is_in_the_way(c);
        let in_the_way: Vec<Uid> = self.copies.iter().filter(is_in_the_way).map(|c| c.uid.clone()).collect();
        let stays = |c: &&PlacedCopy| c.phase == CopyPhase::Active && !in_the_way.contains(&c.uid);
        let is_seen = self.copies.iter().filter(stays).all(|c| self.health.up.contains(&c.uid));
        self.waiting = Some(waiting);
        if is_seen && !in_the_way.is_empty() {
            return self.leave(&in_the_way, "moved though it is ready nowhere,");
        }
        self.take_back_if_late(departing);
    }

    /// Withdraws the addresses of departing copies, and lets the copies leave when all grace periods are over. A copy
    /// without addresses, and one on an unreachable physical cluster, has no grace period.
    fn retire(&mut self, departing: &[Uid]) {
        let (gates, up) = (self.health.gates, self.health.up);
        let (now, grace) = (gates.now, gates.grace_seconds());
        let known = |uid: &Uid| self.progress.retiring.get(uid).copied();
        let needs_grace = |uid: &&Uid| grace > 0 && up.contains(*uid) && (gates.publishes(uid) || known(uid).is_some());
        let graced: Vec<Uid> = departing.iter().filter(needs_grace).cloned().collect();
        let fresh: Vec<Uid> = graced.iter().filter(|uid| known(uid).is_none()).cloned().collect();
        let left = |uid: &Uid| known(uid).unwrap_or(now).saturating_add(grace).saturating_sub(now);
        let wait = graced.iter().map(left).max().unwrap_or(0);
        if !fresh.is_empty() {
            self.causes.push(format!("addresses of {} withdrawn", self.names(|c| fresh.contains(&c.uid))));
            self.progress.retiring.extend(fresh.into_iter().map(|uid| (uid, now)));
        }
        if wait <= 0 {
            return self.leave(departing, "moved");
        }
        let names = self.names(|c| graced.contains(&c.uid));
        self.waiting = Some(format!("the addresses of {names} are withdrawn: it leaves in {grace} s"));
        self.recheck_in = Some(wait);
    }

    /// Returns the sentence about a budget that the departure would break.
    fn budget_forbids(&self, departing: &[Uid]) -> Option<String> {
        let budget = self.health.gates.budget.as_ref()?;
        let all = self.workload.replicas.unwrap_or(i64::MAX);
        let served = |of: &dyn Fn(&PlacedCopy) -> bool| {
            let ready = |c: &PlacedCopy| self.health.ready.get(&c.uid).copied().unwrap_or(0);
            let active = self.copies.iter().filter(|c| c.phase == CopyPhase::Active && of(c));
            active.map(ready).sum::<i64>().min(all)
        };
        let (before, after) = (served(&|_| true), served(&|c| !departing.contains(&c.uid)));
        (after < before && after < budget.required).then(|| {
            format!(
                "the PodDisruptionBudget {} needs {} available pods of it, and {after} would be left",
                budget.name, budget.required
            )
        })
    }

    /// Notes the start of a move.
    pub(super) fn start_move(&mut self, arriving: &[ChosenCluster]) {
        if self.workload.force.is_some() {
            self.recheck_in = Some(LOOK_AGAIN);
        }
        if self.health.gates.pace.is_none() {
            return;
        }
        self.progress.arriving.extend(arriving.iter().map(|chosen| chosen.uid.clone()));
        let to: BTreeSet<Uid> = self.decision.chosen.iter().map(|chosen| chosen.uid.clone()).collect();
        let goes_on = self.progress.attempt.as_ref().is_some_and(|known| known.to == to && !known.is_returned);
        if !goes_on {
            let (since, generation) = (self.health.gates.now, self.decision.generation);
            self.progress.attempt = Some(MoveAttempt { since, to, generation, is_returned: false });
        }
        self.recheck_in = self.recheck_in.or(self.health.gates.timeout_seconds());
    }

    /// Reverts a move that takes too long, if the old copies are healthy: the new ones leave.
    fn take_back_if_late(&mut self, departing: &[Uid]) {
        let gates = self.health.gates;
        let (Some(timeout), Some(attempt)) = (gates.timeout_seconds(), self.progress.attempt.clone()) else { return };
        let left = attempt.since.saturating_add(timeout).saturating_sub(gates.now);
        if left > 0 {
            self.recheck_in = self.recheck_in.into_iter().chain([left]).min();
            return;
        }
        let oldest = self.copies.iter().filter(|c| departing.contains(&c.uid)).map(|c| c.epoch).max();
        let is_new = |c: &PlacedCopy| c.phase == CopyPhase::Active && Some(c.epoch) > oldest;
        let new: Vec<Uid> = self.copies.iter().filter(|c| is_new(c)).map(|c| c.uid.clone()).collect();
        let old = self.copies.iter().filter(|c| c.phase == CopyPhase::Active && !is_new(c));
        let limit = |c: &PlacedCopy| self.decision.limits.get(&c.uid).copied();
        let is_healthy =
            |c: &PlacedCopy| !self.is_weak(c, departing) && self.health.is_healthy(self.workload, c, limit(c));
        let are_healthy = old.clone().all(is_healthy);
        if new.is_empty() || !are_healthy {
            return;
        }
        let why = self.waiting.take().unwrap_or_default();
        for copy in self.copies.iter_mut().filter(|c| new.contains(&c.uid)) {
            copy.phase = CopyPhase::Leaving;
        }
        let names = self.names(|c| new.contains(&c.uid));
        self.causes.push(format!("the move to {names} timed out after {timeout} s ({why}) and was taken back"));
        self.progress.attempt = Some(MoveAttempt { since: gates.now, is_returned: true, ..attempt });
        self.tell_return(timeout);
    }

    /// Returns true while a move that was taken back is not tried again: the object and its target are the same, and it
    /// is not long ago.
    pub(super) fn is_held_back(&mut self) -> bool {
        let gates = self.health.gates;
        let (Some(timeout), Some(attempt)) = (gates.timeout_seconds(), &self.progress.attempt) else { return false };
        let to: BTreeSet<Uid> = self.decision.chosen.iter().map(|chosen| chosen.uid.clone()).collect();
        let is_same = to == attempt.to && attempt.generation == self.decision.generation;
        let left = attempt.since.saturating_add(timeout).saturating_sub(gates.now);
        if !attempt.is_returned || !is_same || left <= 0 || self.workload.force.is_some() {
            return false;
        }
        self.tell_return(left);
        true
    }

    fn tell_return(&mut self, left: i64) {
        let to: Vec<&str> = self.decision.chosen.iter().map(|chosen| chosen.name.as_str()).collect();
        self.waiting = Some(format!(
            "the move to {} timed out and was taken back; it is tried again later, or when the object or its target changes",
            to.join(",")
        ));
        self.recheck_in = Some(left);
    }

    /// Keeps the record's data about the move only during a move.
    pub(super) fn settle_progress(&mut self) {
        let is_active = |uid: &Uid| self.copies.iter().any(|c| c.uid == *uid && c.phase == CopyPhase::Active);
        let departs = |uid: &Uid| is_active(uid) && !self.decision.chosen.iter().any(|c| c.uid == *uid);
        let is_moving = self.copies.iter().any(|c| departs(&c.uid)) && !self.decision.chosen.is_empty();
        self.progress.retiring.retain(|uid, _| is_moving && departs(uid));
        self.progress.arriving.retain(|uid| is_moving && is_active(uid));
        if !is_moving {
            self.progress.attempt = None;
        }
    }
}
