//! Store that records the size of reads, cuts watches, and can be overloaded.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use portolan_store::{
    Committed, Durable, DynStore, EventBatch, EventStream, RangePage, RangeRequest, StoreError, StoreLayer,
    StoredObject, Transaction, WatchScope,
};
use portolan_types::{BoxFuture, ObjectKey, ResourceVersion};
use tokio::sync::watch;

pub struct Faulty {
    inner: DynStore,
    /// Most bytes of objects in one read.
    largest: AtomicUsize,
    /// Number of cuts: a watch ends when it changes.
    cuts: watch::Sender<u64>,
    /// Watches to refuse before the next one is opened.
    refused: AtomicUsize,
    overloaded: AtomicBool,
    silent: AtomicBool,
    /// Concurrent writes to perform just before each of the next writes.
    rivals: Mutex<VecDeque<Option<Transaction>>>,
}

impl Faulty {
    pub fn over(inner: DynStore) -> Arc<Self> {
        Arc::new(Self {
            inner,
            largest: AtomicUsize::new(0),
            cuts: watch::Sender::new(0),
            refused: AtomicUsize::new(0),
            overloaded: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            rivals: Mutex::default(),
        })
    }

    pub fn largest_read(&self) -> usize {
        self.largest.swap(0, Ordering::SeqCst)
    }

    /// Ends all watches as if they had fallen behind, and refuses the next `refused` ones.
    pub fn cut_watches(&self, refused: usize) {
        self.refused.store(refused, Ordering::SeqCst);
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Refuses writes like a store whose queue is full, or accepts them again.
    pub fn overload(&self, overloaded: bool) {
        self.overloaded.store(overloaded, Ordering::SeqCst);
    }

    /// Stops answering reads: each fails after ten seconds with an error that is not for clients.
    pub fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    async fn reached(&self) -> Result<(), StoreError> {
        if self.silent.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_secs(10)).await;
            return Err(StoreError::Unreachable { why: "tcp connect error at 10.1.2.3".into() });
        }
        Ok(())
    }

    /// Performs the first of these writes just before the next write, the second before the one after, and so on.
    pub fn write_before(&self, writes: impl IntoIterator<Item = Option<Transaction>>) {
        self.rivals.lock().extend(writes);
    }

    fn fell_behind(&self) -> StoreError {
        StoreError::Compacted { asked: self.inner.oldest(), oldest: self.inner.current() }
    }
}

struct Cut {
    events: Box<dyn EventStream>,
    cuts: watch::Receiver<u64>,
    error: StoreError,
}

impl EventStream for Cut {
    fn next(&mut self) -> BoxFuture<'_, Result<EventBatch, StoreError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                _ = self.cuts.changed() => Err(self.error.clone()),
                batch = self.events.next() => batch,
            }
        })
    }

    fn progress(&self) -> ResourceVersion {
        self.events.progress()
    }
}

impl StoreLayer for Faulty {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        if self.overloaded.load(Ordering::SeqCst) {
            Box::pin(std::future::ready(Err(StoreError::Overloaded)))
        } else {
            let Some(before) = self.rivals.lock().pop_front().flatten() else {
                return self.inner.commit(txn);
            };
            let inner = self.inner.clone();
            Box::pin(async move {
                inner.commit(before).await?;
                inner.commit(txn).await
            })
        }
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        Box::pin(async move {
            self.reached().await?;
            self.inner.get(key).await
        })
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(async move {
            self.reached().await?;
            let page = self.inner.range(request).await?;
            let bytes = page.objects.iter().map(|object| object.record.body().len()).sum();
            self.largest.fetch_max(bytes, Ordering::SeqCst);
            Ok(page)
        })
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        Box::pin(async move {
            let less = |left: usize| left.checked_sub(1);
            if self.refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
                return Err(self.fell_behind());
            }
            let mut cuts = self.cuts.subscribe();
            cuts.mark_unchanged();
            let events = self.inner.watch(scope, after).await?;
            Ok(Box::new(Cut { events, cuts, error: self.fell_behind() }) as Box<dyn EventStream>)
        })
    }
}
