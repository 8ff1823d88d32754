//! Stages of a rollout: a new template, or new overrides, go to the physical clusters of an object in the order of the
//! deciding policy. Those of later stages get no change of the object until their stage begins.
//!
//! A stage ends when every copy that has the change is available, for as long as the policy says, and somebody approved
//! it where the policy asks for that. A stage that is late stops the rollout. Another change begins with the first
//! stage again, also one that takes the change back.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    LabelSelector, Uid, annotations, fingerprint, object,
    placement::{MovePace, PlacedOverride, PlacementCopyStatus, PlacementRecord, Rollout, RolloutStage, RolloutState},
};
use serde_json::{Value, json};

use crate::{
    cluster_facts::{ClusterFacts, ClusterInfo},
    policy::{ApplicablePolicies, LeveledPolicy},
    template::template_fingerprint,
    transition::PlacementStep,
    workload::Workload,
};

/// Characters of the fingerprint in an approval.
const SHORT: usize = 8;
/// Seconds that a stage takes at least: a copy says that it has a template, and does not say so of overrides.
const LEAST_SECONDS: i64 = 15;
/// Name of the stage of the physical clusters that no stage has.
const REST: &str = "rest";

/// Inputs of a rollout.
#[derive(Clone, Copy)]
pub struct RolloutInputs<'a> {
    /// The object.
    pub object: &'a Value,
    /// Its facts.
    pub workload: &'a Workload,
    /// Policies of all levels.
    pub policies: &'a [LeveledPolicy],
    /// Physical clusters, those of the record among them.
    pub clusters: &'a [ClusterFacts],
    /// Reports about the copies.
    pub copies: &'a [PlacementCopyStatus],
    /// Seconds since the epoch.
    pub now: i64,
}

/// Adds the state of the rollout to the record of a step, and the sentence about the condition that it waits for.
pub fn with_rollout(mut step: PlacementStep, by: &RolloutInputs) -> PlacementStep {
    let rules = ApplicablePolicies::of(by.workload, by.policies);
    let rollout = rules.winner.and_then(|policy| policy.policy.spec.rollout.as_ref());
    let known = step.record.rollout.as_deref();
    let next = match rollout.filter(|_| step.record.active().next().is_some()) {
        None => None,
        Some(rollout) => {
            let walk = RolloutWalk { by, rollout, record: &step.record, groups: groups(rollout, &step.record, by) };
            let (state, waits) = walk.next(known);
            if let Some(RolloutWait { message, recheck_in }) = waits {
                step.rolling_out = Some(message);
                step.recheck_in = step.recheck_in.into_iter().chain(recheck_in).min();
            }
            Some(Box::new(state))
        }
    };
    if next != step.record.rollout {
        step.record.rollout = next;
        step.cause.get_or_insert_with(|| "rollout".to_owned());
    }
    step
}

/// Returns the fingerprint of the template and the overrides of a copy.
fn revision_of(by: &RolloutInputs, record: &PlacementRecord) -> String {
    let change = |one: &PlacedOverride| json!([one.policy, one.change]);
    let overrides: Vec<Value> = record.overrides.iter().map(change).collect();
    fingerprint(&json!([template_fingerprint(&by.workload.kind, by.object), overrides, record.yields]))
}

/// Returns the physical clusters of each stage, and at the end those of none.
fn groups(rollout: &Rollout, record: &PlacementRecord, by: &RolloutInputs) -> Vec<BTreeSet<Uid>> {
    let info = |uid: &Uid| by.clusters.iter().find(|cluster| cluster.info.uid == *uid).map(|cluster| &*cluster.info);
    let mut left: BTreeMap<(String, Uid), Option<&ClusterInfo>> =
        record.active().map(|copy| ((copy.name.clone(), copy.uid.clone()), info(&copy.uid))).collect();
    let mut groups = Vec::new();
    for stage in rollout.stages.iter().take(Rollout::MAX_STAGES) {
        let matching: Vec<(String, Uid)> =
            left.iter().filter(|((name, _), info)| is_in(stage, name, **info)).map(|(key, _)| key.clone()).collect();
        let percent = stage.percent.map_or(100, |percent| percent.clamp(1, 100) as usize);
        let number = (matching.len() * percent).div_ceil(100);
        let group: BTreeSet<Uid> = matching
            .into_iter()
            .take(number)
            .filter_map(|key| left.remove_entry(&key))
            .map(|((_, uid), _)| uid)
            .collect();
        groups.push(group);
    }
    groups.push(left.into_keys().map(|(_, uid)| uid).collect());
    groups
}

fn is_in(stage: &RolloutStage, name: &str, info: Option<&ClusterInfo>) -> bool {
    let is_named = stage.names.is_empty() || stage.names.iter().any(|named| named == name);
    let selector = stage.selector.as_ref().map(LabelSelector::try_from);
    let is_selected = match selector {
        None => true,
        Some(Ok(selector)) => info.is_some_and(|info| selector.matches_map(&info.labels)),
        // A policy with such a selector is refused when it is written.
        Some(Err(_)) => false,
    };
    is_named && is_selected
}

/// Condition that a rollout waits for.
struct RolloutWait {
    message: String,
    recheck_in: Option<i64>,
}

/// Rollout of one object at one moment.
struct RolloutWalk<'a> {
    by: &'a RolloutInputs<'a>,
    rollout: &'a Rollout,
    record: &'a PlacementRecord,
    groups: Vec<BTreeSet<Uid>>,
}

impl RolloutWalk<'_> {
    /// Returns the state after this step.
    fn next(&self, known: Option<&RolloutState>) -> (RolloutState, Option<RolloutWait>) {
        let revision = revision_of(self.by, self.record);
        let end = self.groups.len();
        let Some(known) = known else {
            // All copies have the present template: stages apply from the next change on.
            return (RolloutState { revision, stage: end, since: self.by.now, ..RolloutState::default() }, None);
        };
        let mut state = known.clone();
        let active: BTreeSet<Uid> = self.record.active().map(|copy| copy.uid.clone()).collect();
        state.held.retain(|uid| active.contains(uid));
        if state.revision != revision {
            state = RolloutState { revision, since: self.by.now, held: active, ..RolloutState::default() };
            self.enter(&mut state);
        }
        let mut waits = None;
        while state.stage < end {
            waits = self.wait(&mut state);
            if waits.is_some() {
                break;
            }
            state.stage += 1;
            (state.since, state.available_since, state.stopped) = (self.by.now, None, false);
            self.enter(&mut state);
        }
        if state.stage >= end {
            (state.stage, state.available_since) = (end, None);
            state.held.clear();
        }
        (state, waits)
    }

    /// Releases the physical clusters of the present stage. A stage without any is passed.
    fn enter(&self, state: &mut RolloutState) {
        while let Some(group) = self.groups.get(state.stage) {
            let before = state.held.len();
            state.held.retain(|uid| !group.contains(uid));
            if state.held.len() < before {
                return;
            }
            state.stage += 1;
        }
    }

    fn name_of(&self, stage: usize) -> &str {
        self.rollout.stages.get(stage).map_or(REST, |stage| stage.name.as_str())
    }

    /// Returns the condition that the present stage waits for; `None` if it has ended.
    fn wait(&self, state: &mut RolloutState) -> Option<RolloutWait> {
        let (now, name) = (self.by.now, self.name_of(state.stage).to_owned());
        let approval = format!("{}/{name}", state.revision.chars().take(SHORT).collect::<String>());
        let is_approved = object::annotation(self.by.object, annotations::APPROVE_ROLLOUT) == Some(&*approval);
        let how = format!("the annotation {}: {approval} lets it go on", annotations::APPROVE_ROLLOUT);
        let wait = |message: String, recheck_in| Some(RolloutWait { message, recheck_in });
        let behind = self.behind(state);
        if state.stopped && !is_approved {
            let what =
                if behind.is_empty() { "was late".to_owned() } else { format!("{} not available", behind.join(",")) };
            return wait(format!("the rollout is stopped at stage {name} ({what}): {how}"), None);
        }
        if !behind.is_empty() && !state.stopped {
            state.available_since = None;
            let timeout = i64::from(self.rollout.timeout_seconds.min(MovePace::MAX_TIMEOUT_SECONDS));
            let left = state.since.saturating_add(timeout).saturating_sub(now);
            if timeout > 0 && left <= 0 {
                state.stopped = true;
                return self.wait(state);
            }
            let message = format!("the rollout is at stage {name}: {} not available with it yet", behind.join(","));
            return wait(message, (timeout > 0).then_some(left));
        }
        let stage = self.rollout.stages.get(state.stage);
        let since = *state.available_since.get_or_insert(now);
        let quiet = stage.map_or(0, |stage| i64::from(stage.wait_seconds.min(MovePace::MAX_TIMEOUT_SECONDS)));
        let left = (since.saturating_add(quiet)).max(state.since.saturating_add(LEAST_SECONDS)).saturating_sub(now);
        if left > 0 && !state.stopped {
            return wait(format!("the rollout stays at stage {name} for another {left} s"), Some(left));
        }
        if stage.is_some_and(|stage| stage.approval) && !is_approved && !state.held.is_empty() {
            return wait(format!("the rollout waits for an approval of stage {name}: {how}"), None);
        }
        None
    }

    /// Returns the names of the physical clusters that should have the change, and are not available with it.
    fn behind(&self, state: &RolloutState) -> Vec<&str> {
        let lags = |uid: &Uid| {
            let Some(copy) = self.by.copies.iter().find(|copy| copy.uid == uid.as_str()) else { return true };
            let wanted = copy.desired.unwrap_or(1);
            let available = copy.available.unwrap_or(copy.ready);
            available < wanted || copy.updated.is_some_and(|updated| updated < wanted) || !copy.reason.is_empty()
        };
        let released = self.record.active().filter(|copy| !state.held.contains(&copy.uid));
        released.filter(|copy| lags(&copy.uid)).map(|copy| copy.name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests;
