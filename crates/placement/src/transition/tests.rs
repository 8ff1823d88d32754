use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    Role, StepJustification, check_justification,
    fixtures::{PlacementCase, cluster, clusters, deployment, policy, record, uid, words, workload},
    is_legal,
};

fn drained(case: &PlacementCase) -> BTreeSet<Uid> {
    case.clusters.iter().filter(|c| c.info.is_drained()).map(|c| c.info.uid.clone()).collect()
}

/// `a=3` is three ready pods on a; every physical cluster answers but those in `down`.
fn step(case: &PlacementCase, ready: &str, down: &str, epoch: u64) -> PlacementStep {
    let ready = ready.split_whitespace().filter_map(|w| w.split_once('='));
    let ready: BTreeMap<Uid, i64> = ready.map(|(name, n)| (uid(name), n.parse().unwrap())).collect();
    let up = case.clusters.iter().filter(|c| !down.split(' ').any(|d| d == c.info.name));
    let up: BTreeSet<Uid> = up.map(|c| c.info.uid.clone()).collect();
    step_through(case, MoveGates::open(), &ready, &CopyReach { up: &up, epoch })
}

/// Physical clusters that answer, and the epoch of copies that arrive.
pub(super) struct CopyReach<'a> {
    pub(super) up: &'a BTreeSet<Uid>,
    pub(super) epoch: u64,
}

pub(super) fn step_through(
    case: &PlacementCase,
    gates: &MoveGates,
    ready: &BTreeMap<Uid, i64>,
    reach: &CopyReach,
) -> PlacementStep {
    let (drained, gone) = (drained(case), BTreeSet::new());
    let health = CopyHealth { ready, up: reach.up, drained: &drained, gone: &gone, epoch: reach.epoch, gates };
    let decision = case.decide();
    let step = transition(&case.workload, &case.previous, &decision, &health);
    let grounds = StepJustification { workload: &case.workload, health: &health, stopped: decision.is_to_end() };
    assert_eq!(check_justification(&case.previous, &step.record, &grounds), Ok(()));
    step
}

#[test]
fn a_rolling_workload_moves_make_before_break() {
    let to_west = |on: &str| PlacementCase::new(deployment(3), clusters(&["east", "west"])).pinned("west").on(on);
    for (case, on, ready, down, expected, waiting) in [
        ("none to A", "", "", "", "west", None),
        ("A to A+B", "east", "east=3", "", "east west", Some("waiting for west to be ready")),
        ("A+B waits for B", "east west", "east=3 west=2", "", "east west", Some("waiting for west to be ready")),
        (
            "B that does not answer is not ready",
            "east west",
            "east=3 west=3",
            "west",
            "east west",
            Some("waiting for west to be ready"),
        ),
        ("A+B to B", "east west", "east=3 west=3", "", "east- west", None),
        ("the entry stays until the copy is gone", "east- west", "west=3", "", "east- west", None),
        ("B alone", "west", "west=3", "", "west", None),
    ] {
        let step = step(&to_west(on), ready, down, 7);
        assert_eq!((words(&step.record).as_str(), step.waiting.as_deref()), (expected, waiting), "{case}");
    }
}

#[test]
fn unready_objects_do_not_block_a_drain() {
    let tainted = || cluster("east").tainted("maintenance", "NoExecute", 0);
    let of = |east| PlacementCase::new(deployment(3), vec![east, cluster("west")]).pinned("west").on("east west");
    let waits = "waiting for west to be ready";
    for (case, east, ready, down, expected, waiting) in [
        ("nothing of it is ready there", tainted(), "east=0", "", "east- west", Some(waits)),
        ("as little as elsewhere", cluster("east").deleting(), "east=0 west=2", "", "east- west", Some(waits)),
        ("a pod of it is ready there", tainted(), "east=1 west=2", "", "east west", Some(waits)),
        ("what is ready there is not known", tainted(), "west=0", "", "east west", Some(waits)),
        ("it does not answer", tainted(), "east=0 west=0", "east", "east west", Some(waits)),
        ("the other does not answer", tainted(), "east=0 west=3", "west", "east west", Some(waits)),
        ("no drain empties it", cluster("east"), "east=0 west=0", "", "east west", Some(waits)),
    ] {
        let step = step(&of(east), ready, down, 7);
        assert_eq!((words(&step.record).as_str(), step.waiting.as_deref()), (expected, waiting), "{case}");
    }
    let three = vec![tainted(), cluster("north"), cluster("west")];
    let also_leaves = PlacementCase::new(deployment(3), three).pinned("west").on("east north west");
    let after = step(&also_leaves, "east=0 north=0 west=0", "north", 7);
    assert_eq!(words(&after.record), "east north west", "another that leaves as well does not answer");
    let first = step(&of(tainted()).on("east"), "east=0", "", 7);
    assert_eq!(words(&first.record), "east west", "the other copy comes first");
}

#[test]
fn run_once_objects_break_before_make() {
    let set = || workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 1}}));
    let to_west = |on: &str| PlacementCase::new(set(), clusters(&["east", "west"])).pinned("west").on(on);
    for (case, on, expected, waiting) in [
        ("A is asked to leave first", "east", "east-", Some("waiting for east to be gone")),
        ("nothing comes before it is gone", "east-", "east-", Some("waiting for east to be gone")),
        ("then B", "", "west", None),
    ] {
        let step = step(&to_west(on), "east=1", "", 7);
        assert_eq!((words(&step.record).as_str(), step.waiting.as_deref()), (expected, waiting), "{case}");
    }
    let nowhere =
        PlacementCase::new(set(), vec![cluster("east"), cluster("west").cordoned()]).pinned("west").on("east");
    assert_eq!(words(&step(&nowhere, "", "", 7).record), "east", "a move to where nothing fits does not start");
}

#[test]
fn nothing_leaves_for_lack_of_a_place_but_a_policy_can_stop_it() {
    let nowhere = PlacementCase::new(deployment(1), clusters(&["east"])).pinned("west").on("east");
    let stays = step(&nowhere, "east=1", "", 7);
    assert_eq!(words(&stays.record), "east");
    assert_eq!(stays.waiting.as_deref(), Some("stays on east until a physical cluster fits"));
    let done = workload("batch", "Job", json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}));
    let mut east = cluster("east");
    std::sync::Arc::make_mut(&mut east.info).deleting = true;
    let ended = step(&PlacementCase::new(done, vec![east, cluster("west")]).on("east"), "", "", 7);
    assert_eq!(words(&ended.record), "east-", "a workload that has ended keeps no copy");
    let stop =
        PlacementCase::new(deployment(1), clusters(&["east"])).by(policy(1, "p", json!({"count": 0}))).on("east");
    assert_eq!(words(&step(&stop, "east=1", "", 7).record), "east-");
}

#[test]
fn a_move_that_is_called_off_comes_back_as_a_new_arrival() {
    let back = PlacementCase::new(deployment(1), clusters(&["east", "west"])).pinned("east").on("east- west");
    let step = step(&back, "west=1", "", 7);
    assert_eq!(words(&step.record), "east west");
    assert_eq!(step.record.on(&uid("east")).map(|c| c.epoch), Some(7));
}

#[test]
fn replicas_move_only_as_fast_as_they_get_ready() {
    let divided = || policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
    let case =
        |replicas, on: &str| PlacementCase::new(deployment(replicas), clusters(&["a", "b"])).by(divided()).on(on);
    for (name, replicas, on, ready, expected) in [
        ("the new copy gets its part, the old one keeps all", 6, "a*6", "a=6", "a*6 b*3"),
        ("as one gets ready there, one goes here", 6, "a*6 b*3", "a=6 b=1", "a*5 b*3"),
        ("and then all", 6, "a*5 b*3", "a=5 b=3", "a*3 b*3"),
        ("scaling down takes from both", 4, "a*3 b*3", "a=3 b=3", "a*2 b*2"),
        ("but not what a broken copy lacks", 4, "a*3 b*3", "a=3 b=0", "a*3 b*2"),
        ("what is not ready is not held", 6, "a*6", "a=0", "a*3 b*3"),
        ("scaling to nothing holds nothing", 0, "a*3 b*3", "a=3 b=0", "a*0 b*0"),
    ] {
        assert_eq!(words(&step(&case(replicas, on), ready, "", 7).record), expected, "{name}");
    }
}

/// Takes steps until nothing changes; everything is ready at once.
fn settle(mut case: PlacementCase) -> PlacementCase {
    for epoch in 2..40 {
        let ready: Vec<String> = case.previous.active().map(|c| format!("{}=99", c.name)).collect();
        let after = step(&case, &ready.join(" "), "", epoch).record;
        if after == case.previous {
            return case;
        }
        case.previous = after;
        case.previous.clusters.retain(|c| c.phase == CopyPhase::Active);
    }
    panic!("it does not settle: {}", words(&case.previous));
}

#[test]
fn a_division_starts_from_the_present_one_while_only_the_total_changes() {
    let zones = || vec![cluster("a zone=a"), cluster("b zone=b"), cluster("c zone=c")];
    let weights = |of: [u32; 3]| {
        let weight =
            |(zone, weight): (&str, u32)| json!({"selector": {"matchLabels": {"zone": zone}}, "weight": weight});
        let weights: Vec<_> = ["a", "b", "c"].into_iter().zip(of).map(weight).collect();
        policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide", "by": "Weight", "weights": weights}}))
    };
    let scaled =
        |case: &PlacementCase, replicas| settle(PlacementCase { workload: deployment(replicas), ..case.clone() });
    let three = settle(PlacementCase::new(deployment(3), zones()).by(weights([1, 1, 1])));
    assert_eq!(words(&three.previous), "a*1 b*1 c*1");
    let mut reweighed = three.clone();
    reweighed.policies = vec![weights([3, 3, 1])];
    let reweighed = settle(reweighed);
    assert_eq!(words(&reweighed.previous), "a*1 b*1 c*1", "of equal claims the one that is there");
    assert_eq!(words(&scaled(&reweighed, 4).previous), "a*2 b*1 c*1");
    let seven = scaled(&reweighed, 7);
    assert_eq!(words(&seven.previous), "a*3 b*3 c*1");
    let mut turned = seven.clone();
    turned.policies = vec![weights([1, 3, 3])];
    assert_eq!(words(&settle(turned).previous), "a*1 b*3 c*3", "replicas are divided again by new weights");
    // The present division may differ from the one by weights alone.
    let mut uneven = three.clone();
    uneven.previous = record("a*0 b*1 c*5");
    uneven.previous.divided_by = three.previous.divided_by.clone();
    assert_eq!(words(&scaled(&uneven, 7).previous), "a*1 b*1 c*5", "growth takes none away");
    assert_eq!(words(&scaled(&uneven, 4).previous), "a*0 b*1 c*3", "shrinking adds none");
    let mut fewer = uneven.clone();
    fewer.clusters[1] = cluster("b zone=b").deleting();
    fewer.workload = deployment(6);
    assert_eq!(words(&settle(fewer).previous), "a*3 c*3", "another set of clusters is divided again");
}

#[test]
fn growth_over_bounds_moves_no_running_replica() {
    let grown = |ready: &str, replicas| {
        let full = |name: &str, cpu: &str| cluster(name).bounded("5").using(cpu);
        let case = PlacementCase::new(deployment(replicas), vec![full("a", "5"), full("b", "2"), cluster("c")]);
        words(&step(&case.on("a*5 b*2"), ready, "", 7).record)
    };
    assert_eq!(grown("a=5 b=2", 9), "a*5 b*4");
    assert_eq!(grown("a=5 b=2", 6), "a*5 b*1");
}

#[test]
fn copies_on_a_physical_cluster_that_is_gone_are_dropped() {
    let case = PlacementCase::new(deployment(1), clusters(&["west"])).on("east");
    let (ready, up, gone) = (BTreeMap::new(), BTreeSet::from([uid("west")]), BTreeSet::from([uid("east")]));
    let health = CopyHealth { ready: &ready, up: &up, drained: &up, gone: &gone, epoch: 7, gates: MoveGates::open() };
    let step = transition(&case.workload, &case.previous, &case.decide(), &health);
    assert_eq!(words(&step.record), "west");
    assert!(step.cause.is_some_and(|c| c.contains("gone")));
}

fn demand(needed: &str, inhabited: &str) -> Demand {
    Demand {
        needed: needed.split_whitespace().map(|n| (uid(n), n.to_owned())).collect(),
        inhabited: inhabited.split_whitespace().map(uid).collect(),
        ..Demand::default()
    }
}

#[test]
fn followers_arrive_with_their_workloads_and_leave_after_them() {
    let (ready, up, gone) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    let health = CopyHealth { ready: &ready, up: &up, drained: &up, gone: &gone, epoch: 7, gates: MoveGates::open() };
    use Role::{Claim, Content, Network};
    for (case, role, on, needed, inhabited, expected) in [
        ("content comes", Content, "", "a", "a", "a"),
        ("to where the workload goes too", Content, "a", "a b", "a b", "a b"),
        ("stays while the old copy is there", Content, "a b", "b", "a b", "a b"),
        ("leaves after it", Content, "a b", "b", "b", "a- b"),
        (
            "a name that is dropped from a template leaves it there: old pods may still need it",
            Content,
            "a",
            "",
            "a",
            "a",
        ),
        ("content leaves with the last workload", Content, "a", "", "", "a-"),
        ("a service leaves after a move", Network, "a b", "b", "b", "a- b"),
        ("a service stays when there is no workload at all", Network, "a", "", "", "a"),
        ("a volume claim stays with its data", Claim, "a b", "b", "b", "a b"),
    ] {
        let previous = record(on);
        let step = follow(role, &previous, &demand(needed, inhabited), &health);
        assert_eq!(words(&step.record), expected, "{case}");
        assert_eq!(is_legal(&previous, &step.record), Ok(()), "{case}");
    }
    let pinned = Demand { pinned: true, ..demand("b", "b") };
    assert_eq!(words(&follow(Claim, &record("a b"), &pinned, &health).record), "a- b", "a pinned claim leaves");
}

#[test]
fn illegal_steps_are_reported() {
    for (case, before, after, error) in [
        ("A to B at once", "a", "b", "the copy on a vanished from the record without leaving"),
        ("coming and going at once", "a", "a- b", "b arrives while a leaves, in one step"),
        ("twice", "", "a a", "a is named twice"),
    ] {
        let mut after = record(after);
        after.clusters.iter_mut().filter(|c| record(before).on(&c.uid).is_none()).for_each(|c| c.epoch = 2);
        assert_eq!(is_legal(&record(before), &after).map_err(|e| e.to_string()), Err(error.to_owned()), "{case}");
    }
    let again = record("a");
    assert!(
        matches!(is_legal(&record("a-"), &again), Err(crate::IllegalStep::Epoch { .. })),
        "a return needs a new epoch"
    );
    assert_eq!(is_legal(&record("a-"), &record("")), Ok(()));
}

#[test]
fn a_whole_copy_has_every_ordinal_until_it_is_gone() {
    let after = |copies: &str, ranges: &[(&str, i64, i64)]| {
        let mut next = record(copies);
        next.clusters.iter_mut().filter(|c| c.phase == CopyPhase::Active).for_each(|c| c.epoch = 2);
        next.ordinals =
            ranges.iter().map(|(on, first, end)| (uid(on), OrdinalRange { first: *first, end: *end })).collect();
        next
    };
    for (before, next) in [
        ("a-", after("a- b*3", &[("b", 3, 6)])),
        ("a-", after("a*3 b*3", &[("b", 3, 6)])),
        ("a-", after("a*3", &[("a", 0, 3)])),
        ("", after("a b*3", &[("b", 3, 6)])),
    ] {
        let found = is_legal(&record(before), &next);
        assert!(matches!(found, Err(crate::IllegalStep::Ordinals { .. })), "{before} -> {next:?}: {found:?}");
    }
    assert_eq!(is_legal(&record(""), &after("a*3 b*3", &[("a", 0, 3), ("b", 3, 6)])), Ok(()));
    assert_eq!(is_legal(&record("a-"), &after("a- b*0", &[("b", 0, 0)])), Ok(()));
    let divided = PlacementRecord { clusters: record("a*3").clusters, ..after("", &[("a", 0, 3)]) };
    assert_eq!(is_legal(&divided, &record("a")), Ok(()), "it gets the rest");
}

#[test]
fn ranges_wait_for_a_whole_copy_and_a_whole_copy_for_ranges() {
    let set = workload("apps", "StatefulSet", json!({"spec": {"replicas": 6}}));
    let divide = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
    let divided = PlacementCase::new(set.clone(), clusters(&["a", "b"])).by(divide).decide();
    let whole = PlacementCase::new(set.clone(), clusters(&["a"])).decide();
    let (ready, up, none) = (BTreeMap::new(), BTreeSet::from([uid("a"), uid("b")]), BTreeSet::new());
    let health = CopyHealth { ready: &ready, up: &up, drained: &none, gone: &none, epoch: 7, gates: MoveGates::open() };
    for (before, ranges, decision, expected) in [
        ("a-", vec![], &divided, "a b*0"),
        ("a- b*0", vec![], &divided, "a b*0"),
        ("", vec![], &divided, "a*3 b*3"),
        ("a*3 b*3-", vec![("a", 0, 3), ("b", 3, 6)], &whole, "a*3 b*3-"),
        ("a*3", vec![("a", 0, 3)], &whole, "a"),
    ] {
        let mut previous = record(before);
        previous.ordinals = ranges.into_iter().map(|(on, first, end)| (uid(on), OrdinalRange { first, end })).collect();
        let next = transition(&set, &previous, decision, &health).record;
        assert_eq!(words(&next), expected, "{before}");
        assert_eq!(is_legal(&previous, &next), Ok(()), "{before}");
    }
}

/// Event between two steps.
#[derive(Clone, Debug)]
enum Turn {
    ClusterPin(u8),
    Unpin,
    Cordon(u8, bool),
    Down(u8, bool),
    Drain(u8, bool),
    Scale(u8),
    CompiledPolicy(u8),
    Ready(u8),
    Unready(u8),
    Gone,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        (0_u8..4).prop_map(Turn::ClusterPin),
        Just(Turn::Unpin),
        (0_u8..4, any::<bool>()).prop_map(|(at, on)| Turn::Cordon(at, on)),
        (0_u8..4, any::<bool>()).prop_map(|(at, on)| Turn::Down(at, on)),
        (0_u8..4, any::<bool>()).prop_map(|(at, on)| Turn::Drain(at, on)),
        (0_u8..6).prop_map(Turn::Scale),
        (0_u8..5).prop_map(Turn::CompiledPolicy),
        (0_u8..4).prop_map(Turn::Ready),
        (0_u8..4).prop_map(Turn::Unready),
        Just(Turn::Gone),
    ]
}

struct BenchWorld {
    case: PlacementCase,
    ready: BTreeMap<Uid, i64>,
    epoch: u64,
    gates: MoveGates,
}

impl BenchWorld {
    fn turn(&mut self, turn: &Turn) {
        let name = |at: u8| format!("c{at}");
        match turn {
            Turn::ClusterPin(at) => self.case = self.case.clone().pinned(&name(*at)),
            Turn::Unpin => self.case.workload.pin = None,
            Turn::Cordon(at, on) => {
                let c = self.case.clusters[usize::from(*at)].clone();
                self.case.clusters[usize::from(*at)] = c.with(|c| c.unschedulable = *on);
            }
            Turn::Down(at, on) => {
                let c = self.case.clusters[usize::from(*at)].clone();
                let readiness = if *on { crate::Readiness::NotReady("x".into()) } else { crate::Readiness::Ready };
                self.case.clusters[usize::from(*at)] = c.with(|c| c.readiness = readiness);
            }
            Turn::Drain(at, on) => {
                let c = self.case.clusters[usize::from(*at)].clone();
                self.case.clusters[usize::from(*at)] = c.with(|c| c.deleting = *on);
            }
            Turn::Scale(n) => self.case.workload.replicas = self.case.workload.replicas.map(|_| i64::from(*n)),
            Turn::CompiledPolicy(n) => {
                let spec = match n {
                    0 => json!({"count": 2}),
                    1 => json!({"count": "All", "replicas": {"mode": "Divide"}}),
                    2 => json!({"count": 1, "clusters": {"exclude": ["c0"]}}),
                    3 => json!({"count": 0}),
                    _ => json!({"count": 3, "replicas": {"mode": "Divide", "by": "Capacity"}}),
                };
                self.case.policies = vec![policy(1, "p", spec)];
            }
            Turn::Ready(at) => drop(self.ready.insert(uid(&name(*at)), 9)),
            Turn::Unready(at) => drop(self.ready.insert(uid(&name(*at)), 0)),
            Turn::Gone => self.case.previous.clusters.retain(|c| c.phase != CopyPhase::Leaving),
        }
    }

    /// Takes one step. Returns true if anything changed.
    fn step(&mut self) -> Result<bool, TestCaseError> {
        self.epoch += 1;
        self.gates.now += 31;
        let up: BTreeSet<Uid> =
            self.case.clusters.iter().filter(|c| c.info.is_ready()).map(|c| c.info.uid.clone()).collect();
        let drained = drained(&self.case);
        let health = CopyHealth {
            ready: &self.ready,
            up: &up,
            drained: &drained,
            gone: &BTreeSet::new(),
            epoch: self.epoch,
            gates: &self.gates,
        };
        let decision = self.case.decide();
        let step = transition(&self.case.workload, &self.case.previous, &decision, &health);
        let stopped = decision.is_to_end();
        let grounds = StepJustification { workload: &self.case.workload, health: &health, stopped };
        prop_assert_eq!(check_justification(&self.case.previous, &step.record, &grounds), Ok(()));
        let served = self.case.previous.active().any(|c| health.is_healthy(&self.case.workload, c, None));
        let serves = step.record.active().any(|c| health.is_healthy(&self.case.workload, c, None));
        let one = self.case.workload.moves.one_at_a_time();
        // Divided copies have each a part only, so health of one says nothing of the whole there.
        let parts = |record: &PlacementRecord| record.clusters.iter().any(|c| c.replicas.is_some());
        let divided = parts(&step.record) || parts(&self.case.previous);
        prop_assert!(!served || serves || stopped || one || divided, "the last healthy copy left");
        let changed = step.record != self.case.previous;
        prop_assert_eq!(changed, step.cause.is_some());
        self.case.previous = step.record;
        Ok(changed)
    }
}

proptest! {
    #[test]
    fn every_step_is_legal_and_the_walk_ends_where_it_should(turns in proptest::collection::vec(any_turn(), 1..40), stateful in any::<bool>(), paced in any::<bool>()) {
        let web = if stateful { workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 1}})) } else { deployment(2) };
        let mut world = BenchWorld { case: PlacementCase::new(web, clusters(&["c0", "c1", "c2", "c3"])), ready: BTreeMap::new(), epoch: 1, gates: MoveGates::default() };
        if paced {
            let published = ["c0", "c1", "c2", "c3"].map(uid).into();
            world.gates.fronts = vec![FrontEnd { title: "service/web".into(), published, serving: BTreeSet::new() }];
            world.gates.pace = Some(portolan_types::placement::MovePace::default());
        }
        for turn in &turns {
            world.turn(turn);
            world.step()?;
        }
        // Left alone, with everything up and ready and the syncer doing its work, it settles on its decision.
        for at in 0..4 {
            world.turn(&Turn::Down(at, false));
            world.turn(&Turn::Ready(at));
        }
        // A move that was taken back is tried again after ten minutes.
        for _ in 0..60 {
            world.step()?;
            world.turn(&Turn::Gone);
        }
        prop_assert!(!world.step()?, "it never settles: {}", words(&world.case.previous));
        let decision = world.case.decide();
        if decision.outcome != DecisionOutcome::Unplaced {
            let wanted: Vec<_> = decision.chosen.iter().map(|c| (&c.uid, c.replicas)).collect();
            let got: Vec<_> = world.case.previous.clusters.iter().map(|c| (&c.uid, c.replicas)).collect();
            prop_assert_eq!(got, wanted);
        }
    }
}
