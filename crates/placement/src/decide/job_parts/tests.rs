//! Jobs from their first copies to drains, and properties over their lives.

use std::collections::{BTreeMap, BTreeSet};

use portolan_types::{
    Uid,
    placement::{CopyPhase, PlacementRecord},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    Workload,
    fixtures::{PlacementCase, cluster, clusters, policy, uid, words, workload},
    legal_steps::{StepJustification, check_justification},
    transition::{CopyHealth, MoveGates, transition},
};

fn job(spec: Value) -> Workload {
    let mut spec = spec;
    spec["template"] = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}});
    workload("batch", "Job", json!({"metadata": {"name": "work", "namespace": "shop"}, "spec": spec}))
}

fn started(mut of: Workload) -> Workload {
    of.moves = crate::MoveStrategy::Stay;
    of
}

fn divided(of: Workload, names: &[&str]) -> PlacementCase {
    let by = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
    PlacementCase::new(of, clusters(names)).by(by)
}

/// Takes one step; copies that leave are gone before it if `are_gone`.
fn step(case: &mut PlacementCase, epoch: u64) {
    let (ready, gone) = (BTreeMap::new(), BTreeSet::new());
    let up: BTreeSet<Uid> = case.clusters.iter().map(|c| c.info.uid.clone()).collect();
    let health = CopyHealth { ready: &ready, up: &up, drained: &gone, gone: &gone, epoch, gates: MoveGates::open() };
    let decision = case.decide();
    let step = transition(&case.workload, &case.previous, &decision, &health);
    let grounds = StepJustification { workload: &case.workload, health: &health, stopped: decision.is_to_end() };
    assert_eq!(check_justification(&case.previous, &step.record, &grounds), Ok(()));
    case.previous = step.record;
}

fn forget_gone(case: &mut PlacementCase) {
    case.previous.clusters.retain(|copy| copy.phase != CopyPhase::Leaving);
}

/// `a*2=5` is a copy with two pods at once and five completions.
fn shares(record: &PlacementRecord) -> String {
    let of = |word: &str| {
        let name = word.split(['*', '-']).next().unwrap_or_default();
        let completions = record.completions.get(&uid(name)).map(|n| format!("={n}")).unwrap_or_default();
        format!("{word}{completions}")
    };
    words(record).split_whitespace().map(of).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_parts_of_a_job() {
    for (case, spec, expected, note) in [
        ("completions and pods", json!({"completions": 7, "parallelism": 4}), "a*2=4 b*2=3", None),
        ("a work queue has no completions", json!({"parallelism": 5}), "a*3 b*2", None),
        ("as many pods as completions", json!({"completions": 3, "parallelism": 9}), "a*2=2 b*1=1", None),
        ("one pod at a time", json!({"completions": 6}), "a", Some("it runs one pod at a time")),
        ("paused", json!({"completions": 6, "parallelism": 0}), "a", Some("it runs one pod at a time")),
        (
            "indexes",
            json!({"completions": 6, "parallelism": 4, "completionMode": "Indexed"}),
            "a",
            Some("with completionMode Indexed, the indexes of each part would start at 0"),
        ),
    ] {
        let mut work = divided(job(spec), &["a", "b"]);
        let held = work.decide().held;
        step(&mut work, 1);
        assert_eq!(shares(&work.previous), expected, "{case}");
        let whole = "this Job runs whole on one physical cluster, and is not divided: ";
        assert_eq!(held, note.map(|note| format!("{whole}{note}")).into_iter().collect::<Vec<_>>(), "{case}");
    }
    let mut few = divided(job(json!({"completions": 9, "parallelism": 2})), &["a", "b", "c"]);
    step(&mut few, 1);
    assert_eq!(shares(&few.previous), "a*1=5 b*1=4", "no part without a pod");
}

#[test]
fn a_division_never_changes() {
    let mut work = divided(job(json!({"completions": 6, "parallelism": 4})), &["a", "b"]);
    step(&mut work, 1);
    for (case, replicas, clusters, expected) in [
        ("another physical cluster joins", 4, vec!["a", "b", "c"], "a*2=3 b*2=3"),
        ("more pods at once", 6, vec!["a", "b", "c"], "a*3=3 b*3=3"),
        ("fewer pods than parts", 1, vec!["a", "b", "c"], "a*1=3 b*1=3"),
        ("paused", 0, vec!["a", "b"], "a*0=3 b*0=3"),
        ("resumed", 4, vec!["a", "b"], "a*2=3 b*2=3"),
    ] {
        work.workload.replicas = Some(replicas);
        work.clusters = crate::fixtures::clusters(&clusters);
        step(&mut work, 2);
        assert_eq!(shares(&work.previous), expected, "{case}");
    }
    work.policies.clear();
    let note = "the parts of this Job stay divided: its completions cannot change once it has copies";
    assert_eq!(work.decide().held, [note]);
    step(&mut work, 3);
    assert_eq!(shares(&work.previous), "a*2=3 b*2=3", "the policy is gone");
    let mut whole = divided(job(json!({"completions": 6, "parallelism": 4})), &["a", "b"]).on("a");
    step(&mut whole, 2);
    assert_eq!(shares(&whole.previous), "a", "one that runs whole stays so");
}

#[test]
fn the_part_of_a_copy_that_leaves_goes_to_others() {
    let mut work = divided(job(json!({"completions": 6, "parallelism": 4})), &["a", "b"]);
    step(&mut work, 1);
    work.clusters = vec![cluster("a").tainted("m", "NoExecute", 0), cluster("b")];
    step(&mut work, 2);
    assert_eq!(shares(&work.previous), "a*2=3 b*2=3", "nothing takes it");
    work.clusters.push(cluster("c"));
    step(&mut work, 3);
    assert_eq!(shares(&work.previous), "a*2-=3 b*2=3");
    step(&mut work, 4);
    assert_eq!(shares(&work.previous), "a*2-=3 b*2=3", "its pods may still run");
    forget_gone(&mut work);
    step(&mut work, 5);
    assert_eq!(shares(&work.previous), "b*2=3 c*2=3");
    let mut runs = divided(started(job(json!({"completions": 6, "parallelism": 4}))), &["a", "b"]);
    step(&mut runs, 1);
    runs.clusters = vec![cluster("a").tainted("m", "NoExecute", 0), cluster("b"), cluster("c")];
    step(&mut runs, 2);
    assert_eq!(shares(&runs.previous), "a*2=3 b*2=3", "a started one stays");
}

/// Something that happens to a Job.
#[derive(Clone, Debug)]
enum JobEvent {
    Parallel(i64),
    Start,
    Taint(usize),
    Heal(usize),
    Undivide,
    Gone,
}

fn any_event() -> impl Strategy<Value = JobEvent> {
    prop_oneof![
        2 => (0_i64..9).prop_map(JobEvent::Parallel),
        1 => Just(JobEvent::Start),
        3 => (0_usize..3).prop_map(JobEvent::Taint),
        3 => (0_usize..3).prop_map(JobEvent::Heal),
        1 => Just(JobEvent::Undivide),
        3 => Just(JobEvent::Gone),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_completion_is_lost_or_given_twice(
        completions in 1_i64..12,
        parallelism in 0_i64..8,
        events in prop::collection::vec(any_event(), 1..30),
    ) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let spec = json!({"completions": completions, "parallelism": parallelism});
        let mut case = divided(job(spec), &NAMES);
        let mut tainted = BTreeSet::new();
        for (epoch, event) in (1_u64..).zip(events) {
            match event {
                JobEvent::Parallel(n) => case.workload.replicas = Some(n.min(completions)),
                JobEvent::Start if case.previous.active().next().is_some() => case.workload = started(case.workload),
                JobEvent::Start => {}
                JobEvent::Taint(at) => drop(tainted.insert(at)),
                JobEvent::Heal(at) => drop(tainted.remove(&at)),
                JobEvent::Undivide => case.policies.clear(),
                JobEvent::Gone => forget_gone(&mut case),
            }
            let of = |(at, name): (usize, &&str)| {
                let fine = cluster(name);
                if tainted.contains(&at) { fine.tainted("m", "NoExecute", 0) } else { fine }
            };
            case.clusters = NAMES.iter().enumerate().map(of).collect();
            let before = case.previous.clone();
            step(&mut case, epoch * 10);
            let after = &case.previous;
            let given: i64 = after.completions.values().sum();
            prop_assert!(given <= completions, "{}", shares(after));
            let is_at_rest = after.clusters.iter().all(|copy| copy.phase == CopyPhase::Active);
            // Completions of copies that left wait for a physical cluster that fits.
            let is_free = |(at, name): (usize, &&str)| !tainted.contains(&at) && after.on(&uid(name)).is_none();
            let has_place = NAMES.iter().enumerate().any(is_free);
            if is_at_rest && has_place && !after.completions.is_empty() {
                prop_assert_eq!(given, completions, "{} then {}", shares(&before), shares(after));
            }
        }
    }
}
