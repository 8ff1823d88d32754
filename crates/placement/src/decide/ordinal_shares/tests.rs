//! Properties of the ordinals over the life of a set, whatever happens to it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use portolan_types::{
    Uid,
    placement::{CopyPhase, OrdinalRange, PlacementRecord},
};

use crate::{
    fixtures::{PlacementCase, clusters, policy, record, uid, words, workload},
    legal_steps::is_legal,
    transition::{CopyHealth, MoveGates, transition},
    workload::Workload,
};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Something that happens to a set.
#[derive(Clone, Debug)]
enum SetEvent {
    Scale(i64),
    Start(i64),
    Weigh(Vec<u64>),
    Drain(usize),
    Return(usize),
    Bound(usize, i64),
    Undivide,
    Gone,
}

fn any_event() -> impl Strategy<Value = SetEvent> {
    prop_oneof![
        4 => (0_i64..12).prop_map(SetEvent::Scale),
        1 => (0_i64..4).prop_map(SetEvent::Start),
        1 => prop::collection::vec(0_u64..4, 3).prop_map(SetEvent::Weigh),
        2 => (0_usize..3).prop_map(SetEvent::Drain),
        2 => (0_usize..3).prop_map(SetEvent::Return),
        1 => (0_usize..3, 0_i64..9).prop_map(|(at, cpu)| SetEvent::Bound(at, cpu)),
        1 => Just(SetEvent::Undivide),
        3 => Just(SetEvent::Gone),
    ]
}

fn set(replicas: i64, start: i64) -> Workload {
    let pod = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
    let spec = json!({"replicas": replicas, "ordinals": {"start": start}, "template": {"spec": pod}});
    workload("apps", "StatefulSet", json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": spec}))
}

fn weighed(weights: &[u64]) -> crate::LeveledPolicy {
    let weigh = |(name, weight): (&&str, &u64)| json!({"selector": {"matchLabels": {"n": name}}, "weight": weight});
    let weights: Vec<_> = NAMES.iter().zip(weights).map(weigh).collect();
    policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide", "by": "Weight", "weights": weights}}))
}

/// The set, and the ordinals whose pods may exist on each physical cluster.
struct SetLife {
    case: PlacementCase,
    start: i64,
    replicas: i64,
    epoch: u64,
    running: BTreeMap<Uid, BTreeSet<i64>>,
    /// True for a set that runs whole on one physical cluster, and not once on each.
    ran_whole: bool,
}

impl SetLife {
    fn new(replicas: i64) -> Self {
        let labelled: Vec<_> = NAMES.iter().map(|name| crate::fixtures::cluster(&format!("{name} n={name}"))).collect();
        let case = PlacementCase::new(set(replicas, 0), labelled).by(weighed(&[1, 1, 1]));
        Self { case, start: 0, replicas, epoch: 1, running: BTreeMap::new(), ran_whole: false }
    }

    fn wanted(&self) -> OrdinalRange {
        OrdinalRange::starting_at(self.start, self.replicas)
    }

    fn apply(&mut self, event: &SetEvent) {
        match event {
            SetEvent::Scale(replicas) => self.replicas = *replicas,
            SetEvent::Start(start) => self.start = *start,
            SetEvent::Weigh(weights) => self.case.policies = vec![weighed(weights)],
            SetEvent::Undivide => self.case.policies = vec![policy(1, "p", json!({"count": "All"}))],
            SetEvent::Drain(at) => {
                self.case.clusters[*at] = self.case.clusters[*at].clone().tainted("m", "NoExecute", 0)
            }
            SetEvent::Return(at) => {
                self.case.clusters[*at] = self.case.clusters[*at].clone().with(|cluster| cluster.taints.clear());
            }
            SetEvent::Bound(at, cpu) => {
                self.case.clusters[*at] = self.case.clusters[*at].clone().bounded(&cpu.to_string());
            }
            SetEvent::Gone => self.forget_leaving(),
        }
        self.case.workload = set(self.replicas, self.start);
    }

    /// Proves that the leaving copies are gone.
    fn forget_leaving(&mut self) {
        let leaves = |copy: &&portolan_types::placement::PlacedCopy| copy.phase == CopyPhase::Leaving;
        let gone: Vec<Uid> = self.case.previous.clusters.iter().filter(leaves).map(|copy| copy.uid.clone()).collect();
        gone.iter().for_each(|uid| drop(self.running.remove(uid)));
        self.case.previous.clusters.retain(|copy| copy.phase != CopyPhase::Leaving);
    }

    /// Decides and takes a step; returns the record of before.
    fn step(&mut self) -> PlacementRecord {
        let none = BTreeSet::new();
        let up: BTreeSet<Uid> = NAMES.iter().map(|name| uid(name)).collect();
        let drained: BTreeSet<Uid> =
            self.case.clusters.iter().filter(|c| c.info.is_drained()).map(|c| c.info.uid.clone()).collect();
        self.epoch += 1;
        let ready = BTreeMap::new();
        let health = CopyHealth {
            ready: &ready,
            up: &up,
            drained: &drained,
            gone: &none,
            epoch: self.epoch,
            gates: MoveGates::open(),
        };
        let next = transition(&self.case.workload, &self.case.previous, &self.case.decide(), &health).record;
        // No pod of before is taken to have ended: downstream may be late.
        for copy in next.active() {
            let wanted = self.wanted();
            let own = next.ordinals.get(&copy.uid).map(|range| range.within(wanted));
            let range = own.or_else(|| (self.ran_whole && copy.replicas.is_none()).then_some(wanted));
            let runs = range
                .into_iter()
                .flat_map(|range| range.first..range.first + copy.replicas.unwrap_or_else(|| range.count()));
            self.running.entry(copy.uid.clone()).or_default().extend(runs);
        }
        std::mem::replace(&mut self.case.previous, next)
    }

    /// A set that ran whole before the policy divided it.
    fn whole(replicas: i64, on: &str) -> Self {
        let mut life = Self::new(replicas);
        life.case.previous = record(on);
        life.running.insert(uid(on), (0..replicas).collect());
        life.ran_whole = true;
        life
    }

    fn settle(&mut self) {
        for _ in 0..6 {
            self.step();
            self.forget_leaving();
        }
    }

    fn parts(&self) -> BTreeMap<Uid, i64> {
        let active = self.case.previous.active();
        active.map(|copy| (copy.uid.clone(), copy.replicas.unwrap_or(0))).collect()
    }

    fn sum(&self) -> i64 {
        self.parts().values().sum()
    }
}

proptest! {
    #[test]
    fn no_ordinal_is_ever_on_two_physical_clusters(
        replicas in 0_i64..10,
        events in prop::collection::vec(any_event(), 1..25),
    ) {
        let mut life = SetLife::new(replicas);
        for event in events {
            life.apply(&event);
            let before = life.step();
            prop_assert_eq!(is_legal(&before, &life.case.previous), Ok(()), "{:?}", event);
            let all: usize = life.running.values().map(BTreeSet::len).sum();
            let distinct: BTreeSet<i64> = life.running.values().flatten().copied().collect();
            prop_assert_eq!(all, distinct.len(), "{:?} after {:?}: {:?}", life.running, event, words(&life.case.previous));
            prop_assert!(life.sum() <= life.replicas, "{}", words(&life.case.previous));
        }
    }

    #[test]
    fn no_ordinal_of_a_set_that_ran_whole_is_on_two_physical_clusters(
        replicas in 1_i64..10,
        events in prop::collection::vec(any_event(), 1..25),
    ) {
        let mut life = SetLife::whole(replicas, "a");
        for event in events.into_iter().filter(|event| !matches!(event, SetEvent::Undivide)) {
            life.apply(&event);
            let before = life.step();
            prop_assert_eq!(is_legal(&before, &life.case.previous), Ok(()), "{:?}", event);
            let all: usize = life.running.values().map(BTreeSet::len).sum();
            let distinct: BTreeSet<i64> = life.running.values().flatten().copied().collect();
            prop_assert_eq!(all, distinct.len(), "{:?} after {:?}: {}", life.running, event, words(&life.case.previous));
        }
    }

    #[test]
    fn every_ordinal_runs_once_all_is_settled(
        replicas in 0_i64..10,
        events in prop::collection::vec(any_event(), 1..12),
    ) {
        let mut life = SetLife::new(replicas);
        life.settle();
        for event in events.iter().filter(|event| !matches!(event, SetEvent::Bound(..) | SetEvent::Undivide)) {
            life.apply(event);
            life.settle();
            if life.case.clusters.iter().any(|c| !c.info.is_drained()) {
                prop_assert_eq!(life.sum(), life.replicas, "{:?}: {:?}", event, life.case.previous);
            }
        }
    }

    #[test]
    fn growth_takes_none_away_and_shrinking_adds_none(from in 0_i64..12, to in 0_i64..12, weights in prop::collection::vec(0_u64..4, 3)) {
        let mut life = SetLife::new(from);
        life.apply(&SetEvent::Weigh(weights));
        life.settle();
        let before = life.parts();
        life.apply(&SetEvent::Scale(to));
        life.settle();
        for (uid, part) in life.parts() {
            let had = before.get(&uid).copied().unwrap_or(0);
            prop_assert!((part - had) * (to - from).signum() >= 0, "{before:?} -> {:?}", life.parts());
        }
    }

    #[test]
    fn only_the_ordinals_of_a_drained_physical_cluster_move(replicas in 0_i64..12, at in 0_usize..3) {
        let mut life = SetLife::new(replicas);
        life.settle();
        let before = life.running.clone();
        life.apply(&SetEvent::Drain(at));
        life.settle();
        prop_assert!(!life.parts().contains_key(&uid(NAMES[at])), "{}", words(&life.case.previous));
        for name in NAMES.iter().filter(|name| **name != NAMES[at]) {
            let had = before.get(&uid(name)).cloned().unwrap_or_default();
            let has = life.running.get(&uid(name)).cloned().unwrap_or_default();
            prop_assert!(had.is_subset(&has), "{had:?} -> {has:?}");
        }
    }
}

#[test]
fn a_new_set_is_divided_by_weights_into_ranges_in_order_of_names() {
    let spec = json!({"count": "All", "replicas": {"mode": "Divide"}});
    let case = PlacementCase::new(set(7, 2), clusters(&["c", "a", "b"])).by(policy(1, "p", spec));
    let range = |first, end| OrdinalRange { first, end };
    let expected = [(uid("a"), range(2, 5)), (uid("b"), range(5, 7)), (uid("c"), range(7, 9))];
    assert_eq!(case.decide().ordinals, expected.into());
}

#[test]
fn ordinals_extend_the_adjacent_range_if_free() {
    let mut life = SetLife::new(7);
    life.settle();
    for event in [SetEvent::Scale(1), SetEvent::Drain(0)] {
        life.apply(&event);
        life.settle();
    }
    assert_eq!(life.parts(), [(uid("b"), 1), (uid("c"), 0)].into());
}

#[test]
fn a_whole_set_whose_taint_is_lifted_while_it_leaves_is_not_divided() {
    let mut life = SetLife::whole(6, "a");
    life.apply(&SetEvent::Drain(0));
    life.step();
    assert_eq!(words(&life.case.previous), "a-");
    life.apply(&SetEvent::Return(0));
    assert!(life.case.decide().ordinals.is_empty(), "its pods may run still");
    life.step();
    assert_eq!(words(&life.case.previous), "a-", "nothing arrives before it is gone");
    life.forget_leaving();
    life.step();
    assert_eq!(words(&life.case.previous), "a*2 b*2 c*2");
}
