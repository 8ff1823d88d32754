//! Loops of delete and create have a backoff.

use std::{sync::Arc, time::Duration};

use portolan_types::placement::CopyPhase;
use serde_json::json;
use tokio::time::Instant;

use super::{FakeCluster, suite::SyncStage};

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_deleted_each_time_is_made_less_and_less_often() {
    let cluster = FakeCluster::default();
    let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
    stage.place("configmaps", "c", json!({"metadata": {}, "data": {"a": "1"}}), CopyPhase::Active);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(120) {
        cluster.all("configmaps").iter().for_each(|copy| cluster.remove("configmaps", copy));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let made = cluster.requests("POST").iter().filter(|path| path.contains("configmaps")).count();
    assert!((5..=12).contains(&made), "{made} copies in two minutes");
    stage
        .until("one stays once no controller deletes it", async |_| cluster.all("configmaps").len() == 1)
        .await
        .unwrap();
    stage.handle.stop().await;
}
