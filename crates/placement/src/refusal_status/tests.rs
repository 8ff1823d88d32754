use super::*;

const START: &str = "2026-01-01T00:00:00Z";

fn kind(text: &str) -> GroupKind {
    let (kind, group) = text.split_once('.').unwrap_or((text, ""));
    GroupKind { group: group.into(), kind: kind.into() }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn facts(now: &str, nowhere: bool, new_template: bool) -> RefusalFacts<'static> {
    RefusalFacts { message: "pods \"web-\" is forbidden: no", nowhere, new_template, now: at(now) }
}

fn deployment(generation: i64, replicas: i64, status: Value) -> Value {
    json!({"metadata": {"name": "web", "generation": generation}, "status": status,
        "spec": {"replicas": replicas, "progressDeadlineSeconds": 60, "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}}})
}

/// `type=status reason` of each condition, and the counts.
fn outline(status: &Value) -> String {
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|c| format!("{}={} {}", text(c, "type"), text(c, "status"), text(c, "reason")));
    let numbers = status.as_object().unwrap().iter().filter(|(_, value)| value.is_i64());
    let mut lines: Vec<String> = numbers.map(|(name, value)| format!("{name}={value}")).chain(conditions).collect();
    lines.sort_unstable();
    lines.join(", ")
}

#[test]
fn messages_for_unplaced_objects() {
    let set = json!({"metadata": {"name": "db", "generation": 2}, "spec": {"replicas": 3}});
    for (kind_of, expected) in [
        (
            "Deployment.apps",
            "Available=False MinimumReplicasUnavailable, Progressing=True ReplicaSetUpdated, ReplicaFailure=True FailedCreate, observedGeneration=2, unavailableReplicas=3",
        ),
        ("ReplicaSet.apps", "ReplicaFailure=True FailedCreate, observedGeneration=2, replicas=0"),
        ("ReplicationController", "ReplicaFailure=True FailedCreate, observedGeneration=2, replicas=0"),
        ("StatefulSet.apps", "availableReplicas=0, observedGeneration=2, replicas=0"),
        ("DaemonSet.apps", ""),
        ("Job.batch", ""),
    ] {
        let object = if kind_of == "Deployment.apps" { deployment(2, 3, Value::Null) } else { set.clone() };
        let status = refused_status(&kind(kind_of), &object, &facts(START, true, true));
        assert_eq!(status.as_ref().map(outline).unwrap_or_default(), expected, "{kind_of}");
    }
}

#[test]
fn a_rollout_that_is_refused_ends_at_its_deadline() {
    let apps = kind("Deployment.apps");
    let mut object = deployment(1, 2, Value::Null);
    let refused = |object: &Value, now: &str| refused_status(&apps, object, &facts(now, true, true)).unwrap();
    let progressing = |status: &Value| StatusDraft::of(Some(status)).condition("Progressing").cloned().unwrap();
    let left = |object: &Value, now: &str| {
        remaining_progress_deadline(object, &object["status"], at(now)).map(|left| left.as_secs())
    };
    object["status"] = refused(&object, START);
    assert_eq!(progressing(&object["status"])["message"], "Deployment \"web\" is progressing.");
    assert_eq!(left(&object, "2026-01-01T00:00:20Z"), Some(40));
    assert_eq!(refused(&object, "2026-01-01T00:01:00Z"), object["status"], "nothing is new");

    object["status"] = refused(&object, "2026-01-01T00:01:01Z");
    let ended = progressing(&object["status"]);
    assert_eq!((&ended["status"], &ended["reason"]), (&json!("False"), &json!("ProgressDeadlineExceeded")));
    assert_eq!(ended["message"], "Deployment \"web\" has timed out progressing.");
    assert_eq!((&ended["lastTransitionTime"], left(&object, START)), (&json!("2026-01-01T00:01:01Z"), None));
    assert_eq!(refused(&object, "2026-01-01T01:00:00Z"), object["status"]);

    // A new generation is a new rollout, with a new deadline.
    let mut other = object.clone();
    other["metadata"]["generation"] = json!(2);
    other["status"] = refused(&other, "2026-01-01T01:00:00Z");
    assert_eq!(progressing(&other["status"])["lastUpdateTime"], "2026-01-01T01:00:00Z");
    assert_eq!(other["status"]["observedGeneration"], 2);

    let let_in = admitted_status(&apps, &object, at("2026-01-01T01:00:00Z")).unwrap();
    assert_eq!(
        outline(&let_in),
        "Available=False MinimumReplicasUnavailable, Progressing=True ReplicaSetUpdated, observedGeneration=1, unavailableReplicas=2"
    );
    object["spec"]["progressDeadlineSeconds"] = json!(i32::MAX);
    assert!(!outline(&refused(&object, "2026-01-01T02:00:00Z")).contains("Progressing"), "it has all the time");
}

#[test]
fn a_refused_change_keeps_running_copies() {
    let apps = kind("Deployment.apps");
    let running = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": "all there"}]});
    let object = deployment(2, 4, running.clone());
    for (case, new_template, expected) in [
        (
            "more replicas, which is not a rollout",
            false,
            "Progressing=True NewReplicaSetAvailable, ReplicaFailure=True FailedCreate, availableReplicas=2, observedGeneration=2, readyReplicas=2, replicas=2, unavailableReplicas=2, updatedReplicas=2",
        ),
        (
            "another template, of which nothing is there",
            true,
            "Progressing=True ReplicaSetUpdated, ReplicaFailure=True FailedCreate, availableReplicas=2, observedGeneration=2, readyReplicas=2, replicas=2, unavailableReplicas=2",
        ),
    ] {
        let status = refused_status(&apps, &object, &facts(START, false, new_template)).unwrap();
        assert_eq!(outline(&status), expected, "{case}");
        // What the copies report meanwhile does not take it away.
        let object = deployment(2, 4, status.clone());
        let mut merged = running.clone();
        merged["observedGeneration"] = json!(2);
        merged["updatedReplicas"] = status.get("updatedReplicas").cloned().unwrap_or(json!(0));
        let merged = status_while_refused(&apps, &object, merged);
        assert_eq!(outline(&merged).replace(", updatedReplicas=0", ""), expected, "{case}");
    }
}

#[test]
fn the_amount_in_use_is_no_news() {
    let apps = kind("ReplicaSet.apps");
    let over = |used: u8| {
        format!("pods \"web-\" is forbidden: exceeded quota: q, requested: pods=1, used: pods={used}, limited: pods=2")
    };
    let status = |message: &str, before: Value| {
        let object = json!({"metadata": {"name": "web", "generation": 1}, "status": before});
        refused_status(&apps, &object, &RefusalFacts { message, ..facts(START, true, true) }).unwrap()
    };
    let first = status(&over(2), Value::Null);
    assert_eq!(status(&over(3), first.clone()), first);
    let other = status("no such account", first);
    assert_eq!(other["conditions"][0]["message"], "no such account");
}

#[test]
fn missing_replicas_that_a_move_allows() {
    for (case, replicas, strategy, expected) in [
        ("a quarter, rounded down", 7, json!({"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}), 1),
        ("a number", 7, json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 3}}), 3),
        ("none of both is one", 1, json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}}), 1),
        ("never more than there are", 2, json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}), 2),
        ("what is not rolled out misses none", 7, json!({"type": "Recreate"}), 0),
    ] {
        let object = json!({"spec": {"replicas": replicas, "strategy": strategy}});
        assert_eq!(may_be_missing(&object), expected, "{case}");
    }
}
