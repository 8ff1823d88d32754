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
    watches: Arc<Semaphore>,
    per_cluster: Arc<Mutex<HashMap<LogicalClusterId, usize>>>,
    watches_per_cluster: usize,
}

/// A place among the watches, given back when dropped.
pub(crate) struct WatchPlace {
    _total: OwnedSemaphorePermit,
    cluster: LogicalClusterId,
    per_cluster: Arc<Mutex<HashMap<LogicalClusterId, usize>>>,
}

impl Admittance {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            reads: Arc::new(Semaphore::new(limits.reads)),
            writes: Arc::new(Semaphore::new(limits.writes)),
            watches: Arc::new(Semaphore::new(limits.watches)),
            per_cluster: Arc::default(),
            watches_per_cluster: limits.watches_per_cluster,
        }
    }

    /// A place for a request that is no watch.
    pub(crate) fn enter(&self, is_write: bool) -> Result<OwnedSemaphorePermit, Status> {
        let places = if is_write { &self.writes } else { &self.reads };
        places.clone().try_acquire_owned().map_err(|_| too_many())
    }

    /// A place for a watch.
    pub(crate) fn watch(&self, cluster: LogicalClusterId) -> Result<WatchPlace, Status> {
        let total = self.watches.clone().try_acquire_owned().map_err(|_| too_many())?;
        let mut counts = self.per_cluster.lock();
        let count = counts.entry(cluster).or_default();
        if *count >= self.watches_per_cluster {
            return Err(too_many());
        }
        *count += 1;
        Ok(WatchPlace { _total: total, cluster, per_cluster: self.per_cluster.clone() })
    }
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut counts = self.per_cluster.lock();
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
        let limits = Limits { reads: 1, writes: 1, watches: 3, watches_per_cluster: 2, ..Limits::default() };
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
        drop(held);
        assert!(places.per_cluster.lock().is_empty());
    }
}
