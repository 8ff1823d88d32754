//! A physical cluster that was removed by force and returns under a new registration: copies that the former one left
//! there.

use std::{sync::Arc, time::Duration};

use portolan_types::{
    object,
    placement::{CopyIdentity, CopyPhase},
    upstream::CopyState,
};
use serde_json::{Value, json};

use super::{FakeCluster, suite::SyncStage};
use crate::worker::LeftBehindOrder;

fn data(value: &str) -> Value {
    json!({"metadata": {}, "data": {"a": value}})
}

/// A stage on a cluster where the registration 8 has left the copies `a` and `b`, of which the registration 9 is to
/// have `a`.
async fn returned(cluster: &FakeCluster) -> SyncStage {
    let former = SyncStage::start(Arc::new(cluster.clone()), 8).await.unwrap();
    for name in ["a", "b"] {
        former.place("configmaps", name, data("1"), CopyPhase::Active);
    }
    former.until("the copies are there", async |_| cluster.all("configmaps").len() == 2).await.unwrap();
    let stage = former.registered_anew(9).await.unwrap();
    stage.place("configmaps", "a", data("2"), CopyPhase::Active);
    stage
}

fn left_behind(stage: &SyncStage) -> u64 {
    stage.upstream.cluster().map_or(0, |report| report.left_behind)
}

fn copies(cluster: &FakeCluster) -> Vec<(String, String)> {
    let copies = cluster.all("configmaps");
    let owner = |copy: &Value| CopyIdentity::of(copy).map(|identity| identity.physical.to_string()).unwrap_or_default();
    copies.iter().map(|copy| (object::name(copy).to_owned(), owner(copy))).collect()
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_removed_registration_are_reported_and_untouched() {
    let cluster = FakeCluster::default();
    let stage = returned(&cluster).await;
    let key = stage.key("configmaps", "a");
    stage.until("it is told", async |s| left_behind(s) == 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let untouched = [("a", "physical-8"), ("b", "physical-8")].map(|(name, owner)| (name.to_owned(), owner.to_owned()));
    assert_eq!(copies(&cluster), untouched, "nothing happens by itself");
    let Some(CopyState::Failed { message, .. }) = stage.upstream.last_report(&key) else { panic!("it is told") };
    assert!(message.contains("another registration of the physical cluster"), "{message}");

    stage.handle.settle_left_behind(LeftBehindOrder::Adopt);
    let adopted = [("a".to_owned(), "physical-9".to_owned())];
    stage.until("a is kept and b goes", async |_| copies(&cluster) == adopted).await.unwrap();
    stage.until("a is as it is upstream", async |_| cluster.all("configmaps")[0]["data"]["a"] == "2").await.unwrap();
    stage.until("nothing is left", async |s| left_behind(s) == 0).await.unwrap();
    stage.handle.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_removed_registration_are_deleted_on_request() {
    let cluster = FakeCluster::default();
    let stage = returned(&cluster).await;
    stage.until("it is told", async |s| left_behind(s) == 1).await.unwrap();
    let path = format!("DELETE /api/v1/namespaces/{}", stage.namespace());
    assert!(cluster.requests("DELETE ").is_empty());
    stage.handle.settle_left_behind(LeftBehindOrder::Delete);
    stage.until("it is deleted", async |_| cluster.requests("DELETE ").contains(&path)).await.unwrap();
    stage.handle.stop().await;
}
