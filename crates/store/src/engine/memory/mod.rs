//! Engine for tests and simulated clusters: a map in memory. Nothing is synced, and nothing survives.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::{Batch, KvCursor, KvResult, KvView, OrderedKv, RecoveryCallback};

type Map = BTreeMap<Vec<u8>, Bytes>;

/// Map in memory, and the batch that is not published yet.
#[derive(Default)]
pub(crate) struct MemoryKv {
    map: RwLock<Map>,
    committed: Mutex<Batch>,
}

impl OrderedKv for MemoryKv {
    fn view(&self, read: &mut dyn FnMut(&dyn KvView)) -> KvResult<()> {
        read(&MemoryView(self.map.read()));
        Ok(())
    }

    fn commit(&self, batch: Batch) -> KvResult<()> {
        *self.committed.lock() = batch;
        Ok(())
    }

    fn publish(&self) {
        let batch = std::mem::take(&mut *self.committed.lock());
        let mut map = self.map.write();
        for (key, value) in batch {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
    }

    fn tidy(&self) -> KvResult<()> {
        Ok(())
    }

    fn recover(&self, _: &mut RecoveryCallback<'_>) -> KvResult<()> {
        Ok(())
    }

    fn close(&self) {}

    fn is_in_memory(&self) -> bool {
        true
    }
}

struct MemoryView<'a>(RwLockReadGuard<'a, Map>);

impl KvView for MemoryView<'_> {
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>> {
        Ok(self.0.get(key).cloned())
    }

    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn KvCursor + 'v>> {
        let mut rest = self.0.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to.max(from))));
        Ok(Box::new(MemoryCursor { here: rest.next(), rest }))
    }
}

struct MemoryCursor<'v> {
    here: Option<(&'v Vec<u8>, &'v Bytes)>,
    rest: std::collections::btree_map::Range<'v, Vec<u8>, Bytes>,
}

impl KvCursor for MemoryCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.here.map(|(key, _)| key.as_slice())
    }

    fn value(&self) -> &[u8] {
        self.here.map_or(&[], |(_, value)| value)
    }

    fn shared(&self) -> Option<Bytes> {
        self.here.map(|(_, value)| value.clone())
    }

    fn advance(&mut self) -> KvResult<()> {
        self.here = self.rest.next();
        Ok(())
    }
}
