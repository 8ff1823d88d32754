//! Limits how often what a physical cluster shows of an object is written upstream: its status may change as often as it likes.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::Work;

/// Writes about one object that may come at once.
const BURST: f64 = 20.0;
/// Writes per second in the long run.
const PER_SECOND: f64 = 1.0;
/// Objects whose writes are counted before those that may write a burst again are forgotten.
const MAX_COUNTED: usize = 10_000;

/// Token buckets of the objects that were written about lately, by the work that writes.
#[derive(Default)]
pub(super) struct WriteRates(HashMap<Work, (f64, Instant)>);

impl WriteRates {
    /// Counts a write about an object.
    ///
    /// # Errors
    /// The time until the next write is permitted; then nothing is counted.
    pub(super) fn spend(&mut self, object: &Work, now: Instant) -> Result<(), Duration> {
        let permits =
            |(left, at): (f64, Instant)| (left + now.duration_since(at).as_secs_f64() * PER_SECOND).min(BURST);
        let left = self.0.get(object).copied().map_or(BURST, permits);
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) / PER_SECOND));
        }
        self.0.insert(object.clone(), (left - 1.0, now));
        if self.0.len() > MAX_COUNTED {
            self.0.retain(|_, bucket| permits(*bucket) < BURST);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::placement::Phase;
    use serde_json::json;

    use super::*;
    use crate::testing::{
        FakeCluster,
        suite::{Stage, deployment},
    };

    #[tokio::test(start_paused = true)]
    async fn an_object_is_written_about_in_a_burst_and_then_once_per_second() {
        let mut rates = WriteRates::default();
        let object = |name: &str| Work::Namespace(name.to_owned());
        let mut written =
            |name: &str, count| (0..count).filter(|_| rates.spend(&object(name), Instant::now()).is_ok()).count();
        assert_eq!((written("a", 100), written("b", 3)), (20, 3), "a burst of each");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(written("a", 10), 0);
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(written("a", 10), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_flaps_is_written_once_per_second_and_its_last_state_always() {
        let cluster = FakeCluster::default();
        let stage = Stage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let key = stage.place("deployments", "web", deployment(1, "i:1"), Phase::Active);
        stage.until("the copy is there", async |_| cluster.all("deployments").len() == 1).await.unwrap();
        stage.until("it is reported", async |s| s.upstream.last_report(&key).is_some()).await.unwrap();
        let set = |ready: i64| {
            let mut copy = cluster.all("deployments").remove(0);
            let forged = json!({"type": "portolan.dev/Synced", "status": "False", "reason": "Forged"});
            let own = json!({"type": "Available", "status": "True"});
            copy["status"] = json!({"readyReplicas": ready, "conditions": [forged, own]});
            cluster.put("deployments", copy);
        };
        let before = stage.upstream.report_count();
        for change in 0..600 {
            set(change);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let written = stage.upstream.report_count() - before;
        assert!((20..=52).contains(&written), "{written} writes in 30 s");
        let status = |s: &Stage| s.upstream.object(&key).unwrap_or_default()["status"].clone();
        stage.until("the last state arrives", async |s| status(s)["readyReplicas"] == 599).await.unwrap();
        let types: Vec<_> =
            status(&stage)["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
        assert_eq!(types, ["Available"], "a condition of Portolan's own cannot be forged");
        stage.handle.stop().await;
    }
}
