//! Limits of concurrency and memory, shared fairly between tenants.

mod authenticated_mark;
mod memory_charge;
mod permits;
mod scheduler;
mod seats;
mod settings;
mod share;
#[cfg(test)]
mod tests;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use portolan_types::{LogicalClusterId, Status};

use tokio::time::Instant;

use crate::{
    User,
    metrics::{ExecutingRequest, FlowMetrics, Metrics},
};

use permits::PermitPool;
use scheduler::FairPollScheduler;
use seats::{FairSeatQueue, FlowId, Seat, SeatError, SeatLimits};

pub(crate) use authenticated_mark::AuthenticatedMark;
pub(crate) use memory_charge::{MemoryCharge, UNCHARGED_BYTES};
pub(crate) use permits::Permit;
pub use scheduler::yield_long_slice;
pub(crate) use scheduler::{TaskFlow, in_own_slices, leave_slice};
pub use settings::Limits;
pub use share::FairShare;

/// Limiter of requests: beyond the limits they wait in a fair queue, or are refused with 429.
pub(crate) struct RequestLimiter {
    reads: SeatPool,
    writes: SeatPool,
    /// Requests whose bodies are being received. A slow sender holds no other seat meanwhile.
    bodies: SeatPool,
    watches: PermitPool,
    streams: PermitPool,
    webhooks: PermitPool,
    conversions: PermitPool,
    bytes: PermitPool,
    /// Scheduler with as many time slices as processors; the runtime has spare threads.
    scheduler: Arc<FairPollScheduler>,
}

/// Fair queue for work that runs a few at a time because it is expensive. Tenants take turns, and the users of each.
pub(crate) struct FairSeats(Arc<FairSeatQueue>);

/// Longest wait for a seat. Waiting work is part of a request, and these are bounded.
const MAX_PATIENCE: Duration = Duration::from_secs(60);

impl FairSeats {
    /// Creates a queue for `at_once` concurrent pieces of work.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(FairSeatQueue::new(SeatLimits { seats: at_once, waiting: usize::MAX, patience: MAX_PATIENCE }))
    }

    /// Waits for a seat, which is released on drop.
    ///
    /// # Errors
    /// 429 if the wait is too long.
    pub(crate) async fn wait(&self, flow_key: &FlowKey<'_>) -> Result<Seat, Status> {
        self.0.enter(flow_key.tenant_flow(), MAX_PATIENCE).await.map_err(|_| too_many())
    }
}

/// Seat queue for one kind of short requests.
struct SeatPool {
    seats: Arc<FairSeatQueue>,
    metrics: FlowMetrics,
}

impl RequestLimiter {
    pub(crate) fn new(limits: &Limits, metrics: &Metrics) -> Self {
        let requests = |sort, seats| {
            let bounds = SeatLimits { seats, waiting: limits.waiting, patience: limits.patience };
            SeatPool { seats: FairSeatQueue::new(bounds), metrics: metrics.flow(sort, seats) }
        };
        let permits = |total, each_cluster| {
            // Half of it per user leaves room for others in the logical cluster.
            PermitPool::new(permits::PermitLimits { total, each_cluster, each_user: (each_cluster / 2).max(1) })
        };
        Self {
            reads: requests("reads", limits.reads),
            writes: requests("writes", limits.writes),
            bodies: requests("bodies", limits.writes),
            watches: permits(limits.watches, limits.watches_per_cluster),
            streams: permits(limits.streams, limits.streams_per_cluster),
            webhooks: permits(limits.webhooks, limits.webhooks_per_tenant),
            conversions: permits(limits.webhooks, limits.webhooks_per_tenant),
            bytes: permits(limits.bytes, limits.bytes),
            scheduler: FairPollScheduler::new(std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }

    /// Waits for a seat for a short request.
    ///
    /// # Errors
    /// 429 if too many wait, or it waited for `patience`.
    pub(crate) async fn enter(
        &self,
        flow_key: &FlowKey<'_>,
        is_write: bool,
        patience: Duration,
    ) -> Result<RunningRequest, Status> {
        let requests = if is_write { &self.writes } else { &self.reads };
        requests.enter(flow_key, patience).await
    }

    /// Waits for a seat for receiving a body.
    ///
    /// # Errors
    /// The errors of [`Self::enter`].
    pub(crate) async fn send(&self, flow_key: &FlowKey<'_>, patience: Duration) -> Result<RunningRequest, Status> {
        self.bodies.enter(flow_key, patience).await
    }

    /// Acquires a permit for a watch.
    pub(crate) fn watch(&self, flow_key: &FlowKey<'_>) -> Result<Permit, Status> {
        self.watches.acquire(flow_key.tenant, flow_key.cluster_flow()).ok_or_else(too_many)
    }

    /// Acquires a permit for a log, or for another stream of a pod.
    pub(crate) fn stream(&self, flow_key: &FlowKey<'_>) -> Result<Permit, Status> {
        self.streams.acquire(flow_key.tenant, flow_key.cluster_flow()).ok_or_else(too_many)
    }

    /// Acquires a permit for a write that calls webhooks. A user may have half of a tenant's permits in one workspace.
    pub(crate) fn webhook(&self, flow_key: &FlowKey<'_>) -> Result<Permit, Status> {
        self.webhooks.acquire(flow_key.tenant, flow_key.tenant_flow()).ok_or_else(too_many)
    }

    /// Acquires a permit for a conversion call. A logical cluster may have half of its tenant's permits.
    pub(crate) fn conversion(&self, tenant: LogicalClusterId, cluster: LogicalClusterId) -> Result<Permit, Status> {
        self.conversions.acquire(tenant, FlowId { cluster: tenant, user: cluster.get() }).ok_or_else(too_many)
    }

    /// Returns the task flow of a new connection.
    pub(crate) fn task_flow(&self) -> TaskFlow {
        TaskFlow::of_new_connection(self.scheduler.clone())
    }

    /// Returns the share of a tenant for work of `user` outside of requests.
    pub(crate) fn share(&self, tenant: LogicalClusterId, user: &str) -> FairShare {
        let mut hasher = DefaultHasher::new();
        user.hash(&mut hasher);
        let tenant_flow = FlowId { cluster: tenant, user: hasher.finish() };
        FairShare::new(TaskFlow::fixed(self.scheduler.clone(), tenant_flow))
    }

    /// Returns a task flow of a scheduler with a single time slice.
    #[cfg(test)]
    pub(crate) fn single_slice_task_flow() -> TaskFlow {
        TaskFlow::of_new_connection(FairPollScheduler::new(1))
    }

    /// Charges the current task's time slices to a flow.
    pub(crate) fn belongs_to(flow_key: &FlowKey<'_>) {
        scheduler::belongs_to(flow_key.tenant_flow());
    }

    /// Returns an empty memory charge for a request.
    pub(crate) fn charge(&self, flow_key: &FlowKey<'_>) -> MemoryCharge {
        MemoryCharge::new(self.bytes.acquire_none(flow_key.tenant, flow_key.tenant_flow()))
    }
}

impl SeatPool {
    async fn enter(&self, flow_key: &FlowKey<'_>, patience: Duration) -> Result<RunningRequest, Status> {
        let (_waiting, since) = (self.metrics.waiting(), Instant::now());
        let entered = self.seats.enter(flow_key.tenant_flow(), patience).await;
        let waited = since.elapsed().as_secs_f64();
        let why = match entered {
            Ok(seat) => return Ok(RunningRequest { _executing: self.metrics.executing(waited), _seat: seat }),
            Err(SeatError::Full) => "queue-full",
            Err(SeatError::TimeOut) => "time-out",
        };
        self.metrics.rejected(why, waited);
        Err(too_many())
    }
}

/// Seat of a running request, released on drop.
pub(crate) struct RunningRequest {
    _executing: ExecutingRequest,
    _seat: Seat,
}

/// Key of the flow that a request belongs to. Seats and permits are shared between tenants, so creating workspaces
/// brings no more of them. Within a tenant, each user has a queue per workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowKey<'a> {
    /// Workspace below `root` that contains it.
    pub(crate) tenant: LogicalClusterId,
    pub(crate) cluster: LogicalClusterId,
    pub(crate) user: &'a User,
}

impl FlowKey<'_> {
    /// Returns the flow for limits per tenant.
    fn tenant_flow(&self) -> FlowId {
        FlowId { cluster: self.tenant, user: self.user_hash() }
    }

    /// Returns the flow for limits per logical cluster.
    fn cluster_flow(&self) -> FlowId {
        FlowId { cluster: self.cluster, user: self.user_hash() }
    }

    /// Returns the hash of a user in a workspace.
    fn user_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.cluster, &self.user.name).hash(&mut hasher);
        hasher.finish()
    }
}

fn too_many() -> Status {
    Status::too_many_requests("too many requests, please try again later", 1)
}
