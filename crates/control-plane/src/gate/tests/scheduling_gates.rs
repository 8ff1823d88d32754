//! Tests of scheduling gates on Pods and pod templates, and of Jobs with an external controller.

use super::*;

const PODS: &str = "api/v1/namespaces/shop/pods";
const JOBS: &str = "apis/batch/v1/namespaces/shop/jobs";
const POLICIES: &str = "apis/admissionregistration.k8s.io/v1";

impl World {
    /// Gives each Pod with the label `queue` a scheduling gate, as the webhook of a queue does.
    async fn gate_queued_pods(&self) {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
        let expression = "Object{spec: Object.spec{schedulingGates: [Object.spec.schedulingGates{name: \"queue.example.com/admission\"}]}}";
        let spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "queued", "expression": "has(object.metadata.labels) && 'queue' in object.metadata.labels"}],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]});
        self.post(
            &format!("{POLICIES}/mutatingadmissionpolicies"),
            json!({"metadata": {"name": "queue"}, "spec": spec}),
        )
        .await;
        let binding = json!({"metadata": {"name": "queue"}, "spec": {"policyName": "queue"}});
        self.post(&format!("{POLICIES}/mutatingadmissionpolicybindings"), binding).await;
    }

    async fn clusters_of(&self, path: &str) -> String {
        let object = self.get(path).await.unwrap_or_default();
        let on = object.pointer("/metadata/annotations/portolan.dev~1clusters").and_then(Value::as_str);
        on.unwrap_or_default().to_owned()
    }

    async fn placed_condition(&self, placement: &str) -> (String, String) {
        let placement = self.get(&format!("{PLACEMENTS}/{placement}")).await.unwrap_or_default();
        let text = |field: &str| placement.pointer(&format!("/status/conditions/0/{field}")).and_then(Value::as_str);
        (text("reason").unwrap_or_default().to_owned(), text("message").unwrap_or_default().to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_placed_when_its_scheduling_gates_are_gone() {
    let world = World::new().await;
    let mut spec = plain();
    spec["schedulingGates"] = json!([{"name": "example.com/first"}, {"name": "example.com/second"}]);
    world.post(PODS, json!({"metadata": {"name": "gated"}, "spec": spec})).await;
    let reason = || async { world.placed_condition("pods-gated").await.0 };
    world.until("it says why it waits", || async { reason().await == "SchedulingGated" }).await;
    let message = world.placed_condition("pods-gated").await.1;
    assert!(message.contains("example.com/first, example.com/second"), "{message}");
    let path = format!("{PODS}/gated");
    world.merge(&path, json!({"spec": {"schedulingGates": [{"name": "example.com/first"}]}})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.clusters_of(&path).await, "", "one is left");
    world.merge(&path, json!({"spec": {"schedulingGates": null}})).await;
    world.until("it is placed", || async { world.clusters_of(&path).await == "east" }).await;
}

#[tokio::test(start_paused = true)]
async fn a_template_whose_pods_get_a_gate_is_not_placed_until_they_do_not() {
    let world = World::new().await;
    world.gate_queued_pods().await;
    let labels = json!({"app": "web", "queue": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": plain()});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    let gated = || async { world.placed("web").await.1 == "SchedulingGated" };
    let web = || json!({"metadata": {"name": "web"}, "spec": spec});
    world.post(DEPLOYMENTS, web()).await;
    world.until("it is refused", gated).await;
    let (on, _, message) = world.placed("web").await;
    assert_eq!(on, "");
    assert!(message.contains("queue.example.com/admission"), "{message}");
    let failure = || async {
        let web = world.get(&format!("{DEPLOYMENTS}/web")).await.unwrap();
        let conditions = web.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "ReplicaFailure")
    };
    assert!(failure().await, "its status says so, too");
    let unlabelled = json!({"spec": {"template": {"metadata": {"labels": {"queue": null}}}}});
    world.merge(&format!("{DEPLOYMENTS}/web"), unlabelled).await;
    world.until_placed("web").await;
    assert!(!failure().await, "it is let in");

    world.delete(&format!("{DEPLOYMENTS}/web")).await;
    let mut other = web();
    other["metadata"]["name"] = json!("api");
    world.post(DEPLOYMENTS, other).await;
    world.until("the other is refused", || async { world.placed("api").await.1 == "SchedulingGated" }).await;
    world.delete(&format!("{POLICIES}/mutatingadmissionpolicybindings/queue")).await;
    let before = tokio::time::Instant::now();
    world.until_placed("api").await;
    assert!(before.elapsed() < Duration::from_secs(10), "what gates Pods has changed: it is looked at again at once");
}

#[tokio::test(start_paused = true)]
async fn a_job_of_another_controller_is_neither_placed_nor_charged() {
    let world = World::new().await;
    world.quota(json!({"pods": "10"})).await;
    let mut pod = plain();
    pod["restartPolicy"] = json!("Never");
    let job = |name: &str, manager: Value| json!({"metadata": {"name": name}, "spec": {"managedBy": manager, "parallelism": 3, "completions": 3, "template": {"spec": pod}}});
    world.post(JOBS, job("elsewhere", json!("example.com/else"))).await;
    world.post(JOBS, job("own", json!("kubernetes.io/job-controller"))).await;
    world
        .until("that of Kubernetes' controller", || async { world.clusters_of(&format!("{JOBS}/own")).await == "east" })
        .await;
    world.until_used("pods", "3").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.clusters_of(&format!("{JOBS}/elsewhere")).await, "");
    assert_eq!(world.used("pods").await, "3");
    let cron = json!({"metadata": {"name": "cron"}, "spec": {"schedule": "@yearly", "jobTemplate": {"spec": job("x", json!("example.com/else"))["spec"]}}});
    world.post("apis/batch/v1/namespaces/shop/cronjobs", cron).await;
    let placed = || async { world.clusters_of("apis/batch/v1/namespaces/shop/cronjobs/cron").await == "east" };
    world.until("a CronJob makes the Jobs there", placed).await;
    assert_eq!(world.used("pods").await, "3", "nothing runs of them");
    let owner = world.get(&format!("{JOBS}/elsewhere")).await.unwrap()["metadata"]["uid"].clone();
    let references =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "elsewhere", "uid": owner, "controller": true}]);
    world.post(PODS, json!({"metadata": {"name": "worker", "ownerReferences": references}, "spec": pod})).await;
    let placed = || async { world.clusters_of(&format!("{PODS}/worker")).await == "east" };
    world.until("the Pods that its controller makes here run", placed).await;
}
