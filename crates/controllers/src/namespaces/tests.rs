use std::sync::atomic::{AtomicBool, Ordering};

use portolan_machinery::{
    custom::Definition,
    kinds::{KindTable, Kinds, Surface},
};
use portolan_store::{
    Committed, Durable, DynStore, Engine, EventStream, Expect, Hold, RangePage, Store, StoreConfig, StoreError,
    Transaction, WatchScope,
};
use portolan_types::{Record, ResourceVersion, Seams, Status};
use serde_json::json;

use super::*;

/// A store that tells of no ConfigMaps, and kinds that nobody knows, for as long as it is told to fail. Of what is damaged it
/// knows one.
#[derive(Clone)]
struct Failing {
    inner: DynStore,
    maps: Arc<AtomicBool>,
    kinds: Arc<AtomicBool>,
}

impl Store for Failing {
    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let is_maps =
            matches!(&request.scope, RangeScope::Namespace(_, resource, _) if *resource.resource == *"configmaps");
        match is_maps && self.maps.load(Ordering::Relaxed) {
            true => Box::pin(async { Err(StoreError::Unknown) }),
            false => self.inner.range(request),
        }
    }

    fn commit(&self, txn: Transaction) -> BoxFuture<'static, Result<Durable<Committed>, StoreError>> {
        self.inner.commit(txn)
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<StoredObject>, StoreError>> {
        self.inner.get(key)
    }

    fn watch(
        &self,
        scope: WatchScope,
        after: Option<ResourceVersion>,
    ) -> BoxFuture<'_, Result<Box<dyn EventStream>, StoreError>> {
        self.inner.watch(scope, after)
    }

    fn current(&self) -> ResourceVersion {
        self.inner.current()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.inner.health()
    }

    fn oldest(&self) -> ResourceVersion {
        self.inner.oldest()
    }

    fn back(&self, revisions: u64) -> ResourceVersion {
        self.inner.back(revisions)
    }

    fn compact(&self, upto: ResourceVersion) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.compact(upto)
    }

    fn delete_cluster(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Durable<Committed>, StoreError>> {
        self.inner.delete_cluster(cluster)
    }

    fn hold(&self, at: Option<ResourceVersion>) -> BoxFuture<'_, Hold> {
        self.inner.hold(at)
    }

    fn known_damage(&self) -> Vec<portolan_store::Damaged> {
        self.inner.known_damage().into_iter().take(1).collect()
    }

    fn gone_clusters(&self) -> BoxFuture<'_, Result<Vec<LogicalClusterId>, StoreError>> {
        self.inner.gone_clusters()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

impl Kinds for Failing {
    fn of(&self, _: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>> {
        let answer = match self.kinds.load(Ordering::Relaxed) {
            true => Err(Status::internal("nobody knows")),
            false => Ok(Surface::builtin()),
        };
        Box::pin(async { answer })
    }

    fn definitions(&self, _: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn changing(&self, _: &ObjectKey) -> Box<dyn Send> {
        Box::new(())
    }

    fn uid_unstored(&self, _: &ObjectKey) -> Option<String> {
        None
    }
}

struct Stage {
    failing: Failing,
    plane: Arc<Plane>,
    namespaces: Namespaces,
    key: ObjectKey,
    place: Place,
}

impl Stage {
    /// A namespace that is being deleted, with a ConfigMap and a Secret in it.
    async fn with(namespace: Value) -> Self {
        Self::on(portolan_store::memory(), namespace).await
    }

    async fn on(store: DynStore, namespace: Value) -> Self {
        let failing = Failing { inner: store, maps: Arc::default(), kinds: Arc::default() };
        let plane = Plane::new(Arc::new(failing.clone()), KindTable::builtin(), Seams::system());
        let plane = Arc::new(plane.with_kinds(Arc::new(failing.clone())));
        let namespaces = Namespaces::new(plane.clone());
        let create = async |object: Value| {
            let gvk = GroupVersionKind::new("", "v1", object["kind"].as_str().unwrap());
            let kind = plane.table().kind(&gvk).unwrap();
            plane.create(kind, LogicalClusterId::ROOT, object).await.unwrap().unwrap().key
        };
        let key = create(namespace).await;
        for kind in ["ConfigMap", "Secret"] {
            create(json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a", "namespace": "shop"}})).await;
        }
        plane.delete(namespaces.kind, &key, &DeleteOptions::default()).await.unwrap();
        let place = (LogicalClusterId::ROOT, "shop".parse().unwrap());
        Self { failing, namespaces, key, place, plane }
    }

    async fn get(&self) -> Option<Value> {
        self.plane.get(&self.key).await.unwrap().map(|found| found.object)
    }

    /// Reason and message of the conditions that are not as they should be.
    async fn wrong(&self) -> Vec<String> {
        let namespace = self.get().await.unwrap();
        let all = namespace["status"]["conditions"].as_array().unwrap().iter();
        let wrong = all.filter(|condition| condition["status"] == "True");
        wrong.map(|condition| format!("{}: {}", condition["reason"], condition["message"]).replace('"', "")).collect()
    }

    async fn is_empty(&self, resource: &str) -> bool {
        let resource = GroupResource::new("", resource);
        let scope = RangeScope::Namespace(self.place.0, resource, self.place.1.clone());
        self.failing.inner.range(RangeRequest::all(scope)).await.unwrap().objects.is_empty()
    }
}

fn namespace(finalizers: &[&str]) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}, "spec": {"finalizers": finalizers}})
}

#[tokio::test]
async fn what_cannot_be_deleted_is_told_and_keeps_nothing_else() {
    let s = Stage::with(namespace(&[])).await;
    s.failing.maps.store(true, Ordering::Relaxed);
    assert!(s.namespaces.reconcile(&s.place).await.is_err(), "it is tried again");
    let failed = "ContentDeletionFailed: Failed to delete all resource types, 1 remaining: ";
    assert_eq!(s.wrong().await, [format!("{failed}{}", StoreError::Unknown)]);
    assert_eq!((s.is_empty("configmaps").await, s.is_empty("secrets").await), (false, true));
    s.failing.maps.store(false, Ordering::Relaxed);
    s.failing.kinds.store(true, Ordering::Relaxed);
    assert!(s.namespaces.reconcile(&s.place).await.is_err(), "something that nobody knows may be in it");
    assert_eq!(s.wrong().await, [format!("DiscoveryFailed: {}", Status::internal("nobody knows"))]);
    assert!(s.is_empty("configmaps").await, "what is known goes all the same");
    s.failing.kinds.store(false, Ordering::Relaxed);
    s.namespaces.reconcile(&s.place).await.unwrap();
    assert_eq!(s.get().await, None);
}

#[tokio::test]
async fn a_namespace_stays_for_the_finalizers_of_others() {
    let s = Stage::with(namespace(&["z.example.com/own", "a.example.com/own"])).await;
    for look in ["the first", "another"] {
        s.namespaces.reconcile(&s.place).await.unwrap();
        let left = s.get().await.unwrap();
        assert_eq!(left["spec"]["finalizers"], json!(["a.example.com/own", "z.example.com/own"]), "{look}");
    }
    assert!(s.is_empty("configmaps").await && s.is_empty("secrets").await);
    assert_eq!(s.wrong().await, [""; 0], "it says that all is well");
    let finalize = |namespace: &mut Value| {
        namespace["spec"] = json!({});
        Step::Write(Some("finalize"))
    };
    s.plane.change(s.namespaces.kind, &s.key, finalize).await.unwrap();
    assert_eq!(s.get().await, None);
}

#[tokio::test]
async fn a_namespace_stays_for_what_any_damaged_definition_is_of() {
    const MARK: &str = "nobody will read this";
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let config = StoreConfig::new(Engine::Redb, Some(folder.path().to_owned()));
        portolan_store::open(config, Seams::system()).unwrap()
    };
    let definition = |name: &str| {
        let resource = GroupResource::new(custom::GROUP, custom::RESOURCE);
        ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap())
    };
    let wheels = GroupResource::new("example.com", "wheels");
    let (shop, name) = ("shop".parse().unwrap(), "w".parse().unwrap());
    let wheel = ObjectKey::namespaced(LogicalClusterId::ROOT, wheels, shop, name);
    let [gears, wheels] = ["gears.example.com", "wheels.example.com"].map(definition);
    let store = open();
    for (key, text) in [(&gears, MARK), (&wheels, MARK), (&wheel, "")] {
        let object = json!({"metadata": {"name": &*key.name, "annotations": {"a": text}}});
        store.commit(Transaction::one(key.clone(), Expect::Absent, Some(Record::of(&object)))).await.unwrap();
    }
    store.close().await;
    drop(store);
    assert!(portolan_store::testing::damage(folder.path(), MARK).unwrap() >= 2);

    let s = Stage::on(open(), namespace(&[])).await;
    for key in [&gears, &wheels] {
        assert!(s.failing.get(key).await.is_err());
    }
    assert_eq!(s.failing.known_damage().iter().map(|found| &found.key).collect::<Vec<_>>(), [&gears]);
    assert!(s.namespaces.reconcile(&s.place).await.is_err(), "there is a wheel, and nobody knows how to delete it");
    assert!(s.wrong().await[0].contains("wheels.example.com"), "{:?}", s.wrong().await);
    let unread = Transaction::one(wheels, Expect::Damaged, None).and(wheel, Expect::Present, None);
    s.failing.commit(unread).await.unwrap();
    s.namespaces.reconcile(&s.place).await.unwrap();
    assert_eq!(s.get().await, None);
}
