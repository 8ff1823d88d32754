use std::{sync::Arc, time::Duration};

use http::Method;
use portolan_types::{annotations, object, placement::Phase, upstream::CopyState};
use serde_json::{Value, json};

use super::{
    Canned, FakeCluster,
    suite::{self, Stage, deployment},
};

async fn stage(cluster: &FakeCluster) -> Stage {
    Stage::start(Arc::new(cluster.clone()), 9).await.unwrap()
}

fn data(value: &str) -> Value {
    json!({"metadata": {}, "data": {"a": value}})
}

#[tokio::test(start_paused = true)]
async fn the_suite_passes_on_a_physical_cluster_in_memory() {
    suite::run(Arc::new(FakeCluster::default())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_physical_cluster_that_answers_nonsense_loses_nothing_and_converges_when_it_heals() {
    let refusal =
        |code: u16, reason: &str| Canned::Answer(code, json!({"kind": "Status", "code": code, "reason": reason}));
    let empty = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []});
    for (case, canned) in [
        ("401", refusal(401, "Unauthorized")),
        ("403", refusal(403, "Forbidden")),
        ("404 without a body", Canned::Answer(404, Value::Null)),
        ("404 of the kind", refusal(404, "NotFound")),
        ("429", refusal(429, "TooManyRequests")),
        ("500", refusal(500, "InternalError")),
        ("an empty list", Canned::Answer(200, empty)),
        ("a list without version", Canned::Answer(200, json!({"kind": "ConfigMapList", "metadata": {}, "items": []}))),
        ("no JSON", Canned::Answer(200, json!("hello"))),
        ("no answer", Canned::Hang),
    ] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        for n in 0..20 {
            stage.place("configmaps", &format!("c{n}"), data("1"), Phase::Active);
        }
        stage.until("all are there", async |_| cluster.all("configmaps").len() == 20).await.expect(case);
        cluster.script(move |method, path| {
            (*method == Method::GET && path.contains("configmaps")).then(|| canned.clone())
        });
        let stage = stage.restarted().await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(cluster.requests("DELETE").len(), 0, "{case}: nothing is deleted");
        assert_eq!(cluster.all("configmaps").len(), 20, "{case}: nothing is lost");
        cluster.heal();
        stage.place("configmaps", "c0", data("2"), Phase::Active);
        let healed = async |_: &Stage| cluster.all("configmaps").iter().any(|c| c["data"]["a"] == "2");
        stage.until("it converges", healed).await.expect(case);
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn masses_of_objects_that_are_not_there_any_more_are_not_deleted() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let keys: Vec<_> = (0..40).map(|n| stage.place("configmaps", &format!("c{n}"), data("1"), Phase::Active)).collect();
    stage.until("all are there", async |_| cluster.all("configmaps").len() == 40).await.unwrap();
    // An upstream that lost its objects while nobody looked.
    stage.upstream.set_failing(true);
    let stage = stage.restarted().await;
    keys.iter().for_each(|key| stage.upstream.remove(key));
    stage.upstream.set_failing(false);
    let stage = stage.restarted().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((cluster.all("configmaps").len(), stage.handle.is_brake_on()), (30, true), "ten a minute, then none");
    stage.handle.release_brake();
    stage.until("a person lets it go on", async |_| cluster.all("configmaps").len() == 20).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_seen_and_removed_goes_without_brake() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let keys: Vec<_> = (0..40).map(|n| stage.place("configmaps", &format!("c{n}"), data("1"), Phase::Active)).collect();
    stage.until("all are there", async |_| cluster.all("configmaps").len() == 40).await.unwrap();
    keys.iter().for_each(|key| stage.upstream.remove(key));
    stage.until("all go", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
    assert!(!stage.handle.is_brake_on());
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_older_syncer_ends_when_a_newer_one_has_written() {
    let cluster = FakeCluster::default();
    let old = stage(&cluster).await;
    old.place("configmaps", "a", data("1"), Phase::Active);
    old.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let mut copy = cluster.all("configmaps").remove(0);
    let identity = object::annotation(&copy, annotations::DOWN_IDENTITY)
        .unwrap()
        .replace("\"syncerEpoch\":1", "\"syncerEpoch\":2");
    object::set_annotation(&mut copy, annotations::DOWN_IDENTITY, Some(identity));
    cluster.put("configmaps", copy);
    old.until("it ends", async |s| s.handle.is_fenced()).await.unwrap();
    let writes = cluster.requests("P").len() + cluster.requests("DELETE").len();
    old.place("configmaps", "a", data("2"), Phase::Active);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.requests("P").len() + cluster.requests("DELETE").len(), writes, "it writes nothing any more");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_being_deleted_is_waited_for_without_a_loop() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.place("configmaps", "a", data("1"), Phase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let mut namespace = cluster.all("namespaces").remove(0);
    object::metadata_mut(&mut namespace).insert("deletionTimestamp".into(), json!("t"));
    object::metadata_mut(&mut namespace).insert("finalizers".into(), json!(["kubernetes"]));
    let namespace = cluster.put("namespaces", namespace);
    let copy = cluster.all("configmaps").remove(0);
    cluster.remove("configmaps", &copy);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(cluster.requests("POST").len() < 40, "{} creates in ten minutes", cluster.requests("POST").len());
    cluster.remove("namespaces", &namespace);
    stage.until("it is made again", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_of_somebody_else_is_not_used() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    cluster.put("namespaces", json!({"metadata": {"name": stage.namespace()}}));
    let key = stage.place("configmaps", "a", data("1"), Phase::Active);
    let told = async |s: &Stage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "Conflict");
    stage.until("the conflict is told", told).await.unwrap();
    assert_eq!(cluster.all("configmaps").len(), 0);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_something_else_in_it_stays() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), Phase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    cluster.put("persistentvolumeclaims", json!({"metadata": {"name": "theirs", "namespace": stage.namespace()}}));
    stage.upstream.delete(&key);
    stage.until("the copy goes", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.all("namespaces").len(), 1);
    stage.handle.stop().await;
}

/// What a Deployment controller makes of our copy.
fn run_deployment(cluster: &FakeCluster) -> (Value, Value) {
    let copy = cluster.all("deployments").remove(0);
    let (name, namespace) = (object::name(&copy), object::namespace(&copy));
    let owner = |kind: &str, of: &Value| json!([{"apiVersion": "apps/v1", "kind": kind, "name": object::name(of), "uid": object::meta_text(of, "uid"), "controller": true}]);
    let mut labels = copy["spec"]["template"]["metadata"]["labels"].clone();
    labels["pod-template-hash"] = json!("abc");
    let mut notes = copy["metadata"]["annotations"].clone();
    notes["deployment.kubernetes.io/revision"] = json!("1");
    let set = cluster.put(
        "replicasets",
        json!({"metadata": {"name": format!("{name}-abc"), "namespace": namespace, "labels": labels,
        "annotations": notes, "ownerReferences": owner("Deployment", &copy)},
        "spec": {"replicas": 1, "template": copy["spec"]["template"]}, "status": {"replicas": 1, "readyReplicas": 1}}),
    );
    let pod = cluster.put(
        "pods",
        json!({"metadata": {"name": format!("{name}-abc-x1"), "namespace": namespace, "labels": labels,
        "ownerReferences": owner("ReplicaSet", &set)}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}),
    );
    (set, pod)
}

#[tokio::test(start_paused = true)]
async fn what_runs_below_is_shown_above_and_ends_only_with_it() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.place("deployments", "web", deployment(1, "i:1"), Phase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    let (_, pod) = run_deployment(&cluster);
    stage.until("the pod is shown", async |s| s.upstream.keys("pods").len() == 1).await.unwrap();
    let (set_key, pod_key) = (stage.upstream.keys("replicasets").remove(0), stage.upstream.keys("pods").remove(0));
    let set_above = async |s: &Stage| s.upstream.object(&set_key).unwrap_or_default();
    stage
        .until("its ReplicaSet has status", async |s| set_above(s).await["status"]["readyReplicas"] == 1)
        .await
        .unwrap();
    let pod_above = stage.upstream.object(&pod_key).unwrap();
    assert_eq!(pod_above["metadata"]["ownerReferences"][0]["uid"], set_above(&stage).await["metadata"]["uid"]);
    assert_eq!((pod_key.name.as_str(), &pod_above["status"]["phase"]), ("web-abc-x1", &json!("Running")));

    let mut stripped = pod.clone();
    stripped["metadata"]["labels"] = json!({"app": "web"});
    cluster.put("pods", stripped);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(stage.upstream.object(&pod_key).is_some(), "out of sight is not gone");
    cluster.put("pods", pod.clone());
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.upstream.delete(&pod_key);
    stage.until("a delete is handed down", async |_| cluster.all("pods").is_empty()).await.unwrap();
    stage.until("then it is gone above", async |s| s.upstream.object(&pod_key).is_none()).await.unwrap();

    let stage = stage.restarted().await;
    stage.until("the new worker follows", async |s| s.upstream.cluster().is_some()).await.unwrap();
    let set = cluster.all("replicasets").remove(0);
    cluster.remove("replicasets", &set);
    stage
        .until("a ReplicaSet that ended is gone above", async |s| s.upstream.keys("replicasets").is_empty())
        .await
        .unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_comes_up_with_the_upstream_generation() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("deployments", "web", deployment(1, "i:1"), Phase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    stage.place("deployments", "web", deployment(1, "i:2"), Phase::Active);
    let is_second =
        async |_: &Stage| cluster.all("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "i:2";
    stage.until("the change is there", is_second).await.unwrap();
    let mut copy = cluster.all("deployments").remove(0);
    copy["status"] = json!({"observedGeneration": object::generation(&copy), "replicas": 1, "readyReplicas": 1});
    cluster.put("deployments", copy);
    let status = async |s: &Stage| s.upstream.object(&key).unwrap_or_default()["status"].clone();
    stage.until("it is above", async |s| status(s).await["readyReplicas"] == 1).await.unwrap();
    assert_eq!(status(&stage).await["observedGeneration"], 2, "the upstream generation");
    assert_eq!(
        cluster.requests("PATCH").len(),
        2,
        "one apply, with our create's ownership taken over before, and no more"
    );
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_must_not_go_down_is_told() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let privileged =
        json!({"metadata": {}, "spec": {"containers": [{"name": "c", "securityContext": {"privileged": true}}]}});
    let key = stage.place("pods", "root", privileged, Phase::Active);
    let told = async |s: &Stage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "NotSyncable");
    stage.until("it is told", told).await.unwrap();
    stage.upstream.delete(&key);
    stage.until("it can be deleted", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    assert_eq!(cluster.all("pods").len(), 0);
    stage.handle.stop().await;
}

/// The suite on a real API server: `PORTOLAN_SUITE_KUBECONFIG` names the file of a kubeconfig with inline data, of a cluster with
/// nothing in it that matters. With `PORTOLAN_SUITE_WORKLOADS` set, also what needs controllers and nodes there.
#[tokio::test]
#[ignore = "needs a Kubernetes cluster, named by PORTOLAN_SUITE_KUBECONFIG"]
async fn the_suite_passes_on_a_real_cluster() {
    let text = std::fs::read_to_string(std::env::var("PORTOLAN_SUITE_KUBECONFIG").unwrap()).unwrap();
    let connector = Arc::new(crate::DirectConnector::from_kubeconfig(&text).unwrap());
    suite::run(connector.clone()).await.unwrap();
    if std::env::var_os("PORTOLAN_SUITE_WORKLOADS").is_some() {
        suite::run_workloads(connector.clone()).await.unwrap();
    }
    println!("apply to copy reported, ms: {:?}", latencies(connector).await);
}

/// From a write upstream until the report that its copy is there, in milliseconds, sorted.
async fn latencies(connector: Arc<dyn crate::Connector>) -> Vec<u128> {
    let stage = Stage::start(connector, 7).await.unwrap();
    let mut taken = Vec::new();
    for n in 0..50 {
        let start = std::time::Instant::now();
        let key = stage.place("configmaps", &format!("c{n}"), data("1"), Phase::Active);
        while stage.upstream.last_report(&key).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        taken.push(start.elapsed().as_millis());
    }
    stage.finished().await.unwrap();
    taken.sort_unstable();
    taken
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_resource_that_goes_down_no_more_is_gone_only_when_it_is() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), Phase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let stage = stage.restarted_with(&["deployments.apps"]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(cluster.all("configmaps").len(), 1);
    stage.upstream.delete(&key);
    stage.until("it is gone above", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    assert_eq!(cluster.all("configmaps").len(), 0, "and was gone below before");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn writes_that_are_answered_with_nonsense_end_no_worker() {
    for answer in [json!("hello"), json!([]), Value::Null, json!({"metadata": 1})] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        let canned = Canned::Answer(201, answer);
        cluster.script(move |method, _| (*method == Method::POST).then(|| canned.clone()));
        stage.place("configmaps", "a", data("1"), Phase::Active);
        tokio::time::sleep(Duration::from_secs(60)).await;
        cluster.heal();
        stage.place("configmaps", "a", data("2"), Phase::Active);
        stage.until("it converges", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        assert!(!stage.handle.has_failed());
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_nothing_is_no_proof_of_an_end() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), Phase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let hidden = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []});
    cluster.script(move |method, path| {
        let one = path.contains("/configmaps/a");
        (*method == Method::GET && path.contains("configmaps"))
            .then(|| Canned::Answer(200, if one { json!({}) } else { hidden.clone() }))
    });
    let stage = stage.restarted().await;
    stage.upstream.delete(&key);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(stage.upstream.object(&key).is_some(), "it is held");
    cluster.heal();
    stage.handle.stop().await;
}
