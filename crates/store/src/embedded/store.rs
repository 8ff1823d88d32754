//! `Store` implementation on embedded engines.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};
use tokio::sync::oneshot;

use crate::{
    api::{
        Committed, Durable, EventStream, RangePage, RangeRequest, RangeScope, SLICE_BYTES, Store, StoreError,
        StoredObject, StoredUsage, Transaction, WatchScope,
        damage::{Damage, DamagedObject},
        hold::RevisionHold,
    },
    embedded::{
        committer::{Committer, CommitterRequest, no_answer},
        inline::InlineCommitter,
    },
    engine::KvView,
    maintenance::scrubber::Scrubber,
    read::{
        range::{ReadBudget, range},
        state::{as_revision, backend, closed, deleted_clusters, get},
    },
    reader_pool::{ReadTenant, ReadWeight, run},
    watch::WatchCursor,
    write::{
        accounts::{lacks_parent, stored_account},
        core::{CommitResult, StoreCore},
        gate::WritePurpose,
        plan::BatchPlan,
        transaction::PreparedTransaction,
    },
};

/// Most that a range reads in place before it moves to a reader thread.
const INLINE_BUDGET: ReadBudget = ReadBudget { objects: 256, bytes: SLICE_BYTES };
/// Maximum number of objects that a range with a selector reads on the calling thread. Matches may be far apart, and
/// moving to another thread restarts the read; reading this few objects costs less.
const SELECTOR_BUDGET: ReadBudget = ReadBudget { objects: 32, bytes: SLICE_BYTES };
/// Objects and bytes that are read in place per unit of a task's cooperative budget. A task has 128 units, which are a
/// millisecond or two of reads.
const YIELD_UNIT: (usize, usize) = (16, 16 << 10);

/// Store on an embedded engine.
pub(crate) struct EmbeddedStore {
    /// First field, so that it has ended before the engine is closed.
    pub(crate) inspection: Option<Scrubber>,
    pub(crate) core: Arc<StoreCore>,
    pub(crate) writer: StoreWriter,
    pub(crate) commit_timeout: Duration,
}

/// Yields to other tasks after reads that never wait. With one thread per core, two tasks that list everything would
/// otherwise block all others.
async fn yield_after(page: &RangePage) {
    let bytes: usize = page.objects.iter().map(|object| object.record.body().len()).sum();
    for _ in 0..=page.objects.len() / YIELD_UNIT.0 + bytes / YIELD_UNIT.1 {
        tokio::task::coop::consume_budget().await;
    }
}

/// Committer of a store.
pub(crate) enum StoreWriter {
    Thread(Committer),
    Inline(InlineCommitter),
}

/// Answer that exists already or will arrive.
enum PendingAnswer {
    Now(CommitResult),
    Later(oneshot::Receiver<CommitResult>),
}

impl EmbeddedStore {
    fn submit(&self, txn: Transaction) -> Result<PendingAnswer, StoreError> {
        let txn = PreparedTransaction::new(txn)?;
        match &self.writer {
            StoreWriter::Thread(committer) => committer.commit(txn).map(PendingAnswer::Later),
            StoreWriter::Inline(inline) => Ok(PendingAnswer::Now(inline.commit(&self.core, txn))),
        }
    }

    /// Waits for an answer. Without one in time, or if the committer ended, the outcome is unknown.
    fn answer(&self, pending: Result<PendingAnswer, StoreError>) -> BoxFuture<'static, CommitResult> {
        let timeout = self.commit_timeout;
        Box::pin(async move {
            match pending? {
                PendingAnswer::Now(answer) => {
                    // A loop of writes that never wait must still yield.
                    tokio::task::coop::consume_budget().await;
                    answer
                }
                PendingAnswer::Later(answer) => match tokio::time::timeout(timeout, answer).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) | Err(_) => Err(StoreError::Unknown),
                },
            }
        })
    }

    async fn read_range(&self, request: RangeRequest, party: ReadTenant) -> Result<RangePage, StoreError> {
        let read = |core: &StoreCore, request: &RangeRequest, budget| {
            core.view(|view| range(view, &core.resources, request, budget)).map_err(backend)?
        };
        let budget = match (self.core.kv.is_in_memory(), request.labels.is_everything()) {
            (true, _) => ReadBudget::UNLIMITED,
            (false, true) => INLINE_BUDGET,
            (false, false) => SELECTOR_BUDGET,
        };
        if let Some(page) = read(&self.core, &request, budget)? {
            yield_after(&page).await;
            return Ok(page);
        }
        let whole = move |core: &StoreCore| read(core, &request, ReadBudget::UNLIMITED)?.ok_or_else(closed);
        run(&self.core, party, ReadWeight::Heavy, whole).await
    }

    /// Notes the failure that ended a read.
    fn note_error<T>(&self, outcome: &Result<T, StoreError>, scope: Option<&RangeScope>) {
        self.core.note_failed(outcome);
        if let Err(StoreError::Damaged { key, why }) = outcome {
            self.core.note(&DamagedObject { key: key.clone(), why: *why }, scope);
        }
    }
}

impl Store for EmbeddedStore {
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        self.answer(self.submit(txn))
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        let found =
            self.core.view(|view| get(view, &self.core.resources, key)).map_err(backend).and_then(|found| found);
        self.note_error(&found, None);
        let found = match found {
            // The error lets a client delete an object that only an index names.
            Ok(None) if self.core.damage.is_known_missing(key) => {
                Err(StoreError::Damaged { key: key.clone(), why: Damage::Missing })
            }
            found => found,
        };
        Box::pin(std::future::ready(found))
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let party = ReadTenant::of_range(&request.scope);
        Box::pin(async move {
            let scope = request.scope.clone();
            let page = self.read_range(request, party).await;
            self.note_error(&page, Some(&scope));
            page.iter().flat_map(|page| &page.damaged).for_each(|found| self.core.note(found, Some(&scope)));
            page
        })
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        let cursor = WatchCursor::new(self.core.clone(), scope, after);
        Box::pin(std::future::ready(cursor.map(|cursor| Box::new(cursor) as Box<dyn EventStream>)))
    }

    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<StoredUsage>, StoreError>> {
        let found = self.core.view(|view| stored_account(view, cluster)).map_err(backend).and_then(|found| found);
        Box::pin(std::future::ready(found.map(|entry| entry.map(|entry| entry.total))))
    }

    fn record_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        let is_unlinked = self.core.view(|view| lacks_parent(view, cluster));
        if matches!(is_unlinked, Ok(Ok(true))) {
            match &self.writer {
                StoreWriter::Thread(committer) => committer.link(cluster, parent),
                StoreWriter::Inline(inline) => inline.link(&self.core, cluster, parent),
            }
        }
    }

    fn current(&self) -> ResourceVersion {
        as_revision(self.core.hub.marks().last)
    }

    fn health(&self) -> Result<(), StoreError> {
        self.core.check_open(WritePurpose::Any)
    }

    fn oldest(&self) -> ResourceVersion {
        as_revision(self.core.hub.marks().floor)
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        as_revision(self.core.hub.marks().last.saturating_sub(revisions))
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        let committer = match &self.writer {
            StoreWriter::Thread(committer) => committer,
            StoreWriter::Inline(inline) => return Box::pin(std::future::ready(inline.compact(&self.core, upto))),
        };
        let (reply, answer) = oneshot::channel();
        let sent = committer.send(CommitterRequest::Compact(upto, reply), WritePurpose::MakeRoom);
        Box::pin(async move {
            sent?;
            answer.await.unwrap_or_else(|_| Err(no_answer(&self.core)))
        })
    }

    fn dry_run(&self, txn: Transaction) -> BoxFuture<'_, Result<(), StoreError>> {
        let planned = PreparedTransaction::new(txn).and_then(|txn| {
            let plan = |view: &dyn KvView| {
                let mut plan = BatchPlan::new(view, &self.core.resources)?;
                plan.is_nearly_full = self.core.room.is_nearly_full();
                plan.transaction(txn).map(drop)
            };
            self.core.view(plan).map_err(backend)?
        });
        Box::pin(std::future::ready(planned))
    }

    fn history_bytes(&self) -> Option<u64> {
        Some(self.core.superseded.load(Ordering::Relaxed))
    }

    fn shrink_history(&self, most: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        let committer = match &self.writer {
            StoreWriter::Thread(committer) => committer,
            StoreWriter::Inline(inline) => {
                return Box::pin(std::future::ready(inline.shrink_history(&self.core, most)));
            }
        };
        let (reply, answer) = oneshot::channel();
        let sent = committer.send(CommitterRequest::ShrinkHistory(most, reply), WritePurpose::MakeRoom);
        Box::pin(async move {
            sent?;
            answer.await.unwrap_or_else(|_| Err(no_answer(&self.core)))
        })
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        let pending = match &self.writer {
            StoreWriter::Thread(committer) => {
                let (reply, answer) = oneshot::channel();
                committer
                    .send(CommitterRequest::DeleteCluster(cluster, reply), WritePurpose::MakeRoom)
                    .map(|()| PendingAnswer::Later(answer))
            }
            StoreWriter::Inline(inline) => Ok(PendingAnswer::Now(inline.delete_cluster(&self.core, cluster))),
        };
        self.answer(pending)
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, RevisionHold> {
        let held = || at.map_or_else(|| self.core.hub.marks().last, ResourceVersion::get);
        Box::pin(std::future::ready(self.core.holds.hold(held)))
    }

    fn known_damage(&self) -> Vec<DamagedObject> {
        self.core.damage.all()
    }

    fn known_faults(&self) -> Vec<String> {
        self.core.faults.all()
    }

    fn deleted_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        Box::pin(run(&self.core, ReadTenant::Everybody, ReadWeight::Heavy, |core| {
            core.view(deleted_clusters).map_err(backend)?
        }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inspection.iter().for_each(Scrubber::end);
        match &self.writer {
            StoreWriter::Thread(committer) => Box::pin(committer.close()),
            StoreWriter::Inline(inline) => {
                inline.close(&self.core);
                Box::pin(std::future::ready(()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use portolan_types::{GroupResource, Record, Seams};
    use serde_json::json;

    use super::*;
    use crate::{
        api::{Expect, RangeScope},
        open::{Engine, StoreConfig, open},
    };

    #[tokio::test(flavor = "current_thread")]
    async fn a_full_list_yields_to_other_readers() {
        let dir = tempfile::tempdir().unwrap();
        for engine in [Engine::Redb, Engine::Memory] {
            let store = open(StoreConfig::new(engine, Some(dir.path().into())), Seams::system()).unwrap();
            let resource = GroupResource::new("", "configmaps");
            let object = json!({"metadata": {}, "data": {"a": "x".repeat(64 << 10)}});
            for name in 0..200 {
                let name = format!("a{name}").parse().unwrap();
                let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource.clone(), name);
                store.commit(Transaction::one(key, Expect::Absent, Some(Record::of(&object)))).await.unwrap();
            }
            let read = Arc::new(AtomicUsize::new(0));
            let reading = tokio::spawn({
                let (store, read) = (store.clone(), read.clone());
                async move {
                    let mut request = RangeRequest::slices(RangeScope::Cluster(LogicalClusterId::ROOT, resource));
                    loop {
                        let page = store.range(request.clone()).await.unwrap();
                        read.fetch_add(page.objects.len(), Ordering::Relaxed);
                        let Some(next) = request.next(&page) else { return };
                        request = next;
                    }
                }
            });
            let mut turns = 0;
            while !reading.is_finished() {
                tokio::task::yield_now().await;
                turns += 1;
            }
            reading.await.unwrap();
            assert_eq!(read.load(Ordering::Relaxed), 200, "{engine:?}");
            assert!(turns >= 5, "others ran {turns} times while 12 MiB were read: {engine:?}");
            store.close().await;
        }
    }
}
