use std::collections::BTreeMap;

use portolan_types::placement::PlacementRecord;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    decide::{PlacementInputs, place},
    fixtures::{chosen, clusters, policy, record},
    policy::LeveledPolicy,
    workload::{Workload, WorkloadNeighbor},
};

const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];

/// Returns a workload with the label `n={at}`. A higher number has a later creation time.
fn numbered(at: usize) -> Workload {
    let object = json!({
        "metadata": {"name": format!("w{at}"), "labels": {"n": at.to_string()}, "creationTimestamp": format!("2026-01-0{}", at + 1)},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{}]}}},
    });
    crate::fixtures::workload("apps", "Deployment", object)
}

/// Workloads of one namespace. The affinity terms of their policies select each other.
struct Namespace {
    workloads: Vec<Workload>,
    records: Vec<PlacementRecord>,
    policies: Vec<LeveledPolicy>,
}

impl Namespace {
    /// A term `(of, others, with)` places the workload `of` with `others`, or apart from them if `with` is false.
    fn new(places: &[Option<usize>], terms: &[(usize, Vec<usize>, bool)]) -> Self {
        let selector = |others: &[usize]| {
            let values: Vec<String> = others.iter().map(|at| (at % places.len()).to_string()).collect();
            json!({"selector": {"matchExpressions": [{"key": "n", "operator": "In", "values": values}]}})
        };
        let of = |at: usize| -> Value {
            let own = |with: bool| {
                let own = terms.iter().filter(move |(of, _, is)| of % places.len() == at && *is == with);
                own.map(|(_, others, _)| selector(others)).collect::<Vec<_>>()
            };
            let resources = json!([{"apiGroup": "apps", "names": [format!("w{at}")]}]);
            json!({"resources": resources, "with": own(true), "apartFrom": own(false)})
        };
        Self {
            workloads: (0..places.len()).map(numbered).collect(),
            records: places.iter().map(|place| record(place.map_or("", |at| CLUSTERS[at % CLUSTERS.len()]))).collect(),
            policies: (0..places.len()).map(|at| policy(1, &format!("p{at}"), of(at))).collect(),
        }
    }

    /// Decides about a workload, and moves it immediately. Returns true if it moved.
    fn look_at(&mut self, at: usize) -> bool {
        let mut workload = self.workloads[at].clone();
        let others = (0..self.workloads.len()).filter(|other| *other != at);
        workload.neighbors =
            others.map(|other| WorkloadNeighbor::new(self.workloads[other].clone(), &self.records[other])).collect();
        let decision = place(&PlacementInputs {
            workload: &workload,
            policies: &self.policies,
            clusters: &clusters(&CLUSTERS),
            previous: &self.records[at],
            home: &[],
            existing: &BTreeMap::new(),
            now: 0,
        });
        let next = record(&chosen(&decision));
        // If no physical cluster fits, the copy stays.
        let moves = !next.clusters.is_empty() && next != self.records[at];
        if moves {
            self.records[at] = next;
        }
        moves
    }
}

proptest! {
    #[test]
    fn workloads_do_not_run_after_each_other_for_ever(
        places in proptest::collection::vec(proptest::option::of(0_usize..4), 2..6),
        terms in proptest::collection::vec((0_usize..6, proptest::collection::vec(0_usize..6, 1..3), any::<bool>()), 0..8),
        turns in proptest::collection::vec(0_usize..6, 0..20),
    ) {
        let mut namespace = Namespace::new(&places, &terms);
        // Workloads move in a random order first, then in rounds until none moves.
        for turn in turns {
            namespace.look_at(turn % places.len());
        }
        let (mut rounds, mut has_moved) = (0, true);
        while has_moved {
            has_moved = false;
            for at in 0..places.len() {
                has_moved |= namespace.look_at(at);
            }
            rounds += 1;
            prop_assert!(rounds <= 2 * places.len() + 1, "{terms:?} from {places:?}");
        }
    }
}

#[test]
fn of_a_chain_that_ends_in_a_cycle_each_finds_its_place() {
    // w2 runs beside w1, and w0 and w1 beside each other.
    let terms = [(2, vec![1], true), (1, vec![0], true), (0, vec![1], true)];
    let mut namespace = Namespace::new(&[Some(0), Some(1), Some(2)], &terms);
    for turn in 0..12 {
        namespace.look_at(turn % 3);
    }
    let places: Vec<String> = namespace.records.iter().map(crate::fixtures::words).collect();
    assert_eq!(places, ["a", "a", "a"], "the oldest stays");
}
