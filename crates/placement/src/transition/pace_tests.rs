//! Pace of moves: addresses, budgets, time-outs, force.

use portolan_types::placement::MovePace;
use serde_json::json;

use super::{
    tests::{CopyReach, step_through},
    *,
};
use crate::fixtures::{PlacementCase, cluster, clusters, deployment, uid, words, workload};

/// Move of `web` from east to west, step by step.
struct Move {
    case: PlacementCase,
    gates: MoveGates,
    ready: BTreeMap<Uid, i64>,
    up: BTreeSet<Uid>,
    epoch: u64,
}

impl Move {
    fn of(workload: crate::Workload) -> Self {
        let case = PlacementCase::new(workload, clusters(&["east", "west"])).on("east").pinned("west");
        let pace = Some(MovePace::default());
        let up = ["east", "west"].map(uid).into();
        let gates = MoveGates { now: 1_000, pace, ..MoveGates::default() };
        Self { case, gates, ready: [(uid("east"), 2)].into(), up, epoch: 1 }
    }

    fn published(mut self, title: &str, on: &[&str]) -> Self {
        self.publish(title, on);
        self
    }

    fn publish(&mut self, title: &str, on: &[&str]) {
        self.gates.fronts.retain(|front| front.title != title);
        let published = on.iter().map(|name| uid(name)).collect();
        self.gates.fronts.push(FrontEnd { title: title.into(), published, serving: BTreeSet::new() });
    }

    /// Makes every front end have ready endpoints on exactly these physical clusters.
    fn serve(&mut self, on: &[&str]) {
        let serving: BTreeSet<Uid> = on.iter().map(|name| uid(name)).collect();
        self.gates.fronts.iter_mut().for_each(|front| front.serving = serving.clone());
    }

    fn ready(&mut self, name: &str, pods: i64) {
        self.ready.insert(uid(name), pods);
    }

    /// Takes one step `seconds` later. Returns the record, the sentence about the awaited condition, and the time of
    /// the next check.
    fn after(&mut self, seconds: i64) -> (String, String, Option<i64>) {
        self.gates.now += seconds;
        self.case.now = self.gates.now;
        self.epoch += 1;
        let reach = CopyReach { up: &self.up, epoch: self.epoch };
        let step = step_through(&self.case, &self.gates, &self.ready, &reach);
        assert_eq!(step.cause.is_some(), step.record != self.case.previous);
        self.case.previous = step.record;
        (words(&self.case.previous), step.waiting.unwrap_or_default(), step.recheck_in)
    }
}

#[test]
fn an_address_is_withdrawn_before_its_copy_leaves_and_after_another_is_there() {
    let mut move_ = Move::of(deployment(2)).published("service/web", &["east"]);
    assert_eq!(move_.after(0), ("east west".into(), "waiting for west to be ready".into(), Some(600)));
    assert_eq!(move_.case.previous.arriving, BTreeSet::from([uid("west")]), "nothing is published of it yet");
    move_.ready("west", 1);
    assert_eq!(move_.after(10).1, "waiting for west to be ready");
    move_.ready("west", 2);
    let waiting = "waiting for an address of service/web on west".to_owned();
    assert_eq!(move_.after(10), ("east west".into(), waiting.clone(), Some(1)));
    assert!(move_.case.previous.arriving.is_empty(), "its address may be published");
    assert_eq!(move_.after(1).1, waiting);
    move_.publish("service/web", &["east", "west"]);
    let waiting = "the addresses of east are withdrawn: it leaves in 30 s".to_owned();
    assert_eq!(move_.after(1), ("east west".into(), waiting.clone(), Some(30)));
    assert_eq!(move_.case.previous.retiring, BTreeMap::from([(uid("east"), 1_022)]));
    move_.publish("service/web", &["west"]);
    assert_eq!(move_.after(29), ("east west".into(), waiting, Some(1)));
    assert_eq!(move_.after(1).0, "east- west");
    move_.case.previous.clusters.retain(|copy| copy.phase == CopyPhase::Active);
    assert_eq!(move_.after(1), ("west".into(), String::new(), None));
    let settled = &move_.case.previous;
    assert!(settled.retiring.is_empty() && settled.arriving.is_empty() && settled.moving.is_none(), "{settled:?}");
}

#[test]
fn an_address_is_published_only_once_an_endpoint_is_ready_behind_it() {
    // The load balancer on the new physical cluster exists from an earlier stay.
    let mut move_ = Move::of(deployment(2)).published("service/web", &["east", "west"]);
    move_.serve(&["east"]);
    move_.after(0);
    move_.ready("west", 2);
    let waiting = "waiting for a ready endpoint of service/web on west".to_owned();
    assert_eq!(move_.after(1), ("east west".into(), waiting.clone(), Some(1)));
    assert_eq!(move_.case.previous.arriving, BTreeSet::from([uid("west")]), "its address is not published");
    assert!(move_.case.previous.retiring.is_empty(), "the other one is");
    assert_eq!(move_.after(30).1, waiting);
    move_.serve(&["east", "west"]);
    assert_eq!(move_.after(1).1, "the addresses of east are withdrawn: it leaves in 30 s");
    assert!(move_.case.previous.arriving.is_empty());
}

#[test]
fn endpoints_that_never_get_ready_take_the_move_back() {
    let mut move_ = Move::of(deployment(2)).published("service/web", &["east", "west"]);
    move_.serve(&["east"]);
    move_.after(0);
    move_.ready("west", 2);
    assert_eq!(move_.after(599).0, "east west");
    assert_eq!(move_.after(1).0, "east west-");
}

#[test]
fn endpoints_are_awaited_only_where_the_departing_copy_has_some() {
    let mut move_ = Move::of(deployment(2)).published("service/web", &["east", "west"]);
    move_.serve(&[]);
    move_.after(0);
    move_.ready("west", 2);
    assert_eq!(move_.after(1).1, "the addresses of east are withdrawn: it leaves in 30 s");
}

#[test]
fn the_address_grace_period_applies_to_objects_with_addresses() {
    for (case, seconds, on, expected) in [
        ("none is published", 30, vec![], "east- west"),
        ("the policy has none", 0, vec!["east", "west"], "east- west"),
        ("one is published", 30, vec!["east", "west"], "east west"),
        ("only of the new one", 30, vec!["west"], "east- west"),
    ] {
        let mut move_ = Move::of(deployment(2)).published("ingress/web", &on);
        move_.gates.pace = Some(MovePace { address_grace_period_seconds: seconds, ..MovePace::default() });
        move_.after(0);
        move_.ready("west", 2);
        assert_eq!(move_.after(1).0, expected, "{case}");
    }
    let mut lost = Move::of(deployment(2)).published("service/web", &["east", "west"]);
    lost.after(0);
    lost.ready("west", 2);
    lost.up.remove(&uid("east"));
    assert_eq!(lost.after(1).0, "east- west", "one that is not heard of cannot be reached");
}

#[test]
fn a_move_that_is_called_off_publishes_again() {
    let mut move_ = Move::of(deployment(2)).published("service/web", &["east", "west"]);
    move_.after(0);
    move_.ready("west", 2);
    move_.after(1);
    assert!(!move_.case.previous.retiring.is_empty());
    move_.case.workload.pin = PlacementCase::new(deployment(2), Vec::new()).pinned("east").workload.pin;
    move_.after(1);
    let retiring: Vec<_> = move_.case.previous.retiring.keys().cloned().collect();
    assert_eq!(retiring, [uid("west")], "now that one is to go");
}

#[test]
fn a_move_that_does_not_get_ready_is_taken_back_and_tried_again() {
    let mut move_ = Move::of(deployment(2));
    move_.after(0);
    assert_eq!(move_.after(599), ("east west".into(), "waiting for west to be ready".into(), Some(1)));
    let (after, waiting, next) = move_.after(1);
    assert_eq!((after.as_str(), next), ("east west-", Some(600)));
    assert!(waiting.starts_with("the move to west timed out and was taken back"), "{waiting}");
    move_.case.previous.clusters.retain(|copy| copy.phase == CopyPhase::Active);
    assert_eq!(move_.after(599).0, "east", "not at once");
    assert_eq!(move_.after(1).0, "east west", "it is tried again");
    move_.after(600);
    move_.case.previous.clusters.retain(|copy| copy.phase == CopyPhase::Active);
    move_.case.workload.generation += 1;
    assert_eq!(move_.after(1).0, "east west", "another template has another chance");
}

#[test]
fn a_move_is_not_taken_back_to_where_nothing_is_healthy_or_without_a_time_out() {
    let mut broken = Move::of(deployment(2));
    broken.after(0);
    broken.ready("east", 1);
    assert_eq!(broken.after(10_000).0, "east west");
    let mut patient = Move::of(deployment(2));
    patient.gates.pace = Some(MovePace { timeout_seconds: 0, ..MovePace::default() });
    patient.after(0);
    assert_eq!(patient.after(1_000_000).0, "east west");
    let mut without_address = Move::of(deployment(2)).published("service/web", &["east"]);
    without_address.after(0);
    without_address.ready("west", 2);
    without_address.after(1);
    assert_eq!(without_address.after(600).0, "east west-", "an address that never comes times out too");
}

#[test]
fn a_budget_holds_for_all_physical_clusters_together() {
    let set = || workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 2}}));
    let bound = |required| Some(DisruptionBound { name: "db".into(), required });
    let case = |workload, required, ready| {
        let mut move_ = Move::of(workload);
        move_.gates.budget = bound(required);
        move_.ready("east", ready);
        move_
    };
    let mut held = case(set(), 1, 2);
    let waiting = "the PodDisruptionBudget db needs 1 available pods of it, and 0 would be left".to_owned();
    assert_eq!(held.after(0), ("east".into(), waiting, Some(10)));
    assert_eq!(case(set(), 0, 2).after(0).0, "east-", "others are enough");
    assert_eq!(case(set(), 1, 0).after(0).0, "east-", "nothing is disrupted that does not run");
    held.case.workload.force = Some("east burns".into());
    assert_eq!(held.after(1).0, "east-");
    let mut rolling = case(deployment(2), 2, 2);
    rolling.after(0);
    rolling.ready("west", 2);
    assert_eq!(rolling.after(1).0, "east- west", "the new copy stands in for the old one");
}

#[test]
fn a_forced_move_waits_for_nothing_but_a_place() {
    let mut move_ = Move::of(deployment(2)).published("service/web", &["east"]);
    move_.case.workload.force = Some("east burns".into());
    assert_eq!(move_.after(0), ("east west".into(), "waiting for west to be ready".into(), Some(1)));
    assert_eq!(move_.after(1).0, "east- west");
    let mut nowhere = Move::of(deployment(2));
    nowhere.case.workload.force = Some("east burns".into());
    nowhere.case.clusters[1] = cluster("west").cordoned();
    assert_eq!(nowhere.after(0).0, "east");
}
