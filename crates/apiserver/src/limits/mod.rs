//! How much may be under way at once, and whose it is.

mod fair;
mod places;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use portolan_types::{LogicalClusterId, Status};

use crate::{User, config::Limits, metrics::FlowMetrics};

use fair::{Bounds, Fair, Flow, NoSeat};
use places::Places;

pub(crate) use fair::Seat;
pub(crate) use places::Place;

/// Counts what is under way; beyond the bounds requests wait for their turn, or are told to come back.
pub(crate) struct Admittance {
    reads: Requests,
    writes: Requests,
    watches: Places,
    streams: Places,
    webhooks: Places,
    conversions: Places,
}

/// Requests of one sort that are answered at once.
struct Requests {
    seats: Arc<Fair>,
    metrics: FlowMetrics,
}

impl Admittance {
    pub(crate) fn new(limits: &Limits, reads: FlowMetrics, writes: FlowMetrics) -> Self {
        let requests = |seats, metrics| {
            let bounds = Bounds { seats, waiting: limits.waiting, patience: limits.patience };
            Requests { seats: Fair::new(bounds), metrics }
        };
        let places = |total, each_cluster| {
            // Half: what one user does leaves room for the others of the logical cluster.
            Places::new(places::Bounds { total, each_cluster, each_user: (each_cluster / 2).max(1) })
        };
        Self {
            reads: requests(limits.reads, reads),
            writes: requests(limits.writes, writes),
            watches: places(limits.watches, limits.watches_per_cluster),
            streams: places(limits.streams, limits.streams_per_cluster),
            webhooks: places(limits.webhooks, limits.webhooks_per_cluster),
            conversions: places(limits.webhooks, limits.webhooks_per_cluster),
        }
    }

    /// A seat for a request that is answered at once, when it is its turn.
    ///
    /// # Errors
    /// 429 when too many wait, or it waited for `patience`.
    pub(crate) async fn enter(
        &self,
        cluster: LogicalClusterId,
        user: &User,
        is_write: bool,
        patience: Duration,
    ) -> Result<Seat, Status> {
        let requests = if is_write { &self.writes } else { &self.reads };
        let _waiting = requests.metrics.waiting();
        let entered = requests.seats.enter(flow(cluster, user), patience).await;
        entered.map_err(|why| {
            requests.metrics.rejected(match why {
                NoSeat::Full => "queue-full",
                NoSeat::TimeOut => "time-out",
            });
            too_many()
        })
    }

    /// A place for a watch.
    pub(crate) fn watch(&self, cluster: LogicalClusterId, user: &User) -> Result<Place, Status> {
        self.watches.take(flow(cluster, user)).ok_or_else(too_many)
    }

    /// A place for a log, or for a stream in and out of a pod.
    pub(crate) fn stream(&self, cluster: LogicalClusterId, user: &User) -> Result<Place, Status> {
        self.streams.take(flow(cluster, user)).ok_or_else(too_many)
    }

    /// A place for a write that waits for webhooks.
    pub(crate) fn webhook(&self, cluster: LogicalClusterId, user: &User) -> Result<Place, Status> {
        self.webhooks.take(flow(cluster, user)).ok_or_else(too_many)
    }

    /// A place for a call that converts objects.
    pub(crate) fn conversion(&self, cluster: LogicalClusterId) -> Result<Place, Status> {
        self.conversions.take(whole(cluster)).ok_or_else(too_many)
    }
}

/// All that is done in a logical cluster, by whomever.
fn whole(cluster: LogicalClusterId) -> Flow {
    Flow { cluster, user: 0 }
}

fn flow(cluster: LogicalClusterId, user: &User) -> Flow {
    let mut hasher = DefaultHasher::new();
    user.name.hash(&mut hasher);
    Flow { cluster, user: hasher.finish() }
}

fn too_many() -> Status {
    Status::too_many_requests("too many requests, please try again later", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn beyond_the_bounds_requests_are_told_to_come_back() {
        let limits = Limits {
            reads: 1,
            writes: 1,
            waiting: 0,
            watches: 6,
            watches_per_cluster: 4,
            streams: 1,
            streams_per_cluster: 1,
            ..Limits::default()
        };
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let places = Admittance::new(&limits, metrics.flow("reads"), metrics.flow("writes"));
        let (one, two) = (LogicalClusterId::new(5), LogicalClusterId::new(6));
        let [ann, bob] = ["ann", "bob"].map(|name| User { name: name.into(), ..User::default() });
        let enter = |is_write| places.enter(one, &ann, is_write, Duration::from_secs(1));
        let first = enter(false).await.unwrap();
        assert_eq!(enter(false).await.err().map(|s| s.code()), Some(429));
        assert!(enter(true).await.is_ok());
        drop(first);
        assert!(enter(false).await.is_ok());

        let held = [places.watch(one, &ann).unwrap(), places.watch(one, &ann).unwrap()];
        assert!(places.watch(one, &ann).is_err(), "one user cannot take all of a logical cluster");
        let bobs = [places.watch(one, &bob).unwrap(), places.watch(one, &bob).unwrap()];
        assert!(places.watch(one, &User::default()).is_err(), "one logical cluster cannot take all");
        assert!(places.watch(two, &ann).is_ok());
        let stream = places.stream(one, &ann).unwrap();
        assert_eq!(
            places.stream(two, &ann).err().map(|s| s.code()),
            Some(429),
            "streams are bounded apart from watches"
        );
        drop((held, bobs, stream));
        assert!(places.watches.is_empty() && places.streams.is_empty());
    }
}
