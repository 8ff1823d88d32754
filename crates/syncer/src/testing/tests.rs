use std::{sync::Arc, time::Duration};

use http::Method;
use portolan_types::{
    GroupVersionKind, annotations, object,
    placement::{CopyPhase, OrdinalRange, PlacementRecord},
    upstream::CopyState,
};
use serde_json::{Value, json};

use super::{
    CannedAnswer, FakeCluster,
    suite::{self, SyncStage, deployment},
};

async fn stage(cluster: &FakeCluster) -> SyncStage {
    SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap()
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
        |code: u16, reason: &str| CannedAnswer::Answer(code, json!({"kind": "Status", "code": code, "reason": reason}));
    let empty = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []});
    for (case, canned) in [
        ("401", refusal(401, "Unauthorized")),
        ("403", refusal(403, "Forbidden")),
        ("404 without a body", CannedAnswer::Answer(404, Value::Null)),
        ("404 of the kind", refusal(404, "NotFound")),
        ("429", refusal(429, "TooManyRequests")),
        ("500", refusal(500, "InternalError")),
        ("an empty list", CannedAnswer::Answer(200, empty)),
        (
            "a list without version",
            CannedAnswer::Answer(200, json!({"kind": "ConfigMapList", "metadata": {}, "items": []})),
        ),
        ("no JSON", CannedAnswer::Answer(200, json!("hello"))),
        ("no answer", CannedAnswer::Hang),
    ] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        for n in 0..20 {
            stage.place("configmaps", &format!("c{n}"), data("1"), CopyPhase::Active);
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
        stage.place("configmaps", "c0", data("2"), CopyPhase::Active);
        let healed = async |_: &SyncStage| cluster.all("configmaps").iter().any(|c| c["data"]["a"] == "2");
        stage.until("it converges", healed).await.expect(case);
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn masses_of_objects_that_are_not_there_any_more_are_not_deleted() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let keys: Vec<_> =
        (0..40).map(|n| stage.place("configmaps", &format!("c{n}"), data("1"), CopyPhase::Active)).collect();
    stage.until("all are there", async |_| cluster.all("configmaps").len() == 40).await.unwrap();
    // An upstream that lost its objects while no worker ran.
    stage.upstream.set_failing(true);
    let stage = stage.restarted().await;
    keys.iter().for_each(|key| stage.upstream.remove(key));
    stage.upstream.set_failing(false);
    let stage = stage.restarted().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let told = |stage: &SyncStage| stage.upstream.cluster().map(|report| report.deletions_held);
    assert_eq!((cluster.all("configmaps").len(), told(&stage)), (30, Some(30)), "ten a minute, then none");
    let stage = stage.restarted().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((cluster.all("configmaps").len(), told(&stage)), (30, Some(30)), "a restart lets nothing go");
    stage.handle.release_deletions(5);
    stage.until("five are let go", async |_| cluster.all("configmaps").len() == 25).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((cluster.all("configmaps").len(), told(&stage)), (25, Some(25)), "and no others");
    stage.handle.release_deletions(1000);
    stage.until("a person lets them all go", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
    stage.until("none is held", async |s| told(s) == Some(0)).await.unwrap();
    let later: Vec<_> =
        (0..40).map(|n| stage.place("configmaps", &format!("d{n}"), data("1"), CopyPhase::Active)).collect();
    stage.until("others are there", async |_| cluster.all("configmaps").len() == 40).await.unwrap();
    stage.upstream.set_failing(true);
    let stage = stage.restarted().await;
    later.iter().for_each(|key| stage.upstream.remove(key));
    stage.upstream.set_failing(false);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.all("configmaps").len(), 30, "what was let go once does not let go what comes later");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_seen_and_removed_goes_without_brake() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let keys: Vec<_> =
        (0..40).map(|n| stage.place("configmaps", &format!("c{n}"), data("1"), CopyPhase::Active)).collect();
    stage.until("all are there", async |_| cluster.all("configmaps").len() == 40).await.unwrap();
    keys.iter().for_each(|key| stage.upstream.remove(key));
    stage.until("all go", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
    assert_eq!(stage.handle.stats().held, 0);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_older_syncer_ends_when_upstream_knows_a_newer_one() {
    let cluster = FakeCluster::default();
    let old = stage(&cluster).await;
    old.place("configmaps", "a", data("1"), CopyPhase::Active);
    old.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    old.upstream.start_syncer(2);
    old.until("it ends", async |s| s.handle.is_fenced()).await.unwrap();
    let writes = cluster.requests("P").len() + cluster.requests("DELETE").len();
    old.place("configmaps", "a", data("2"), CopyPhase::Active);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.requests("P").len() + cluster.requests("DELETE").len(), writes, "it writes nothing any more");
}

#[tokio::test(start_paused = true)]
async fn a_copy_with_a_later_epoch_is_overwritten_or_deleted_and_reported() {
    for (case, deletes) in [("while it stays", false), ("while it is deleted", true)] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        let identity = |copy: &Value| object::annotation(copy, annotations::DOWN_IDENTITY).unwrap().to_owned();
        let mut copy = cluster.all("configmaps").remove(0);
        let true_identity = identity(&copy);
        let forged = true_identity.replace("\"epoch\":1", &format!("\"epoch\":{}", u64::MAX));
        assert_ne!(forged, true_identity);
        object::set_annotation(&mut copy, annotations::DOWN_IDENTITY, Some(forged));
        cluster.put("configmaps", copy);
        if deletes {
            stage.upstream.delete(&key);
            stage.until("it is gone", async |s| s.upstream.object(&key).is_none()).await.expect(case);
            assert_eq!(cluster.all("configmaps").len(), 0, "{case}");
        } else {
            let is_true = async |_: &SyncStage| identity(&cluster.all("configmaps")[0]) == true_identity;
            stage.until("it is written over", is_true).await.expect(case);
            let told = async |s: &SyncStage| s.upstream.cluster().is_some_and(|report| report.forged == 1);
            stage.until("the physical cluster tells of it", told).await.expect(case);
        }
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_newer_syncer_is_kept_and_reported() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let identity = |copy: &Value| object::annotation(copy, annotations::DOWN_IDENTITY).unwrap().to_owned();
    let mut copy = cluster.all("configmaps").remove(0);
    let (true_identity, newest) = (identity(&copy), format!("\"syncerEpoch\":{}", u64::MAX));
    let forged = true_identity.replace("\"syncerEpoch\":1", &newest);
    object::set_annotation(&mut copy, annotations::DOWN_IDENTITY, Some(forged));
    cluster.put("configmaps", copy);
    let is_true = async |_: &SyncStage| identity(&cluster.all("configmaps")[0]) == true_identity;
    stage.until("it is written over", is_true).await.unwrap();
    let told = async |s: &SyncStage| s.upstream.cluster().is_some_and(|report| report.forged == 1);
    stage.until("the physical cluster tells of it", told).await.unwrap();
    assert!(!stage.handle.is_fenced());
    stage.upstream.delete(&key);
    stage.until("it can be deleted", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_being_deleted_is_waited_for_without_a_loop() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.place("configmaps", "a", data("1"), CopyPhase::Active);
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
async fn a_namespace_with_something_else_in_it_stays() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    cluster.put("persistentvolumeclaims", json!({"metadata": {"name": "theirs", "namespace": stage.namespace()}}));
    stage.upstream.delete(&key);
    stage.until("the copy goes", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.all("namespaces").len(), 1);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_deleted_with_its_last_unprojected_object() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let labels = cluster.all("configmaps").remove(0)["metadata"]["labels"].clone();
    let owners =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "gone", "uid": "u", "controller": true}]);
    let metadata = json!({"name": "late", "namespace": stage.namespace(), "labels": labels, "ownerReferences": owners});
    let pod = cluster.put("pods", json!({"metadata": metadata, "spec": {"nodeName": "n"}}));
    stage.upstream.delete(&key);
    stage.until("the copy goes", async |_| cluster.all("configmaps").is_empty()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((cluster.all("namespaces").len(), stage.upstream.keys("pods").len()), (1, 0));
    cluster.remove("pods", &pod);
    stage.until("the namespace goes", async |_| cluster.all("namespaces").is_empty()).await.unwrap();
    stage.handle.stop().await;
}

/// Creates the objects that a Deployment controller makes from our copy.
pub(super) fn run_deployment(cluster: &FakeCluster) -> (Value, Value) {
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
async fn downstream_objects_are_projected_until_they_are_deleted() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    let (_, pod) = run_deployment(&cluster);
    stage.until("the pod is shown", async |s| s.upstream.keys("pods").len() == 1).await.unwrap();
    let (set_key, pod_key) = (stage.upstream.keys("replicasets").remove(0), stage.upstream.keys("pods").remove(0));
    let set_upstream = async |s: &SyncStage| s.upstream.object(&set_key).unwrap_or_default();
    stage
        .until("its ReplicaSet has status", async |s| set_upstream(s).await["status"]["readyReplicas"] == 1)
        .await
        .unwrap();
    let upstream_pod = stage.upstream.object(&pod_key).unwrap();
    assert_eq!(upstream_pod["metadata"]["ownerReferences"][0]["uid"], set_upstream(&stage).await["metadata"]["uid"]);
    assert_eq!((pod_key.name.as_str(), &upstream_pod["status"]["phase"]), ("web-abc-x1", &json!("Running")));

    let mut stripped = pod.clone();
    stripped["metadata"]["labels"] = json!({"app": "web"});
    cluster.put("pods", stripped);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(stage.upstream.object(&pod_key).is_some(), "out of sight is not gone");
    cluster.put("pods", pod.clone());
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.upstream.delete(&pod_key);
    stage.until("a delete is handed down", async |_| cluster.all("pods").is_empty()).await.unwrap();
    stage.until("then it is gone upstream", async |s| s.upstream.object(&pod_key).is_none()).await.unwrap();

    let stage = stage.restarted().await;
    stage.until("the new worker follows", async |s| s.upstream.cluster().is_some()).await.unwrap();
    let set = cluster.all("replicasets").remove(0);
    cluster.remove("replicasets", &set);
    stage
        .until("a ReplicaSet that ended is gone upstream", async |s| s.upstream.keys("replicasets").is_empty())
        .await
        .unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_comes_up_with_the_upstream_generation() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    stage.place("deployments", "web", deployment(1, "i:2"), CopyPhase::Active);
    let is_second = async |_: &SyncStage| {
        cluster.all("deployments")[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "i:2"
    };
    stage.until("the change is there", is_second).await.unwrap();
    let mut copy = cluster.all("deployments").remove(0);
    copy["status"] = json!({"observedGeneration": object::generation(&copy), "replicas": 1, "readyReplicas": 1});
    cluster.put("deployments", copy);
    let status = async |s: &SyncStage| s.upstream.object(&key).unwrap_or_default()["status"].clone();
    stage.until("it is upstream", async |s| status(s).await["readyReplicas"] == 1).await.unwrap();
    assert_eq!(status(&stage).await["observedGeneration"], 2, "the upstream generation");
    assert_eq!(
        cluster.requests("PATCH").len(),
        2,
        "one apply, with our create's ownership taken over before, and no more"
    );
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_object_is_not_run_again() {
    let template = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
    let complete = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    for (resource, kind, spec, ended) in [
        ("jobs", "Job", json!({"ttlSecondsAfterFinished": 5, "template": template}), complete),
        ("pods", "Pod", template["spec"].clone(), json!({"phase": "Failed"})),
    ] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        let key = stage.place(resource, "once", json!({"metadata": {}, "spec": spec}), CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all(resource).len() == 1).await.expect(resource);
        let mut copy = cluster.all(resource).remove(0);
        copy["status"] = ended;
        let copy = cluster.put(resource, copy);
        let has_ended = |object: &Value| object::has_ended(&key.resource.group, kind, object);
        let told = async |s: &SyncStage| s.upstream.object(&key).is_some_and(|object| has_ended(&object));
        stage.until("its end is reported upstream", told).await.expect(resource);
        // As the pod garbage collector does downstream, or a drain of its node.
        cluster.remove(resource, &copy);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let stage = stage.restarted().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.all(resource).len(), 0, "{resource}: it has run");
        assert!(told(&stage).await, "{resource}: what became of it stays");
        stage.upstream.delete(&key);
        stage.until("it can be deleted", async |s| s.upstream.object(&key).is_none()).await.expect(resource);
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_objects_have_a_reason() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let privileged =
        json!({"metadata": {}, "spec": {"containers": [{"name": "c", "securityContext": {"privileged": true}}]}});
    let key = stage.place("pods", "root", privileged, CopyPhase::Active);
    let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, .. }) if reason == "NotSyncable");
    stage.until("it is reported", told).await.unwrap();
    stage.upstream.delete(&key);
    stage.until("it can be deleted", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    assert_eq!(cluster.all("pods").len(), 0);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_resource_that_goes_down_no_more_is_gone_only_when_it_is() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let stage = stage.restarted_with(&["deployments.apps"]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(cluster.all("configmaps").len(), 1);
    stage.upstream.delete(&key);
    stage.until("it is gone upstream", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    assert_eq!(cluster.all("configmaps").len(), 0, "and was gone downstream before");
    stage.handle.stop().await;
}

/// Discovery of the core group without `hidden`.
fn hide(cluster: &FakeCluster, hidden: &'static str) {
    let one = |name: &str, kind: &str| json!({"name": name, "kind": kind, "namespaced": true});
    let all = [one("configmaps", "ConfigMap"), one("pods", "Pod"), one("services", "Service")];
    let served: Vec<Value> = all.into_iter().filter(|one| one["name"] != hidden).collect();
    let list = json!({"kind": "APIResourceList", "resources": served});
    cluster.script(move |_, path| (path == "/api/v1?").then(|| CannedAnswer::Answer(200, list.clone())));
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_served_is_not_taken_for_gone() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    hide(&cluster, "configmaps");
    let stage = stage.restarted().await;
    stage.upstream.delete(&key);
    stage.until("it is a debt", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((stage.upstream.recorded_debts().len(), cluster.all("configmaps").len()), (1, 1), "which stays");
    cluster.heal();
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert_eq!(
        (stage.upstream.recorded_debts().len(), cluster.all("configmaps").len()),
        (0, 0),
        "until it can be paid"
    );
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_once_objects_wait_while_their_resource_is_not_served() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let pod = || json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let key = stage.place("pods", "db", pod(), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("pods").len() == 1).await.unwrap();
    hide(&cluster, "pods");
    let stage = stage.restarted().await;
    stage.place("pods", "db", pod(), CopyPhase::Leaving);
    let told = async |s: &SyncStage| {
        matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, message, .. })
        if reason == "Pending" && message.contains("portolan.dev/write-off=member"))
    };
    stage.until("it is reported", told).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let is_placed = |s: &SyncStage| {
        s.upstream.object(&key).is_some_and(|o| object::annotation(&o, annotations::PLACEMENT).is_some())
    };
    assert!(is_placed(&stage) && stage.upstream.recorded_debts().is_empty(), "time proves no end");
    let mut written_off = pod();
    object::set_annotation(&mut written_off, annotations::WRITE_OFF, Some("member".into()));
    stage.place("pods", "db", written_off, CopyPhase::Leaving);
    stage.until("it is a debt", async |s| !is_placed(s) && s.upstream.recorded_debts().len() == 1).await.unwrap();
    cluster.heal();
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert_eq!((stage.upstream.recorded_debts().len(), cluster.all("pods").len()), (0, 0));
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_physical_cluster_is_used_when_it_says_that_it_is_ready() {
    for (case, code, is_used) in
        [("it starts", 500, false), ("not found", 404, false), ("reviews are forbidden", 403, true)]
    {
        let cluster = FakeCluster::default();
        cluster.script(move |_, path| (path == "/readyz?").then(|| CannedAnswer::Answer(code, json!({}))));
        let stage = stage(&cluster).await;
        stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.all("configmaps").len() == 1, is_used, "{case}");
        assert_eq!(stage.upstream.cluster().is_some_and(|report| report.ready.is_ok()), is_used, "{case}");
        cluster.heal();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(cluster.all("configmaps").len(), 1, "{case}: it is used from then on");
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn writes_that_are_answered_with_nonsense_end_no_worker() {
    for answer in [json!("hello"), json!([]), Value::Null, json!({"metadata": 1})] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        let canned = CannedAnswer::Answer(201, answer);
        cluster.script(move |method, _| (*method == Method::POST).then(|| canned.clone()));
        stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        tokio::time::sleep(Duration::from_secs(60)).await;
        cluster.heal();
        stage.place("configmaps", "a", data("2"), CopyPhase::Active);
        stage.until("it converges", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
        assert!(!stage.handle.has_failed());
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_is_no_proof_of_deletion() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let hidden = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": []});
    cluster.script(move |method, path| {
        let one = path.contains("/configmaps/a");
        (*method == Method::GET && path.contains("configmaps"))
            .then(|| CannedAnswer::Answer(200, if one { json!({}) } else { hidden.clone() }))
    });
    let stage = stage.restarted().await;
    stage.upstream.delete(&key);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(stage.upstream.object(&key).is_some(), "it is held");
    cluster.heal();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_authorizer_is_reported_after_a_while() {
    let reason_of = |s: &SyncStage, key: &_| match s.upstream.last_report(key) {
        Some(CopyState::Failed { reason, .. }) => reason,
        Some(CopyState::Synced { .. }) => "Synced".to_owned(),
        None => "nothing".to_owned(),
    };
    let refusal = |code: u16| CannedAnswer::Answer(code, json!({"kind": "Status", "code": code, "message": "no"}));
    for (case, canned, expected) in [
        ("500", refusal(500), "Pending"),
        ("503", refusal(503), "Pending"),
        ("429", refusal(429), "Pending"),
        ("nonsense", CannedAnswer::Answer(200, json!("hello")), "Pending"),
        ("no answer", CannedAnswer::Hang, "Unreachable"),
        ("422", refusal(422), "Invalid"),
        ("413", refusal(413), "Refused"),
    ] {
        let cluster = FakeCluster::default();
        let stage = stage(&cluster).await;
        cluster.script(move |method, path| {
            (*method == Method::POST && path.contains("configmaps")).then(|| canned.clone())
        });
        let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
        if expected == "Pending" || expected == "Unreachable" {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(reason_of(&stage, &key), "nothing", "{case}: once is not told");
        }
        stage.until("it is reported", async |s| reason_of(s, &key) == expected).await.expect(case);
        cluster.heal();
        stage.place("configmaps", "a", data("2"), CopyPhase::Active);
        let is_synced = async |s: &SyncStage| reason_of(s, &key) == "Synced";
        tokio::time::timeout(Duration::from_secs(90), stage.until("it heals", is_synced)).await.unwrap().expect(case);
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_physical_cluster_that_is_down_is_asked_once_in_a_while_by_all_together() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    for n in 0..100 {
        stage.place("configmaps", &format!("c{n}"), data("1"), CopyPhase::Active);
    }
    stage.until("all are there", async |_| cluster.all("configmaps").len() == 100).await.unwrap();
    stage.set_cut(true);
    let before = stage.tries();
    for n in 0..100 {
        stage.place("configmaps", &format!("c{n}"), data("2"), CopyPhase::Active);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = stage.tries() - before;
    assert!(tries < 40, "{tries} requests in a minute");
    stage.set_cut(false);
    let is_second = |copy: &Value| copy["data"]["a"] == "2";
    stage.until("all are up to date", async |_| cluster.all("configmaps").iter().all(is_second)).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_deleted_without_an_event_is_found_missing() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("configmaps", "a", data("1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let mut copy = cluster.all("configmaps").remove(0);
    object::metadata_mut(&mut copy).insert("finalizers".into(), json!(["example.com/f"]));
    cluster.put("configmaps", copy);
    stage.upstream.delete(&key);
    stage.until("it ends", async |_| object::is_deleting(&cluster.all("configmaps")[0])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.lose("configmaps", &stage.namespace(), "a");
    stage.until("it is gone upstream", async |s| s.upstream.object(&key).is_none()).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_once_objects_wait_for_proof_or_write_off() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let pod = || json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let key = stage.place("pods", "db", pod(), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("pods").len() == 1).await.unwrap();
    stage.set_cut(true);
    stage.place("pods", "db", pod(), CopyPhase::Leaving);
    let message = |s: &SyncStage| match s.upstream.last_report(&key) {
        Some(CopyState::Failed { message, .. }) => message,
        _ => String::new(),
    };
    stage.until("the message says how", async |s| message(s).contains("portolan.dev/write-off=member")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let is_placed = |s: &SyncStage| {
        s.upstream.object(&key).is_some_and(|o| object::annotation(&o, annotations::PLACEMENT).is_some())
    };
    assert!(is_placed(&stage) && stage.upstream.recorded_debts().is_empty(), "time proves no end");
    let mut written_off = pod();
    object::set_annotation(&mut written_off, annotations::WRITE_OFF, Some("member".into()));
    stage.place("pods", "db", written_off, CopyPhase::Leaving);
    stage.until("it is a debt", async |s| !is_placed(s) && s.upstream.recorded_debts().len() == 1).await.unwrap();
    stage.set_cut(false);
    stage.until("which is paid", async |s| s.upstream.recorded_debts().is_empty()).await.unwrap();
    assert_eq!(cluster.all("pods").len(), 0);
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn projections_of_an_unreachable_cluster_are_deleted_in_both_places() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    run_deployment(&cluster);
    stage.until("the pod is shown", async |s| s.upstream.keys("pods").len() == 1).await.unwrap();
    stage.set_cut(true);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let shown = [stage.upstream.keys("pods").remove(0), stage.upstream.keys("replicasets").remove(0)];
    stage.upstream.delete(&key);
    shown.iter().for_each(|key| stage.upstream.delete(key));
    stage.until("nothing holds the namespace upstream", async |s| s.upstream.all_keys().is_empty()).await.unwrap();
    assert_eq!(stage.upstream.recorded_debts().len(), 3);
    stage.set_cut(false);
    stage.until("all debts are paid", async |s| s.upstream.recorded_debts().is_empty()).await.unwrap();
    assert_eq!((cluster.all("pods").len(), cluster.all("replicasets").len()), (0, 0));
    assert!(stage.upstream.all_keys().is_empty(), "nothing comes back upstream");
    stage.handle.stop().await;
}

/// An Event about an object downstream.
fn event(name: &str, about: &Value, message: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": object::namespace(about)}, "type": "Warning", "reason": "BackOff",
        "message": message, "count": 2, "source": {"component": "kubelet"}, "involvedObject": {"kind": about["kind"],
        "name": object::name(about), "namespace": object::namespace(about), "uid": object::meta_text(about, "uid")}})
}

#[tokio::test(start_paused = true)]
async fn events_about_copies_are_projected_onto_upstream_objects() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    let (_, pod) = run_deployment(&cluster);
    cluster.put("events", event("web.1", &cluster.all("deployments")[0], "scaled"));
    // The EndpointSlice arrives before its pod is shown.
    cluster.put("events", event("web-x1.1", &pod, "pulling"));
    let mut foreign = pod.clone();
    foreign["metadata"]["namespace"] = json!("kube-system");
    cluster.put("events", event("theirs.1", &foreign, "secret"));
    stage.until("both are shown", async |s| s.upstream.keys("events").len() == 2).await.unwrap();
    let shown = |name: &str| stage.upstream.object(&stage.key("events", name)).unwrap();
    let pod_key = stage.upstream.keys("pods").remove(0);
    let uid = |key| object::meta_text(&stage.upstream.object(key).unwrap(), "uid").to_owned();
    let about = &shown("web-x1.1")["involvedObject"];
    assert_eq!(about["uid"], uid(&pod_key));
    assert_eq!((&about["namespace"], &about["name"]), (&json!("shop"), &json!(pod_key.name.as_str())));
    assert_eq!(shown("web.1")["involvedObject"]["uid"], uid(&key));
    assert_eq!(shown("web.1")["metadata"]["labels"], json!({(annotations::PROJECTED_FROM): "member"}));
    assert_eq!(object::annotation(&shown("web.1"), annotations::PLACEMENT), None, "nothing holds it");
    cluster.put("events", event("web.1", &cluster.all("deployments")[0], "scaled again"));
    let again =
        async |s: &SyncStage| s.upstream.object(&s.key("events", "web.1")).unwrap()["message"] == "scaled again";
    stage.until("it continues", again).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_while_an_older_one_is_shown_is_shown_too() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is reported", async |s| s.upstream.last_report(&key).is_some()).await.unwrap();
    let copy = cluster.all("deployments").remove(0);
    stage.upstream.hold_projections(true);
    cluster.put("events", event("web.1", &copy, "first"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.put("events", event("web.1", &copy, "second"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.upstream.hold_projections(false);
    let message = |s: &SyncStage| s.upstream.object(&s.key("events", "web.1")).unwrap_or_default()["message"].clone();
    stage.until("the second is shown", async |s| message(s) == "second").await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_is_about_the_kind_of_its_group() {
    let cluster = FakeCluster::default();
    let groups = json!({"groups": [{"name": "apps", "preferredVersion": {"version": "v1"}},
        {"name": "example.com", "preferredVersion": {"version": "v1"}}]});
    let same = json!({"resources": [{"name": "deployments", "kind": "Deployment", "namespaced": true}]});
    let none = json!({"kind": "DeploymentList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": "1"}, "items": []});
    cluster.script(move |_, path| match path {
        "/apis?" => Some(CannedAnswer::Answer(200, groups.clone())),
        "/apis/example.com/v1?" => Some(CannedAnswer::Answer(200, same.clone())),
        _ if path.contains("/apis/example.com/v1/deployments") && path.contains("watch=true") => {
            Some(CannedAnswer::Hang)
        }
        _ if path.contains("/apis/example.com/v1/deployments") => Some(CannedAnswer::Answer(200, none.clone())),
        _ => None,
    });
    let synced = ["deployments.apps", "deployments.example.com"];
    let stage = stage(&cluster).await.restarted_with(&synced).await;
    let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is reported", async |s| s.upstream.last_report(&key).is_some()).await.unwrap();
    let copy = cluster.all("deployments").remove(0);
    let about = |name: &str, version: &str| {
        let mut event = event(name, &copy, "x");
        event["involvedObject"]["apiVersion"] = json!(version);
        event
    };
    cluster.put("events", about("theirs", "example.com/v1"));
    for n in 0..10 {
        cluster.put("events", about(&format!("ours-{n}"), "apps/v1"));
    }
    stage.until("all of ours are shown", async |s| s.upstream.keys("events").len() == 10).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(stage.upstream.object(&stage.key("events", "theirs")).is_none());
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_slices_are_shown_upstream_with_the_pods_that_are_shown() {
    let cluster = FakeCluster::default();
    let stage = stage(&cluster).await;
    stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    let key = stage.place(
        "services",
        "web",
        json!({"metadata": {}, "spec": {"selector": {"app": "web"}}}),
        CopyPhase::Active,
    );
    stage
        .until("the copies are there", async |_| {
            cluster.all("deployments").len() == 1 && cluster.all("services").len() == 1
        })
        .await
        .unwrap();
    let (_, pod) = run_deployment(&cluster);
    let own = stage.place(
        "pods",
        "own",
        json!({"spec": deployment(1, "i:1")["spec"]["template"]["spec"]}),
        CopyPhase::Active,
    );
    stage.until("the pods are there", async |s| s.upstream.keys("pods").len() == 2).await.unwrap();
    stage.until("the copy is there", async |_| cluster.all("pods").len() == 2).await.unwrap();
    let service = cluster.all("services").remove(0);
    let mut labels = service["metadata"]["labels"].clone();
    labels["kubernetes.io/service-name"] = json!("web");
    let target = |name: &str| json!({"kind": "Pod", "name": name, "namespace": object::namespace(&pod), "uid": "down"});
    let slice = cluster.put("endpointslices", json!({
        "metadata": {"name": "web-abc", "namespace": object::namespace(&service), "labels": labels, "ownerReferences": [{
            "apiVersion": "v1", "kind": "Service", "name": "web", "uid": object::meta_text(&service, "uid"), "controller": true}]},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.0.0.1"], "targetRef": target(object::name(&pod))},
            {"addresses": ["10.0.0.2"], "targetRef": target("of-somebody-else")},
            {"addresses": ["10.0.0.3"], "targetRef": target("own")}],
    }));
    stage.until("it is shown", async |s| s.upstream.keys("endpointslices").len() == 1).await.unwrap();
    let shown_key = stage.upstream.keys("endpointslices").remove(0);
    let uid_upstream = |name: &str| {
        let key = stage.upstream.keys("pods").into_iter().find(|key| *key.name == *name).unwrap();
        object::meta_text(&stage.upstream.object(&key).unwrap(), "uid").to_owned()
    };
    let named = |name: &str| json!({"kind": "Pod", "namespace": "shop", "name": name, "uid": uid_upstream(name)});
    let endpoints = json!([
        {"addresses": ["10.0.0.1"], "targetRef": named(object::name(&pod))},
        {"addresses": ["10.0.0.2"]},
        {"addresses": ["10.0.0.3"], "targetRef": named(&own.name)},
    ]);
    let is_named =
        async |s: &SyncStage| s.upstream.object(&shown_key).is_some_and(|shown| shown["endpoints"] == endpoints);
    stage.until("it names the pods of upstream", is_named).await.unwrap();
    let shown = stage.upstream.object(&shown_key).unwrap();
    let upstream = stage.upstream.object(&key).unwrap();
    assert_eq!(shown["metadata"]["ownerReferences"][0]["uid"], upstream["metadata"]["uid"]);
    assert_eq!(shown["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    cluster.remove("endpointslices", &slice);
    stage
        .until("it ends with that of the physical cluster", async |s| s.upstream.keys("endpointslices").is_empty())
        .await
        .unwrap();
    stage.handle.stop().await;
}

/// A physical cluster of an older version, whose ConfigMaps know no `immutable`.
fn old_cluster() -> FakeCluster {
    let cluster = FakeCluster::default();
    let index = json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}});
    let schema = json!({"components": {"schemas": {"ConfigMap": {
        "properties": {"data": {"type": "object", "additionalProperties": {"type": "string"}}},
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "ConfigMap"}]}}}});
    cluster.script(move |_, path| match path {
        "/version?" => Some(CannedAnswer::Answer(200, json!({"gitVersion": "v1.33.1"}))),
        "/openapi/v3?" => Some(CannedAnswer::Answer(200, index.clone())),
        "/openapi/v3/api/v1?hash=1" => Some(CannedAnswer::Answer(200, schema.clone())),
        _ => None,
    });
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_set_is_not_divided_onto_a_physical_cluster_that_knows_no_ordinals() {
    let cluster = FakeCluster::default();
    let index = json!({"paths": {"apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=1"}}});
    let fields = json!({"properties": {"replicas": {"type": "integer"}}});
    let spec = json!({"allOf": [{"$ref": "#/components/schemas/Spec"}]});
    let schema = json!({"components": {"schemas": {"Spec": fields, "StatefulSet": {"properties": {"spec": spec},
        "x-kubernetes-group-version-kind": [{"group": "apps", "version": "v1", "kind": "StatefulSet"}]}}}});
    cluster.script(move |_, path| match path {
        "/version?" => Some(CannedAnswer::Answer(200, json!({"gitVersion": "v1.25.1"}))),
        "/openapi/v3?" => Some(CannedAnswer::Answer(200, index.clone())),
        "/openapi/v3/apis/apps/v1?hash=1" => Some(CannedAnswer::Answer(200, schema.clone())),
        _ => None,
    });
    let stage = stage(&cluster).await;
    let whole = json!({"metadata": {}, "spec": {"replicas": 2}});
    let key = stage.place("statefulsets", "db", whole, CopyPhase::Active);
    stage.until("a whole one is there", async |_| cluster.all("statefulsets").len() == 1).await.unwrap();
    let mut divided = stage.upstream.object(&key).unwrap();
    let mut record = PlacementRecord::of(&divided).unwrap();
    record.ordinals.insert(record.clusters[0].uid.clone(), OrdinalRange { first: 2, end: 4 });
    record.write_to(&mut divided);
    stage.upstream.write(&key, &GroupVersionKind::new("apps", "v1", "StatefulSet"), divided);
    let told = async |s: &SyncStage| matches!(s.upstream.last_report(&key), Some(CopyState::Failed { reason, message, .. }) if reason == "Incompatible" && message.contains("/spec/ordinals"));
    stage.until("the other is reported as incompatible", told).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_field_that_an_older_physical_cluster_lacks_is_left_out_only_when_it_means_nothing() {
    let cluster = old_cluster();
    let stage = stage(&cluster).await;
    let with = |field: &str, value: &str| json!({"metadata": {}, "data": {"a": "1"}, field: value});
    stage.place("configmaps", "same", with("immutable", "the default"), CopyPhase::Active);
    let meant = stage.place("configmaps", "meant", with("immutable", "something"), CopyPhase::Active);
    stage.until("the one is there", async |_| cluster.all("configmaps").len() == 1).await.unwrap();
    let told = async |s: &SyncStage| matches!(s.upstream.last_report(&meant), Some(CopyState::Failed { reason, message, .. }) if reason == "Incompatible" && message.contains("/immutable"));
    stage.until("the other is reported as incompatible", told).await.unwrap();
    let copy = cluster.all("configmaps").remove(0);
    assert_eq!((object::name(&copy), &copy["immutable"]), ("same", &Value::Null));
    stage.handle.stop().await;
}
