//! Store at one revision, with planned objects and placement records over it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use portolan_store::{
    Committed, Durable, DynStore, RangePage, RangeRequest, RangeScope, StoreError, StoreLayer, StoredObject,
    Transaction,
};
use portolan_types::{BoxFuture, ObjectKey, Record, ResourceVersion, placement::PlacementRecord};
use serde_json::Value;

use crate::kinds;

/// Most objects that are kept because many others are decided with them.
const MAX_REMEMBERED: usize = 1_024;

/// Store at one revision, with what a plan would write over it. It takes no writes.
///
/// Ranges are read at the revision. Single objects, and ranges over an index, can be read at the latest state only: a
/// later write that one shows is noted, and the plan is repeated.
pub(super) struct PlanSnapshot {
    inner: DynStore,
    at: ResourceVersion,
    /// False if no decision depends on a `Placement`: none is read then.
    shows_placements: bool,
    overlay: Mutex<SnapshotOverlay>,
    is_torn: AtomicBool,
}

#[derive(Default)]
struct SnapshotOverlay {
    /// Objects as they would be written; `None` is a deleted one.
    objects: BTreeMap<ObjectKey, Option<StoredObject>>,
    /// Placement records of objects that would move.
    records: BTreeMap<ObjectKey, PlacementRecord>,
    /// Namespaces and their default decisions, as read.
    remembered: HashMap<ObjectKey, Option<StoredObject>>,
}

impl SnapshotOverlay {
    /// Returns an object as it would be.
    fn of(&self, stored: StoredObject) -> Option<StoredObject> {
        let stored = match self.objects.get(&stored.key) {
            Some(written) => written.clone()?,
            None => stored,
        };
        let Some(record) = self.records.get(&stored.key) else { return Some(stored) };
        let Ok(mut object) = stored.to_value() else { return Some(stored) };
        record.write_to(&mut object);
        Some(StoredObject { record: Arc::new(Record::of(&object)), ..stored })
    }
}

impl PlanSnapshot {
    pub(super) fn new(inner: DynStore, at: ResourceVersion, shows_placements: bool) -> Self {
        Self { inner, at, shows_placements, overlay: Mutex::default(), is_torn: AtomicBool::new(false) }
    }

    fn overlay(&self) -> MutexGuard<'_, SnapshotOverlay> {
        self.overlay.lock().expect("no code panics under this lock")
    }

    /// Writes an object over the snapshot; `None` deletes it.
    pub(super) fn put(&self, key: &ObjectKey, object: Option<&Value>) {
        let stored = object.map(|object| self.as_stored(key, Record::of(object)));
        self.overlay().objects.insert(key.clone(), stored);
    }

    /// Writes a record of the scheduler's own over the snapshot.
    pub(super) fn put_record(&self, key: &ObjectKey, record: Option<Record>) {
        let stored = record.map(|record| self.as_stored(key, record));
        self.overlay().objects.insert(key.clone(), stored);
    }

    fn as_stored(&self, key: &ObjectKey, record: Record) -> StoredObject {
        StoredObject { key: key.clone(), revision: self.at, created: self.at, record: Arc::new(record) }
    }

    /// Writes a placement record over the snapshot.
    pub(super) fn put_placement(&self, key: &ObjectKey, record: PlacementRecord) {
        self.overlay().records.insert(key.clone(), record);
    }

    /// Returns true if a read has shown a later write.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn.load(Ordering::Relaxed)
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<StoredObject>, StoreError> {
        let is_shared = key.resource == kinds::namespaces() || key.resource == kinds::decisions();
        {
            let overlay = self.overlay();
            if let Some(written) = overlay.objects.get(key) {
                return Ok(written.clone().and_then(|stored| overlay.of(stored)));
            }
            if let Some(known) = overlay.remembered.get(key).filter(|_| is_shared) {
                return Ok(known.clone());
            }
        }
        let stored = self.inner.get(key).await?;
        if stored.as_ref().is_some_and(|stored| stored.revision > self.at) {
            self.is_torn.store(true, Ordering::Relaxed);
        }
        let mut overlay = self.overlay();
        if is_shared {
            if overlay.remembered.len() >= MAX_REMEMBERED {
                overlay.remembered.clear();
            }
            overlay.remembered.insert(key.clone(), stored.clone());
        }
        Ok(stored.and_then(|stored| overlay.of(stored)))
    }

    async fn read_range(&self, request: RangeRequest) -> Result<RangePage, StoreError> {
        let is_latest_only = matches!(request.scope, RangeScope::PlacedOn(_) | RangeScope::OwnedBy(..));
        let at = request.at.or((!is_latest_only).then_some(self.at));
        let mut page = self.inner.range(RangeRequest { at, ..request }).await?;
        if is_latest_only && page.objects.iter().any(|stored| stored.revision > self.at) {
            self.is_torn.store(true, Ordering::Relaxed);
        }
        let overlay = self.overlay();
        page.objects = page.objects.into_iter().filter_map(|stored| overlay.of(stored)).collect();
        Ok(page)
    }
}

impl StoreLayer for PlanSnapshot {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn commit(&self, _: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        let why = "a plan writes nothing".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Unreachable { why })))
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        if key.resource == kinds::placements() && !self.shows_placements {
            return Box::pin(std::future::ready(Ok(None)));
        }
        Box::pin(self.read(key))
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        Box::pin(self.read_range(request))
    }
}

#[cfg(test)]
mod tests {
    use portolan_store::{Expect, ObjectClient, memory};
    use portolan_types::{GroupResource, LogicalClusterId, placement::CopyPhase, placement::PlacedCopy};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_snapshot_shows_planned_objects_and_no_later_ones() {
        let store = memory();
        let objects = ObjectClient::new(store.clone());
        let resource = GroupResource::new("", "configmaps");
        let key = |name: &str| {
            ObjectKey::namespaced(
                LogicalClusterId::ROOT,
                resource.clone(),
                "shop".parse().unwrap(),
                name.parse().unwrap(),
            )
        };
        for name in ["a", "b", "c"] {
            objects.create(&key(name), &json!({"metadata": {"name": name, "namespace": "shop"}})).await.unwrap();
        }
        let snapshot = PlanSnapshot::new(store.clone(), store.current(), true);
        objects.create(&key("d"), &json!({"metadata": {"name": "d", "namespace": "shop"}})).await.unwrap();
        snapshot.put(&key("a"), Some(&json!({"metadata": {"name": "a", "namespace": "shop"}, "data": {"x": "1"}})));
        snapshot.put(&key("b"), None);
        let copy = PlacedCopy {
            name: "east".into(),
            uid: "e".parse().unwrap(),
            phase: CopyPhase::Active,
            replicas: None,
            epoch: 1,
        };
        snapshot.put_placement(&key("c"), PlacementRecord { clusters: vec![copy], ..PlacementRecord::default() });
        let scope = RangeScope::Namespace(LogicalClusterId::ROOT, resource.clone(), "shop".parse().unwrap());
        let page = StoreLayer::range(&snapshot, RangeRequest::all(scope)).await.unwrap();
        let names: Vec<_> = page.objects.iter().map(|stored| stored.key.name.to_string()).collect();
        assert_eq!(names, ["a", "c"], "neither the deleted nor the later one");
        assert_eq!(page.objects[0].to_value().unwrap()["data"]["x"], "1");
        assert_eq!(page.objects[1].record.header.placed_on, ["e"]);
        assert!(StoreLayer::get(&snapshot, &key("b")).await.unwrap().is_none());
        assert!(!snapshot.is_torn());
        assert!(StoreLayer::get(&snapshot, &key("d")).await.unwrap().is_some());
        assert!(snapshot.is_torn(), "a single object is read at the latest state, and that is noted");
        let txn = Transaction::one(key("e"), Expect::Absent, None);
        assert!(StoreLayer::commit(&snapshot, txn).await.is_err());
    }
}
