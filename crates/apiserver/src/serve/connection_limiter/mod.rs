//! Limiter of connections: when all slots are taken, a newcomer replaces another connection.

#[cfg(test)]
mod tests;
mod victims;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use victims::{ConnectionClass, VictimQueue};

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

/// Mark on a connection over which a request with valid credentials has come, with the tenant that it works in. It travels with each
/// request.
#[derive(Clone)]
pub(crate) struct AuthenticatedMark(Arc<AtomicU64>);

/// Mark before valid credentials have come. Neither this nor [`NO_TENANT`] is the id of a logical cluster.
const UNAUTHENTICATED: u64 = u64::MAX;
/// Mark of an authenticated client no request of which has been admitted.
const NO_TENANT: u64 = u64::MAX - 1;

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
    victims: VictimQueue,
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

    fn class(&self) -> ConnectionClass {
        match (self.authenticated.tenant(), self.activity.idle_since()) {
            (None, _) => ConnectionClass::Unauthenticated,
            (Some(_), Ok(idle)) => ConnectionClass::Idle(idle),
            (Some(tenant), Err(_)) => ConnectionClass::Busy(tenant),
        }
    }
}

impl AuthenticatedMark {
    /// Marks the connection as one of an authenticated client.
    pub(crate) fn set(&self) {
        // A tenant that is known stays.
        let _ = self.0.compare_exchange(UNAUTHENTICATED, NO_TENANT, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Charges the connection to the tenant of a request that was admitted, if its client is authenticated.
    pub(crate) fn charge_to(&self, tenant: LogicalClusterId) {
        if self.tenant().is_some() {
            self.0.store(tenant.get(), Ordering::Relaxed);
        }
    }

    /// Returns the tenant, or [`NO_TENANT`]; `None` if no valid credentials have come.
    fn tenant(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|mark| *mark != UNAUTHENTICATED)
    }
}

impl Default for AuthenticatedMark {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNAUTHENTICATED)))
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
            let HeldSlots { live, victims, .. } = &mut *held;
            let victim = victims.next(live, self.capacity).and_then(|number| live.remove(&number));
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
