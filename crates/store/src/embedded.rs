//! The `Store` of all embedded engines.

use std::{sync::Arc, time::Duration};

use portolan_types::{BoxFuture, LogicalClusterId, ObjectKey, ResourceVersion};
use tokio::sync::oneshot;

use crate::{
    Committed, Durable, EventStream, Hold, RangePage, RangeRequest, Store, StoreError, StoredObject, Transaction,
    WatchScope,
    blocking::{Weight, run},
    committer::{Committer, Request, no_answer},
    core::{Answer, Core, closed},
    gate::Purpose,
    hub::Cursor,
    inline::Inline,
    plan::PreparedTransaction,
    range::{Budget, range},
    read::{as_revision, backend, get, gone_clusters},
};

/// How many objects a range may look at in place, before it moves to a thread for blocking.
const INLINE_OBJECTS: usize = 256;

/// A store on an embedded engine.
pub(crate) struct EmbeddedStore {
    pub(crate) core: Arc<Core>,
    pub(crate) writer: Writer,
    pub(crate) commit_timeout: Duration,
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
}

impl Store for EmbeddedStore {
    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        self.answer(self.submit(txn))
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        let found = self.core.view(|view| get(view, &self.core.resources, key));
        Box::pin(std::future::ready(found.map_err(backend).and_then(|found| found)))
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(async move {
            let read = |core: &Core, request: &RangeRequest, budget| {
                core.view(|view| range(view, &core.resources, request, budget)).map_err(backend)?
            };
            let budget = match self.core.kv.is_in_memory() {
                true => Some(Budget::UNLIMITED),
                // What a selector takes may lie far apart, and what it leaves would be read again.
                false => request.labels.is_everything().then_some(Budget(INLINE_OBJECTS)),
            };
            if let Some(budget) = budget
                && let Some(page) = read(&self.core, &request, budget)?
            {
                return Ok(page);
            }
            run(&self.core, Weight::Heavy, move |core| read(core, &request, Budget::UNLIMITED)?.ok_or_else(closed))
                .await
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

    fn current(&self) -> ResourceVersion {
        as_revision(self.core.hub.marks().last)
    }

    fn health(&self) -> Result<(), StoreError> {
        self.core.check_open(Purpose::Any)
    }

    fn oldest(&self) -> ResourceVersion {
        as_revision(self.core.hub.marks().floor)
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

    fn hold(&self) -> Hold {
        self.core.holds.hold(|| self.core.hub.marks().last)
    }

    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        Box::pin(run(&self.core, Weight::Heavy, |core| core.view(gone_clusters).map_err(backend)?))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        match &self.writer {
            Writer::Thread(committer) => Box::pin(committer.close()),
            Writer::Inline(inline) => {
                inline.close(&self.core);
                Box::pin(std::future::ready(()))
            }
        }
    }
}
