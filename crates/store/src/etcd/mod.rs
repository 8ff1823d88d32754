//! Distributed engine: any number of servers share one etcd, whose MVCC is the history.
//!
//! - `config` and `client` reach etcd; `layout` defines the keys, and maps etcd's revisions to the store's.
//! - `open` finds or creates the store, `probe` only reads. `commit` writes, `clusters` deletes whole logical
//!   clusters, `reads` reads; `read_limiter` limits concurrent reads of many objects.
//! - `write_limiter` limits the writes in flight.
//! - `feed` follows the writes of all servers and alone fills the watch hub; `catch_up` reads the history that a watch
//!   missed; `decode` makes events for both.
//! - `restore` creates a store from a snapshot.
//! - `leader_election` elects a leader among the servers; `holds` tells all servers which history one of them still
//!   reads.

mod accounts;
mod catch_up;
mod client;
mod clusters;
mod commit;
mod config;
mod decode;
mod discarded;
mod feed;
#[cfg(test)]
mod fixtures;
mod holds;
mod layout;
mod leader_election;
mod open;
mod probe;
mod proto;
mod read_limiter;
mod reads;
mod restore;
#[cfg(test)]
mod tests;
mod write_limiter;

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::{
    accounts::{MissedEvents, UsageCounter},
    client::{EtcdClient, EtcdFault},
    discarded::DiscardLog,
    layout::EtcdLayout,
    read_limiter::ReadLimiter,
    write_limiter::WriteLimiter,
};
pub use self::{
    config::{EtcdConfig, SecretString},
    leader_election::{LeaderElection, LeadershipTerm},
    open::open_etcd,
    probe::{EtcdMember, EtcdMemberState, probe as probe_etcd},
    restore::restore_etcd,
};
use crate::{
    api::{
        BackendError, Committed, Durable, EventStream, RangePage, RangeRequest, Store, StoreError, StoredObject,
        StoredUsage, Transaction, WatchScope,
        damage::DamagedObject,
        hold::{RevisionHold, RevisionHolds},
        shortage::SpaceShortage,
    },
    engine::failed,
    integrity::damage::DamageLedger,
    metrics::StoreMetrics,
    read::state::{as_revision, backend, closed},
    watch::{Hub, WatchCursor},
    write::transaction::PreparedTransaction,
};

/// Time that a read waits for etcd, and for the hub to reach etcd's revision.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without the feed after which the store is not ready.
const MAX_SILENCE: Duration = Duration::from_secs(3);
/// Time that a reader waits for the hub before it requests a progress notification.
const PROGRESS_DELAY: Duration = Duration::from_millis(10);

/// Readiness of the store for writes.
#[derive(Clone)]
enum EtcdHealth {
    Open,
    /// etcd's database is full.
    Full,
    /// Nothing has arrived from etcd since then.
    Silent(Instant, String),
    /// Stopped permanently.
    Stopped(Arc<BackendError>),
}

/// State shared by all parts of the engine.
pub(crate) struct EtcdCore {
    client: EtcdClient,
    layout: EtcdLayout,
    /// Revision at which the store was created. While its record has this revision, it is the store that was opened.
    founded: i64,
    hub: Hub,
    holds: RevisionHolds,
    damage: DamageLedger,
    losses: DiscardLog,
    metrics: StoreMetrics,
    /// etcd revision that the hub has reached.
    reached: watch::Sender<i64>,
    /// Signal that a reader waits for the hub although nothing arrives.
    nudge: Notify,
    /// Signal that a leader election may be open.
    freed: Notify,
    /// Limiter of the writes in flight.
    queue: WriteLimiter,
    readers: ReadLimiter,
    accounts: UsageCounter,
    /// Signal that events were missed, so that all usage has to be counted again.
    leaps: MissedEvents,
    standing: RwLock<EtcdHealth>,
    stopped: CancellationToken,
    patience: Duration,
}

impl EtcdCore {
    /// # Errors
    /// Fails once the store takes no writes.
    fn check_open(&self) -> Result<(), StoreError> {
        match &*self.standing.read() {
            EtcdHealth::Stopped(why) => Err(StoreError::Backend(why.clone())),
            EtcdHealth::Open | EtcdHealth::Full | EtcdHealth::Silent(..) => Ok(()),
        }
    }

    /// Stops taking writes permanently.
    fn stop(&self, why: BackendError) {
        let mut standing = self.standing.write();
        if !matches!(*standing, EtcdHealth::Stopped(_)) {
            *standing = EtcdHealth::Stopped(Arc::new(why));
        }
    }

    /// Marks etcd as healthy after an answer, if `was` matches the present state.
    fn mark_healthy(&self, was: impl Fn(&EtcdHealth) -> bool) {
        if was(&self.standing.read()) {
            *self.standing.write() = EtcdHealth::Open;
        }
    }

    fn mark_silent(&self, why: String) {
        let mut standing = self.standing.write();
        if matches!(*standing, EtcdHealth::Open) {
            tracing::warn!(error = %why, "no answer from etcd");
            *standing = EtcdHealth::Silent(Instant::now(), why);
        }
    }

    /// Maps the fault of a read to a store error.
    fn read_fault(&self, fault: EtcdFault) -> StoreError {
        match fault {
            EtcdFault::Unreachable(why) | EtcdFault::Unknown(why) => StoreError::Unreachable { why },
            EtcdFault::Busy => StoreError::Overloaded,
            EtcdFault::Full => StoreError::Full(SpaceShortage::Etcd),
            EtcdFault::TooLarge(what) => StoreError::TooLarge { what },
            EtcdFault::Refused(why) => backend(failed(format!("etcd: {why}"))),
            EtcdFault::LargeAnswer | EtcdFault::Compacted | EtcdFault::Future | EtcdFault::Token => {
                backend(failed(format!("etcd: {fault}")))
            }
        }
    }

    /// Maps the fault of a write to a store error.
    fn write_fault(&self, fault: EtcdFault) -> StoreError {
        match fault {
            EtcdFault::Unknown(why) => {
                tracing::warn!(error = %why, "the outcome of a write is unknown");
                StoreError::Unknown
            }
            EtcdFault::Full => {
                let mut standing = self.standing.write();
                if matches!(*standing, EtcdHealth::Open | EtcdHealth::Silent(..)) {
                    tracing::error!("etcd's database is full: writes are rejected until there is space");
                    *standing = EtcdHealth::Full;
                }
                StoreError::Full(SpaceShortage::Etcd)
            }
            other => self.read_fault(other),
        }
    }

    /// Waits until the hub has reached a revision of etcd.
    async fn reach(&self, at: i64) -> Result<(), StoreError> {
        let deadline = Instant::now() + READ_TIMEOUT;
        let mut reached = self.reached.subscribe();
        loop {
            tokio::select! {
                biased;
                found = tokio::time::timeout(PROGRESS_DELAY, reached.wait_for(|reached| *reached >= at)) => match found {
                    Ok(Ok(_)) => return Ok(()),
                    Ok(Err(_)) => return Err(closed()),
                    Err(_) if Instant::now() >= deadline => {
                        return Err(StoreError::Unreachable { why: "etcd's events do not come".into() });
                    }
                    Err(_) => self.nudge.notify_one(),
                },
                () = self.stopped.cancelled() => return Err(closed()),
            }
        }
    }

    /// Waits until the hub has reached the transaction of a revision.
    ///
    /// # Errors
    /// `FutureRevision` if it has not happened.
    async fn wait_until_happened(&self, asked: ResourceVersion) -> Result<(), StoreError> {
        let at = self.layout.numbering.transaction(asked.get());
        if at > *self.reached.borrow() {
            self.reach(self.current_revision().await?).await?;
        }
        self.hub.marks().check_happened(asked.get())
    }
}

/// Store on etcd. Dropping it stops its tasks.
pub(crate) struct EtcdStore {
    inner: Arc<EtcdCore>,
    runtime: Handle,
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.inner.stopped.cancel();
    }
}

impl EtcdStore {
    /// Runs a write of `bytes` bytes in its own task, so that it happens entirely or not at all even if the caller is
    /// dropped.
    fn write<F>(&self, bytes: usize, write: F) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>>
    where
        F: Future<Output = Result<Committed, StoreError>> + Send + 'static,
    {
        let place = match self.inner.check_open().and_then(|()| self.inner.queue.acquire(bytes, &self.inner.metrics)) {
            Ok(place) => place,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let patience = self.inner.patience;
        let task = self.runtime.spawn(async move {
            let committed = write.await;
            drop(place);
            committed.map(Durable::after_sync)
        });
        Box::pin(async move {
            match tokio::time::timeout(patience, task).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => Err(StoreError::Unknown),
            }
        })
    }
}

impl Store for EtcdStore {
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        let inner = self.inner.clone();
        match PreparedTransaction::new(txn) {
            Ok(txn) => self.write(txn.bytes(), async move { commit::commit(&inner, txn).await }),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        Box::pin(self.inner.get(key))
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(async move { self.inner.range(&request).await })
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        Box::pin(async move {
            if let Some(after) = after {
                self.inner.wait_until_happened(after).await?;
            }
            Ok(Box::new(WatchCursor::new(self.inner.clone(), scope, after)?) as Box<dyn EventStream>)
        })
    }

    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<StoredUsage>, StoreError>> {
        Box::pin(async move { Ok(self.inner.accounts.usage(cluster).await) })
    }

    fn record_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        self.inner.accounts.record_parent(cluster, parent);
    }

    fn dry_run(&self, txn: Transaction) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { commit::dry_run(&self.inner, PreparedTransaction::new(txn)?).await })
    }

    fn current(&self) -> ResourceVersion {
        as_revision(self.inner.hub.marks().last)
    }

    fn health(&self) -> Result<(), StoreError> {
        match &*self.inner.standing.read() {
            EtcdHealth::Open => Ok(()),
            EtcdHealth::Full => Err(StoreError::Full(SpaceShortage::Etcd)),
            EtcdHealth::Silent(since, _) if since.elapsed() < MAX_SILENCE => Ok(()),
            EtcdHealth::Silent(_, why) => Err(StoreError::Unreachable { why: why.clone() }),
            EtcdHealth::Stopped(why) => Err(StoreError::Backend(why.clone())),
        }
    }

    fn oldest(&self) -> ResourceVersion {
        as_revision(self.inner.hub.marks().floor)
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        let revisions = i64::try_from(revisions).unwrap_or(i64::MAX);
        let at = self.inner.reached.borrow().saturating_sub(revisions);
        as_revision(self.inner.layout.numbering.boundary(at.max(0)))
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.inner.compact(upto))
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        let inner = self.inner.clone();
        self.write(0, async move { clusters::delete(&inner, cluster).await })
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, RevisionHold> {
        Box::pin(async move {
            let held = || at.map_or_else(|| self.inner.hub.marks().last, ResourceVersion::get);
            let hold = self.inner.holds.hold(held);
            let told = self.inner.announce_hold(hold.revision()).await;
            hold.with_registration(told)
        })
    }

    fn known_damage(&self) -> Vec<DamagedObject> {
        self.inner.damage.all()
    }

    fn deleted_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        Box::pin(self.inner.deleted_clusters())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.inner.stop(failed("the store is closed"));
            self.inner.queue.close().await;
            self.inner.hub.close();
            self.inner.stopped.cancel();
        })
    }
}
