//! Rate limit of creates by physical clusters, which could fill workspaces with objects of new names.

use std::{collections::HashMap, sync::Mutex};

use portolan_store::AccountLimit;
use portolan_types::{LogicalClusterId, Uid};
use tokio::time::Instant;

/// Burst of creates per physical cluster.
const BURST: f64 = 5_000.0;
/// Sustained creates per second and physical cluster.
const PER_SECOND: f64 = 50.0;

/// Function that returns the accounts of a logical cluster and its ancestors, which a create is charged to.
pub(crate) type AccountLookup = Box<dyn Fn(LogicalClusterId) -> Vec<AccountLimit> + Send + Sync>;

/// Token buckets of creates, one per physical cluster.
#[derive(Default)]
pub(super) struct CreateRateLimiter(Mutex<HashMap<Uid, (f64, Instant)>>);

impl CreateRateLimiter {
    /// Takes a token; returns false if there is none.
    pub(super) fn permit(&self, physical: &Uid) -> bool {
        let now = Instant::now();
        let mut buckets = self.0.lock().expect("no code panics under this lock");
        let (left, at) = buckets.entry(physical.clone()).or_insert((BURST, now));
        *left = (*left + now.duration_since(*at).as_secs_f64() * PER_SECOND).min(BURST);
        *at = now;
        let is_permitted = *left >= 1.0;
        *left -= f64::from(u8::from(is_permitted));
        is_permitted
    }

    pub(super) fn forget(&self, physical: &Uid) {
        self.0.lock().expect("no code panics under this lock").remove(physical);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn creates_come_in_a_burst_and_then_at_a_rate() {
        let (rates, east, west) = (CreateRateLimiter::default(), "east".parse().unwrap(), "west".parse().unwrap());
        let permitted = |physical: &Uid| (0..10_000).filter(|_| rates.permit(physical)).count();
        assert_eq!(permitted(&east), 5_000);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((permitted(&east), permitted(&west)), (100, 5_000), "of each physical cluster on its own");
    }
}
