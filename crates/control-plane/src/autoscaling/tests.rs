//! Tests of autoscaling against the tables of kube-controller-manager's own tests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    metrics::{MetricProposal, PodSample},
    scaling::ScalingOutcome,
    *,
};

const NOW: i64 = 1_767_225_600;

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(NOW + seconds).unwrap().to_string()
}

/// Pod of a row: its state, and its usage of CPU in thousandths if it is known.
struct PodRow {
    state: &'static str,
    usage: Option<i64>,
}

fn rows(rows: &[(&'static str, Option<i64>)]) -> Vec<PodRow> {
    rows.iter().map(|(state, usage)| PodRow { state, usage: *usage }).collect()
}

fn pod(n: usize, row: &PodRow) -> Value {
    let ready =
        |status: &str, since: i64| json!([{"type": "Ready", "status": status, "lastTransitionTime": time(since)}]);
    let (phase, conditions, started) = match row.state {
        "ready" => ("Running", ready("True", -3600), -4000),
        // Unready since its start.
        "unready" => ("Running", ready("False", -60), -60),
        // Was ready, and is not now: its usage counts.
        "hot" => ("Running", ready("False", -600), -4000),
        // Ready for less than its window.
        "fresh" => ("Running", ready("True", -5), -60),
        "pending" => ("Pending", json!([]), -10),
        "failed" => ("Failed", ready("False", -10), -4000),
        _ => ("Running", ready("True", -3600), -4000),
    };
    let mut pod = json!({
        "metadata": {"name": format!("p{n}"), "namespace": "shop"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
        "status": {"phase": phase, "startTime": time(started), "conditions": conditions},
    });
    if row.state == "deleting" {
        pod["metadata"]["deletionTimestamp"] = time(-1).into();
    }
    pod
}

fn usage(pods: &[Value], rows: &[PodRow]) -> Vec<Value> {
    let of = |(pod, row): (&Value, &PodRow)| {
        let cpu = format!("{}m", row.usage?);
        Some(json!({"metadata": pod["metadata"], "timestamp": time(0), "window": "15s",
            "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": "512Mi"}}]}))
    };
    pods.iter().zip(rows).filter_map(of).collect()
}

const CPU: MeasuredAmount<'_> = MeasuredAmount { resource: "cpu", container: None };
const NEAR: Tolerances = Tolerances { down: TOLERANCE, up: TOLERANCE };

fn proposal(current: i64, table: &[PodRow], target: MetricTarget) -> Result<MetricProposal, String> {
    let pods: Vec<Value> = table.iter().enumerate().map(|(n, row)| pod(n, row)).collect();
    let samples = samples(&usage(&pods, table), CPU)?;
    MeasuredPods { pods: &pods, samples, now: NOW }.propose(current, CPU, (target, NEAR))
}

#[test]
fn replicas_follow_the_usage_as_in_kube_controller_manager() {
    use MetricTarget::{Average, Utilization};
    let (ready, some) = ("ready", Some);
    for (case, current, table, target, expected) in [
        ("up", 3, vec![(ready, some(300)), (ready, some(500)), (ready, some(700))], Utilization(30), Ok(5)),
        ("down", 5, [100, 300, 500, 250, 250].map(|n| (ready, some(n))).to_vec(), Utilization(50), Ok(3)),
        ("tolerance", 3, vec![(ready, some(300)), (ready, some(500)), (ready, some(700))], Utilization(46), Ok(3)),
        (
            "unready holds back",
            3,
            vec![("unready", some(300)), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(4),
        ),
        (
            "a fresh pod counts as unready",
            3,
            vec![("fresh", some(300)), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(4),
        ),
        (
            "a hot pod counts",
            3,
            vec![("hot", some(300)), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(5),
        ),
        (
            "pending holds back",
            3,
            vec![("pending", None), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(4),
        ),
        (
            "failed is ignored",
            3,
            vec![("failed", some(300)), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(4),
        ),
        (
            "deleting is ignored",
            3,
            vec![("deleting", some(300)), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(4),
        ),
        (
            "missing holds scale-up back",
            3,
            vec![(ready, None), (ready, some(500)), (ready, some(700))],
            Utilization(30),
            Ok(4),
        ),
        (
            "missing holds scale-down back",
            4,
            vec![(ready, None), (ready, some(100)), (ready, some(100)), (ready, some(100))],
            Utilization(50),
            Ok(3),
        ),
        ("average", 3, vec![(ready, some(300)), (ready, some(500)), (ready, some(700))], Average(300), Ok(5)),
        (
            "nothing known",
            1,
            vec![("pending", None)],
            Utilization(30),
            Err("did not receive metrics for targeted pods (pods might be unready)"),
        ),
        ("no pods", 1, vec![], Utilization(30), Err("no pods returned by selector while calculating replica count")),
    ] {
        let found = proposal(current, &rows(&table), target).map(|found| found.replicas);
        assert_eq!(found.as_ref().copied().map_err(String::as_str), expected, "{case}");
    }
}

#[test]
fn values_of_a_metric_are_shown() {
    let table = rows(&[("ready", Some(300)), ("ready", Some(500))]);
    let found = proposal(2, &table, MetricTarget::Utilization(40)).unwrap();
    assert_eq!((found.utilization, found.average), (Some(40), 400));
    let metric = json!({"type": "Resource", "resource": {"name": "cpu"}});
    let shown = json!({"type": "Resource", "resource": {"name": "cpu",
        "current": {"averageUtilization": 40, "averageValue": "400m"}}});
    assert_eq!(current_metric(&metric, &found), shown);
}

#[test]
fn a_container_without_request_or_usage_is_named() {
    let bare = json!({"metadata": {"name": "p0", "namespace": "shop"}, "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running", "startTime": time(-4000),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(-3600)}]}});
    let (pods, sample) = ([bare], usage(&[pod(0, &rows(&[("ready", None)])[0])], &rows(&[("ready", Some(1))])));
    let known = samples(&sample, CPU).unwrap();
    let measured = MeasuredPods { pods: &pods, samples: known, now: NOW };
    let found = measured.propose(1, CPU, (MetricTarget::Utilization(50), NEAR));
    assert_eq!(found.unwrap_err(), "missing request for cpu in container c of Pod p0");
    let other = MeasuredAmount { resource: "cpu", container: Some("proxy") };
    assert_eq!(samples(&sample, other).unwrap_err(), "container proxy not present in metrics for pod shop/p0");
    let absent: BTreeMap<String, PodSample> =
        samples(&sample, MeasuredAmount { resource: "gpu", container: None }).unwrap();
    assert!(absent.is_empty());
}

fn request(current: i64, desired: i64, behavior: &Value, now: i64) -> ScalingRequest<'_> {
    ScalingRequest { current, desired, least: 2, most: 20, behavior, now }
}

fn outcome_tuple(outcome: ScalingOutcome) -> (i64, &'static str, bool, &'static str) {
    (outcome.desired, outcome.able.0, outcome.limited.0, outcome.limited.1.0)
}

#[test]
fn without_behavior_a_number_doubles_at_most_and_shrinks_after_five_minutes() {
    let none = Value::Null;
    let mut history = ScalingHistory::default();
    history.begin(6, 0);
    for (now, current, desired, expected) in [
        (15, 6, 30, (12, "ReadyForNewScale", true, "ScaleUpLimit")),
        (30, 12, 30, (20, "ReadyForNewScale", true, "TooManyReplicas")),
        (45, 20, 10, (20, "ScaleDownStabilized", true, "TooManyReplicas")),
        (340, 20, 10, (10, "ReadyForNewScale", false, "DesiredWithinRange")),
        (1000, 10, 1, (2, "ReadyForNewScale", true, "TooFewReplicas")),
    ] {
        assert_eq!(outcome_tuple(request(current, desired, &none, now).limit(&mut history)), expected, "at {now}");
    }
}

#[test]
fn behaviors_bound_the_pace_and_the_windows() {
    let behavior = json!({
        "scaleUp": {"stabilizationWindowSeconds": 30, "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}]},
        "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min",
            "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}, {"type": "Pods", "value": 2, "periodSeconds": 60}]},
    });
    let mut history = ScalingHistory::default();
    history.begin(6, 0);
    let up = request(6, 15, &behavior, 15).limit(&mut history);
    assert_eq!(outcome_tuple(up), (6, "ScaleUpStabilized", false, "DesiredWithinRange"));
    let up = request(6, 15, &behavior, 60).limit(&mut history);
    assert_eq!(outcome_tuple(up), (10, "ReadyForNewScale", true, "ScaleUpLimit"));
    history.note_change(6, 10, 60);
    let again = request(10, 15, &behavior, 90).limit(&mut history);
    assert_eq!(outcome_tuple(again), (10, "ReadyForNewScale", true, "ScaleUpLimit"), "four pods a minute");
    let down = request(10, 3, &behavior, 200).limit(&mut history);
    assert_eq!(outcome_tuple(down), (8, "ReadyForNewScale", true, "ScaleDownLimit"), "the smaller change");
    let disabled = json!({"scaleDown": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 0}});
    let held = request(10, 3, &disabled, 4000).limit(&mut ScalingHistory::default());
    assert_eq!(outcome_tuple(held), (10, "ReadyForNewScale", true, "ScaleDownLimit"));
}

#[test]
fn a_history_is_bounded() {
    let mut history = ScalingHistory::default();
    for n in 0..10_000 {
        request(5, 5, &Value::Null, n).limit(&mut history);
        history.note_change(5, 6, n);
    }
    assert!(format!("{history:?}").len() < 20_000);
}

#[test]
fn metrics_of_other_apis_fail_as_without_an_adapter() {
    let metric = json!({"type": "Pods", "pods": {"metric": {"name": "rps"}}});
    let failure = unserved("Pods", &metric);
    let message =
        "unable to get metric rps: unable to fetch metrics from custom metrics API: no custom metrics API registered";
    assert_eq!((failure.reason, failure.message.as_str()), ("FailedGetPodsMetric", message));
    let default = metrics_of(&json!({"spec": {}}));
    assert_eq!(default[0]["resource"]["target"]["averageUtilization"], 80);
}

#[test]
fn conditions_keep_their_time_while_their_status_stays() {
    let scaler = json!({"status": {"desiredReplicas": 4, "lastScaleTime": "t0", "conditions": [
        {"type": "AbleToScale", "status": "True", "lastTransitionTime": "t0", "reason": "x", "message": "y"}]}});
    let mut status = ScalerStatus::of(&scaler, "t1");
    status.set("AbleToScale", true, "SucceededGetScale", "ok");
    status.set("ScalingActive", false, "FailedGetResourceMetric", "no");
    let made = status.finish(&ScalerCounts { current: 3, ..ScalerCounts::default() });
    assert_eq!(made["conditions"][0]["lastTransitionTime"], "t0");
    assert_eq!(made["conditions"][0]["reason"], "SucceededGetScale");
    assert_eq!(made["conditions"][1]["lastTransitionTime"], "t1");
    assert_eq!(
        (&made["currentReplicas"], &made["desiredReplicas"], &made["lastScaleTime"]),
        (&json!(3), &json!(4), &json!("t0"))
    );
}
