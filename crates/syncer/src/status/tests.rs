use super::*;

fn kind(text: &str) -> GroupKind {
    let (kind, group) = text.split_once('.').unwrap_or((text, ""));
    GroupKind { group: group.into(), kind: kind.into() }
}

fn copy(name: &str, stamp: i64, status: Value) -> CopyStatus {
    CopyStatus { stamp, is_current: true, status, ..CopyStatus::unreported(name, name.parse().unwrap(), None) }
}

fn failed(copy: CopyStatus, reason: &str) -> CopyStatus {
    CopyStatus { failed: Some((reason.into(), "no answer".into())), since: "T1".into(), ..copy }
}

fn share(copy: CopyStatus, replicas: i64) -> CopyStatus {
    CopyStatus { replicas: Some(replicas), ..copy }
}

fn rolled(ready: i64) -> Value {
    let available = if ready > 0 { "True" } else { "False" };
    json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 3, "readyReplicas": ready, "availableReplicas": ready,
        "conditions": [{"type": "Available", "status": available, "message": format!("{ready} pods")}]})
}

fn merged(text: &str, before: Value, copies: &[CopyStatus]) -> Value {
    merge(&kind(text), &json!({"status": before, "spec": {"replicas": 6}}), copies)
}

#[test]
fn one_copy_shows_as_it_is_with_the_upstream_generation() {
    let status = merged("Deployment.apps", json!({}), &[copy("east", 7, rolled(3))]);
    assert_eq!(status["observedGeneration"], 7);
    assert_eq!((&status["readyReplicas"], &status["conditions"][0]["message"]), (&json!(3), &json!("3 pods")));
}

#[test]
fn shares_are_summed_and_duplicates_show_the_worst() {
    let (east, west) = (copy("east", 1, rolled(3)), copy("west", 1, rolled(1)));
    for (case, copies, replicas, ready) in [
        ("shares", vec![share(east.clone(), 3), share(west.clone(), 3)], 6, 4),
        ("duplicates", vec![east.clone(), west.clone()], 3, 1),
        ("a duplicate that failed is the worst", vec![failed(east.clone(), "Invalid"), west.clone()], 3, 3),
        (
            "a duplicate that is behind is the worst",
            vec![CopyStatus { is_current: false, ..east.clone() }, west.clone()],
            3,
            3,
        ),
        (
            "one without report is left out",
            vec![east, CopyStatus::unreported("north", "n".parse().unwrap(), None)],
            3,
            3,
        ),
    ] {
        let status = merged("Deployment.apps", json!({}), &copies);
        assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(replicas), &json!(ready)), "{case}");
    }
    let nodes = |n: i64| json!({"desiredNumberScheduled": n, "numberReady": n, "currentNumberScheduled": n, "numberMisscheduled": 0});
    let daemons = merged("DaemonSet.apps", json!({}), &[copy("a", 1, nodes(2)), copy("b", 1, nodes(3))]);
    assert_eq!((&daemons["numberReady"], &daemons["numberMisscheduled"]), (&json!(5), &json!(0)), "nodes add up");
}

#[test]
fn a_change_that_was_observed_upstream_is_not_there_before_it_has_come_down() {
    let counts = json!({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3});
    let told = |updated: Value| json!({"spec": {"replicas": 3}, "status": {"observedGeneration": 2, "updatedReplicas": updated}});
    let at = |stamp: i64, is_current: bool| CopyStatus { is_current, ..copy("east", stamp, counts.clone()) };
    for (case, before, copy, updated) in [
        ("it is on its way", Value::Null, at(1, true), Value::Null),
        ("it has come, and is not observed", Value::Null, at(2, false), Value::Null),
        ("what was of this template counts", json!(2), at(1, true), json!(2)),
        ("it has been acted on", Value::Null, at(2, true), json!(3)),
    ] {
        let status = merge(&kind("Deployment.apps"), &told(before), &[copy]);
        let shown = status.get("updatedReplicas").cloned().unwrap_or_default();
        assert_eq!((&shown, &status["observedGeneration"]), (&updated, &json!(2)), "{case}");
    }
}

#[test]
fn while_shares_overlap_no_more_is_shown_than_is_wanted() {
    let counts = |replicas: i64, updated: i64, ready: i64| {
        json!({"observedGeneration": 1, "replicas": replicas, "updatedReplicas": updated,
            "readyReplicas": ready, "availableReplicas": ready, "unavailableReplicas": replicas - ready})
    };
    let two = |east: Value, west: Value| vec![share(copy("east", 1, east), 6), share(copy("west", 1, west), 6)];
    for (case, copies, expected) in [
        ("the old copy still serves", two(counts(6, 6, 6), counts(6, 6, 0)), [6, 6, 6, 0]),
        ("both serve", two(counts(6, 6, 6), counts(6, 6, 6)), [6, 6, 6, 0]),
        ("pods of an older template are waited for", two(counts(6, 2, 6), counts(6, 6, 6)), [6, 2, 6, 0]),
        ("all that is missing is shown", two(counts(6, 6, 1), counts(6, 6, 2)), [6, 6, 3, 3]),
        ("a surge on one copy is its own", vec![share(copy("east", 1, counts(8, 2, 6)), 6)], [8, 2, 6, 2]),
    ] {
        let upstream = json!({"spec": {"replicas": 6}});
        let status = merge(&kind("Deployment.apps"), &upstream, &copies);
        let shown = ["replicas", "updatedReplicas", "readyReplicas", "unavailableReplicas"]
            .map(|field| status[field].as_i64().unwrap_or(0));
        assert_eq!(shown, expected, "{case}");
    }
    let set = json!({"replicas": 6, "readyReplicas": 6, "fullyLabeledReplicas": 6});
    let copies = [share(copy("east", 1, set.clone()), 6), share(copy("west", 1, set), 6)];
    let status = merge(&kind("ReplicaSet.apps"), &json!({"spec": {"replicas": 6}}), &copies);
    assert_eq!((&status["readyReplicas"], status.get("updatedReplicas")), (&json!(6), None));
}

#[test]
fn the_observed_generation_is_the_least_and_never_falls() {
    let at = |stamp, is_current| CopyStatus { is_current, ..copy("x", stamp, rolled(1)) };
    for (case, before, copies, expected) in [
        ("all have observed", 0, vec![at(4, true), at(4, true)], 4),
        ("one has not got the new generation", 0, vec![at(4, true), at(3, true)], 3),
        ("one has it but has not acted", 0, vec![at(4, true), at(4, false)], 3),
        ("never lower than before", 4, vec![at(4, true), at(3, true)], 4),
        (
            "a copy that joins does not lower it",
            4,
            vec![at(4, true), CopyStatus::unreported("n", "n".parse().unwrap(), None)],
            4,
        ),
        (
            "a new object waits for all",
            0,
            vec![at(1, true), CopyStatus::unreported("n", "n".parse().unwrap(), None)],
            0,
        ),
    ] {
        let status = merged("Deployment.apps", json!({"observedGeneration": before}), &copies);
        assert_eq!(status["observedGeneration"].as_i64().unwrap_or(0), expected, "{case}");
    }
}

#[test]
fn conditions_are_the_worst_and_name_the_cluster() {
    let (good, bad) = (copy("east", 1, rolled(3)), copy("west", 1, rolled(0)));
    let of = |status: &Value, name: &str| -> (String, String, String) {
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        let c = all.into_iter().find(|c| c["type"] == name).unwrap_or_default();
        let text = |field: &str| c[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    };
    let both = merged("Deployment.apps", json!({}), &[good.clone(), bad]);
    assert_eq!(of(&both, "Available"), ("False".into(), String::new(), "west: 0 pods".into()));
    let lost = merged("Deployment.apps", json!({}), &[good.clone(), failed(good.clone(), UNREACHABLE)]);
    assert_eq!(of(&lost, "Available").0, "Unknown", "what cannot be seen is unknown");
    assert_eq!(of(&lost, SYNCED), ("Unknown".into(), UNREACHABLE.into(), "east: no answer".into()));
    let conflict = merged(
        "Deployment.apps",
        json!({}),
        &[failed(CopyStatus::unreported("east", "e".parse().unwrap(), None), "Conflict")],
    );
    assert_eq!(of(&conflict, SYNCED).0, "False");
    let job = |conditions: Value| copy("x", 1, json!({"conditions": conditions}));
    let complete = || json!([{"type": "Complete", "status": "True"}]);
    let jobs = merged("Job.batch", json!({}), &[job(complete()), job(json!([]))]);
    assert_eq!(of(&jobs, "Complete").0, "Unknown", "one copy still runs");
    assert_eq!(of(&merged("Job.batch", json!({}), &[job(complete()), job(complete())]), "Complete").0, "True");
    let one_failed =
        merged("Job.batch", json!({}), &[job(complete()), job(json!([{"type": "Failed", "status": "True"}]))]);
    assert_eq!(of(&one_failed, "Failed").0, "True");
}

#[test]
fn conditions_of_others_stay_where_the_controllers_would_leave_them() {
    let before = |name: &str| json!({"conditions": [{"type": name, "status": "True"}]});
    for (case, kind, before, expected) in [
        ("an unknown type", "Deployment.apps", before("example.com/Signed"), vec!["Available", "example.com/Signed"]),
        ("a type of the controller's that is over", "Deployment.apps", before("ReplicaFailure"), vec!["Available"]),
        ("a type that comes from downstream", "StatefulSet.apps", before("Available"), vec!["Available"]),
        ("our own that is over", "Deployment.apps", before(SYNCED), vec!["Available"]),
        ("a kind whose types are not known", "Widget.example.com", before("example.com/Signed"), vec!["Available"]),
    ] {
        let status = merged(kind, before, &[copy("east", 1, rolled(3))]);
        let types: Vec<_> = status["conditions"].as_array().into_iter().flatten().map(|c| &c["type"]).collect();
        assert_eq!(types, expected, "{case}");
    }
}

#[test]
fn a_rollout_of_a_divided_set_ends_with_its_last_copy() {
    let set = |name, share_of: i64, updated: i64, current: &str| {
        let status = json!({"replicas": share_of, "readyReplicas": share_of, "availableReplicas": share_of,
            "currentReplicas": share_of - updated, "updatedReplicas": updated, "currentRevision": current,
            "updateRevision": "new", "observedGeneration": 1});
        share(copy(name, 1, status), share_of)
    };
    for (case, copies, revision, updated) in [
        ("the smaller one has ended", vec![set("east", 2, 2, "new"), set("west", 3, 1, "old")], "old", 3),
        ("the larger one has ended", vec![set("east", 2, 1, "old"), set("west", 3, 3, "new")], "old", 4),
        ("one has no ordinals", vec![set("east", 0, 0, "none"), set("west", 5, 5, "new")], "new", 5),
        ("both have ended", vec![set("east", 2, 2, "new"), set("west", 3, 3, "new")], "new", 5),
    ] {
        let status = merged("StatefulSet.apps", json!({"spec": {"replicas": 5}}), &copies);
        assert_eq!(
            (&status["currentRevision"], &status["updateRevision"]),
            (&json!(revision), &json!("new")),
            "{case}"
        );
        assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(5), &json!(5)), "{case}");
        assert_eq!(status["updatedReplicas"], updated, "{case}");
    }
}

#[test]
fn addresses_of_all_copies_are_shown_but_not_of_unreachable_ones() {
    let at = |name, ip: &str| copy(name, 1, json!({"loadBalancer": {"ingress": [{"ip": ip}]}}));
    for (kind, copies, expected) in [
        (
            "Service",
            vec![at("a", "1.1.1.1"), at("b", "2.2.2.2"), at("c", "1.1.1.1")],
            json!({"ingress": [{"ip": "1.1.1.1"}, {"ip": "2.2.2.2"}]}),
        ),
        (
            "Ingress.networking.k8s.io",
            vec![at("a", "1.1.1.1"), failed(at("b", "2.2.2.2"), UNREACHABLE)],
            json!({"ingress": [{"ip": "1.1.1.1"}]}),
        ),
        ("Service", vec![], json!({})),
    ] {
        assert_eq!(merged(kind, json!({}), &copies)["loadBalancer"], expected, "{kind}");
    }
}

#[test]
fn other_kinds_show_the_worst_copy() {
    let ready =
        |name, status: &str| copy(name, 2, json!({"who": name, "conditions": [{"type": "Ready", "status": status}]}));
    let status = merged("Widget.example.com", json!({}), &[ready("a", "True"), ready("b", "False")]);
    assert_eq!((&status["who"], &status["conditions"][0]["status"]), (&json!("b"), &json!("False")));
    assert_eq!(status.get("observedGeneration"), None, "it has none downstream");
    let phase = |phase: &str| copy("x", 1, json!({"phase": phase, "capacity": {"storage": "1Gi"}}));
    let claim = merged("PersistentVolumeClaim", json!({}), &[phase("Bound"), phase("Pending")]);
    assert_eq!((&claim["phase"], &claim["capacity"]["storage"]), (&json!("Pending"), &json!("1Gi")));
}

#[test]
fn an_object_that_is_nowhere_counts_nothing() {
    let before = json!({"observedGeneration": 3, "replicas": 3, "readyReplicas": 3, "conditions": [{}]});
    assert_eq!(merged("Deployment.apps", before, &[]), json!({"observedGeneration": 3}));
}

#[test]
fn downstream_data_is_bounded() {
    let deep = (0..100).fold(json!(1), |inner, _| json!({"a": inner}));
    let long = "x".repeat(400_000);
    for (case, status, expected) in [
        ("plain", json!({"replicas": 1}), json!({"replicas": 1})),
        ("no object", json!([1]), Value::Null),
        ("too deep", json!({"replicas": 1, "deep": deep}), json!({"replicas": 1})),
        ("too large", json!({"replicas": 1, "list": [long]}), json!({"replicas": 1})),
    ] {
        assert_eq!(bounded(&status), expected, "{case}");
    }
    let huge =
        json!({"conditions": [{"type": "Ready", "status": "True", "message": "y".repeat(300_000), "extra": {}}]});
    assert_eq!(bounded(&huge)["conditions"][0]["message"].as_str().map(str::len), Some(1024));
}

#[test]
fn an_unplaced_object_keeps_its_created_status() {
    let made = json!({"phase": "Pending", "qosClass": "BestEffort"});
    let refused = failed(CopyStatus::unreported("east", "e".parse().unwrap(), None), "Forbidden");
    let status = merged("Pod", made.clone(), &[refused]);
    assert_eq!((&status["phase"], &status["qosClass"]), (&made["phase"], &made["qosClass"]));
    assert_eq!(status["conditions"][0]["type"], SYNCED);
}

#[test]
fn a_failure_keeps_the_status_that_was_seen() {
    let mut copy = CopyStatus::unreported("east", "e".parse().unwrap(), None);
    copy.update(
        CopyState::Synced { stamp: 1, is_current: true, scaled: None, revision: None, status: rolled(3) },
        "T1",
    );
    copy.update(CopyState::Failed { generation: 1, reason: UNREACHABLE.into(), message: "timeout".into() }, "T2");
    copy.update(CopyState::Failed { generation: 1, reason: UNREACHABLE.into(), message: "timeout again".into() }, "T3");
    assert_eq!((copy.status["readyReplicas"].as_i64(), copy.since.as_str()), (Some(3), "T2"));
    copy.update(
        CopyState::Synced { stamp: 1, is_current: true, scaled: None, revision: None, status: rolled(2) },
        "T4",
    );
    assert_eq!((copy.failed, copy.since.as_str()), (None, "T4"));
}

#[test]
fn replicas_follow_the_autoscalers_of_copies_that_are_up_to_date() {
    let upstream = json!({"metadata": {"generation": 2}, "spec": {"replicas": 4}});
    let scaled = |name: &str, stamp, scaled| CopyStatus { scaled, ..copy(name, stamp, rolled(1)) };
    for (case, copies, expected) in [
        ("no autoscaler", vec![scaled("east", 2, None)], AutoscaledReplicas::No),
        (
            "shares that overlap",
            vec![share(scaled("east", 2, Some(4)), 4), share(scaled("west", 2, Some(4)), 4)],
            AutoscaledReplicas::NotYet,
        ),
        ("one copy", vec![scaled("east", 2, Some(7))], AutoscaledReplicas::To(7)),
        (
            "one that is behind",
            vec![scaled("east", 2, Some(7)), scaled("west", 1, Some(3))],
            AutoscaledReplicas::NotYet,
        ),
        ("copies with all", vec![scaled("east", 2, Some(7)), scaled("west", 2, Some(3))], AutoscaledReplicas::To(3)),
        (
            "shares",
            vec![share(scaled("east", 2, Some(7)), 2), share(scaled("west", 2, Some(3)), 2)],
            AutoscaledReplicas::To(10),
        ),
        (
            "one of them",
            vec![share(scaled("east", 2, Some(7)), 2), share(scaled("west", 2, None), 2)],
            AutoscaledReplicas::To(9),
        ),
    ] {
        assert_eq!(AutoscaledReplicas::of(&upstream, &copies), expected, "{case}");
    }
    for (told, kept) in [(i64::MAX, None), (-1, None), (0, Some(0)), (i64::from(i32::MAX), Some(i64::from(i32::MAX)))] {
        let mut copy = scaled("east", 2, None);
        copy.update(
            CopyState::Synced { stamp: 2, is_current: true, scaled: Some(told), revision: None, status: rolled(1) },
            "T1",
        );
        assert_eq!(copy.scaled, kept, "what a physical cluster says of {told}");
    }
    let kind = kind("Deployment.apps");
    let mut shrunk = share(scaled("east", 2, Some(1)), 4);
    shrunk.status = json!({"readyReplicas": 1, "availableReplicas": 1});
    shrunk.note_arrival(StatusShape::of(&kind), &upstream);
    assert!(shrunk.arrived, "it has all that its autoscaler wants");
}

#[test]
fn a_copy_arrives_when_it_is_available_and_not_when_it_is_ready() {
    let (kind, upstream) = (kind("Deployment.apps"), json!({"spec": {"replicas": 3}}));
    let (mut old, mut new) = (copy("east", 1, rolled(3)), copy("west", 1, rolled(3)));
    new.status["availableReplicas"] = 0.into();
    [&mut old, &mut new].into_iter().for_each(|copy| copy.note_arrival(StatusShape::of(&kind), &upstream));
    assert!(old.arrived && !new.arrived);
    assert_eq!(merge(&kind, &upstream, &[old, new])["availableReplicas"], 3, "a move does not show");
}

#[test]
fn a_move_is_not_seen_until_the_new_copy_has_arrived() {
    let kind = kind("Deployment.apps");
    let upstream = json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}});
    let with = |name: &str, ready: i64| {
        let status =
            json!({"observedGeneration": 1, "replicas": 2, "readyReplicas": ready, "availableReplicas": ready});
        let mut copy = copy(name, 1, status);
        copy.note_arrival(StatusShape::of(&kind), &upstream);
        copy
    };
    let ready = |copies: &[CopyStatus]| merge(&kind, &upstream, copies)["readyReplicas"].as_i64().unwrap_or(0);
    let (old, new) = (with("east", 2), with("west", 1));
    assert!(old.arrived && !new.arrived);
    assert_eq!(ready(&[old.clone(), new.clone()]), 2, "the new copy is still coming");
    assert_eq!(ready(&[new]), 1, "alone it counts");
    let broken = CopyStatus { arrived: true, ..with("west", 1) };
    assert_eq!(ready(&[old, broken]), 1, "what has been whole before counts");
}

#[test]
fn a_cron_job_that_moves_keeps_the_times_of_its_last_runs() {
    let before = json!({"lastScheduleTime": "2026-01-02T00:00:00Z", "lastSuccessfulTime": "2026-01-01T00:01:00Z"});
    let of = |status: Value| merged("CronJob.batch", before.clone(), &[copy("west", 1, status)]);
    assert_eq!(of(json!({})), before, "a new copy has not run yet");
    let run = json!({"lastScheduleTime": "2026-01-03T00:00:00Z", "active": [{}]});
    let expected = json!({"lastScheduleTime": "2026-01-03T00:00:00Z", "lastSuccessfulTime": "2026-01-01T00:01:00Z",
        "active": [{}]});
    assert_eq!(of(run), expected);
}

fn part(name: &str, pods: i64, status: Value) -> CopyStatus {
    share(copy(name, 1, status), pods)
}

fn with_conditions(mut status: Value, types: &[&str]) -> Value {
    status["conditions"] = types.iter().map(|name| json!({"type": name, "status": "True", "message": "m"})).collect();
    status
}

/// Conditions that are true.
fn truths(status: &Value) -> Vec<&str> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.filter(|one| one["status"] == "True").filter_map(|one| one["type"].as_str()).collect()
}

#[test]
fn a_divided_job_is_complete_when_every_part_is() {
    let done = |n: i64| {
        let status =
            json!({"succeeded": n, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z"});
        with_conditions(status, &["SuccessCriteriaMet", "Complete"])
    };
    let runs = json!({"active": 2, "ready": 2, "succeeded": 1, "failed": 1, "startTime": "2026-01-01T00:00:30Z"});
    let half = merged("Job.batch", json!({}), &[part("east", 2, done(4)), part("west", 2, runs)]);
    assert_eq!((&half["succeeded"], &half["active"], &half["failed"]), (&json!(5), &json!(2), &json!(1)));
    assert_eq!((&half["startTime"], half.get("completionTime")), (&json!("2026-01-01T00:00:00Z"), None));
    assert_eq!(truths(&half), Vec::<&str>::new());
    let unreported = share(CopyStatus::unreported("west", "west".parse().unwrap(), None), 2);
    let first = merged("Job.batch", json!({}), &[part("east", 2, done(4)), unreported]);
    assert_eq!((truths(&first).len(), first.get("completionTime")), (0, None), "a part has not reported");
    let all = merged("Job.batch", json!({}), &[part("east", 2, done(4)), part("west", 2, done(3))]);
    assert_eq!((&all["succeeded"], truths(&all)), (&json!(7), vec!["SuccessCriteriaMet", "Complete"]));
    assert_eq!(all["completionTime"], "2026-01-01T00:01:00Z");
}

#[test]
fn a_divided_job_with_completions_on_the_way_is_not_complete() {
    use portolan_types::placement::{CopyPhase, PlacedCopy, PlacementRecord};
    let placed = |name: &str, phase| PlacedCopy {
        name: name.into(),
        uid: name.parse().unwrap(),
        phase,
        replicas: Some(2),
        epoch: 1,
    };
    let with = |leaving: bool, completions: Value| {
        let mut record =
            PlacementRecord { clusters: vec![placed("east", CopyPhase::Active)], ..PlacementRecord::default() };
        record.completions.insert("east".parse().unwrap(), 3);
        if leaving {
            record.clusters.push(placed("west", CopyPhase::Leaving));
            record.completions.insert("west".parse().unwrap(), 3);
        }
        let mut upstream =
            json!({"metadata": {}, "spec": {"parallelism": 4, "completions": completions}, "status": {}});
        record.write_to(&mut upstream);
        let done = with_conditions(json!({"succeeded": 3}), &["Complete"]);
        truths(&merge(&kind("Job.batch"), &upstream, &[part("east", 2, done)])).len()
    };
    assert_eq!(with(true, json!(6)), 0, "the other part moves");
    assert_eq!(with(false, json!(6)), 0, "and is not placed again yet");
    assert_eq!(with(true, Value::Null), 0, "a work queue waits for it as well");
    assert_eq!(with(false, json!(3)), 1);
}

#[test]
fn a_divided_job_has_failed_when_no_pod_of_it_runs() {
    let failed = with_conditions(json!({"failed": 7}), &["Failed"]);
    let of = |other: Value| merged("Job.batch", json!({}), &[part("east", 2, failed.clone()), part("west", 2, other)]);
    let early = of(json!({"active": 2, "succeeded": 1}));
    assert_eq!((truths(&early), &early["failed"], &early["succeeded"]), (vec!["FailureTarget"], &json!(7), &json!(1)));
    let ends = of(with_conditions(json!({"terminating": 1, "succeeded": 1}), &["Suspended"]));
    assert_eq!(truths(&ends), ["FailureTarget"], "a pod of the other part still ends");
    let ended = of(with_conditions(json!({"succeeded": 1}), &["Suspended"]));
    assert_eq!(truths(&ended), ["Failed", "FailureTarget"]);
    let complete = of(with_conditions(json!({"succeeded": 3}), &["SuccessCriteriaMet", "Complete"]));
    assert_eq!(truths(&complete), ["Failed", "FailureTarget"], "never both ends");
}
