//! Seats for requests that are answered at once, shared out between logical clusters, and between the users of each.
//!
//! A logical cluster may hold [`HELD_PER_FREE`] times as many seats as are free: one alone leaves a quarter, two a sixteenth, and so on, so
//! that it takes many at once to fill them, however slow their requests are. Who finds none waits in line. A seat goes to the logical
//! cluster that holds the fewest, there to the user who holds the fewest (max-min fairness). Equals are served in rounds, whatever the
//! length of their lines, so that also one seat alone is shared out; among those of one round who has waited longest is first.
//! Lines are bounded: when they are full, the longest loses its last place.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;
use tokio::sync::oneshot;

/// Seats that one logical cluster may hold, per seat that is free (the factor of dynamic thresholds, Choudhury and Hahne).
pub(super) const HELD_PER_FREE: usize = 3;

/// How much there is of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Requests under way at once.
    pub(super) seats: usize,
    /// Requests that wait, in all.
    pub(super) waiting: usize,
    /// How long one waits at most.
    pub(super) patience: Duration,
}

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) cluster: LogicalClusterId,
    /// A hash of the user's name.
    pub(super) user: u64,
}

/// Why there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// The lines are full, or became so while it waited.
    Full,
    /// It waited long enough.
    TimeOut,
}

/// The seats, and who waits for one.
pub(super) struct Fair {
    bounds: Bounds,
    state: Mutex<State>,
}

/// A place among what is under way, given back when dropped.
pub(crate) struct Seat {
    fair: Arc<Fair>,
    flow: Flow,
}

struct State {
    free: usize,
    waiting: usize,
    /// Number of the last who came to wait.
    last: u64,
    /// The round that is being served.
    round: u64,
    /// Those who hold a seat or wait for one.
    tenants: HashMap<LogicalClusterId, Tenant>,
    /// Those who wait, the next to be served first.
    next: Ranking<LogicalClusterId>,
}

/// By seats held, then by round, then by the number of who waits longest.
type Ranking<K> = BTreeSet<(usize, u64, u64, K)>;

#[derive(Default)]
struct Tenant {
    held: usize,
    waiting: usize,
    /// The round in which it is served next. Who comes anew has the next one: who is forgotten would not have a later one.
    round: u64,
    users: HashMap<u64, Line>,
    /// The round of its users that is being served.
    users_round: u64,
    next: Ranking<u64>,
}

#[derive(Default)]
struct Line {
    held: usize,
    /// The round in which it is served next.
    round: u64,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    number: u64,
    granted: oneshot::Sender<()>,
}

/// A place in line, left when dropped.
struct Ticket {
    fair: Arc<Fair>,
    flow: Flow,
    number: u64,
    granted: oneshot::Receiver<()>,
    is_used: bool,
}

impl Fair {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        let state =
            State { free: bounds.seats, waiting: 0, last: 0, round: 0, tenants: HashMap::new(), next: Ranking::new() };
        Arc::new(Self { bounds, state: Mutex::new(state) })
    }

    /// A seat, when there is one or as soon as it is this flow's turn.
    pub(super) async fn enter(self: &Arc<Self>, flow: Flow, patience: Duration) -> Result<Seat, NoSeat> {
        let ticket = {
            let mut state = self.state.lock();
            if state.may_hold_more(state.held(flow.cluster)) {
                state.take(flow);
                return Ok(Seat { fair: self.clone(), flow });
            }
            let (number, granted) = state.line_up(flow, self.bounds.waiting).ok_or(NoSeat::Full)?;
            Ticket { fair: self.clone(), flow, number, granted, is_used: false }
        };
        ticket.wait(patience.min(self.bounds.patience)).await
    }

    /// Requests that wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}

impl State {
    /// Nobody who holds so many waits while this is so: the one who holds the fewest would have been served.
    fn may_hold_more(&self, held: usize) -> bool {
        held < HELD_PER_FREE * self.free
    }

    fn held(&self, cluster: LogicalClusterId) -> usize {
        self.tenants.get(&cluster).map_or(0, |tenant| tenant.held)
    }

    /// Changes a tenant, and what is known of it elsewhere.
    fn with<T>(&mut self, cluster: LogicalClusterId, change: impl FnOnce(&mut Tenant) -> T) -> T {
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

    fn take(&mut self, flow: Flow) {
        self.free -= 1;
        self.with(flow.cluster, |tenant| tenant.hold(flow.user));
    }

    fn give_back(&mut self, flow: Flow) {
        self.free += 1;
        self.with(flow.cluster, |tenant| tenant.release(flow.user));
        self.serve();
    }

    /// Gives seats to those who wait, as far as they may have them.
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

    /// A place in line; `None` when the lines are full and no other is longer.
    fn line_up(&mut self, flow: Flow, bound: usize) -> Option<(u64, oneshot::Receiver<()>)> {
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
            tenant.line_up(flow.user, Waiter { number, granted });
        });
        Some((number, told))
    }

    /// Takes the last place of the longest line: of another logical cluster whose line is longer than that of `flow` will be,
    /// or of another user of its own.
    fn make_room(&mut self, flow: Flow) -> bool {
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

    /// Leaves the line; `false` when it is not in it any more.
    fn leave(&mut self, flow: Flow, number: u64) -> bool {
        self.tenants.contains_key(&flow.cluster) && self.with(flow.cluster, |tenant| tenant.leave(flow.user, number))
    }
}

impl Tenant {
    /// Number of who is served next.
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

    /// Changes a user's line, and its rank.
    fn with<T>(&mut self, user: u64, change: impl FnOnce(&mut Line) -> T) -> T {
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

    fn line_up(&mut self, user: u64, waiter: Waiter) {
        let next = self.users_round + 1;
        self.with(user, |line| {
            if line.waiting.is_empty() {
                line.round = line.round.max(next);
            }
            line.waiting.push_back(waiter);
        });
    }

    /// Gives a seat to the next one.
    fn serve(&mut self) {
        let Some((_, round, _, user)) = self.next.first().copied() else { return };
        self.users_round = self.users_round.max(round);
        let next = self.users_round + 1;
        let waiter = self.with(user, |line| {
            line.held += 1;
            line.round = next;
            line.waiting.pop_front()
        });
        // Who waits is in line as long as it listens.
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

impl Ticket {
    async fn wait(mut self, patience: Duration) -> Result<Seat, NoSeat> {
        match tokio::time::timeout(patience, &mut self.granted).await {
            Ok(Ok(())) => {
                self.is_used = true;
                Ok(Seat { fair: self.fair.clone(), flow: self.flow })
            }
            Ok(Err(_)) => Err(NoSeat::Full),
            Err(_) => Err(NoSeat::TimeOut),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        let mut state = self.fair.state.lock();
        // A seat may have been given to it that it will not take any more.
        if !state.leave(self.flow, self.number) && self.granted.try_recv().is_ok() {
            state.give_back(self.flow);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.fair.state.lock().give_back(self.flow);
    }
}

#[cfg(test)]
mod tests;
