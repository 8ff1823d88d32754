//! Fair queue for seats: short requests share a number of seats between logical clusters, and between the users of
//! each.
//!
//! A logical cluster may hold [`HELD_PER_FREE`] times as many seats as are free: one alone leaves a quarter free, two a
//! sixteenth, and so on. So it takes many logical clusters to fill all seats, even if their requests are slow. A
//! request without a seat waits in its user's queue. A free seat goes to the logical cluster with the fewest, and there
//! to the user with the fewest (max-min fairness). Those with equally many seats are served in rounds, independently of
//! the length of their queues, so that even a single seat is shared. Within a round, the oldest request comes first.
//! Queues are bounded: when they are full, the longest one loses its last request.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;
use tokio::sync::oneshot;

/// Seats that one logical cluster may hold, per seat that is free (the factor of dynamic thresholds, Choudhury and
/// Hahne).
pub(super) const HELD_PER_FREE: usize = 3;

/// Limits of a seat queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeatLimits {
    /// Concurrent requests.
    pub(super) seats: usize,
    /// Queued requests.
    pub(super) waiting: usize,
    /// Longest wait.
    pub(super) patience: Duration,
}

/// Flow that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowId {
    pub(super) cluster: LogicalClusterId,
    /// Hash of the user's name.
    pub(super) user: u64,
}

/// Reason why a request gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatError {
    /// The queues are full, or filled up while it waited.
    Full,
    /// It waited for too long.
    TimeOut,
}

/// Seats and their queues.
pub(super) struct FairSeatQueue {
    bounds: SeatLimits,
    state: Mutex<SeatState>,
}

/// Seat of a request, released on drop.
pub(crate) struct Seat {
    queue: Arc<FairSeatQueue>,
    flow: FlowId,
}

struct SeatState {
    free: usize,
    waiting: usize,
    /// Number of the last request that was queued.
    last: u64,
    /// Round that is being served.
    round: u64,
    /// Tenants that hold or wait for a seat.
    tenants: HashMap<LogicalClusterId, TenantSeats>,
    /// Tenants with waiting requests, the next to serve first.
    next: SeatRanking<LogicalClusterId>,
}

/// Ranking by seats held, then by round, then by the number of the oldest request.
type SeatRanking<K> = BTreeSet<(usize, u64, u64, K)>;

#[derive(Default)]
struct TenantSeats {
    held: usize,
    waiting: usize,
    /// Next round of this tenant. A new tenant starts in the next round, so that being forgotten brings no advantage.
    round: u64,
    users: HashMap<u64, UserSeats>,
    /// Round of its users that is being served.
    users_round: u64,
    next: SeatRanking<u64>,
}

#[derive(Default)]
struct UserSeats {
    held: usize,
    /// Next round of this user.
    round: u64,
    waiting: VecDeque<SeatWaiter>,
}

struct SeatWaiter {
    number: u64,
    granted: oneshot::Sender<()>,
}

/// Place in a queue, left on drop.
struct SeatTicket {
    queue: Arc<FairSeatQueue>,
    flow: FlowId,
    number: u64,
    granted: oneshot::Receiver<()>,
    is_used: bool,
}

impl FairSeatQueue {
    pub(super) fn new(bounds: SeatLimits) -> Arc<Self> {
        let state = SeatState {
            free: bounds.seats,
            waiting: 0,
            last: 0,
            round: 0,
            tenants: HashMap::new(),
            next: SeatRanking::new(),
        };
        Arc::new(Self { bounds, state: Mutex::new(state) })
    }

    /// Waits for a seat.
    pub(super) async fn enter(self: &Arc<Self>, flow: FlowId, patience: Duration) -> Result<Seat, SeatError> {
        let ticket = {
            let mut state = self.state.lock();
            if state.may_hold_more(state.held(flow.cluster)) {
                state.take(flow);
                return Ok(Seat { queue: self.clone(), flow });
            }
            let (number, granted) = state.enqueue(flow, self.bounds.waiting).ok_or(SeatError::Full)?;
            SeatTicket { queue: self.clone(), flow, number, granted, is_used: false }
        };
        ticket.wait(patience.min(self.bounds.patience)).await
    }

    /// Returns the number of queued requests.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl SeatState {
    /// Returns true if a tenant with `held` seats may take one more. Then no tenant with as many seats is waiting:
    /// waiting tenants are served in the order of their seats, the fewest first.
    fn may_hold_more(&self, held: usize) -> bool {
        held < HELD_PER_FREE * self.free
    }

    fn held(&self, cluster: LogicalClusterId) -> usize {
        self.tenants.get(&cluster).map_or(0, |tenant| tenant.held)
    }

    /// Changes a tenant and updates its ranking.
    fn with<T>(&mut self, cluster: LogicalClusterId, change: impl FnOnce(&mut TenantSeats) -> T) -> T {
        let tenant = self.tenants.entry(cluster).or_default();
        if let Some(since) = tenant.oldest() {
            self.next.remove(&(tenant.held, tenant.round, since, cluster));
        }
        let before = tenant.waiting;
        let changed = change(tenant);
        self.waiting = self.waiting + tenant.waiting - before;
        match tenant.oldest() {
            Some(since) => drop(self.next.insert((tenant.held, tenant.round, since, cluster))),
            None if tenant.held == 0 => drop(self.tenants.remove(&cluster)),
            None => {}
        }
        changed
    }

    fn take(&mut self, flow: FlowId) {
        self.free -= 1;
        self.with(flow.cluster, |tenant| tenant.hold(flow.user));
    }

    fn release_seat(&mut self, flow: FlowId) {
        self.free += 1;
        self.with(flow.cluster, |tenant| tenant.release(flow.user));
        self.serve();
    }

    /// Grants free seats to waiting requests.
    fn serve(&mut self) {
        while let Some((held, round, _, cluster)) = self.next.first().copied() {
            if !self.may_hold_more(held) {
                return;
            }
            self.free -= 1;
            self.round = self.round.max(round);
            let next = self.round + 1;
            self.with(cluster, |tenant| {
                tenant.round = next;
                tenant.serve();
            });
        }
    }

    /// Queues a request; `None` if the queues are full and none is longer than its own.
    fn enqueue(&mut self, flow: FlowId, bound: usize) -> Option<(u64, oneshot::Receiver<()>)> {
        if self.waiting >= bound && !self.make_room(flow) {
            return None;
        }
        self.last += 1;
        let number = self.last;
        let (granted, told) = oneshot::channel();
        let next = self.round + 1;
        self.with(flow.cluster, |tenant| {
            if tenant.waiting == 0 {
                tenant.round = tenant.round.max(next);
            }
            tenant.enqueue(flow.user, SeatWaiter { number, granted });
        });
        Some((number, told))
    }

    /// Drops the last request of the longest queue: of another logical cluster whose queue is longer than that of
    /// `flow` will be, or of another user of its own.
    fn make_room(&mut self, flow: FlowId) -> bool {
        let own = self.tenants.get(&flow.cluster).map_or(0, |tenant| tenant.waiting);
        let lines = self.tenants.iter().map(|(cluster, tenant)| (tenant.waiting, *cluster));
        let from = match lines.max() {
            Some((most, longest)) if most > own + 1 => longest,
            Some((most, _)) if most == own => flow.cluster,
            Some(_) | None => return false,
        };
        let Some(tenant) = self.tenants.get(&from) else { return false };
        let user = tenant.longest();
        if from == flow.cluster && tenant.line(user) <= tenant.line(flow.user) + 1 {
            return false;
        }
        self.with(from, |tenant| tenant.drop_last(user));
        true
    }

    /// Leaves the queue; returns false if it was granted a seat or dropped.
    fn leave(&mut self, flow: FlowId, number: u64) -> bool {
        self.tenants.contains_key(&flow.cluster) && self.with(flow.cluster, |tenant| tenant.leave(flow.user, number))
    }
}

impl TenantSeats {
    /// Returns the number of the request that is served next.
    fn oldest(&self) -> Option<u64> {
        self.next.first().map(|(_, _, since, _)| *since)
    }

    fn line(&self, user: u64) -> usize {
        self.users.get(&user).map_or(0, |line| line.waiting.len())
    }

    fn longest(&self) -> u64 {
        let longest = self.users.iter().max_by_key(|(user, line)| (line.waiting.len(), **user));
        longest.map_or(0, |(user, _)| *user)
    }

    /// Changes a user's queue and updates its ranking.
    fn with<T>(&mut self, user: u64, change: impl FnOnce(&mut UserSeats) -> T) -> T {
        let line = self.users.entry(user).or_default();
        if let Some(first) = line.waiting.front() {
            self.next.remove(&(line.held, line.round, first.number, user));
        }
        let (held, waiting) = (line.held, line.waiting.len());
        let changed = change(line);
        self.held = self.held + line.held - held;
        self.waiting = self.waiting + line.waiting.len() - waiting;
        match line.waiting.front() {
            Some(first) => drop(self.next.insert((line.held, line.round, first.number, user))),
            None if line.held == 0 => drop(self.users.remove(&user)),
            None => {}
        }
        changed
    }

    fn hold(&mut self, user: u64) {
        self.with(user, |line| line.held += 1);
    }

    fn release(&mut self, user: u64) {
        self.with(user, |line| line.held -= 1);
    }

    fn enqueue(&mut self, user: u64, waiter: SeatWaiter) {
        let next = self.users_round + 1;
        self.with(user, |line| {
            if line.waiting.is_empty() {
                line.round = line.round.max(next);
            }
            line.waiting.push_back(waiter);
        });
    }

    /// Grants a seat to the next request.
    fn serve(&mut self) {
        let Some((_, round, _, user)) = self.next.first().copied() else { return };
        self.users_round = self.users_round.max(round);
        let next = self.users_round + 1;
        let waiter = self.with(user, |line| {
            line.held += 1;
            line.round = next;
            line.waiting.pop_front()
        });
        // A request is queued for as long as its receiver lives.
        waiter.map(|waiter| waiter.granted.send(()));
    }

    fn drop_last(&mut self, user: u64) {
        self.with(user, |line| line.waiting.pop_back());
    }

    fn leave(&mut self, user: u64, number: u64) -> bool {
        self.users.contains_key(&user)
            && self.with(user, |line| {
                let before = line.waiting.len();
                line.waiting.retain(|waiter| waiter.number != number);
                line.waiting.len() < before
            })
    }
}

impl SeatTicket {
    async fn wait(mut self, patience: Duration) -> Result<Seat, SeatError> {
        match tokio::time::timeout(patience, &mut self.granted).await {
            Ok(Ok(())) => {
                self.is_used = true;
                Ok(Seat { queue: self.queue.clone(), flow: self.flow })
            }
            Ok(Err(_)) => Err(SeatError::Full),
            Err(_) => Err(SeatError::TimeOut),
        }
    }
}

impl Drop for SeatTicket {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        let mut state = self.queue.state.lock();
        // A seat granted in the meantime is released.
        if !state.leave(self.flow, self.number) && self.granted.try_recv().is_ok() {
            state.release_seat(self.flow);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.queue.state.lock().release_seat(self.flow);
    }
}

#[cfg(test)]
mod tests;
