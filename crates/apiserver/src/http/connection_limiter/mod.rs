//! Limiter of connections: when all slots are taken, a newcomer replaces another connection.

#[cfg(test)]
mod tests;
mod victims;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::limits::AuthenticatedMark;

use super::activity::ConnectionActivity;
use victims::{ConnectionClass, VictimQueue};

/// Divisor of the capacity that evicted connections may hold while they end: an eighth.
const ENDING_SHARE: usize = 8;

/// Connection that a limiter may evict.
#[derive(Clone)]
pub(super) struct EvictableConnection {
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) authenticated: AuthenticatedMark,
    /// Cancelled when the connection is evicted.
    pub(super) evicted: CancellationToken,
}

/// Pool of connection slots. No address has a fixed share, since many clients may be behind one NAT or load balancer.
pub(super) struct ConnectionLimiter {
    capacity: usize,
    held: Mutex<HeldSlots>,
    /// Notified when an evicted connection has ended.
    ended: Notify,
}

#[derive(Default)]
struct HeldSlots {
    next: u64,
    /// Connections in order of arrival.
    live: BTreeMap<u64, (IpAddr, EvictableConnection)>,
    /// Evicted connections that have not ended yet.
    ending: usize,
    victims: VictimQueue,
}

/// Reason why there is no slot.
enum NoSlot {
    /// All slots are taken by connections that must not be evicted.
    AllInUse,
    /// Too many evicted connections are still ending.
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
            activity: ConnectionActivity::new(),
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

impl ConnectionLimiter {
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, held: Mutex::default(), ended: Notify::new() })
    }

    /// Takes a slot, evicting another connection if none is free. Waits while too many evicted connections are still
    /// closing, which takes a short time. Returns `None` if no connection can be evicted.
    pub(super) async fn take(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &EvictableConnection,
    ) -> Option<ConnectionSlot> {
        loop {
            // Connections that end from here on wake it.
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
