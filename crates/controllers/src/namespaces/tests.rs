use std::sync::atomic::{AtomicBool, Ordering};

use portolan_kinds::{KindTable, Kinds, Surface, custom::Definition};
use portolan_store::{DynStore, Engine, Expect, RangePage, StoreConfig, StoreError, StoreLayer, Transaction};
use portolan_types::{Record, Seams, Status};
use serde_json::json;

use super::*;

/// A store that fails to list ConfigMaps while `maps` is set, and unknown kinds while `kinds` is. It reports one
/// damaged object.
#[derive(Clone)]
struct Failing {
    inner: DynStore,
    maps: Arc<AtomicBool>,
    kinds: Arc<AtomicBool>,
    /// Creates a ConfigMap once, when the controller lists Events, which come last.
    behind: Arc<AtomicBool>,
}

impl Failing {
    async fn make_behind(&self, namespace: &NamespaceName) {
        let maps = GroupResource::new("", "configmaps");
        let key = ObjectKey::namespaced(LogicalClusterId::ROOT, maps, namespace.clone(), "late".parse().unwrap());
        let late =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": namespace}});
        self.inner.commit(Transaction::one(key, Expect::Absent, Some(Record::of(&late)))).await.unwrap();
    }
}

impl StoreLayer for Failing {
    fn inner(&self) -> &DynStore {
        &self.inner
    }

    fn range(&self, request: RangeRequest) -> BoxFuture<'_, Result<RangePage, StoreError>> {
        let is_maps =
            matches!(&request.scope, RangeScope::Namespace(_, resource, _) if *resource.resource == *"configmaps");
        if is_maps && self.maps.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::Unknown) });
        }
        Box::pin(async move {
            if let RangeScope::Namespace(_, resource, namespace) = &request.scope
                && &*resource.resource == "events"
                && self.behind.swap(false, Ordering::Relaxed)
            {
                self.make_behind(namespace).await;
            }
            self.inner.range(request).await
        })
    }

    fn known_damage(&self) -> Vec<portolan_store::DamagedObject> {
        self.inner.known_damage().into_iter().take(1).collect()
    }
}

impl Kinds for Failing {
    fn of(&self, _: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>> {
        let answer = if self.kinds.load(Ordering::Relaxed) {
            Err(Status::internal("the kinds are unknown"))
        } else {
            Ok(Surface::builtin())
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
    namespaces: NamespaceController,
    key: ObjectKey,
    place: NamespaceAddress,
}

impl Stage {
    /// A namespace that is being deleted, with a ConfigMap and a Secret in it.
    async fn with(namespace: Value) -> Self {
        Self::on(portolan_store::memory(), namespace).await
    }

    async fn on(store: DynStore, namespace: Value) -> Self {
        let failing = Failing { inner: store, maps: Arc::default(), kinds: Arc::default(), behind: Arc::default() };
        let plane = Plane::new(Arc::new(failing.clone()), KindTable::builtin(), Seams::system());
        let plane = Arc::new(plane.with_kinds(Arc::new(failing.clone())));
        let namespaces = NamespaceController::new(plane.clone());
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
async fn an_undeletable_object_is_reported_and_delays_no_other() {
    let s = Stage::with(namespace(&[])).await;
    s.failing.maps.store(true, Ordering::Relaxed);
    assert!(s.namespaces.reconcile(&s.place).await.is_err(), "it is tried again");
    let failed = "ContentDeletionFailed: Failed to delete all resource types, 1 remaining: ";
    assert_eq!(s.wrong().await, [format!("{failed}{}", StoreError::Unknown)]);
    assert_eq!((s.is_empty("configmaps").await, s.is_empty("secrets").await), (false, true));
    s.failing.maps.store(false, Ordering::Relaxed);
    s.failing.kinds.store(true, Ordering::Relaxed);
    assert!(s.namespaces.reconcile(&s.place).await.is_err(), "an object of an unknown kind may be in it");
    assert_eq!(s.wrong().await, [format!("DiscoveryFailed: {}", Status::internal("the kinds are unknown"))]);
    assert!(s.is_empty("configmaps").await, "what is known goes all the same");
    s.failing.kinds.store(false, Ordering::Relaxed);
    s.namespaces.reconcile(&s.place).await.unwrap();
    assert_eq!(s.get().await, None);
}

#[tokio::test]
async fn objects_created_after_the_scan_are_found_before_the_namespace_is_deleted() {
    let s = Stage::with(namespace(&[])).await;
    s.failing.behind.store(true, Ordering::Relaxed);
    assert_eq!(s.namespaces.reconcile(&s.place).await.unwrap(), WorkOutcome::RequeueAfter(LINGER));
    assert!(s.get().await.is_some() && !s.is_empty("configmaps").await);
    assert_eq!(s.namespaces.reconcile(&s.place).await.unwrap(), WorkOutcome::Done);
    assert!(s.get().await.is_none() && s.is_empty("configmaps").await);
}

#[tokio::test]
async fn nothing_that_a_loop_makes_comes_into_a_namespace_that_ends() {
    let s = Stage::with(namespace(&["example.com/own"])).await;
    let open = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "open"}});
    let open = s.plane.create(s.namespaces.kind, LogicalClusterId::ROOT, open).await.unwrap().unwrap().key;
    let maps = s.plane.table().kind(&GroupVersionKind::new("", "v1", "ConfigMap")).unwrap();
    let map = |namespace: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": namespace}});
    for (namespace, comes) in [("shop", false), ("none", false), ("open", true)] {
        let made = s.plane.create_within(maps, LogicalClusterId::ROOT, &map(namespace)).await.unwrap();
        assert_eq!(made.is_some(), comes, "{namespace}");
    }
    let check = s.plane.staying(LogicalClusterId::ROOT, "open").await.unwrap().unwrap();
    s.plane.delete(s.namespaces.kind, &open, &DeleteOptions::default()).await.unwrap();
    let key = s.plane.key_of(maps, LogicalClusterId::ROOT, &map("open")).unwrap();
    let mut late = Transaction::one(key, Expect::Anything, Some(Record::of(&map("open"))));
    late.checks.push(check);
    let refused = s.plane.store().commit(late).await;
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
}

#[tokio::test]
async fn one_look_empties_a_share_of_a_namespace_and_the_next_goes_on_behind_it() {
    const EACH: usize = SHARE + 200;
    let s = Stage::with(namespace(&[])).await;
    let put = async |name: String, finalizers: &[&str]| {
        let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop", "uid": name}});
        if !finalizers.is_empty() {
            map["metadata"]["finalizers"] = json!(finalizers);
        }
        let maps = GroupResource::new("", "configmaps");
        let key = ObjectKey::namespaced(s.place.0, maps, s.place.1.clone(), name.parse().unwrap());
        let txn = Transaction::one(key, Expect::Anything, Some(Record::of(&map)));
        s.failing.commit(txn).await.unwrap();
    };
    for n in 0..EACH {
        put(format!("a-held-{n}"), &["example.com/hold"]).await;
        put(format!("b-{n}"), &[]).await;
    }
    let count = async || {
        let maps = RangeScope::Namespace(s.place.0, GroupResource::new("", "configmaps"), s.place.1.clone());
        let all = s.plane.list(maps).await.unwrap();
        (all.len(), all.iter().filter(|found| object::is_deleting(&found.object)).count())
    };
    let mut cut = 0;
    while s.namespaces.reconcile(&s.place).await.unwrap() == REQUEUE_NOW {
        cut += 1;
        let (left, marked) = count().await;
        let done = 2 * EACH - left + marked;
        assert!(done <= cut * SHARE, "{done} after {cut}");
    }
    assert_eq!((cut, count().await), (3, (EACH, EACH)), "twice cut, then once from where it was cut to the end");
    assert!(s.is_empty("secrets").await);
    assert_eq!(s.wrong().await.len(), 2, "{:?}", s.wrong().await);
    let waits = s.namespaces.reconcile(&s.place).await.unwrap();
    assert!(
        matches!(waits, WorkOutcome::RequeueAfter(rest) if rest < RECHECK),
        "it rests after a long look: {waits:?}"
    );
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
        PlaneChange::Write(Some("finalize"))
    };
    s.plane.change(s.namespaces.kind, &s.key, finalize).await.unwrap();
    assert_eq!(s.get().await, None);
}

#[tokio::test]
async fn a_namespace_stays_while_a_damaged_definition_may_have_objects() {
    const MARK: &str = "no reader decodes this";
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
    assert!(s.namespaces.reconcile(&s.place).await.is_err(), "there is a wheel, and its kind is unknown");
    assert!(s.wrong().await[0].contains("wheels.example.com"), "{:?}", s.wrong().await);
    let unread = Transaction::one(wheels, Expect::Damaged, None).and(wheel, Expect::Present, None);
    s.failing.commit(unread).await.unwrap();
    s.namespaces.reconcile(&s.place).await.unwrap();
    assert_eq!(s.get().await, None);
}
