//! The distributed engine: any number of servers on one etcd, whose MVCC is the history.
//!
//! - `config` and `client` reach etcd; `layout` says what lies where, and how its revisions become ours.
//! - `opening` finds or founds the store, `probe` only looks; `commit` writes, `clusters` deletes whole logical clusters, `reads` reads, and of many objects
//!   few at once, in turn (`line`).
//! - `queue` bounds the writes that are under way.
//! - `feed` follows all writes, those of other servers and our own, and is the only one that fills the watch hub; `past` reads
//!   what a watch missed; `decode` makes events of both.
//! - `restore` makes a store of a snapshot.
//! - `roles` lets one of the servers do what only one may do; `holds` tells all of them what one still reads.

mod accounts;
mod client;
mod clusters;
mod commit;
mod config;
mod decode;
mod feed;
#[cfg(test)]
mod fixtures;
mod holds;
mod layout;
mod line;
mod lost;
mod opening;
mod past;
mod probe;
mod proto;
mod queue;
mod reads;
mod restore;
mod roles;
#[cfg(test)]
mod tests;

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
    accounts::{Accounts, Leaps},
    client::{Client, Fault},
    layout::Layout,
    line::Readers,
    lost::Losses,
    queue::Queue,
};
pub use self::{
    config::{EtcdConfig, Hidden},
    opening::open_etcd,
    probe::{Member as EtcdMember, MemberState as EtcdMemberState, probe as probe_etcd},
    restore::restore_etcd,
    roles::{Roles, Term},
};
use crate::{
    BackendError, Committed, Damaged, Durable, EventStream, Hold, RangePage, RangeRequest, Shortage, Store, StoreError,
    StoredObject, Transaction, Usage, WatchScope,
    core::closed,
    damage::Ledger,
    holds::Holds,
    hub::{Cursor, Hub},
    kv::failed,
    metrics::Metrics,
    plan::PreparedTransaction,
    read::{as_revision, backend},
};

/// How long a read waits for etcd, and for the hub to have come as far.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// After this time without the feed, the store is not ready.
const SILENCE: Duration = Duration::from_secs(3);
/// A reader that waits this long for the hub asks etcd whether nothing more comes.
const NUDGE: Duration = Duration::from_millis(10);

/// Whether writes are taken.
#[derive(Clone)]
enum Standing {
    Open,
    /// etcd has no room.
    Full,
    /// Nothing has come from etcd since then.
    Silent(Instant, String),
    /// For good.
    Stopped(Arc<BackendError>),
}

/// What all parts share.
pub(crate) struct Inner {
    client: Client,
    layout: Layout,
    /// The revision at which the store was founded: while its record stands at it, this is the store that was opened.
    founded: i64,
    hub: Hub,
    holds: Holds,
    damage: Ledger,
    losses: Losses,
    metrics: Metrics,
    /// The revision of etcd's that the hub has reached.
    reached: watch::Sender<i64>,
    /// Somebody waits for the hub although nothing comes.
    nudge: Notify,
    /// A role may be free.
    freed: Notify,
    /// Writes that are under way.
    queue: Queue,
    readers: Readers,
    accounts: Accounts,
    /// Events were missed: all is to be counted anew.
    leaps: Leaps,
    standing: RwLock<Standing>,
    stopped: CancellationToken,
    patience: Duration,
}

impl Inner {
    /// # Errors
    /// When no write is taken any more.
    fn check_open(&self) -> Result<(), StoreError> {
        match &*self.standing.read() {
            Standing::Stopped(why) => Err(StoreError::Backend(why.clone())),
            Standing::Open | Standing::Full | Standing::Silent(..) => Ok(()),
        }
    }

    /// Takes no write any more.
    fn stop(&self, why: BackendError) {
        let mut standing = self.standing.write();
        if !matches!(*standing, Standing::Stopped(_)) {
            *standing = Standing::Stopped(Arc::new(why));
        }
    }

    /// Etcd answered: what it said before does not count any more.
    fn sound(&self, was: impl Fn(&Standing) -> bool) {
        if was(&self.standing.read()) {
            *self.standing.write() = Standing::Open;
        }
    }

    fn silent(&self, why: String) {
        let mut standing = self.standing.write();
        if matches!(*standing, Standing::Open) {
            tracing::warn!(error = %why, "etcd is silent");
            *standing = Standing::Silent(Instant::now(), why);
        }
    }

    /// What a fault of a read means.
    fn read_fault(&self, fault: Fault) -> StoreError {
        match fault {
            Fault::Unreachable(why) | Fault::Unknown(why) => StoreError::Unreachable { why },
            Fault::Busy => StoreError::Overloaded,
            Fault::Full => StoreError::Full(Shortage::Etcd),
            Fault::TooLarge(what) => StoreError::TooLarge { what },
            Fault::Refused(why) => backend(failed(format!("etcd: {why}"))),
            Fault::LargeAnswer | Fault::Compacted | Fault::Future | Fault::Token => {
                backend(failed(format!("etcd: {fault}")))
            }
        }
    }

    /// What a fault of a write means.
    fn write_fault(&self, fault: Fault) -> StoreError {
        match fault {
            Fault::Unknown(why) => {
                tracing::warn!(error = %why, "the outcome of a write is unknown");
                StoreError::Unknown
            }
            Fault::Full => {
                let mut standing = self.standing.write();
                if matches!(*standing, Standing::Open | Standing::Silent(..)) {
                    tracing::error!("etcd has no room, no write is taken until there is");
                    *standing = Standing::Full;
                }
                StoreError::Full(Shortage::Etcd)
            }
            other => self.read_fault(other),
        }
    }

    /// Waits until the hub has come to a revision of etcd's.
    async fn reach(&self, at: i64) -> Result<(), StoreError> {
        let deadline = Instant::now() + READ_PATIENCE;
        let mut reached = self.reached.subscribe();
        loop {
            tokio::select! {
                biased;
                found = tokio::time::timeout(NUDGE, reached.wait_for(|reached| *reached >= at)) => match found {
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

    /// The transaction of a revision, which the hub has reached then.
    ///
    /// # Errors
    /// `FutureRevision` when it has not happened.
    async fn happened(&self, asked: ResourceVersion) -> Result<(), StoreError> {
        let at = self.layout.numbering.transaction(asked.get());
        if at > *self.reached.borrow() {
            self.reach(self.fresh().await?).await?;
        }
        self.hub.marks().check_happened(asked.get())
    }
}

/// A store on etcd. Dropping it ends its tasks.
pub(crate) struct EtcdStore {
    inner: Arc<Inner>,
    runtime: Handle,
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.inner.stopped.cancel();
    }
}

impl EtcdStore {
    /// Runs a write of so many bytes in a task of its own, so that it happens wholly or not at all, whoever leaves.
    fn write<F>(&self, bytes: usize, write: F) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>>
    where
        F: Future<Output = Result<Committed, StoreError>> + Send + 'static,
    {
        let place = match self.inner.check_open().and_then(|()| self.inner.queue.enter(bytes, &self.inner.metrics)) {
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
                self.inner.happened(after).await?;
            }
            Ok(Box::new(Cursor::new(self.inner.clone(), scope, after)?) as Box<dyn EventStream>)
        })
    }

    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<Usage>, StoreError>> {
        Box::pin(async move { Ok(self.inner.accounts.usage(cluster).await) })
    }

    fn know_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        self.inner.accounts.know_parent(cluster, parent);
    }

    fn current(&self) -> ResourceVersion {
        as_revision(self.inner.hub.marks().last)
    }

    fn health(&self) -> Result<(), StoreError> {
        match &*self.inner.standing.read() {
            Standing::Open => Ok(()),
            Standing::Full => Err(StoreError::Full(Shortage::Etcd)),
            Standing::Silent(since, _) if since.elapsed() < SILENCE => Ok(()),
            Standing::Silent(_, why) => Err(StoreError::Unreachable { why: why.clone() }),
            Standing::Stopped(why) => Err(StoreError::Backend(why.clone())),
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

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, Hold> {
        Box::pin(async move {
            let held = || at.map_or_else(|| self.inner.hub.marks().last, ResourceVersion::get);
            let hold = self.inner.holds.hold(held);
            let told = self.inner.tell_hold(hold.revision()).await;
            hold.told(told)
        })
    }

    fn known_damage(&self) -> Vec<Damaged> {
        self.inner.damage.all()
    }

    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        Box::pin(self.inner.gone_clusters())
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
