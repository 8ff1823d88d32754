//! Order in which connections end for newcomers.
//!
//! 1. Unauthenticated ones, while they hold more than their share.
//! 2. Idle ones of authenticated clients.
//! 3. Those with requests of a tenant that holds more than its share: its watches can be resumed.
//! 4. Unauthenticated ones.
//!
//! The largest network (in step 3: tenant) comes first; within it, the oldest connection, or the one that is idle for
//! longest. Other connections with a running request of an authenticated client are never evicted.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    hash::Hash,
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

use super::EvictableConnection;

/// Divisor of the capacity that unauthenticated connections may hold: an eighth. It gives a newcomer the time to
/// authenticate while others arrive.
const UNAUTHENTICATED_SHARE: usize = 8;
/// Divisor of the capacity that a tenant may hold with busy connections: a quarter.
const TENANT_SHARE: usize = 4;
/// Average number of connections inspected per newcomer; a scan inspects all of them.
const SCANNED_PER_VICTIM: usize = 64;
/// Time for which the result of a scan is used.
const SCAN_VALIDITY: Duration = Duration::from_secs(1);
/// Pause after a scan that found few or no connections.
const SCAN_PAUSE: Duration = Duration::from_millis(50);

/// Class of a connection, for the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionClass {
    /// No valid credentials yet.
    Unauthenticated,
    /// Without a running request since then.
    Idle(Instant),
    /// With a running request, the last one in this tenant.
    Busy(u64),
}

/// Queue of the connections that end next, filled by a scan of all connections.
#[derive(Default)]
pub(super) struct VictimQueue {
    queued: VecDeque<(u64, ConnectionClass)>,
    pub(super) scanned: Option<Instant>,
    /// True if the last scan found no further candidates.
    is_complete: bool,
}

type LiveConnections = BTreeMap<u64, (IpAddr, EvictableConnection)>;

impl VictimQueue {
    /// Selects the connection to end for a newcomer.
    pub(super) fn next(&mut self, live: &LiveConnections, capacity: usize) -> Option<u64> {
        let age = self.scanned.map(|scanned| scanned.elapsed());
        if age.is_some_and(|age| age > SCAN_VALIDITY) {
            self.queued.clear();
        }
        if let Some(victim) = self.pop(live) {
            return Some(victim);
        }
        if self.is_complete && age.is_some_and(|age| age < SCAN_PAUSE) {
            return None;
        }
        self.scan(live, capacity);
        self.pop(live)
    }

    /// Takes the first one whose class is unchanged since the scan.
    fn pop(&mut self, live: &LiveConnections) -> Option<u64> {
        let queued = std::iter::from_fn(|| self.queued.pop_front());
        let mut unchanged = queued.filter(|(number, class)| {
            let now = live.get(number).map(|(_, connection)| connection.class());
            // A tenant's connection that became idle is an even better candidate.
            now == Some(*class) || matches!((class, now), (ConnectionClass::Busy(_), Some(ConnectionClass::Idle(_))))
        });
        unchanged.next().map(|(number, _)| number)
    }

    fn scan(&mut self, live: &LiveConnections, capacity: usize) {
        let (mut unauthenticated, mut idle, mut busy) =
            (ConnectionGroups::default(), ConnectionGroups::default(), ConnectionGroups::default());
        for (number, (network, connection)) in live {
            match connection.class() {
                ConnectionClass::Unauthenticated => unauthenticated.add(*network, *number),
                ConnectionClass::Idle(since) => idle.add(*network, (since, *number)),
                ConnectionClass::Busy(tenant) => busy.add(tenant, *number),
            }
        }
        let mut strangers = unauthenticated.count;
        let (mut unauthenticated, mut idle, mut busy) = (unauthenticated.order(), idle.order(), busy.order());
        let most = (capacity / SCANNED_PER_VICTIM).clamp(1, SCANNED_PER_VICTIM);
        let share = capacity.div_ceil(UNAUTHENTICATED_SHARE);
        self.queued.clear();
        while self.queued.len() < most {
            // Each one is replaced by a newcomer, which is unauthenticated.
            let next_stranger = |ordered: &mut EvictionOrder<IpAddr, u64>| {
                ordered.pop(0).map(|(_, number)| (number, ConnectionClass::Unauthenticated))
            };
            let victim = if strangers > share {
                next_stranger(&mut unauthenticated)
            } else {
                let others =
                    (idle.pop(0).map(|(_, (since, number))| (number, ConnectionClass::Idle(since)))).or_else(|| {
                        busy.pop(capacity / TENANT_SHARE)
                            .map(|(tenant, number)| (number, ConnectionClass::Busy(tenant)))
                    });
                strangers += usize::from(others.is_some());
                others.or_else(|| next_stranger(&mut unauthenticated))
            };
            let Some(victim) = victim else { break };
            self.queued.push_back(victim);
        }
        self.is_complete = self.queued.len() < most;
        self.scanned = Some(Instant::now());
    }
}

/// Connections by network or tenant.
struct ConnectionGroups<K, O> {
    groups: HashMap<K, Vec<O>>,
    count: usize,
}

/// Connections in eviction order.
struct EvictionOrder<K, O>(BinaryHeap<(usize, Reverse<O>, K, Vec<O>)>);

impl<K, O> Default for ConnectionGroups<K, O> {
    fn default() -> Self {
        Self { groups: HashMap::new(), count: 0 }
    }
}

impl<K: Hash + Ord, O: Ord + Copy> ConnectionGroups<K, O> {
    fn add(&mut self, group: K, connection: O) {
        self.groups.entry(group).or_default().push(connection);
        self.count += 1;
    }

    fn order(self) -> EvictionOrder<K, O> {
        let ordered = self.groups.into_iter().filter_map(|(group, mut connections)| {
            connections.sort_unstable_by_key(|connection| Reverse(*connection));
            let oldest = *connections.last()?;
            Some((connections.len(), Reverse(oldest), group, connections))
        });
        EvictionOrder(ordered.collect())
    }
}

impl<K: Ord + Copy, O: Ord + Copy> EvictionOrder<K, O> {
    /// Takes the oldest one of the largest group, if the group has more than `allowed`.
    fn pop(&mut self, allowed: usize) -> Option<(K, O)> {
        self.0.peek().filter(|(count, ..)| *count > allowed)?;
        let (count, Reverse(oldest), group, mut connections) = self.0.pop()?;
        connections.pop();
        if let Some(next) = connections.last() {
            self.0.push((count - 1, Reverse(*next), group, connections));
        }
        Some((group, oldest))
    }
}
