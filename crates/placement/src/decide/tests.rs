use portolan_types::placement::{DrainMark, DrainStage};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixtures::{PlacementCase, chosen, cluster, clusters, constraint, deployment, policy, workload};

fn check(case: &str, question: &PlacementCase, expected: &str) {
    assert_eq!(chosen(&question.decide()), expected, "{case}");
}

/// The reason for each physical cluster that was left out, as `east=Cordoned`.
fn reasons(question: &PlacementCase) -> String {
    let words = |r: &RejectedCluster| format!("{}={}", r.name, r.reason);
    question.decide().rejected.iter().map(words).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_default_decision_of_a_namespace() {
    let web = || deployment(1);
    let three = || clusters(&["east", "north", "west"]);
    check("the first by name among equals", &PlacementCase::new(web(), three()), "east");
    check("the namespace's own, when there is one", &PlacementCase::new(web(), three()).home("west"), "west");
    check("it stays where it is", &PlacementCase::new(web(), three()).on("north").home("west"), "north");
    let busy = vec![cluster("east").holding("10").using("9"), cluster("west").holding("10").using("1")];
    check("the emptier one", &PlacementCase::new(web(), busy), "west");
    let cordoned = vec![cluster("east").cordoned(), cluster("west")];
    check("not a cordoned one", &PlacementCase::new(web(), cordoned.clone()).home("east"), "west");
    check("a cordon keeps what is there", &PlacementCase::new(web(), cordoned).on("east"), "east");
    let down = vec![cluster("east").down(), cluster("west")];
    check("not one that does not answer", &PlacementCase::new(web(), down.clone()), "west");
    check("not ready is not a reason to leave", &PlacementCase::new(web(), down).on("east"), "east");
    check("nowhere, when there is nothing", &PlacementCase::new(web(), Vec::new()), "");
}

#[test]
fn objects_leave_a_drained_physical_cluster_once_marked() {
    let drained = || vec![cluster("east").draining(), cluster("west")];
    let web = || PlacementCase::new(deployment(2), drained()).on("east");
    assert_eq!(chosen(&web().decide()), "east", "it waits for its mark");
    assert_eq!(chosen(&marked(web(), DrainStage::Leaving).decide()), "west");
    assert_eq!(chosen(&marked(web(), DrainStage::Left).decide()), "east", "the move has ended");
    let deleted = vec![cluster("east").draining().deleting(), cluster("west")];
    let case = PlacementCase { clusters: deleted, ..web() };
    assert_eq!(chosen(&case.decide()), "east", "a deletion waits for the drain");
    let set = workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 1}}));
    let case = PlacementCase { workload: set, ..web() };
    assert_eq!(chosen(&marked(case, DrainStage::Leaving).decide()), "west", "a drain is an explicit request");
    let mut kept = marked(web(), DrainStage::Leaving);
    kept.workload.keeps_volumes = true;
    let decision = kept.decide();
    assert_eq!((chosen(&decision).as_str(), decision.move_refused), ("east", true));
    let mut ended = marked(web(), DrainStage::Leaving);
    ended.workload.finished = true;
    assert_eq!(ended.decide().outcome, DecisionOutcome::Finished, "it is not run again");
}

/// Returns a case whose object has the mark of a drain of `east`.
fn marked(mut case: PlacementCase, stage: DrainStage) -> PlacementCase {
    let east = case.clusters[0].info.uid.clone();
    case.previous.drain = Some(Box::new(DrainMark {
        cluster: "root".into(),
        home: "root".into(),
        name: "d".into(),
        uid: "d".parse().unwrap(),
        stage,
        from: vec![east],
        force: false,
        since: 0,
        available: 2,
        downtime: 0,
        before: Vec::new(),
        divided_by: None,
        after: Vec::new(),
        earlier: None,
    }));
    case
}

#[test]
fn every_filter_has_its_reason() {
    let web = deployment(2);
    let all = |c: ClusterFacts| PlacementCase::new(web.clone(), vec![c]);
    let east = || cluster("east region=eu");
    let proposal = |spec| policy(1, "p", spec);
    for (question, reason) in [
        (all(ClusterFacts { in_reach: false, ..east() }), "NotReachable"),
        (all(ClusterFacts { may_use: false, ..east() }), "NoUseRight"),
        (all(east().deleting()), "Deleting"),
        (all(east().draining()), "Draining"),
        (all(east()).pinned("west"), "PinnedElsewhere"),
        (all(east()).by(proposal(json!({"clusters": {"exclude": ["east"]}}))), "Excluded"),
        (all(east()).by(proposal(json!({"clusters": {"names": ["west"]}}))), "NotNamed"),
        (all(east()).by(proposal(json!({"clusters": {"selector": {"matchLabels": {"region": "us"}}}}))), "NotSelected"),
        (all(east()).by(constraint(2, "c", json!({"clusters": {"names": ["west"]}}))), "PolicyConstraint"),
        (all(east()).by(constraint(2, "c", json!({"clusters": {"cel": "1 +"}}))), "PolicyConstraint"),
        (
            all(east()).by(proposal(json!({"clusters": {"cel": "physicalCluster.metadata.name == 'west'"}}))),
            "NotMatched",
        ),
        (
            all(east()).by(proposal(json!({"clusters": {"cel": "physicalCluster.metadata.labels['a'] == 'b'"}}))),
            "ExpressionFailed",
        ),
        (all(east()).by(proposal(json!({"with": [{"selector": {"matchLabels": {"app": "db"}}}]}))), "AffinityNotMet"),
        (all(east().with(|c| c.synced.push("services".into()))), "NotSynced"),
        (all(east().down()), "NotReady"),
        (all(east().cordoned()), "Cordoned"),
        (all(east().tainted("gpu", "NoSchedule", 0)), "TaintNotTolerated"),
        (all(east().bounded("1")), "OutOfBounds"),
        (all(east().holding("3").using("2")), "InsufficientCapacity"),
        (all(east()).by(proposal(json!({"spread": [{"topologyKey": "zone"}]}))), "SpreadKeyMissing"),
    ] {
        assert_eq!(reasons(&question), format!("east={reason}"));
        let decision = question.decide();
        assert_eq!(decision.outcome, DecisionOutcome::Unplaced, "{reason}");
        let pinned = if reason == "PinnedElsewhere" { " (pinned to west)" } else { "" };
        assert_eq!(
            decision.summary(),
            format!("0/1 physical clusters fit: 1 {}{pinned}", decision.rejected[0].reason.phrase())
        );
        let explained = crate::explain(&question.question());
        let refused = explained.clusters[0].verdicts.iter().find(|v| !v.passed);
        assert!(reason == "SpreadKeyMissing" || refused.is_some_and(|v| v.reason == reason && !v.message.is_empty()));
        assert!(explained.clusters[0].message.as_ref().is_some_and(|said| !said.is_empty()), "{reason}");
    }
}

#[test]
fn a_policy_says_how_many_and_which() {
    let regions = || vec![cluster("eu-1 region=eu"), cluster("eu-2 region=eu"), cluster("us-1 region=us")];
    let by = |spec| PlacementCase::new(deployment(6), regions()).by(policy(1, "p", spec));
    check("one, when it says nothing", &by(json!({})), "eu-1");
    check("as many as it says", &by(json!({"count": 2})), "eu-1 eu-2");
    check("all", &by(json!({"count": "All"})), "eu-1 eu-2 us-1");
    check("none keeps it from running", &by(json!({"count": 0})), "");
    assert_eq!(by(json!({"count": 0})).decide().outcome, DecisionOutcome::Stopped);
    check("all that are named", &by(json!({"clusters": {"names": ["us-1", "eu-2"]}})), "eu-2 us-1");
    check(
        "exclude wins over names",
        &by(json!({"clusters": {"names": ["us-1", "eu-2"], "exclude": ["us-1"]}})),
        "eu-2",
    );
    check("spread over regions", &by(json!({"count": 2, "spread": [{"topologyKey": "region"}]})), "eu-1 us-1");
    let fallback = json!({"clusters": {"selector": {"matchLabels": {"region": "ap"}}, "fallback": [{"names": ["us-1"]}, {"names": ["eu-1"]}]}});
    check("the first fallback that fits", &by(fallback.clone()), "us-1");
    let down = vec![cluster("eu-1 region=eu"), cluster("us-1 region=us").down()];
    check("the next fallback", &PlacementCase::new(deployment(1), down).by(policy(1, "p", fallback.clone())), "eu-1");
    check("a fallback that is used is kept", &by(fallback).on("eu-1"), "eu-1");
    check("what is there is kept", &by(json!({"count": 2})).on("us-1"), "eu-1 us-1");
    check(
        "the spread is restored",
        &by(json!({"count": 2, "spread": [{"topologyKey": "region"}]})).on("eu-1 eu-2"),
        "eu-1 us-1",
    );
    check(
        "a pin chooses in place of the policy",
        &by(json!({"count": 2, "clusters": {"names": ["eu-1"]}})).pinned("us-1"),
        "us-1",
    );
    let partly = by(json!({"count": 4})).decide();
    assert_eq!(partly.outcome, DecisionOutcome::Partly("only 3 of 4 physical clusters fit".into()));
}

#[test]
fn replicas_are_divided_or_not() {
    let three = || clusters(&["a", "b", "c"]);
    let by = |replicas: i64, spec| {
        PlacementCase::new(deployment(replicas), three()).by(policy(1, "p", json!({"count": "All", "replicas": spec})))
    };
    check(
        "duplicated when nothing is said",
        &PlacementCase::new(deployment(6), three()).by(policy(1, "p", json!({"count": 2}))),
        "a b",
    );
    check("equal shares", &by(7, json!({"mode": "Divide"})), "a*3 b*2 c*2");
    check("the odd one stays", &by(7, json!({"mode": "Divide"})).on("a*2 b*3 c*2"), "a*2 b*3 c*2");
    let weights =
        json!({"mode": "Divide", "by": "Weight", "weights": [{"selector": {"matchLabels": {"x": "y"}}, "weight": 4}]});
    let weighted = vec![cluster("a"), cluster("b x=y"), cluster("c")];
    check(
        "by weight",
        &PlacementCase::new(deployment(6), weighted).by(policy(1, "p", json!({"count": "All", "replicas": weights}))),
        "a*1 b*4 c*1",
    );
    let capacity = || vec![cluster("a").holding("2"), cluster("b").holding("6")];
    let by_capacity = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide", "by": "Capacity"}}));
    check("by what is free", &PlacementCase::new(deployment(4), capacity()).by(by_capacity.clone()), "a*1 b*3");
    let grown = PlacementCase::new(deployment(5), capacity()).by(by_capacity.clone()).on("a*1 b*3");
    check("only growth is shared out by what is free", &grown, "a*1 b*4");
    check(
        "nothing moves for what is free alone",
        &PlacementCase::new(deployment(4), capacity()).by(by_capacity).on("a*3 b*1"),
        "a*3 b*1",
    );
    let bounded = || vec![cluster("a").bounded("2"), cluster("b"), cluster("c")];
    let two = policy(1, "p", json!({"count": 2, "replicas": {"mode": "Divide"}}));
    check("bounds hold", &PlacementCase::new(deployment(6), bounded()).by(two), "a*2 b*4");
    let full = || vec![cluster("a").bounded("2"), cluster("b").bounded("3"), cluster("c")];
    let two = policy(1, "p", json!({"count": 2, "replicas": {"mode": "Divide"}}));
    check("what is over spills to further ones", &PlacementCase::new(deployment(6), full()).by(two), "a*2 b*2 c*2");
}

#[test]
fn a_wider_division_than_requested_stays() {
    let by = policy(1, "p", json!({"count": 1, "replicas": {"mode": "Divide"}}));
    let question = PlacementCase::new(deployment(2), vec![cluster("a").bounded("1"), cluster("b")]).by(by);
    check("what does not fit goes to a further one", &question, "a*1 b*1");
    let placed = vec![cluster("a").bounded("1").using("1"), cluster("b").using("1")];
    let again = PlacementCase { clusters: placed, ..question }.on("a*1 b*1");
    check("its own weight does not make it move", &again, "a*1 b*1");
}

#[test]
fn growth_over_the_bounds_spills_and_running_replicas_stay() {
    let mut question =
        PlacementCase::new(deployment(5), vec![cluster("a").bounded("3").using("2"), cluster("b")]).on("a");
    question.existing = [(crate::fixtures::uid("a"), 2)].into();
    question.clusters[0].used.insert("cpu".into(), "5".parse().unwrap());
    check("without a policy the rest goes elsewhere", &question, "a*3 b*2");
    let smaller = vec![cluster("a").bounded("1").using("4"), cluster("b")];
    let divided = policy(1, "p", json!({"count": "All", "replicas": {"mode": "Divide"}}));
    check(
        "a bound that is lowered stops nothing",
        &PlacementCase::new(deployment(8), smaller).by(divided).on("a*4 b*4"),
        "a*4 b*4",
    );
}

#[test]
fn growth_over_the_bounds_of_one_physical_cluster_is_limited_where_it_cannot_spill() {
    let grown = |on: &str, existing: i64| {
        let mut question =
            PlacementCase::new(deployment(20), vec![cluster("a").bounded("14").using("20"), cluster("b")]).on(on);
        question.existing = [(crate::fixtures::uid("a"), existing)].into();
        question
    };
    let limits =
        |decision: &PlacementDecision| decision.limits.iter().map(|(uid, n)| format!("{uid}={n}")).collect::<Vec<_>>();
    let pinned = grown("a", 2).pinned("a").decide();
    assert_eq!((chosen(&pinned).as_str(), limits(&pinned)), ("a", vec!["uid-a=14".to_owned()]));
    assert_eq!(pinned.outcome, DecisionOutcome::Partly("only 14 of 20 replicas fit the bounds of a".into()));
    assert_eq!(limits(&grown("a", 17).pinned("a").decide()), ["uid-a=17"], "what runs stays");
    let both = grown("a b", 2).by(policy(1, "p", json!({"count": 2}))).decide();
    assert_eq!((chosen(&both).as_str(), limits(&both)), ("a b", vec!["uid-a=14".to_owned()]), "each copy by itself");
    let mut set = grown("a", 2);
    set.workload.moves = MoveStrategy::Restart;
    assert_eq!(limits(&set.decide()), ["uid-a=14"], "what must not run twice does not spill");
    let mut limited = grown("a", 0).pinned("a");
    limited.previous.limits = pinned.limits.clone();
    limited.clusters[0].used.insert("cpu".into(), "14".parse().unwrap());
    assert_eq!(limits(&limited.decide()), ["uid-a=14"], "its own weight counts as admitted");
    let explained = crate::explain(&limited.question());
    let room = explained.clusters[0].verdicts.iter().find(|v| v.filter == "room").unwrap();
    assert_eq!(
        (room.passed, room.message.as_str()),
        (true, "its bounds leave room for 14 of 20 pods; what runs stays")
    );
    limited.workload = deployment(5);
    limited.clusters[0].used.insert("cpu".into(), "5".parse().unwrap());
    assert_eq!(limits(&limited.pinned("a").decide()), Vec::<String>::new(), "as soon as all fit");
}

#[test]
fn precedence_of_policies() {
    let two = || clusters(&["east", "west"]);
    let names = |name: &str| json!({"clusters": {"names": [name]}});
    let web = || PlacementCase::new(deployment(1), two());
    let older = |mut p: LeveledPolicy| {
        p.created = "2025-01-01T00:00:00Z".into();
        p
    };
    let urgent = |name: &str| json!({"clusters": {"names": [name]}, "priority": 7});
    check(
        "the namespace before the workspace",
        &web().by(policy(1, "a", urgent("east"))).by(policy(0, "b", names("west"))),
        "west",
    );
    check(
        "the workspace before the root",
        &web().by(policy(2, "a", names("east"))).by(policy(1, "b", names("west"))),
        "west",
    );
    check("the higher priority", &web().by(policy(1, "a", names("east"))).by(policy(1, "b", urgent("west"))), "west");
    check("the older one", &web().by(policy(1, "a", names("east"))).by(older(policy(1, "b", names("west")))), "west");
    check(
        "a constraint bounds the proposal",
        &web().by(policy(1, "a", json!({"count": "All"}))).by(constraint(2, "c", names("west"))),
        "west",
    );
    check(
        "constraints are intersected",
        &web().by(constraint(2, "c", names("west"))).by(constraint(1, "d", names("east"))),
        "",
    );
    check(
        "their count is a maximum",
        &web().by(policy(0, "a", json!({"count": "All"}))).by(constraint(2, "c", json!({"count": 1}))),
        "east",
    );
    check("a pin stays within constraints", &web().by(constraint(2, "c", names("west"))).pinned("east"), "");
    let tainted = || vec![cluster("east").tainted("gpu", "NoSchedule", 0)];
    let tolerates = json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]});
    let gpu = || PlacementCase::new(deployment(1), tainted());
    check("the winner's tolerations count", &gpu().by(policy(1, "a", tolerates.clone())), "east");
    check(
        "but with a constraint only its own",
        &gpu().by(policy(1, "a", tolerates.clone())).by(constraint(2, "c", json!({}))),
        "",
    );
    check("which may tolerate", &gpu().by(constraint(2, "c", tolerates)), "east");
}

#[test]
fn taints_that_are_tolerated_for_a_time() {
    let seconds =
        json!({"tolerations": [{"key": "bad", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]});
    let at = |since: i64| {
        let both = vec![cluster("east").tainted("bad", "NoExecute", since), cluster("west")];
        PlacementCase::new(deployment(1), both).by(policy(1, "p", seconds.clone())).on("east")
    };
    check("not yet", &at(990), "east");
    assert_eq!(at(990).decide().recheck_in, Some(50));
    check("the time is over", &at(940), "west");
    let untolerated = vec![cluster("east").tainted("bad", "NoExecute", 0), cluster("west")];
    check("never tolerated", &PlacementCase::new(deployment(1), untolerated).on("east"), "west");
    let no_schedule = vec![cluster("east").tainted("bad", "NoSchedule", 0), cluster("west")];
    check("NoSchedule keeps what is there", &PlacementCase::new(deployment(1), no_schedule).on("east"), "east");
}

#[test]
fn run_once_objects_move_only_by_pin_or_drain() {
    let set = || workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": {"replicas": 1}}));
    let elsewhere = || policy(1, "p", json!({"clusters": {"names": ["west"]}}));
    let held = PlacementCase::new(set(), clusters(&["east", "west"])).by(elsewhere()).on("east");
    check("a policy does not move a stateful set", &held, "east");
    assert_eq!(held.decide().held.len(), 1);
    check("a pin does", &PlacementCase::new(set(), clusters(&["east", "west"])).pinned("west").on("east"), "west");
    let drained = vec![cluster("east").deleting(), cluster("west")];
    check("so does the end of its physical cluster", &PlacementCase::new(set(), drained.clone()).on("east"), "west");
    let job = || {
        workload("batch", "Job", json!({"metadata": {"name": "j"}, "status": {"startTime": "2026-01-01T00:00:00Z"}}))
    };
    check("a started job stays", &PlacementCase::new(job(), drained).on("east"), "east");
    check(
        "unless it is pinned itself",
        &PlacementCase::new(job(), clusters(&["east", "west"])).pinned("west").on("east"),
        "west",
    );
    let done = workload("batch", "Job", json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}));
    check(
        "a finished job is not run again",
        &PlacementCase::new(done.clone(), clusters(&["east", "west"])).pinned("west").on("east"),
        "east",
    );
    let mut east = cluster("east");
    std::sync::Arc::make_mut(&mut east.info).deleting = true;
    let leaves = PlacementCase::new(done.clone(), vec![east, cluster("west")]).on("east").decide();
    assert_eq!((leaves.chosen.len(), leaves.is_to_end()), (0, true), "but it does not hold what is taken away");
    check("nor is one that has lost its place", &PlacementCase::new(done, clusters(&["east"])), "");
    let cron = workload("batch", "CronJob", json!({"metadata": {"name": "c"}}));
    check(
        "a cron job is on one",
        &PlacementCase::new(cron, clusters(&["a", "b"])).by(policy(1, "p", json!({"count": "All"}))),
        "a",
    );
}

#[test]
fn a_held_copy_does_not_displace_the_wanted_one() {
    let template = json!([{"metadata": {"name": "data"}}]);
    let spec = json!({"replicas": 1, "volumeClaimTemplates": template});
    let mut set = workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": spec}));
    let east = || policy(1, "p", json!({"clusters": {"names": ["east"]}, "count": 1}));
    let case = PlacementCase::new(set.clone(), clusters(&["east", "west", "x"])).by(east());
    check("both have data", &case.clone().on("east west"), "east west");
    assert!(case.clone().on("east west").decide().move_refused);
    check("what is held does not come to the wanted one", &case.clone().on("west"), "west");
    check("all that are held stay", &case.clone().on("west x"), "west x");
    set.keeps_volumes = false;
    let case = PlacementCase { workload: set, ..case };
    check("without volumes the wanted one is enough", &case.clone().on("east west"), "east");
    check("and what is held fills the count", &case.on("west x"), "west");
}

#[test]
fn a_workload_without_its_volumes_is_not_restarted() {
    let spec = json!({"replicas": 1, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]});
    let set = workload("apps", "StatefulSet", json!({"metadata": {"name": "db"}, "spec": spec}));
    let mut case = PlacementCase::new(set, clusters(&["west", "x"])).on("east");
    let decision = case.decide();
    assert_eq!((chosen(&decision).as_str(), decision.move_refused), ("", true));
    assert_eq!(decision.summary(), "the move is refused");
    assert!(decision.held[0].starts_with("stays on east, which does not exist any more"), "{:?}", decision.held);
    let two = case.clone().by(policy(1, "p", json!({"count": 2}))).on("east west");
    check("the other copy stays, and no further one comes", &two, "west");
    case.workload.keeps_volumes = false;
    check("the volumes are given up", &case, "west");
}

#[test]
fn siblings_stay_together() {
    let mut pod = workload("", "Pod", json!({"metadata": {"name": "db-1"}, "spec": {"containers": [{}]}}));
    pod.siblings = vec![crate::fixtures::uid("west")];
    check("with the same controller", &PlacementCase::new(pod, clusters(&["east", "west"])).home("east"), "west");
}

/// A random case of up to seven physical clusters in three regions.
fn any_case() -> impl Strategy<Value = PlacementCase> {
    let part = (0_u8..8, any::<bool>(), any::<bool>(), proptest::option::of(0_i64..12), 0_i64..12);
    let parts_of_spec = (any::<bool>(), proptest::option::of((0_i64..4, 0_i64..6)), 0_usize..4);
    let spec = (0_usize..9, any::<bool>(), 0_usize..4, any::<bool>(), parts_of_spec);
    (proptest::collection::vec(part, 0..7), spec, 0_i64..20, any::<u8>()).prop_map(|(parts, spec, replicas, here)| {
        let of = |(at, (region, cordoned, down, bound, used)): (usize, (u8, bool, bool, Option<i64>, i64))| {
            let mut c = cluster(&format!("c{at} region=r{}", region % 3)).using(&used.to_string());
            c = if cordoned && down { c.cordoned() } else { c };
            c = if down && !cordoned { c.down() } else { c };
            bound.map_or(c.clone(), |b| c.bounded(&b.to_string()))
        };
        let clusters: Vec<_> = parts.into_iter().enumerate().map(of).collect();
        let (count, spread, split, with, (overflows, limits, groups)) = spec;
        let count = if count == 8 { json!("All") } else { json!(count) };
        let by = ["Equal", "Weight", "Capacity"].get(split).map(|by| json!({"mode": "Divide", "by": by}));
        let spread = if spread {
            json!([{"topologyKey": "region", "maxGroups": groups, "minGroups": groups / 2}])
        } else {
            json!([])
        };
        let mut spec = json!({"count": count, "spread": spread});
        if let Some(by) = by {
            spec["replicas"] = by;
            if let Some((least, more)) = limits {
                let third = json!({"matchLabels": {"region": "r1"}});
                spec["replicas"]["limits"] = json!([{"selector": third, "min": least, "max": least + more + 1}]);
            }
            if overflows {
                let region = |region: &str| json!({"selector": {"matchLabels": {"region": region}}});
                spec["clusters"] = region("r0");
                spec["clusters"]["fallback"] = json!([region("r1"), region("r2")]);
                spec["clusters"]["fallbackMode"] = json!("Overflow");
            }
        }
        let mut case = PlacementCase::new(deployment(replicas), clusters);
        if with {
            case =
                case.by(policy(1, "p", spec)).by(policy(2, "q", json!({}))).by(constraint(2, "c", json!({"count": 5})));
        }
        let on: Vec<_> =
            (0..case.clusters.len()).filter(|at| here & (1 << at) != 0).map(|at| format!("c{at}*2")).collect();
        case.on(&on.join(" "))
    })
}

proptest! {
    #[test]
    fn equal_facts_in_any_order_give_an_equal_answer(case in any_case(), turn in 0_usize..7, flip in any::<bool>()) {
        let mut turned = case.clone();
        let n = turned.clusters.len().max(1);
        turned.clusters.rotate_left(turn % n);
        if flip {
            turned.clusters.reverse();
            turned.policies.reverse();
        }
        prop_assert_eq!(case.decide(), turned.decide());
    }

    #[test]
    fn a_decision_is_complete_bounded_and_final(case in any_case()) {
        let decision = case.decide();
        if decision.outcome != DecisionOutcome::Stopped {
            prop_assert_eq!(decision.chosen.len() + decision.rejected.len(), case.clusters.len());
        }
        let divided: Vec<i64> = decision.chosen.iter().filter_map(|c| c.replicas).collect();
        prop_assert!(divided.iter().sum::<i64>() <= case.workload.replicas.unwrap());
        if matches!(decision.outcome, DecisionOutcome::Placed) && !divided.is_empty() {
            prop_assert_eq!(divided.iter().sum::<i64>(), case.workload.replicas.unwrap());
        }
        let limits = |c: &ChosenCluster| {
            let facts = case.clusters.iter().find(|facts| facts.info.uid == c.uid).unwrap();
            case.policies.iter().find(|p| !p.policy.is_constraint()).map_or((0, None), |p| p.policy.replica_limits(&facts.info))
        };
        for copy in decision.chosen.iter().filter(|copy| copy.replicas.is_some()) {
            prop_assert!(limits(copy).1.is_none_or(|most| copy.replicas <= Some(most)), "{} has more than its limit", copy.name);
        }
        // A second decision at the new location changes nothing.
        let on: Vec<_> = decision.chosen.iter().map(|c| format!("{}{}", c.name, c.replicas.map(|n| format!("*{n}")).unwrap_or_default())).collect();
        let again = case.clone().on(&on.join(" "));
        if case.previous.clusters.is_empty() && case.clusters.iter().all(|c| c.info.bounds.is_empty()) {
            prop_assert_eq!(chosen(&again.decide()), chosen(&decision));
        }
    }

    #[test]
    fn another_physical_cluster_moves_nothing(case in any_case()) {
        let placed = case.clone().decide();
        let on: Vec<_> = placed.chosen.iter().map(|c| format!("{}{}", c.name, c.replicas.map(|n| format!("*{n}")).unwrap_or_default())).collect();
        let mut more = case.clone().on(&on.join(" "));
        more.previous.divided_by = placed.divided_by.clone();
        // What is placed is used.
        for copy in &placed.chosen {
            let cluster = more.clusters.iter_mut().find(|c| c.info.uid == copy.uid).unwrap();
            let own = case.workload.requests["cpu"].times(copy.replicas.unwrap_or(case.workload.pods));
            cluster.used.insert("cpu".into(), cluster.used["cpu"] + own);
        }
        more.clusters.push(cluster("a-new-one region=r0"));
        let after = more.decide();
        let spread = case.policies.iter().any(|p| !p.policy.spec.spread.is_empty());
        if !spread && case.previous.clusters.is_empty() {
            // A copy without replicas does not count.
            for before in placed.chosen.iter().filter(|copy| copy.replicas != Some(0)) {
                prop_assert!(after.chosen.iter().any(|c| c.uid == before.uid), "{} left", before.name);
            }
        }
    }

    #[test]
    fn growth_takes_no_replica_from_any_physical_cluster_and_shrinking_gives_none(case in any_case(), totals in proptest::collection::vec(0_i64..24, 1..5)) {
        let mut case = case.on("");
        let mut before: Option<PlacementDecision> = None;
        for total in totals {
            case.workload.replicas = Some(total);
            case.workload.pods = total;
            let decision = case.decide();
            let of = |decision: &PlacementDecision| -> BTreeMap<Uid, i64> {
                decision.chosen.iter().filter_map(|c| Some((c.uid.clone(), c.replicas?))).collect()
            };
            if let Some(before) = before.filter(|before| before.divided_by.is_some() && before.divided_by == decision.divided_by) {
                let (was, is) = (of(&before), of(&decision));
                let grows = is.values().sum::<i64>() >= was.values().sum::<i64>();
                for (uid, was) in was {
                    let is = is.get(&uid).copied().unwrap_or(0);
                    prop_assert!(if grows { is >= was } else { is <= was }, "{uid}: {was} to {is}");
                }
            }
            let used: Vec<(Uid, i64)> = case.previous.active().map(|c| (c.uid.clone(), -c.replicas.unwrap_or(0))).collect();
            let on: Vec<_> = decision.chosen.iter().map(|c| format!("{}{}", c.name, c.replicas.map(|n| format!("*{n}")).unwrap_or_default())).collect();
            case = case.on(&on.join(" "));
            case.previous.divided_by = decision.divided_by.clone();
            let now = case.previous.active().map(|c| (c.uid.clone(), c.replicas.unwrap_or(0)));
            for (uid, more) in used.into_iter().chain(now.collect::<Vec<_>>()) {
                let cluster = case.clusters.iter_mut().find(|c| c.info.uid == uid).unwrap();
                cluster.used.insert("cpu".into(), cluster.used["cpu"] + case.workload.requests["cpu"].times(more));
            }
            before = Some(decision);
        }
    }
}
