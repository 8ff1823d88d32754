//! Bounded uses by the address of a client, so that one client cannot use up what all clients share.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Number of uses by client, each of at most `most`. Clones share the counts.
#[derive(Clone, Debug)]
pub struct ClientCounts {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
}

impl ClientCounts {
    /// Makes counts that admit `most` uses of a client at a time.
    pub fn new(most: usize) -> Self {
        Self { counts: Arc::default(), most }
    }

    /// Counts a use of a client until the guard is dropped; `None` if it has the most already.
    pub fn admit(&self, client: IpAddr) -> Option<CountedUse> {
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
#[derive(Debug)]
pub struct CountedUse {
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
        let (counts, client) = (ClientCounts::new(2), |last: u8| IpAddr::from([10, 1, 0, last]));
        let mut held: Vec<_> = (0..2).map(|_| counts.admit(client(1)).unwrap()).collect();
        assert!(counts.admit(client(1)).is_none(), "one too many");
        let other = counts.admit(client(2)).expect("another client has its own");
        held.pop();
        held.push(counts.admit(client(1)).expect("one has ended"));
        drop((held, other));
        assert!(counts.counts.lock().unwrap().is_empty(), "idle clients are forgotten");
    }
}
