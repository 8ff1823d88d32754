//! A physical cluster that does not answer any more: what runs there is not ready upstream, until it answers again.

use std::{sync::Arc, time::Duration};

use portolan_types::{object, placement::CopyPhase};
use serde_json::{Value, json};

use super::{
    FakeCluster,
    suite::{SyncStage, deployment},
    tests::run_deployment,
};

fn ready(pod: &Value) -> String {
    let all = pod.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let ready = all.iter().find(|condition| condition["type"] == "Ready");
    ready.map(|condition| condition["status"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_dead_physical_cluster_has_nothing_ready_until_it_is_back() {
    let cluster = FakeCluster::default();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    let (set, mut pod) = run_deployment(&cluster);
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    cluster.put("pods", pod);
    let mut copy = cluster.all("deployments").remove(0);
    copy["status"] = json!({"observedGeneration": object::generation(&copy), "replicas": 1, "updatedReplicas": 1,
        "readyReplicas": 1, "availableReplicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
    cluster.put("deployments", copy);
    drop(set);
    let state = async |s: &SyncStage| {
        let pod = s.upstream.keys("pods").first().and_then(|key| s.upstream.object(key)).unwrap_or_default();
        let set = s.upstream.keys("replicasets").first().and_then(|key| s.upstream.object(key)).unwrap_or_default();
        let web = s.upstream.object(&key).unwrap_or_default();
        let count = |object: &Value, field: &str| object["status"][field].as_i64().unwrap_or(0);
        let available = web["status"]["conditions"][0]["status"].as_str().unwrap_or_default().to_owned();
        let counts = [count(&web, "readyReplicas"), count(&web, "unavailableReplicas"), count(&set, "readyReplicas")];
        (counts, available, ready(&pod))
    };
    let healthy = ([1, 0, 1], "True".to_owned(), "True".to_owned());
    let dead = ([0, 1, 0], "Unknown".to_owned(), "False".to_owned());
    stage.until("all of it is ready", async |s| state(s).await == healthy).await.unwrap();
    stage.set_cut(true);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(state(&stage).await, healthy, "a moment out of reach changes nothing");
    stage.until("nothing of it is", async |s| state(s).await == dead).await.unwrap();
    let pods = stage.upstream.keys("pods");
    assert_eq!(stage.upstream.object(&pods[0]).unwrap()["status"]["phase"], "Running", "it may be running still");
    stage.set_cut(false);
    stage.until("all of it is ready again", async |s| state(s).await == healthy).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_starts_while_its_cluster_is_down_reports_it() {
    let cluster = FakeCluster::default();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
    let (_, mut pod) = run_deployment(&cluster);
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    cluster.put("pods", pod);
    let shown = async |s: &SyncStage| s.upstream.keys("pods").first().and_then(|key| s.upstream.object(key));
    stage.until("the pod is ready", async |s| shown(s).await.is_some_and(|pod| ready(&pod) == "True")).await.unwrap();
    stage.set_cut(true);
    let stage = stage.restarted().await;
    stage.until("it is not", async |s| shown(s).await.is_some_and(|pod| ready(&pod) == "False")).await.unwrap();
    stage.set_cut(false);
    stage.until("it is again", async |s| shown(s).await.is_some_and(|pod| ready(&pod) == "True")).await.unwrap();
    stage.handle.stop().await;
}
