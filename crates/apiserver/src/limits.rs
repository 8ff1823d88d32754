//! How much may be under way at once.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;

/// Counts what is under way; beyond the bounds requests are told to come back.
pub(crate) struct Admittance {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    watches: Places,
    streams: Places,
}

/// Places for what may last, in all and in one logical cluster.
struct Places {
    total: Arc<Semaphore>,
    counts: Arc<Counts>,
    each: usize,
}

type Counts = Mutex<HashMap<LogicalClusterId, usize>>;

/// A place among what may last, given back when dropped.
pub(crate) struct Place {
    _total: OwnedSemaphorePermit,
    cluster: LogicalClusterId,
    counts: Arc<Counts>,
}

impl Admittance {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            reads: Arc::new(Semaphore::new(limits.reads)),
            writes: Arc::new(Semaphore::new(limits.writes)),
            watches: Places::new(limits.watches, limits.watches_per_cluster),
            streams: Places::new(limits.streams, limits.streams_per_cluster),
        }
    }

    /// A place for a request that is answered at once.
    pub(crate) fn enter(&self, is_write: bool) -> Result<OwnedSemaphorePermit, Status> {
        let places = if is_write { &self.writes } else { &self.reads };
        places.clone().try_acquire_owned().map_err(|_| too_many())
    }

    /// A place for a watch.
    pub(crate) fn watch(&self, cluster: LogicalClusterId) -> Result<Place, Status> {
        self.watches.take(cluster)
    }

    /// A place for a log, or for a stream in and out of a pod.
    pub(crate) fn stream(&self, cluster: LogicalClusterId) -> Result<Place, Status> {
        self.streams.take(cluster)
    }
}

impl Places {
    fn new(total: usize, each: usize) -> Self {
        Self { total: Arc::new(Semaphore::new(total)), counts: Arc::default(), each }
    }

    fn take(&self, cluster: LogicalClusterId) -> Result<Place, Status> {
        let total = self.total.clone().try_acquire_owned().map_err(|_| too_many())?;
        let mut counts = self.counts.lock();
        let count = counts.entry(cluster).or_default();
        if *count >= self.each {
            return Err(too_many());
        }
        *count += 1;
        Ok(Place { _total: total, cluster, counts: self.counts.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.cluster) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.cluster);
            }
        }
    }
}

fn too_many() -> Status {
    Status::too_many_requests("too many requests, please try again later", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bounds_requests_are_told_to_come_back() {
        let limits = Limits {
            reads: 1,
            writes: 1,
            watches: 3,
            watches_per_cluster: 2,
            streams: 1,
            streams_per_cluster: 1,
            ..Limits::default()
        };
        let places = Admittance::new(&limits);
        let first = places.enter(false).unwrap();
        assert_eq!(places.enter(false).err().map(|s| s.code()), Some(429));
        assert!(places.enter(true).is_ok());
        drop(first);
        assert!(places.enter(false).is_ok());

        let (one, two) = (LogicalClusterId::new(5), LogicalClusterId::new(6));
        let held = [places.watch(one).unwrap(), places.watch(one).unwrap()];
        assert!(places.watch(one).is_err(), "one logical cluster cannot take all");
        assert!(places.watch(two).is_ok());
        let stream = places.stream(one).unwrap();
        assert_eq!(places.stream(two).err().map(|s| s.code()), Some(429), "streams are bounded apart from watches");
        drop((held, stream));
        assert!(places.watches.counts.lock().is_empty() && places.streams.counts.lock().is_empty());
    }
}
