//! Token buckets: a burst, then a rate. A physical cluster may change its objects as often as it likes, and upstream is
//! written at a bounded rate.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Buckets that are counted before the full ones are forgotten.
const MAX_BUCKETS: usize = 10_000;

/// Rate of a token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenRate {
    /// Tokens of a full bucket.
    pub(super) burst: f64,
    /// Tokens that come back per second.
    pub(super) per_second: f64,
}

/// Rate of the writes about one object.
pub(super) const WRITE_RATE: TokenRate = TokenRate { burst: 20.0, per_second: 1.0 };
/// Rate of the Events that are shown in one logical cluster.
pub(super) const EVENT_RATE: TokenRate = TokenRate { burst: 50.0, per_second: 2.0 };

/// Tokens of one bucket at a time.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    fn tokens_at(self, rate: TokenRate, now: Instant) -> f64 {
        (self.tokens + now.duration_since(self.at).as_secs_f64() * rate.per_second).min(rate.burst)
    }
}

/// Token buckets by key. A key without a bucket has a full one.
pub(super) struct TokenBuckets<K>(HashMap<K, TokenBucket>);

impl<K> Default for TokenBuckets<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> TokenBuckets<K> {
    /// Takes a token from the bucket of `key`, which fills at `rate`.
    ///
    /// # Errors
    /// The time until there is a token; then none is taken.
    pub(super) fn take(&mut self, key: K, rate: TokenRate, now: Instant) -> Result<(), Duration> {
        let tokens = self.0.get(&key).map_or(rate.burst, |bucket| bucket.tokens_at(rate, now));
        if tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - tokens) / rate.per_second));
        }
        self.0.insert(key, TokenBucket { tokens: tokens - 1.0, at: now });
        if self.0.len() > MAX_BUCKETS {
            self.0.retain(|_, bucket| bucket.tokens_at(rate, now) < rate.burst);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_types::{LogicalClusterId, placement::CopyPhase};
    use serde_json::json;

    use super::{super::Work, *};
    use crate::testing::{
        FakeCluster,
        suite::{SyncStage, deployment},
    };

    #[tokio::test(start_paused = true)]
    async fn an_object_is_written_about_in_a_burst_and_then_once_per_second() {
        let mut buckets = TokenBuckets::default();
        let object = |name: &str| Work::Namespace(name.to_owned());
        let mut written = |name: &str, count| {
            (0..count).filter(|_| buckets.take(object(name), WRITE_RATE, Instant::now()).is_ok()).count()
        };
        assert_eq!((written("a", 100), written("b", 3)), (20, 3), "a burst of each");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(written("a", 10), 0);
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(written("a", 10), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn each_logical_cluster_has_its_own_rate_of_events() {
        let mut buckets = TokenBuckets::default();
        let mut shown = |cluster, seconds| {
            (0..seconds * 100).filter(|_| buckets.take(cluster, EVENT_RATE, Instant::now()).is_ok()).count()
        };
        let (noisy, calm) = (LogicalClusterId::new(7), LogicalClusterId::new(8));
        assert_eq!((shown(noisy, 10), shown(calm, 0)), (50, 0), "a burst");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(shown(noisy, 1), 20, "then a few per second");
        assert_eq!(shown(calm, 10), 50, "one does not take from another");
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_flaps_is_written_once_per_second_and_its_last_state_always() {
        let cluster = FakeCluster::default();
        let stage = SyncStage::start(Arc::new(cluster.clone()), 9).await.unwrap();
        let key = stage.place("deployments", "web", deployment(1, "i:1"), CopyPhase::Active);
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
        let status = |s: &SyncStage| s.upstream.object(&key).unwrap_or_default()["status"].clone();
        stage.until("the last state arrives", async |s| status(s)["readyReplicas"] == 599).await.unwrap();
        let types: Vec<_> =
            status(&stage)["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
        assert_eq!(types, ["Available"], "a condition of Portolan's own cannot be forged");
        stage.handle.stop().await;
    }
}
