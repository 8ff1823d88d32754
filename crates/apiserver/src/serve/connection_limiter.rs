//! Limiter of connections: when all slots are taken, a newcomer replaces the connection that is idle for the longest time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::activity::Activity;

/// Share of the capacity that evicted connections may hold while they end, as a divisor: an eighth.
const ENDING_SHARE: usize = 8;

/// Connection that a limiter may evict.
#[derive(Clone)]
pub(super) struct EvictableConnection {
    pub(super) activity: Arc<Activity>,
    pub(super) authenticated: AuthenticatedMark,
    /// Cancelled when the connection has to end for a newer one.
    pub(super) evicted: CancellationToken,
}

/// Mark on a connection over which a request with valid credentials has come. It travels with each request.
#[derive(Clone, Default)]
pub(crate) struct AuthenticatedMark(Arc<AtomicBool>);

/// Order of eviction. A connection with a request of an authenticated client under way is not evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// No byte of a handshake has come, or no request is under way.
    Idle,
    /// A handshake or a request is under way, and no credentials are known.
    Unauthenticated,
}

/// Pool of connection slots. No address has a fixed share: clients behind one NAT or load balancer are many.
pub(super) struct ConnectionLimiter {
    capacity: usize,
    held: Mutex<HeldSlots>,
    /// Notified when an evicted connection has ended.
    ended: Notify,
}

#[derive(Default)]
struct HeldSlots {
    next: u64,
    /// By order of arrival.
    live: BTreeMap<u64, (IpAddr, EvictableConnection)>,
    /// Evicted connections that have not ended yet.
    ending: usize,
}

/// Reason why there is no slot.
enum NoSlot {
    /// All are taken by connections that must not be evicted.
    AllInUse,
    /// Too many evicted connections have not ended yet.
    Ending,
}

/// Slot of one connection, given back on drop.
pub(super) struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
}

impl EvictableConnection {
    pub(super) fn new() -> Self {
        Self {
            activity: Activity::new(),
            authenticated: AuthenticatedMark::default(),
            evicted: CancellationToken::new(),
        }
    }

    /// Returns the rank, and the time since which the connection is idle or exists; `None` if it must not be evicted.
    fn eviction_rank(&self) -> Option<(EvictionRank, Instant)> {
        match self.activity.idle_since() {
            Ok(idle) => Some((EvictionRank::Idle, idle)),
            Err(_) if self.authenticated.is_set() => None,
            Err(opened) => Some((EvictionRank::Unauthenticated, opened)),
        }
    }
}

impl AuthenticatedMark {
    /// Marks the connection as one of an authenticated client.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ConnectionLimiter {
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, held: Mutex::default(), ended: Notify::new() })
    }

    /// Takes a slot, and evicts another connection if none is free. Waits while too many of the evicted ones have not ended yet, which
    /// they do almost at once. Returns `None` if no connection can be evicted.
    pub(super) async fn take(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &EvictableConnection,
    ) -> Option<ConnectionSlot> {
        loop {
            // It is woken by what ends from here on.
            let ended = self.ended.notified();
            match self.try_take(address, connection) {
                Ok(slot) => return Some(slot),
                Err(NoSlot::AllInUse) => return None,
                Err(NoSlot::Ending) => ended.await,
            }
        }
    }

    fn try_take(self: &Arc<Self>, address: IpAddr, connection: &EvictableConnection) -> Result<ConnectionSlot, NoSlot> {
        let mut held = self.held.lock();
        if held.live.len() >= self.capacity {
            if held.ending >= self.capacity.div_ceil(ENDING_SHARE) {
                return Err(NoSlot::Ending);
            }
            let victim = held.next_victim().and_then(|number| held.live.remove(&number));
            let (_, victim) = victim.ok_or(NoSlot::AllInUse)?;
            held.ending += 1;
            victim.evicted.cancel();
        }
        let number = held.next;
        held.next += 1;
        held.live.insert(number, (network(address), connection.clone()));
        drop(held);
        Ok(ConnectionSlot { limiter: self.clone(), number })
    }
}

impl HeldSlots {
    /// Chooses the connection that ends for a newcomer: of the lowest rank, of the network with most such connections, the oldest.
    fn next_victim(&self) -> Option<u64> {
        let ranked: Vec<_> = (self.live.iter())
            .filter_map(|(number, (network, connection))| Some((connection.eviction_rank()?, *network, *number)))
            .collect();
        let lowest = ranked.iter().map(|((rank, _), ..)| *rank).min()?;
        let mut counts = HashMap::<IpAddr, usize>::new();
        let candidates = || ranked.iter().filter(|((rank, _), ..)| *rank == lowest);
        candidates().for_each(|(_, network, _)| *counts.entry(*network).or_default() += 1);
        let order = |&&((_, since), network, number): &&((_, Instant), IpAddr, u64)| {
            (Reverse(counts.get(&network).copied()), since, number)
        };
        candidates().min_by_key(order).map(|(.., number)| *number)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut held = self.limiter.held.lock();
        if held.live.remove(&self.number).is_none() {
            held.ending -= 1;
            drop(held);
            self.limiter.ended.notify_waiters();
        }
    }
}

/// Returns the network that counts as one address: of IPv6 the /64 that one host has to itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Connected {
        connection: EvictableConnection,
        slot: Option<ConnectionSlot>,
    }

    impl Connected {
        fn is_served(&self) -> bool {
            self.slot.is_some() && !self.connection.evicted.is_cancelled()
        }
    }

    fn connect(limiter: &Arc<ConnectionLimiter>, address: &str) -> Connected {
        let connection = EvictableConnection::new();
        let slot = limiter.try_take(address.parse().unwrap(), &connection).ok();
        Connected { connection, slot }
    }

    #[tokio::test(start_paused = true)]
    async fn two_addresses_that_hold_all_slots_lock_out_neither_others_nor_their_neighbors() {
        let limiter = ConnectionLimiter::new(16);
        let mut silent: Vec<_> =
            (0..64).map(|i| connect(&limiter, if i % 2 == 0 { "10.0.0.1" } else { "10.0.0.2" })).collect();
        silent.retain(Connected::is_served);
        assert_eq!(silent.len(), 16, "all slots are theirs");
        // The evicted ones end at once, as their tasks do.
        for newcomer in ["10.0.0.3", "10.0.0.1", "10.0.0.2"] {
            let accepted = connect(&limiter, newcomer);
            assert!(accepted.is_served(), "{newcomer}");
            silent.retain(Connected::is_served);
            assert_eq!(silent.len(), 15, "{newcomer} replaces one that is idle");
            drop(accepted);
            silent.push(connect(&limiter, newcomer));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_idle_connection_of_the_largest_network_ends_first() {
        let limiter = ConnectionLimiter::new(4);
        let single = connect(&limiter, "10.0.0.9");
        let many = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(|address| connect(&limiter, address));
        let _handshake = many[0].connection.activity.begin();
        let newcomer = connect(&limiter, "10.0.0.8");
        assert!(newcomer.is_served() && single.is_served());
        assert_eq!(many.each_ref().map(Connected::is_served), [true, false, true], "the first one speaks");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_authenticated_clients_are_never_cut_for_a_newcomer() {
        let limiter = ConnectionLimiter::new(2);
        let (known, unknown) = (connect(&limiter, "10.0.0.1"), connect(&limiter, "10.0.0.1"));
        let _requests = [known.connection.activity.begin(), unknown.connection.activity.begin()];
        known.connection.authenticated.set();
        let newcomer = connect(&limiter, "10.0.0.1");
        assert!(newcomer.is_served() && known.is_served() && !unknown.is_served());
        drop(unknown);
        newcomer.connection.authenticated.set();
        let _request = newcomer.connection.activity.begin();
        assert!(!connect(&limiter, "10.0.0.2").is_served(), "there is none to evict");
    }

    #[tokio::test(start_paused = true)]
    async fn evicted_connections_that_do_not_end_are_bounded_and_slots_come_back() {
        let limiter = ConnectionLimiter::new(16);
        let silent: Vec<_> = (0..64).map(|_| connect(&limiter, "10.0.0.1")).collect();
        let accepted = silent.iter().filter(|connected| connected.slot.is_some()).count();
        assert_eq!(accepted, 16 + 16 / ENDING_SHARE);
        let connection = EvictableConnection::new();
        let mut waiting = Box::pin(limiter.take("10.0.0.2".parse().unwrap(), &connection));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(silent);
        drop(waiting.await.expect("it waits until there is room"));
        let held = limiter.held.lock();
        assert_eq!((held.live.len(), held.ending), (0, 0));
    }
}
