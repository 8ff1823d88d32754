//! View that pods get of their logical cluster.

use std::{sync::Arc, time::Duration};

use portolan_types::{placement::CopyPhase, upstream::CopyState};
use serde_json::{Value, json};

use super::{
    CannedAnswer, FakeCluster,
    suite::{SyncStage, deployment},
};

/// Returns a physical cluster with the Services of an agent and a responder.
fn cluster() -> FakeCluster {
    let cluster = FakeCluster::default();
    for (name, address, port) in [("portolan-api", "10.96.0.21", 443), ("portolan-dns", "10.96.0.20", 53)] {
        let spec = json!({"clusterIP": address, "ports": [{"port": port}]});
        cluster.put("services", json!({"metadata": {"name": name, "namespace": "portolan"}, "spec": spec}));
    }
    cluster
}

fn secret(cluster: &FakeCluster) -> Option<Value> {
    cluster.all("secrets").into_iter().find(|secret| secret["stringData"]["token"].is_string())
}

fn token(cluster: &FakeCluster) -> String {
    secret(cluster).and_then(|found| found["stringData"]["token"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// A time that never comes.
const NEVER: i64 = i64::MAX / 2;

#[tokio::test(start_paused = true)]
async fn pods_get_the_api_a_token_and_the_names_of_their_logical_cluster() {
    let cluster = cluster();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.upstream.renew_tokens_at(NEVER);
    stage.place("deployments", "web", deployment(1, "image:1"), CopyPhase::Active);
    stage.until("there is a token", async |_| !token(&cluster).is_empty()).await.unwrap();
    let (copy, secret) = (cluster.all("deployments").remove(0), secret(&cluster).unwrap());
    let pod = &copy["spec"]["template"]["spec"];
    assert_eq!(pod["hostAliases"][0], json!({"ip": "10.96.0.21", "hostnames": ["kubernetes.default.svc"]}));
    assert_eq!(pod["dnsConfig"]["nameservers"], json!(["10.96.0.20"]));
    assert_eq!(pod["automountServiceAccountToken"], false, "never a token of the physical cluster");
    assert_eq!(pod["volumes"][0]["projected"]["sources"][0]["secret"]["name"], secret["metadata"]["name"]);
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], copy["metadata"]["uid"]);
    assert_eq!(secret["stringData"]["namespace"], "shop");
    let told = stage.upstream.cluster().and_then(|report| report.pods).unwrap();
    assert!(told.are_names_resolved && told.server.unwrap().contains("10.96.0.21"));
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_in_time_and_survives_a_restart() {
    let cluster = cluster();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.place("deployments", "web", deployment(1, "image:1"), CopyPhase::Active);
    stage.until("it is renewed", async |_| token(&cluster).ends_with("number 3")).await.unwrap();
    stage.upstream.renew_tokens_at(NEVER);
    stage
        .until("it lasts", async |_| secret(&cluster).is_some_and(|s| s.to_string().contains(&NEVER.to_string())))
        .await
        .unwrap();
    let before = token(&cluster);
    let stage = stage.restarted().await;
    let applied = cluster.requests("PATCH").len();
    stage.place("deployments", "web", deployment(2, "image:1"), CopyPhase::Active);
    stage.until("another write", async |_| cluster.all("deployments")[0]["spec"]["replicas"] == 2).await.unwrap();
    assert!(cluster.requests("PATCH").len() > applied);
    assert_eq!(token(&cluster), before, "the next worker keeps a token that is good");
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_without_a_token() {
    for (case, spec, mounts) in [
        ("the pods want none", json!({"automountServiceAccountToken": false}), false),
        ("the account gives none", json!({"serviceAccountName": "none"}), false),
        ("the account gives one", json!({"serviceAccountName": "builder"}), true),
    ] {
        let cluster = cluster();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.upstream.renew_tokens_at(NEVER);
        let mut object = deployment(1, "image:1");
        for (field, value) in spec.as_object().unwrap() {
            object["spec"]["template"]["spec"][field] = value.clone();
        }
        stage.place("deployments", "web", object, CopyPhase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        let pod = cluster.all("deployments")[0]["spec"]["template"]["spec"].clone();
        assert_eq!(pod["volumes"].is_array(), mounts, "{case}: {pod}");
        assert!(pod["hostAliases"].is_array(), "{case}: the address is known all the same");
        stage.handle.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_exist_keep_their_view() {
    let cluster = FakeCluster::default();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    let pod = || json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let key = stage.place("pods", "one", pod(), CopyPhase::Active);
    stage.until("the copy is there", async |_| cluster.all("pods").len() == 1).await.unwrap();
    let told = stage.upstream.cluster().and_then(|report| report.pods).unwrap();
    assert!(!told.are_names_resolved && told.server.unwrap_err().0 == "NoAddress");
    for (name, address) in [("portolan-api", "10.96.0.21"), ("portolan-dns", "10.96.0.20")] {
        let spec = json!({"clusterIP": address, "ports": [{"port": 443}]});
        cluster.put("services", json!({"metadata": {"name": name, "namespace": "portolan"}, "spec": spec}));
    }
    let stage = stage.restarted().await;
    stage.place("pods", "two", pod(), CopyPhase::Active);
    stage
        .until("a new pod has the view", async |_| {
            cluster.all("pods").iter().any(|pod| pod["spec"]["hostAliases"].is_array())
        })
        .await
        .unwrap();
    let has_view: Vec<bool> = cluster.all("pods").iter().map(|pod| pod["spec"]["hostAliases"].is_array()).collect();
    assert_eq!(has_view.iter().filter(|has| **has).count(), 1, "the first pod is as it was made");
    assert!(matches!(stage.upstream.last_report(&key), Some(CopyState::Synced { .. })));
    stage.handle.stop().await;
}

fn deployment_of(cluster: &FakeCluster) -> Value {
    cluster.all("deployments").remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_made_again_gets_a_token_again() {
    let cluster = cluster();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.upstream.renew_tokens_at(NEVER);
    stage.place("deployments", "web", deployment(1, "image:1"), CopyPhase::Active);
    stage.until("there is a token", async |_| !token(&cluster).is_empty()).await.unwrap();
    // The garbage collector of the physical cluster deletes the Secret with its owner.
    cluster.remove("secrets", &secret(&cluster).unwrap());
    cluster.remove("deployments", &deployment_of(&cluster));
    let is_owned = async |_: &SyncStage| {
        let owner = secret(&cluster).map(|secret| secret["metadata"]["ownerReferences"][0]["uid"].clone());
        owner.is_some_and(|owner| cluster.all("deployments").iter().any(|copy| copy["metadata"]["uid"] == owner))
    };
    stage.until("the new copy owns a token", is_owned).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn running_pods_keep_their_token_when_their_account_gives_none() {
    let cluster = cluster();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.place("deployments", "web", deployment(1, "image:1"), CopyPhase::Active);
    stage.until("it is renewed", async |_| token(&cluster).ends_with("number 2")).await.unwrap();
    stage.upstream.issue_no_tokens();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let pod = deployment_of(&cluster)["spec"]["template"]["spec"].clone();
    assert!(pod["volumes"].is_array(), "{pod}");
    assert!(!token(&cluster).is_empty());
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_missing_for_a_moment_rolls_no_workload() {
    for (code, lost_at_last) in [(403, false), (404, true)] {
        let cluster = cluster();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        stage.upstream.renew_tokens_at(NEVER);
        stage.place("deployments", "web", deployment(1, "image:1"), CopyPhase::Active);
        stage.until("there is a token", async |_| !token(&cluster).is_empty()).await.unwrap();
        let before = deployment_of(&cluster)["spec"].clone();
        cluster.script(move |_, path| {
            let status = json!({"kind": "Status", "code": code, "reason": "", "message": ""});
            path.contains("/services/portolan-").then_some(CannedAnswer::Answer(code, status))
        });
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(deployment_of(&cluster)["spec"], before, "{code}: for a moment");
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!(deployment_of(&cluster)["spec"] != before, lost_at_last, "{code}: for good");
        stage.handle.stop().await;
    }
}
