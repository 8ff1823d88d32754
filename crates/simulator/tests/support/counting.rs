//! A store whose reads and writes are counted.

use std::{
    ops::Sub,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use portolan_store::{
    Committed, Durable, DynStore, RangePage, RangeRequest, StoreError, StoreLayer, StoredObject, Transaction,
};
use portolan_types::{BoxFuture, ObjectKey};

/// Objects that were read and written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) reads: usize,
    pub(crate) writes: usize,
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { reads: self.reads - before.reads, writes: self.writes - before.writes }
    }
}

/// Count of the work that goes through a [`CountingStore`].
#[derive(Clone, Default)]
pub(crate) struct Counted(Arc<[AtomicUsize; 2]>);

impl Counted {
    pub(crate) fn now(&self) -> Work {
        let [reads, writes] = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        Work { reads, writes }
    }

    fn read(&self, objects: usize) {
        self.0[0].fetch_add(objects, Ordering::Relaxed);
    }

    fn write(&self, objects: usize) {
        self.0[1].fetch_add(objects, Ordering::Relaxed);
    }
}

/// Store that counts.
pub(crate) struct CountingStore {
    pub(crate) inner: DynStore,
    pub(crate) counted: Counted,
}

impl StoreLayer for CountingStore {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        self.counted.write(txn.writes.len());
        self.inner.commit(txn)
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        self.counted.read(1);
        self.inner.get(key)
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(async move {
            let page = self.inner.range(request).await?;
            self.counted.read(page.objects.len());
            Ok(page)
        })
    }
}
