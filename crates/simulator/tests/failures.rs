//! Failures look as they do in Kubernetes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use support::{APPS, CORE, Fixture};

const EVENTS: &str = "/api/v1/namespaces/default/events";

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

fn container(more: Value) -> Value {
    let mut container = json!({"name": "c", "image": "nginx:1"});
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    container
}

fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|own| own["type"] == kind).unwrap_or_default()
}

fn waiting(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
}

impl Fixture {
    async fn until_told(&self, pod: &str, reason: &str) -> Value {
        let is_it = |event: &Value| event["involvedObject"]["name"] == pod && event["reason"] == reason;
        let found =
            |list: &Value| list["items"].as_array().and_then(|all| all.iter().find(|event| is_it(event)).cloned());
        found(&self.until(EVENTS, |list| found(list).is_some()).await).unwrap()
    }
}

#[tokio::test]
async fn a_pod_waits_for_the_objects_it_references() {
    let f = Fixture::start().await;
    let volumes = json!([{"name": "v", "secret": {"secretName": "tls"}}]);
    f.create(&format!("{CORE}/pods"), pod("mounts", json!({"containers": [container(json!({}))], "volumes": volumes})))
        .await;
    let from = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}]);
    f.create(&format!("{CORE}/pods"), pod("reads", json!({"containers": [container(json!({"env": from}))]}))).await;
    let event = f.until_told("mounts", "FailedMount").await;
    assert_eq!(event["message"], "MountVolume.SetUp failed for volume \"v\" : secret \"tls\" not found");
    let stuck = f.get(&format!("{CORE}/pods/mounts")).await;
    assert_eq!((&stuck["status"]["phase"], waiting(&stuck)), (&json!("Pending"), &json!("ContainerCreating")));
    let reads = &format!("{CORE}/pods/reads");
    let unconfigured =
        |pod: &Value| waiting(pod) == "CreateContainerConfigError" && pod["status"]["phase"] == "Pending";
    f.until(reads, unconfigured).await;
    assert_eq!(f.until_told("reads", "Failed").await["message"], "Error: configmap \"settings\" not found");
    let settings =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"b": "1"}});
    f.create(&format!("{CORE}/configmaps"), settings).await;
    let lacks_key = "couldn't find key a in ConfigMap default/settings";
    f.until(reads, |pod| pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == lacks_key).await;
    f.patch(&format!("{CORE}/configmaps/settings"), json!({"data": {"a": "1"}})).await;
    f.create(&format!("{CORE}/secrets"), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}}))
        .await;
    for name in ["mounts", "reads"] {
        f.until(&format!("{CORE}/pods/{name}"), |pod| condition(pod, "Ready")["status"] == "True").await;
    }
    f.delete(&format!("{CORE}/secrets/tls"), "Background").await;
    f.relabel(&format!("{CORE}/pods/mounts"), "x").await;
    let running = f.get(&format!("{CORE}/pods/mounts")).await;
    assert_eq!(condition(&running, "Ready")["status"], "True", "running pods keep running");
}

#[tokio::test]
async fn a_pod_that_exceeds_every_node_is_pending_with_a_reason() {
    let f = Fixture::start().await;
    let asks = json!({"resources": {"requests": {"cpu": "100"}}});
    f.create(&format!("{CORE}/pods"), pod("large", json!({"containers": [container(asks)]}))).await;
    let why = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful for \
               scheduling.";
    assert_eq!(f.until_told("large", "FailedScheduling").await["message"], why);
    let large = f.get(&format!("{CORE}/pods/large")).await;
    let scheduled = condition(&large, "PodScheduled");
    assert_eq!(
        (&large["status"]["phase"], &scheduled["status"], &scheduled["reason"], &scheduled["message"]),
        (&json!("Pending"), &json!("False"), &json!("Unschedulable"), &json!(why))
    );
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    f.create(&format!("{CORE}/pods"), pod("claims", json!({"containers": [container(json!({}))], "volumes": volumes})))
        .await;
    let event = f.until_told("claims", "FailedScheduling").await;
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .starts_with("0/2 nodes are available: persistentvolumeclaim \"data\" not found.")
    );
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    f.create(&format!("{CORE}/persistentvolumeclaims"), claim).await;
    f.until(&format!("{CORE}/pods/claims"), |pod| condition(pod, "Ready")["status"] == "True").await;
}

#[tokio::test]
async fn a_pod_takes_the_place_of_one_that_went() {
    let f = Fixture::start().await;
    let asks = || json!({"containers": [container(json!({"resources": {"requests": {"cpu": "12"}}}))]});
    for name in ["a", "b"] {
        f.create(&format!("{CORE}/pods"), pod(name, asks())).await;
        f.until(&format!("{CORE}/pods/{name}"), |pod| condition(pod, "Ready")["status"] == "True").await;
    }
    f.create(&format!("{CORE}/pods"), pod("c", asks())).await;
    f.until(&format!("{CORE}/pods/c"), |pod| condition(pod, "PodScheduled")["status"] == "False").await;
    f.delete(&format!("{CORE}/pods/a"), "Background").await;
    f.until(&format!("{CORE}/pods/c"), |pod| condition(pod, "Ready")["status"] == "True").await;
}

#[tokio::test]
async fn probes_and_commands_that_fail_are_seen() {
    let f = Fixture::start().await;
    let probe = json!({"readinessProbe": {"exec": {"command": ["false"]}}});
    f.create(&format!("{CORE}/pods"), pod("unready", json!({"containers": [container(probe)]}))).await;
    let unready = f.until(&format!("{CORE}/pods/unready"), |pod| pod["status"]["phase"] == "Running").await;
    let ready = condition(&unready, "Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"], &ready["message"]),
        (&json!("False"), &json!("ContainersNotReady"), &json!("containers with unready status: [c]"))
    );
    f.until_told("unready", "Unhealthy").await;
    let annotation = json!({"metadata": {"annotations": {"simulated.portolan.dev/ready": "true"}}});
    f.patch(&format!("{CORE}/pods/unready"), annotation).await;
    f.until(&format!("{CORE}/pods/unready"), |pod| condition(pod, "Ready")["status"] == "True").await;
    let crash = json!({"command": ["sh", "-c", "exit 1"]});
    f.create(&format!("{CORE}/pods"), pod("crashes", json!({"containers": [container(crash)]}))).await;
    let crashed = f.until(&format!("{CORE}/pods/crashes"), |pod| waiting(pod) == "CrashLoopBackOff").await;
    let status = &crashed["status"]["containerStatuses"][0];
    assert_eq!((&status["restartCount"], &status["lastState"]["terminated"]["exitCode"]), (&json!(1), &json!(1)));
    f.until_told("crashes", "BackOff").await;
    let name = json!({"image": "NotLower"});
    f.create(&format!("{CORE}/pods"), pod("misnamed", json!({"containers": [container(name)]}))).await;
    let misnamed = &format!("{CORE}/pods/misnamed");
    f.until(misnamed, |pod| waiting(pod) == "InvalidImageName").await;
    let fix = json!({"spec": {"containers": [{"name": "c", "image": "nginx:1"}]}});
    f.patch_as(misnamed, "application/strategic-merge-patch+json", fix).await;
    f.until(misnamed, |pod| condition(pod, "Ready")["status"] == "True").await;
}

#[tokio::test]
async fn init_containers_run_first_and_have_logs() {
    let f = Fixture::start().await;
    let named = |name: &str, more: Value| {
        let mut container = container(more);
        container["name"] = name.into();
        container
    };
    let init = json!([named("migrate", json!({})), named("proxy", json!({"restartPolicy": "Always"}))]);
    f.create(
        &format!("{CORE}/pods"),
        pod("app", json!({"containers": [container(json!({}))], "initContainers": init})),
    )
    .await;
    let app = f.until(&format!("{CORE}/pods/app"), |pod| condition(pod, "Ready")["status"] == "True").await;
    let states = |at: usize| app["status"]["initContainerStatuses"][at]["state"].clone();
    assert_eq!(states(0)["terminated"]["reason"], "Completed");
    assert!(states(1)["running"].is_object(), "a sidecar goes on: {}", states(1));
    let log = f.text(&format!("{CORE}/pods/app/log?container=migrate")).await;
    assert!(log.contains("simulated: migrate of pod app started"), "{log}");
    let init = json!([named("migrate", json!({"command": ["false"]}))]);
    f.create(
        &format!("{CORE}/pods"),
        pod("bad", json!({"containers": [container(json!({}))], "initContainers": init})),
    )
    .await;
    let crashing = |pod: &Value| {
        let reason = &pod["status"]["initContainerStatuses"][0]["state"]["waiting"]["reason"];
        reason == "CrashLoopBackOff" && waiting(pod) == "PodInitializing" && pod["status"]["phase"] == "Pending"
    };
    f.until(&format!("{CORE}/pods/bad"), crashing).await;
}

#[tokio::test]
async fn budgets_and_autoscalers_have_a_status() {
    let f = Fixture::start().await;
    f.create(&format!("{APPS}/deployments"), support::workload("Deployment", 3)).await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}});
    f.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await;
    let numbers = |budget: &Value| {
        ["currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"]
            .map(|field| budget["status"][field].as_i64())
    };
    let budget = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web";
    f.until(budget, |budget| numbers(budget) == [3, 2, 3, 1].map(Some)).await;
    f.patch(&format!("{APPS}/deployments/web"), json!({"spec": {"replicas": 4}})).await;
    f.until(budget, |budget| numbers(budget) == [4, 3, 4, 1].map(Some)).await;
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let autoscaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": target, "minReplicas": 5, "maxReplicas": 9, "metrics": [cpu]}});
    f.create("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", autoscaler).await;
    let autoscaler = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/web";
    f.until(&format!("{APPS}/deployments/web"), |web| web["spec"]["replicas"] == 5).await;
    f.until_told("web", "SuccessfulRescale").await;
    let unable = |own: &Value| {
        let active = condition(own, "ScalingActive");
        active["reason"] == "FailedGetResourceMetric"
            && active["status"] == "False"
            && own["status"]["currentReplicas"] == 5
    };
    f.until(autoscaler, unable).await;
}
