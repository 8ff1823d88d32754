//! Bounds per client, so that one pod cannot take what all pods share.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Number of uses by client, each of at most `most`.
#[derive(Clone)]
pub(super) struct ClientCounts {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
}

impl ClientCounts {
    /// Makes counts that admit `most` uses of a client at a time.
    pub(super) fn new(most: usize) -> Self {
        Self { counts: Arc::default(), most }
    }

    /// Counts a use of a client until the guard is dropped; `None` if it has the most already.
    pub(super) fn admit(&self, client: IpAddr) -> Option<CountedUse> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(client).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(CountedUse { counts: self.clone(), client })
    }
}

/// Guard of a counted use.
pub(super) struct CountedUse {
    counts: ClientCounts,
    client: IpAddr,
}

impl Drop for CountedUse {
    fn drop(&mut self) {
        let mut counts = self.counts.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_bound_of_its_own() {
        let (counts, pod) = (ClientCounts::new(2), |last: u8| IpAddr::from([10, 1, 0, last]));
        let (first, second) = (counts.admit(pod(1)).unwrap(), counts.admit(pod(1)).unwrap());
        assert!(counts.admit(pod(1)).is_none(), "one too many");
        let other = counts.admit(pod(2)).expect("another pod has its own");
        drop(first);
        let again = counts.admit(pod(1)).expect("one has ended");
        drop((second, other, again));
        assert!(counts.counts.lock().unwrap().is_empty());
    }
}
