//! The `Store` of all embedded engines.

use std::{sync::Arc, time::Duration};

use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};
use tokio::sync::oneshot;

use crate::{
    Committed, Damage, Damaged, Durable, EventStream, Hold, RangePage, RangeRequest, RangeScope, SLICE_BYTES, Store,
    StoreError, StoredObject, Transaction, Usage, WatchScope,
    accounts::stored_account,
    blocking::{Party, Weight, run},
    committer::{Committer, Request, no_answer},
    core::{Answer, Core, closed},
    gate::Purpose,
    hub::Cursor,
    inline::Inline,
    inspection::Inspection,
    plan::PreparedTransaction,
    range::{Budget, range},
    read::{as_revision, backend, get, gone_clusters},
};

/// What a range may look at in place, before it moves to a thread for blocking.
const INLINE: Budget = Budget { objects: 256, bytes: SLICE_BYTES };
/// The same where a selector decides: what it takes may lie far apart, and what was looked at would be looked at again. A read of so few
/// costs less than the way to another thread and back.
const SELECTED: Budget = Budget { objects: 32, bytes: SLICE_BYTES };
/// Objects and bytes that are read in place for one unit of what a task may do before others have their turn. Of units it has
/// 128, which are a millisecond or two of reading then.
const UNIT: (usize, usize) = (16, 16 << 10);

/// A store on an embedded engine.
pub(crate) struct EmbeddedStore {
    /// First, so that it has ended before the engine is closed.
    pub(crate) inspection: Option<Inspection>,
    pub(crate) core: Arc<Core>,
    pub(crate) writer: Writer,
    pub(crate) commit_timeout: Duration,
}

/// A loop of reads that never wait must still let other tasks run: with a thread for each core, two that list all there is
/// would keep everybody from being answered until they are done.
async fn let_others_run(page: &RangePage) {
    let bytes: usize = page.objects.iter().map(|object| object.record.body().len()).sum();
    for _ in 0..=page.objects.len() / UNIT.0 + bytes / UNIT.1 {
        tokio::task::coop::consume_budget().await;
    }
}

/// Who commits.
pub(crate) enum Writer {
    Thread(Committer),
    Inline(Inline),
}

/// An answer that is there or will come.
enum Pending {
    Now(Answer),
    Later(oneshot::Receiver<Answer>),
}

impl EmbeddedStore {
    fn submit(&self, txn: Transaction) -> Result<Pending, StoreError> {
        let txn = PreparedTransaction::new(txn)?;
        match &self.writer {
            Writer::Thread(committer) => committer.commit(txn).map(Pending::Later),
            Writer::Inline(inline) => Ok(Pending::Now(inline.commit(&self.core, txn))),
        }
    }

    /// Waits for an answer. Without one in time, or when the committer ended in between, the outcome is unknown.
    fn answer(&self, pending: Result<Pending, StoreError>) -> BoxFuture<'static, Answer> {
        let timeout = self.commit_timeout;
        Box::pin(async move {
            match pending? {
                Pending::Now(answer) => {
                    // A loop of writes that never wait must still let other tasks run.
                    tokio::task::coop::consume_budget().await;
                    answer
                }
                Pending::Later(answer) => match tokio::time::timeout(timeout, answer).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) | Err(_) => Err(StoreError::Unknown),
                },
            }
        })
    }

    async fn read_range(&self, request: RangeRequest, party: Party) -> Result<RangePage, StoreError> {
        let read = |core: &Core, request: &RangeRequest, budget| {
            core.view(|view| range(view, &core.resources, request, budget)).map_err(backend)?
        };
        let budget = match (self.core.kv.is_in_memory(), request.labels.is_everything()) {
            (true, _) => Budget::UNLIMITED,
            (false, true) => INLINE,
            (false, false) => SELECTED,
        };
        if let Some(page) = read(&self.core, &request, budget)? {
            let_others_run(&page).await;
            return Ok(page);
        }
        let whole = move |core: &Core| read(core, &request, Budget::UNLIMITED)?.ok_or_else(closed);
        run(&self.core, party, Weight::Heavy, whole).await
    }

    /// Notes what kept a read from its end.
    fn note_error<T>(&self, outcome: &Result<T, StoreError>, scope: Option<&RangeScope>) {
        self.core.note_failed(outcome);
        if let Err(StoreError::Damaged { key, why }) = outcome {
            self.core.note(&Damaged { key: key.clone(), why: *why }, scope);
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
            // Who knows of it only from an index may delete it as it is.
            Ok(None) if self.core.damage.misses(key) => {
                Err(StoreError::Damaged { key: key.clone(), why: Damage::Missing })
            }
            found => found,
        };
        Box::pin(std::future::ready(found))
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let party = Party::of_range(&request.scope);
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
        let cursor = Cursor::new(self.core.clone(), scope, after);
        Box::pin(std::future::ready(cursor.map(|cursor| Box::new(cursor) as Box<dyn EventStream>)))
    }

    fn usage(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Option<Usage>, StoreError>> {
        let found = self.core.view(|view| stored_account(view, cluster)).map_err(backend).and_then(|found| found);
        Box::pin(std::future::ready(found.map(|entry| entry.map(|entry| entry.total))))
    }

    fn current(&self) -> ResourceVersion {
        as_revision(self.core.hub.marks().last)
    }

    fn health(&self) -> Result<(), StoreError> {
        self.core.check_open(Purpose::Any)
    }

    fn oldest(&self) -> ResourceVersion {
        as_revision(self.core.hub.marks().floor)
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        as_revision(self.core.hub.marks().last.saturating_sub(revisions))
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        let committer = match &self.writer {
            Writer::Thread(committer) => committer,
            Writer::Inline(inline) => return Box::pin(std::future::ready(inline.compact(&self.core, upto))),
        };
        let (reply, answer) = oneshot::channel();
        let sent = committer.send(Request::Compact(upto, reply), Purpose::MakeRoom);
        Box::pin(async move {
            sent?;
            answer.await.unwrap_or_else(|_| Err(no_answer(&self.core)))
        })
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        let pending = match &self.writer {
            Writer::Thread(committer) => {
                let (reply, answer) = oneshot::channel();
                committer
                    .send(Request::DeleteCluster(cluster, reply), Purpose::MakeRoom)
                    .map(|()| Pending::Later(answer))
            }
            Writer::Inline(inline) => Ok(Pending::Now(inline.delete_cluster(&self.core, cluster))),
        };
        self.answer(pending)
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, Hold> {
        let held = || at.map_or_else(|| self.core.hub.marks().last, ResourceVersion::get);
        Box::pin(std::future::ready(self.core.holds.hold(held)))
    }

    fn known_damage(&self) -> Vec<Damaged> {
        self.core.damage.all()
    }

    fn known_faults(&self) -> Vec<String> {
        self.core.faults.all()
    }

    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        Box::pin(run(&self.core, Party::Everybody, Weight::Heavy, |core| core.view(gone_clusters).map_err(backend)?))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inspection.iter().for_each(Inspection::end);
        match &self.writer {
            Writer::Thread(committer) => Box::pin(committer.close()),
            Writer::Inline(inline) => {
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
    use crate::{Engine, Expect, RangeScope, StoreConfig, open};

    #[tokio::test(flavor = "current_thread")]
    async fn who_lists_all_there_is_lets_others_run_in_between() {
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
