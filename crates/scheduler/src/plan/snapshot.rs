//! Store at one revision, with planned objects and placement records over it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
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

/// Read-only store at one revision, overlaid with the writes of a plan.
///
/// Ranges are read at the revision, and so are single objects that have been written since. A range over an index can
/// be read at the latest state only: of the objects that it shows, those written since are read as they were.
pub(super) struct PlanSnapshot {
    inner: DynStore,
    at: ResourceVersion,
    /// False if no decision depends on a `Placement`: none is read then.
    shows_placements: bool,
    overlay: Mutex<SnapshotOverlay>,
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
        Self { inner, at, shows_placements, overlay: Mutex::default() }
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
        let stored = read_at(&self.inner, key, self.at).await?;
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
        if is_latest_only {
            for stored in std::mem::take(&mut page.objects) {
                let is_old = stored.revision <= self.at;
                page.objects.extend(if is_old {
                    Some(stored)
                } else {
                    read_past(&self.inner, &stored.key, self.at).await?
                });
            }
        }
        let overlay = self.overlay();
        page.objects = page.objects.into_iter().filter_map(|stored| overlay.of(stored)).collect();
        Ok(page)
    }
}

/// Objects that are read at once to find one at an earlier revision.
const NEAR: usize = 16;

/// Reads one object as it was at a revision.
pub(super) async fn read_at(
    store: &DynStore,
    key: &ObjectKey,
    at: ResourceVersion,
) -> Result<Option<StoredObject>, StoreError> {
    let latest = store.get(key).await?;
    match &latest {
        Some(stored) if stored.revision <= at => Ok(latest),
        None if store.current() <= at => Ok(None),
        // It was written or deleted since.
        Some(_) | None => read_past(store, key, at).await,
    }
}

/// Reads one object as it was at an earlier revision, which only ranges can show.
async fn read_past(store: &DynStore, key: &ObjectKey, at: ResourceVersion) -> Result<Option<StoredObject>, StoreError> {
    let scope = match key.namespace() {
        Some(namespace) => RangeScope::Namespace(key.cluster, key.resource.clone(), namespace.clone()),
        None => RangeScope::Cluster(key.cluster, key.resource.clone()),
    };
    let (at, after) = (Some(at), key_before(key));
    let mut request = RangeRequest { at, after, limit: Some(NEAR), ..RangeRequest::all(scope).skip_damaged() };
    loop {
        let page = store.range(request.clone()).await?;
        if let Some(found) = page.objects.into_iter().find(|stored| stored.key.name >= key.name) {
            return Ok((found.key == *key).then_some(found));
        }
        if !page.more {
            return Ok(None);
        }
        request.after = page.last;
    }
}

/// Returns a key shortly before another one: the key of the longest proper prefix that is a valid name.
fn key_before(key: &ObjectKey) -> Option<ObjectKey> {
    let ends = key.name.char_indices().map(|(end, _)| end).rev();
    let name = ends.filter(|end| *end > 0).find_map(|end| key.name[..end].parse().ok())?;
    Some(ObjectKey { name, ..key.clone() })
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
        assert!(StoreLayer::get(&snapshot, &key("d")).await.unwrap().is_none(), "it was created later");
        let txn = Transaction::one(key("e"), Expect::Absent, None);
        assert!(StoreLayer::commit(&snapshot, txn).await.is_err());
    }

    #[tokio::test]
    async fn an_object_that_was_written_or_deleted_since_is_read_as_it_was() {
        let store = memory();
        let objects = ObjectClient::new(store.clone());
        let key = |name: &str| {
            let resource = GroupResource::new("", "configmaps");
            ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name.parse().unwrap())
        };
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "owner"}]);
        let object = |name: &str, x: i64| {
            let metadata = json!({"name": name, "namespace": "shop", "ownerReferences": owner});
            json!({"metadata": metadata, "data": {"x": x}})
        };
        let names: Vec<String> = (0..40).map(|n| format!("a{}", "-".repeat(n % 7) + &n.to_string())).collect();
        for name in &names {
            objects.create(&key(name), &object(name, 1)).await.unwrap();
        }
        let snapshot = PlanSnapshot::new(store.clone(), store.current(), true);
        for (n, name) in names.iter().enumerate() {
            let expect = Expect::Present;
            let record = (n % 2 == 0).then(|| Record::of(&object(name, 2)));
            store.commit(Transaction::one(key(name), expect, record)).await.unwrap();
        }
        objects.create(&key("a--later"), &object("a--later", 1)).await.unwrap();
        for name in &names {
            let stored = StoreLayer::get(&snapshot, &key(name)).await.unwrap().expect(name);
            assert_eq!(stored.to_value().unwrap()["data"]["x"], 1, "{name}");
        }
        assert!(StoreLayer::get(&snapshot, &key("a--later")).await.unwrap().is_none());
        let owned = RangeRequest::all(RangeScope::OwnedBy(LogicalClusterId::ROOT, "owner".into()));
        let page = StoreLayer::range(&snapshot, owned).await.unwrap();
        let values: Vec<_> =
            page.objects.iter().map(|stored| stored.to_value().unwrap()["data"]["x"].clone()).collect();
        assert_eq!(values, vec![json!(1); 20], "those that are owned still, as they were");
    }
}
