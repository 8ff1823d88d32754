//! How much may be under way at once, and whose it is.

mod charge;
mod fair;
mod places;
mod processor;
mod share;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use portolan_types::{LogicalClusterId, Status};

use tokio::time::Instant;

use crate::{
    User,
    config::Limits,
    metrics::{Executing, FlowMetrics, Metrics},
};

use fair::{Bounds, Fair, Flow, NoSeat, Seat};
use places::Places;
use processor::Processor;

pub(crate) use charge::{Charge, SMALL};
pub(crate) use places::Place;
pub use processor::yield_long_slice;
pub(crate) use processor::{TaskFlow, in_own_slices, leave_slice};
pub use share::FairShare;

/// Counts what is under way; beyond the bounds requests wait for their turn, or are told to come back.
pub(crate) struct Admittance {
    reads: Requests,
    writes: Requests,
    /// Bodies that are being sent. Who sends one slowly holds no seat meanwhile.
    bodies: Requests,
    watches: Places,
    streams: Places,
    webhooks: Places,
    conversions: Places,
    bytes: Places,
    /// As many slices at once as there are processors; the runtime has threads to spare.
    processor: Arc<Processor>,
}

/// What is done one after the other, as it would take too much of the machine at once. Tenants are served by turns, and so are the users of each.
pub(crate) struct FairSeats(Arc<Fair>);

/// Who waits for a seat does so as part of a request, of which there is a bound.
const MAX_PATIENCE: Duration = Duration::from_secs(60);

impl FairSeats {
    /// As many at once.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(Fair::new(Bounds { seats: at_once, waiting: usize::MAX, patience: MAX_PATIENCE }))
    }

    /// Waits for a seat, which is held until it is dropped.
    ///
    /// # Errors
    /// 429 when it does not come.
    pub(crate) async fn wait(&self, whose: &Whose<'_>) -> Result<Seat, Status> {
        self.0.enter(whose.flow(), MAX_PATIENCE).await.map_err(|_| too_many())
    }
}

/// Requests of one sort that are answered at once.
struct Requests {
    seats: Arc<Fair>,
    metrics: FlowMetrics,
}

impl Admittance {
    pub(crate) fn new(limits: &Limits, metrics: &Metrics) -> Self {
        let requests = |sort, seats| {
            let bounds = Bounds { seats, waiting: limits.waiting, patience: limits.patience };
            Requests { seats: Fair::new(bounds), metrics: metrics.flow(sort, seats) }
        };
        let places = |total, each_cluster| {
            // Half: what one user does leaves room for the others of the logical cluster.
            Places::new(places::Bounds { total, each_cluster, each_user: (each_cluster / 2).max(1) })
        };
        Self {
            reads: requests("reads", limits.reads),
            writes: requests("writes", limits.writes),
            bodies: requests("bodies", limits.writes),
            watches: places(limits.watches, limits.watches_per_cluster),
            streams: places(limits.streams, limits.streams_per_cluster),
            webhooks: places(limits.webhooks, limits.webhooks_per_tenant),
            conversions: places(limits.webhooks, limits.webhooks_per_tenant),
            bytes: places(limits.bytes, limits.bytes),
            processor: Processor::new(std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }

    /// A seat for a request that is answered at once, when it is its turn.
    ///
    /// # Errors
    /// 429 when too many wait, or it waited for `patience`.
    pub(crate) async fn enter(&self, whose: &Whose<'_>, is_write: bool, patience: Duration) -> Result<Running, Status> {
        let requests = if is_write { &self.writes } else { &self.reads };
        requests.enter(whose, patience).await
    }

    /// A seat for as long as a body is sent.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub(crate) async fn send(&self, whose: &Whose<'_>, patience: Duration) -> Result<Running, Status> {
        self.bodies.enter(whose, patience).await
    }

    /// A place for a watch.
    pub(crate) fn watch(&self, whose: &Whose<'_>) -> Result<Place, Status> {
        self.watches.take(whose.tenant, whose.inside()).ok_or_else(too_many)
    }

    /// A place for a log, or for a stream in and out of a pod.
    pub(crate) fn stream(&self, whose: &Whose<'_>) -> Result<Place, Status> {
        self.streams.take(whose.tenant, whose.inside()).ok_or_else(too_many)
    }

    /// A place for a write that waits for webhooks: of those of a tenant, a user may have half in one workspace.
    pub(crate) fn webhook(&self, whose: &Whose<'_>) -> Result<Place, Status> {
        self.webhooks.take(whose.tenant, whose.flow()).ok_or_else(too_many)
    }

    /// A place for a call that converts objects: of those of a tenant, one logical cluster may have half.
    pub(crate) fn conversion(&self, tenant: LogicalClusterId, cluster: LogicalClusterId) -> Result<Place, Status> {
        self.conversions.take(tenant, Flow { cluster: tenant, user: cluster.get() }).ok_or_else(too_many)
    }

    /// In whose time slices a connection is worked on that has just been made.
    pub(crate) fn task_flow(&self) -> TaskFlow {
        TaskFlow::of_nobody(self.processor.clone())
    }

    /// Returns the share of a tenant for work in the name of `user`.
    pub(crate) fn share(&self, tenant: LogicalClusterId, user: &str) -> FairShare {
        let mut hasher = DefaultHasher::new();
        user.hash(&mut hasher);
        let flow = Flow { cluster: tenant, user: hasher.finish() };
        FairShare::new(TaskFlow::fixed(self.processor.clone(), flow))
    }

    /// As [`Self::task_flow`], where there is one slice at once.
    #[cfg(test)]
    pub(crate) fn task_flow_of_one_slice() -> TaskFlow {
        TaskFlow::of_nobody(Processor::new(1))
    }

    /// From now on what is being worked on is done in time slices of these.
    pub(crate) fn belongs_to(whose: &Whose<'_>) {
        processor::belongs_to(whose.flow());
    }

    /// What a request holds is counted by this; it has nothing yet.
    pub(crate) fn charge(&self, whose: &Whose<'_>) -> Charge {
        Charge::new(self.bytes.open(whose.tenant, whose.flow()))
    }
}

impl Requests {
    async fn enter(&self, whose: &Whose<'_>, patience: Duration) -> Result<Running, Status> {
        let (_waiting, since) = (self.metrics.waiting(), Instant::now());
        let entered = self.seats.enter(whose.flow(), patience).await;
        let waited = since.elapsed().as_secs_f64();
        let why = match entered {
            Ok(seat) => return Ok(Running { _executing: self.metrics.executing(waited), _seat: seat }),
            Err(NoSeat::Full) => "queue-full",
            Err(NoSeat::TimeOut) => "time-out",
        };
        self.metrics.rejected(why, waited);
        Err(too_many())
    }
}

/// A request that has its seat until it is dropped.
pub(crate) struct Running {
    _executing: Executing,
    _seat: Seat,
}

/// Who asks for a seat, or for a place to wait for webhooks. They are shared out between tenants: somebody who makes many workspaces has no more of them for that.
/// Within a tenant, each user has a line in each workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whose<'a> {
    /// The workspace below `root` that all of it happens in.
    pub(crate) tenant: LogicalClusterId,
    pub(crate) cluster: LogicalClusterId,
    pub(crate) user: &'a User,
}

impl Whose<'_> {
    /// What counts for the tenant as a whole.
    fn flow(&self) -> Flow {
        Flow { cluster: self.tenant, user: self.line() }
    }

    /// What counts for its logical cluster.
    fn inside(&self) -> Flow {
        Flow { cluster: self.cluster, user: self.line() }
    }

    /// A user's line in a workspace.
    fn line(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.cluster, &self.user.name).hash(&mut hasher);
        hasher.finish()
    }
}

fn too_many() -> Status {
    Status::too_many_requests("too many requests, please try again later", 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn beyond_the_bounds_requests_are_told_to_come_back() {
        let limits = Limits {
            reads: 1,
            writes: 1,
            waiting: 0,
            watches: 6,
            watches_per_cluster: 4,
            streams: 1,
            streams_per_cluster: 1,
            ..Limits::default()
        };
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let places = &Admittance::new(&limits, &metrics);
        let (one, two) = (LogicalClusterId::new(5), LogicalClusterId::new(6));
        let [ann, bob] = &["ann", "bob"].map(|name| User { name: name.into(), ..User::default() });
        let enter = |is_write| async move {
            places.enter(&Whose { tenant: one, cluster: one, user: ann }, is_write, Duration::from_secs(1)).await
        };
        let first = enter(false).await.unwrap();
        assert_eq!(enter(false).await.err().map(|s| s.code()), Some(429));
        assert!(enter(true).await.is_ok());
        drop(first);
        assert!(enter(false).await.is_ok());

        let nobody = User::default();
        let [anns, bobs, nobodys] = [ann, bob, &nobody].map(|user| Whose { tenant: one, cluster: one, user });
        let others = Whose { tenant: two, cluster: two, user: ann };
        let held = [places.watch(&anns).unwrap(), places.watch(&anns).unwrap()];
        assert!(places.watch(&anns).is_err(), "one user cannot take all of a logical cluster");
        let bobs = [places.watch(&bobs).unwrap(), places.watch(&bobs).unwrap()];
        assert!(places.watch(&nobodys).is_err(), "one logical cluster cannot take all");
        assert!(places.watch(&others).is_ok());
        let stream = places.stream(&anns).unwrap();
        assert_eq!(places.stream(&others).err().map(|s| s.code()), Some(429), "streams are bounded apart from watches");
        drop((held, bobs, stream));
        assert!(places.watches.is_empty() && places.streams.is_empty());
    }

    #[test]
    fn a_tenant_leaves_places_to_others_however_many_workspaces_it_has() {
        let limits =
            Limits { watches: 16, watches_per_cluster: 4, streams: 16, streams_per_cluster: 4, ..Limits::default() };
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let places = Admittance::new(&limits, &metrics);
        let users = ["ann", "bob"].map(|name| User { name: name.into(), ..User::default() });
        let id = LogicalClusterId::new;
        for take in [Admittance::watch, Admittance::stream] {
            let fill = |tenant| {
                let asked = (0..20).flat_map(|inside| users.iter().cycle().take(4).map(move |user| (inside, user)));
                let taken = asked.filter_map(|(inside, user)| {
                    take(&places, &Whose { tenant: id(tenant), cluster: id(tenant * 100 + inside), user }).ok()
                });
                taken.collect::<Vec<_>>()
            };
            let held = [5, 6, 7].map(fill);
            assert_eq!(held.map(|held| held.len()), [12, 3, 1], "three quarters of what is free");
        }
        assert!(places.watches.is_empty() && places.streams.is_empty());
    }

    #[test]
    fn bytes_are_shared_out_between_tenants_and_few_are_not_counted() {
        let limits = Limits { bytes: 1024 * 1024, ..Limits::default() };
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let places = Admittance::new(&limits, &metrics);
        let users = ["ann", "bob", "eve"].map(|name| User { name: name.into(), ..User::default() });
        let id = LogicalClusterId::new;
        let charge =
            |tenant, user| places.charge(&Whose { tenant: id(tenant), cluster: id(tenant), user: &users[user] });
        let anns = charge(5, 0);
        assert_eq!(anns.grow_to(600 * 1024).map_err(|status| status.code()), Err(429), "one user has half");
        anns.grow_to(400 * 1024).unwrap();
        anns.grow_to(300 * 1024).unwrap();
        let more = charge(5, 0);
        assert!(more.grow_to(200 * 1024).is_err() && more.grow_to(SMALL).is_ok());
        let bobs = charge(5, 1);
        bobs.grow_to(300 * 1024).unwrap();
        let (eves, too_many) = (charge(5, 2), 280 * 1024);
        assert!(eves.grow_to(too_many).is_err(), "what is asked for counts to the share of the tenant");
        charge(6, 0).grow_to(too_many).unwrap();
        eves.grow_to(200 * 1024).unwrap();
        drop(eves);
        bobs.grow_to(400 * 1024).unwrap();
        assert!(charge(5, 2).grow_to(SMALL + 1).is_err(), "a tenant leaves a quarter");
        charge(6, 0).grow_to(128 * 1024).unwrap();
        bobs.shrink_to(SMALL);
        charge(5, 2).grow_to(SMALL + 1).unwrap();
        drop((anns, more, bobs));
        assert!(places.bytes.is_empty());
    }

    #[test]
    fn a_tenant_has_no_more_places_for_webhooks_for_having_more_workspaces() {
        let limits = Limits { webhooks: 8, webhooks_per_tenant: 4, ..Limits::default() };
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let places = Admittance::new(&limits, &metrics);
        let (user, [tenant, other]) = (User::default(), [5, 6].map(LogicalClusterId::new));
        let inside = [7, 8, 9].map(LogicalClusterId::new);
        let write = |tenant, cluster| places.webhook(&Whose { tenant, cluster, user: &user });
        let convert = |tenant, cluster| places.conversion(tenant, cluster);
        for take in [&write as &dyn Fn(_, _) -> Result<Place, Status>, &convert] {
            let mut held = vec![take(tenant, inside[0]).unwrap(), take(tenant, inside[0]).unwrap()];
            assert!(take(tenant, inside[0]).is_err(), "one workspace leaves room for the others");
            held.extend((0..2).map(|_| take(tenant, inside[1]).unwrap()));
            assert_eq!(take(tenant, inside[2]).err().map(|s| s.code()), Some(429), "all of them have what one has");
            assert!(take(other, other).is_ok(), "other tenants have theirs");
        }
        assert!(places.webhooks.is_empty() && places.conversions.is_empty());
    }
}
