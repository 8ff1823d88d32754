//! Changes by others that need the rules of a real API server, and deletions that orphan the dependents of workloads.

use std::sync::Arc;

use portolan_types::{GroupVersionKind, annotations, object, placement::CopyPhase};
use serde_json::{Value, json};

use super::{SuiteResult, SyncStage, deployment, ensure};
use crate::connector::Connector;

const IMAGE: &str = "registry.example.com/web:1";

fn service() -> Value {
    json!({"metadata": {}, "spec": {"selector": {"app": "db"}, "ports": [{"port": 5432, "protocol": "TCP", "targetPort": 5432}]}})
}

/// A list with keys that somebody has changed, so that apply alone is refused, is repaired; so is a namespace's label.
pub(super) async fn drift(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 10).await?;
    stage.place("services", "db", service(), CopyPhase::Active);
    let is_whole = async |s: &SyncStage| {
        let ports = s.downstream("services", "db").await.unwrap_or_default()["spec"]["ports"].clone();
        ports.as_array().is_some_and(|ports| ports.len() == 1 && ports[0]["port"] == 5432)
    };
    stage.until("the copy is there", is_whole).await?;
    stage.tamper("services", "db", &json!({"spec": {"ports": [{"port": 9, "name": "x"}]}})).await?;
    stage.until("the port is back", is_whole).await?;
    let tenant = async |s: &SyncStage| {
        s.downstream_namespace_object()
            .await
            .and_then(|namespace| object::label(&namespace, annotations::DOWN_TENANT).map(str::to_owned))
    };
    let before = tenant(&stage).await;
    ensure(before.is_some(), "its namespace says whose it is")?;
    stage.tamper_namespace(&json!({"metadata": {"labels": {(annotations::DOWN_TENANT): "other"}}})).await?;
    stage.until("and says so again", async |s| tenant(s).await == before).await?;
    stage.finished().await
}

/// A Deployment that is deleted without its dependents leaves them running. A label that is set upstream reaches the
/// pod, and a new Deployment adopts it.
pub(super) async fn orphans(connector: Arc<dyn Connector>) -> SuiteResult {
    let stage = SyncStage::start(connector, 11).await?;
    let key = stage.place("deployments", "web", deployment(1, IMAGE), CopyPhase::Active);
    stage.until("its pod is shown", async |s| s.upstream.keys("pods").len() == 1).await?;
    let pod = stage.upstream.keys("pods").pop().ok_or("a pod")?;
    let mut labelled = stage.upstream.object(&pod).unwrap_or_default();
    object::set_label(&mut labelled, "role", Some("primary".into()));
    stage.upstream.write(&pod, &GroupVersionKind::new("", "v1", "Pod"), labelled);
    let role = async |s: &SyncStage| {
        s.downstream("pods", &pod.name).await.and_then(|pod| object::label(&pod, "role").map(str::to_owned))
    };
    stage.until("a label set upstream gets to it", async |s| role(s).await.as_deref() == Some("primary")).await?;
    let uid = |s: &SyncStage| s.upstream.object(&pod).map(|pod| object::meta_text(&pod, "uid").to_owned());
    let before = uid(&stage);
    stage.upstream.delete_without_dependents(&key);
    stage.until("the Deployment is gone", async |s| s.upstream.object(&key).is_none()).await?;
    ensure(stage.downstream("deployments", "web").await.is_none(), "downstream too")?;
    let stage = stage.restarted().await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    ensure(uid(&stage) == before && role(&stage).await.is_some(), "its pod runs on, and is shown")?;
    let set = stage.upstream.keys("replicasets").pop().ok_or("its ReplicaSet is shown")?;
    stage.place("deployments", "web", deployment(1, IMAGE), CopyPhase::Active);
    let adopted_by = |s: &SyncStage| {
        let set = s.upstream.object(&set).unwrap_or_default();
        object::controller_of(&set).map(|owner| owner["uid"].clone())
    };
    stage
        .until("a later one adopts them", async |s| {
            let owner = s.upstream.object(&key).map(|owner| json!(object::meta_text(&owner, "uid")));
            owner.is_some() && adopted_by(s) == owner
        })
        .await?;
    ensure(uid(&stage) == before && stage.upstream.keys("pods").len() == 1, "and makes no pod of its own")?;
    stage.upstream.delete(&key);
    stage.until("all of it ends", async |s| s.upstream.keys("pods").is_empty()).await?;
    stage.finished().await
}
