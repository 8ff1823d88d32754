//! One damaged object on every engine: its other states, and all other objects, stay readable.

use std::{slice, sync::Arc};

use bytes::Bytes;
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion, Scope, Seams,
};
use serde_json::json;

use super::DamagedObject;
use crate::{
    api::{
        ChangeKind, DynStore, Expect, OnDamage, RangeRequest, RangeScope, StoreError, Transaction, WatchScope, Write,
        damage::{Damage, DamageReport, MAX_DESCRIBED, named},
        open_progress::OpenProgress,
    },
    engine::{Batch, MemoryKv, OrderedKv, RedbKv, SledKv, read},
    fixtures::SharedKv,
    integrity::audit::audit,
    layout::keys::{self, KeySuffix},
    object_client::commit_with_notes,
    open::{Engine, StoreConfig, StoreParts, start},
    read::{
        bookkeeping::{initialize, load},
        resources::ResourceRegistry,
        skipped::damaged_object,
    },
    snapshot::{SnapshotError, inspect, restore, save},
};

fn maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

fn shop() -> NamespaceName {
    "shop".parse().unwrap()
}

fn key(cluster: u64, name: &str) -> ObjectKey {
    ObjectKey::namespaced(LogicalClusterId::new(cluster), maps(), shop(), name.parse().unwrap())
}

/// Store, and its engine.
struct DamageScene {
    engine: &'static str,
    store: DynStore,
    kv: SharedKv,
    _dir: tempfile::TempDir,
}

impl DamageScene {
    /// Writes three objects in each of two logical clusters, all of one owner and on one physical cluster.
    async fn each() -> Vec<Self> {
        let mut scenes = Vec::new();
        for engine in ["memory", "redb", "sled"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(engine);
            let kv: Arc<dyn OrderedKv> = match engine {
                "redb" => Arc::new(RedbKv::open(&path, 1 << 20, &OpenProgress::default()).unwrap()),
                "sled" => Arc::new(SledKv::open(&path, 1 << 20).unwrap()),
                _ => Arc::new(MemoryKv::default()),
            };
            initialize(&*kv, &Seams::system()).unwrap();
            let kv = SharedKv(kv);
            let started = start(StoreParts::in_memory(Box::new(kv.clone())), &StoreConfig::new(Engine::Memory, None));
            let store = started.unwrap_or_else(|_| panic!("{engine} starts"));
            let scene = Self { engine, store, kv, _dir: dir };
            for (cluster, name) in [(1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "b"), (2, "c")] {
                scene.put(&key(cluster, name)).await.unwrap();
            }
            scenes.push(scene);
        }
        scenes
    }

    async fn put(&self, key: &ObjectKey) -> Result<ResourceVersion, StoreError> {
        let placement =
            json!({"clusters": [{"name": "east", "uid": "e-1", "phase": "Active", "epoch": 1}]}).to_string();
        let object = json!({"metadata": {"name": &*key.name, "ownerReferences": [{"uid": "o-1"}],
            "annotations": {"portolan.dev/placement": placement}}});
        self.commit(key, Expect::Anything, Some(Record::of(&object))).await
    }

    async fn commit(
        &self,
        key: &ObjectKey,
        expect: Expect,
        record: Option<Record>,
    ) -> Result<ResourceVersion, StoreError> {
        let committed = self.store.commit(Transaction::one(key.clone(), expect, record)).await;
        committed.map(|committed| committed.into_inner().last)
    }

    /// Returns the common part of an object's keys.
    fn suffix(&self, key: &ObjectKey) -> KeySuffix {
        let id = read(&self.kv, |view| load(view).unwrap().resources.id(&key.resource).unwrap()).unwrap();
        KeySuffix::new(key.cluster, id, &key.scope, &key.name)
    }

    /// Writes to the engine, bypassing the store.
    fn write<const N: usize>(&self, pairs: [(Vec<u8>, Option<Bytes>); N]) {
        self.kv.commit(Batch::from(pairs)).unwrap();
        self.kv.publish();
    }

    /// Removes an object's value, but keeps its index entries.
    fn forget(&self, key: &ObjectKey) {
        self.write([(self.suffix(key).object(), None)]);
    }

    /// Flips a bit of an object's value.
    fn damage(&self, key: &ObjectKey) {
        let flipped = read(&self.kv, |view| {
            let id = load(view).unwrap().resources.id(&key.resource).unwrap();
            let suffix = KeySuffix::new(key.cluster, id, &key.scope, &key.name);
            let mut value = view.get(&suffix.object()).unwrap().unwrap().to_vec();
            *value.last_mut().unwrap() ^= 4;
            (suffix.object(), Some(value.into()))
        });
        self.kv.commit(Batch::from([flipped.unwrap()])).unwrap();
        self.kv.publish();
    }

    fn audited(&self) -> DamageReport {
        let mut found = DamageReport::default();
        read(&self.kv, |view| audit(view, &mut found, &mut |_, _| {})).unwrap().unwrap();
        found
    }

    async fn names(&self, request: RangeRequest) -> (String, Vec<DamagedObject>) {
        let page = self.store.range(request).await.unwrap();
        assert!(!page.more, "{}", self.engine);
        let named = |object: &crate::api::StoredObject| format!("{}{} ", object.key.cluster.get(), object.key.name);
        (page.objects.iter().map(named).collect(), page.damaged)
    }
}

fn broken() -> DamagedObject {
    DamagedObject { key: key(1, "b"), why: Damage::Checksum }
}

fn is_broken<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Damaged { key: of, why: Damage::Checksum }) if *of == key(1, "b"))
}

#[tokio::test]
async fn a_damaged_object_is_named_and_all_others_are_read() {
    for scene in DamageScene::each().await {
        let (engine, store) = (scene.engine, &scene.store);
        let whole = store.current();
        scene.damage(&key(1, "b"));
        assert_eq!(store.known_damage(), [], "{engine}: it has not been read");
        assert!(is_broken(&store.get(&key(1, "b")).await), "{engine}");
        assert_eq!(store.known_damage(), [broken()], "{engine}");
        assert!(store.get(&key(1, "a")).await.unwrap().is_some(), "{engine}");
        let one = LogicalClusterId::new(1);
        for (case, scope, readable) in [
            ("all logical clusters", RangeScope::AllClusters(maps()), "1a 1c 2a 2b 2c "),
            ("everything", RangeScope::All, "1a 1c 2a 2b 2c "),
            ("its logical cluster", RangeScope::Cluster(one, maps()), "1a 1c "),
            ("its namespace", RangeScope::Namespace(one, maps(), shop()), "1a 1c "),
            ("what has its owner", RangeScope::OwnedBy(one, "o-1".into()), "1a 1c "),
            ("what is where it is", RangeScope::PlacedOn("e-1".into()), "1a 1c 2a 2b 2c "),
        ] {
            let all = RangeRequest::all(scope.clone());
            assert!(is_broken(&store.range(all.clone()).await), "{engine}: {case}");
            let past = scene.names(all.clone().skip_damaged()).await;
            assert_eq!(past, (readable.to_owned(), vec![broken()]), "{engine}: {case}");
            let (mut request, mut pages) = (RangeRequest { limit: Some(1), ..all.skip_damaged() }, Vec::new());
            loop {
                let page = store.range(request.clone()).await.unwrap();
                pages.push((page.objects.len(), page.damaged.len()));
                if !page.more {
                    break;
                }
                request.after = page.last;
            }
            let count = readable.split_whitespace().count();
            assert_eq!(pages.iter().filter(|page| **page == (0, 1)).count(), 1, "{engine}: {case}");
            assert_eq!(pages.iter().filter(|page| **page == (1, 0)).count(), count, "{engine}: {case}: {pages:?}");
        }
        let other = RangeRequest::all(RangeScope::Cluster(LogicalClusterId::new(2), maps()));
        assert_eq!(scene.names(other).await, ("2a 2b 2c ".to_owned(), vec![]), "{engine}");
        scene.put(&key(1, "a")).await.unwrap();
        let before = RangeRequest { at: Some(whole), ..RangeRequest::all(RangeScope::AllClusters(maps())) };
        assert!(is_broken(&store.range(before.clone()).await), "{engine}: an older state");
        assert_eq!(scene.names(before.skip_damaged()).await.0, "1a 1c 2a 2b 2c ", "{engine}: an older state");
        store.close().await;
    }
}

#[tokio::test]
async fn a_damaged_object_is_only_deleted_as_such_and_leaves_nothing_behind() {
    for scene in DamageScene::each().await {
        let (engine, store) = (scene.engine, &scene.store);
        let (start, broken_key) = (store.current(), key(1, "b"));
        scene.damage(&broken_key);
        for (case, expect, is_written) in [
            ("changed", Expect::Present, true),
            ("written whatever it is", Expect::Anything, true),
            ("replaced unread", Expect::Damaged, true),
            ("deleted as others are", Expect::Anything, false),
        ] {
            let record = is_written.then(|| Record::of(&json!({"metadata": {}})));
            assert!(is_broken(&scene.commit(&broken_key, expect, record).await), "{engine}: {case}");
        }
        let record = Some(Record::of(&json!({"metadata": {}})));
        let again = scene.commit(&broken_key, Expect::Absent, record).await;
        assert!(matches!(again, Err(StoreError::AlreadyExists { .. })), "{engine}: its name is taken");
        let whole = scene.commit(&key(1, "a"), Expect::Damaged, None).await;
        assert!(
            matches!(whole, Err(StoreError::NotDamaged { .. })),
            "{engine}: what can be read is not deleted unread"
        );
        let absent = scene.commit(&key(1, "none"), Expect::Damaged, None).await;
        assert!(matches!(absent, Err(StoreError::NotFound { .. })), "{engine}");
        assert!(store.get(&broken_key).await.is_err());

        let scopes = [
            WatchScope::Resource(maps(), Some(LogicalClusterId::new(1))),
            WatchScope::Resource(maps(), None),
            WatchScope::PlacedOn("e-1".into()),
        ];
        let mut watches = Vec::new();
        for scope in &scopes {
            watches.push(store.watch(scope.clone(), None).await.unwrap());
        }
        let other = WatchScope::Resource(maps(), Some(LogicalClusterId::new(2)));
        let mut elsewhere = store.watch(other, None).await.unwrap();
        let gone = scene.commit(&broken_key, Expect::Damaged, None).await.unwrap();
        assert_eq!(gone, start.plus(1), "{engine}");
        assert_eq!(store.known_damage(), [], "{engine}");
        assert_eq!(store.get(&broken_key).await.unwrap(), None, "{engine}");
        for watch in &mut watches {
            assert!(is_broken(&watch.next().await), "{engine}: who watched it lists again");
        }
        for scope in scopes {
            let mut late = store.watch(scope.clone(), Some(start)).await.unwrap();
            assert!(is_broken(&late.next().await), "{engine}: also who comes later");
            let mut after = store.watch(scope, Some(gone)).await.unwrap();
            scene.put(&key(1, "c")).await.unwrap();
            assert!(!after.next().await.unwrap().events.is_empty(), "{engine}: who has listed again goes on");
        }
        scene.put(&key(2, "c")).await.unwrap();
        let seen = elsewhere.next().await.unwrap();
        assert_eq!(
            (seen.events.len(), seen.events[0].change),
            (1, ChangeKind::Updated),
            "{engine}: other objects are not affected"
        );

        let plain = Some(Record::of(&json!({"metadata": {}})));
        scene.commit(&broken_key, Expect::Absent, plain).await.unwrap();
        for index in [RangeScope::OwnedBy(LogicalClusterId::new(1), "o-1".into()), RangeScope::PlacedOn("e-1".into())] {
            let (names, damaged) = scene.names(RangeRequest::all(index)).await;
            assert!(
                !names.contains("1b") && damaged.is_empty(),
                "{engine}: no index takes it for the next of its name"
            );
        }
        let found = scene.audited();
        assert!(found.objects.is_empty() && found.other.is_empty(), "{engine}: {found}");
        assert!(found.to_string().starts_with("1 earlier state of an object in the store is damaged:"), "{found}");
        assert!(found.to_string().contains("shop/b\" of logical cluster root"), "{engine}: {found}");
        store.compact(store.current()).await.unwrap();
        assert_eq!(scene.audited(), DamageReport::default(), "{engine}");
        store.close().await;
    }
}

#[tokio::test]
async fn no_watch_goes_on_past_damaged_history_and_compaction_does() {
    let scopes = [
        WatchScope::Resource(maps(), None),
        WatchScope::Resource(GroupResource::new("", "secrets"), Some(LogicalClusterId::new(7))),
        WatchScope::PlacedOn("e-1".into()),
    ];
    for scene in DamageScene::each().await {
        let (engine, store) = (scene.engine, &scene.store);
        for is_there in [true, false] {
            let before = store.current();
            let changed = keys::history(scene.put(&key(1, "b")).await.unwrap().get());
            scene.put(&key(1, "c")).await.unwrap();
            let mut entry = read(&scene.kv, |view| view.get(&changed).unwrap().unwrap()).unwrap().to_vec();
            // Turns an update into a deletion.
            entry[0] ^= 1;
            scene.write([(changed, is_there.then(|| entry.into()))]);
            for scope in &scopes {
                let told =
                    store.watch(scope.clone(), Some(before)).await.unwrap().next().await.map(|batch| batch.events);
                let is_told =
                    matches!(&told, Err(StoreError::Backend(why)) if why.context.contains("of the history is"));
                assert!(is_told, "{engine}, {is_there}, {scope:?}: {told:?}");
            }
            store.compact(store.current()).await.unwrap();
            assert_eq!(store.oldest(), store.current(), "{engine}, {is_there}");
            let mut watch = store.watch(scopes[0].clone(), Some(store.oldest())).await.unwrap();
            scene.put(&key(2, "a")).await.unwrap();
            assert_eq!(watch.next().await.unwrap().events.len(), 1, "{engine}, {is_there}");
        }
        store.close().await;
    }
}

#[tokio::test]
async fn a_missing_indexed_object_is_reported_and_deletable() {
    for scene in DamageScene::each().await {
        let (engine, store, lost) = (scene.engine, &scene.store, key(1, "b"));
        store.compact(store.current()).await.unwrap();
        scene.forget(&lost);
        assert_eq!(store.get(&lost).await.unwrap(), None, "{engine}: its damage is not known yet");
        let found = scene.audited();
        assert_eq!((found.objects.count, found.other.len()), (1, 0), "{engine}: {found}");
        assert!(
            found.to_string().contains("shop/b\" of logical cluster root: an index names an object that is missing")
        );
        let missing = DamagedObject { key: lost.clone(), why: Damage::Missing };
        let owned = RangeScope::OwnedBy(LogicalClusterId::new(1), "o-1".into());
        let placed = RangeScope::PlacedOn("e-1".into());
        for (scope, readable) in [(&owned, "1a 1c "), (&placed, "1a 1c 2a 2b 2c ")] {
            let (names, damaged) = scene.names(RangeRequest::all(scope.clone()).skip_damaged()).await;
            assert_eq!((&*names, damaged), (readable, vec![missing.clone()]), "{engine}");
        }
        assert_eq!(store.known_damage(), slice::from_ref(&missing), "{engine}");
        let is_missing =
            |outcome: Result<(), StoreError>| matches!(outcome, Err(StoreError::Damaged { why: Damage::Missing, .. }));
        assert!(is_missing(store.get(&lost).await.map(drop)), "{engine}: who may delete it has to see it");
        let plain = scene.commit(&lost, Expect::Anything, None).await;
        assert!(matches!(plain, Err(StoreError::NotFound { .. })), "{engine}: not by accident");

        let mut watch = store.watch(WatchScope::PlacedOn("e-1".into()), None).await.unwrap();
        scene.commit(&lost, Expect::Damaged, None).await.unwrap();
        let told = watch.next().await.map(drop);
        assert!(matches!(told, Err(StoreError::Damaged { .. })), "{engine}: who has it in a list reads that again");
        assert_eq!((store.known_damage(), store.get(&lost).await.unwrap()), (vec![], None), "{engine}");
        for scope in [owned, placed] {
            assert!(scene.names(RangeRequest::all(scope)).await.1.is_empty(), "{engine}");
        }
        let again = scene.commit(&lost, Expect::Damaged, None).await;
        assert!(matches!(again, Err(StoreError::NotFound { .. })), "{engine}: once");
        scene.put(&lost).await.unwrap();
        store.compact(store.current()).await.unwrap();
        assert_eq!(scene.audited(), DamageReport::default(), "{engine}");
        store.close().await;
    }
}

#[tokio::test]
async fn dangling_index_entries_are_swept_with_their_logical_cluster() {
    for scene in DamageScene::each().await {
        let (engine, store, one) = (scene.engine, &scene.store, LogicalClusterId::new(1));
        let [a, b, c] = ["a", "b", "c"].map(|name| key(1, name));
        scene.forget(&b);
        scene.damage(&c);
        let stray = |of: &ObjectKey, uid| (scene.suffix(of).placed(uid).unwrap(), Some(Bytes::new()));
        let unknown = KeySuffix::new(one, 9999, &a.scope, &a.name);
        let malformed = [&scene.suffix(&a).owner("o-1").unwrap()[..9], &[0, 7]].concat();
        scene.write([
            stray(&a, "e-9"),
            stray(&b, "e-0"),
            stray(&key(2, "a"), "e-9"),
            (unknown.owner("o-1").unwrap(), Some(Bytes::new())),
            (malformed, Some(Bytes::new())),
        ]);
        let mut watch = store.watch(WatchScope::PlacedOn("e-0".into()), None).await.unwrap();
        let gone = store.delete_cluster(one).await.unwrap().into_inner();
        assert_eq!(gone.last.get() - gone.first.get(), 3, "{engine}: each is a write, the tombstone another");
        let told = watch.next().await.map(drop);
        assert!(matches!(told, Err(StoreError::Damaged { .. })), "{engine}: who has it in a list reads that again");
        let (names, damaged) = scene.names(RangeRequest::all(RangeScope::PlacedOn("e-1".into())).skip_damaged()).await;
        assert_eq!((&*names, damaged), ("2a 2b 2c ", vec![]), "{engine}");
        assert_eq!(store.known_damage(), [], "{engine}");
        store.compact(store.current()).await.unwrap();
        let found = scene.audited();
        assert_eq!(found.other, [format!("an index names what is not in it: {}", named(&key(2, "a")))], "{engine}");
        assert!(found.objects.is_empty() && found.earlier.is_empty(), "{engine}: {found}");
        store.close().await;
    }
}

#[tokio::test]
async fn very_much_that_only_indexes_name_goes_in_slices() {
    for scene in DamageScene::each().await {
        let (engine, store) = (scene.engine, &scene.store);
        let resource = scene.suffix(&key(1, "a"));
        let resource = keys::parts(resource.as_bytes()).unwrap().resource;
        let missing = |n: usize| {
            KeySuffix::new(LogicalClusterId::new(1), resource, &Scope::Cluster, &format!("m{n}").parse().unwrap())
        };
        scene.write(std::array::from_fn::<_, 1200, _>(|n| (missing(n).placed("e-1").unwrap(), Some(Bytes::new()))));
        store.delete_cluster(LogicalClusterId::new(1)).await.unwrap();
        let left = || read(&scene.kv, |view| view.get(&keys::meta::sweep(LogicalClusterId::new(1))).unwrap()).unwrap();
        while left().is_some() {
            tokio::task::yield_now().await;
        }
        let all = RangeRequest::all(RangeScope::PlacedOn("e-1".into()));
        assert_eq!(scene.names(all).await.0, "2a 2b 2c ", "{engine}");
        store.compact(store.current()).await.unwrap();
        assert_eq!(scene.audited(), DamageReport::default(), "{engine}");
        store.close().await;
    }
}

#[tokio::test]
async fn one_scrub_finds_exactly_the_damage() {
    for scene in DamageScene::each().await {
        let engine = scene.engine;
        let [a, b, other] = [key(1, "a"), key(1, "b"), key(2, "a")];
        scene.write([
            (scene.suffix(&a).owner("o-1").unwrap(), None),
            (scene.suffix(&b).placed("e-1").unwrap(), None),
            (scene.suffix(&other).owner("o-9").unwrap(), Some(Bytes::new())),
            (keys::history(3), None),
            (keys::history(5), Some("malformed".into())),
            (keys::history(99), Some(Bytes::new())),
            (b"o malformed".to_vec(), Some(Bytes::new())),
        ]);
        scene.damage(&key(2, "c"));
        let found = scene.audited();
        assert_eq!((found.objects.count, found.earlier.count), (1, 0), "{engine}: {found}");
        assert!(found.objects.first[0].contains("shop/c\" of logical cluster"), "{engine}: {found}");
        let last = scene.store.current();
        let expected = [
            format!("an index lacks {}", named(&a)),
            format!("an index lacks {}", named(&b)),
            damaged_object(&ResourceRegistry::default(), b" malformed", Damage::Key).to_string(),
            "the history lacks revision 3".to_owned(),
            "revision 5 of the history is malformed".to_owned(),
            format!("the history has revision 99, beyond 2 to {last}"),
            format!("an index names what is not in it: {}", named(&other)),
        ];
        let mut told = found.other.clone();
        // The malformed key lies before or after the others.
        told[..3].sort_by_key(|text| !text.starts_with("an index"));
        assert_eq!(told, expected, "{engine}");
        scene.store.close().await;
    }
}

#[tokio::test]
async fn of_many_faults_of_a_kind_the_first_are_named_and_all_others_are_too() {
    for scene in DamageScene::each().await {
        let suffix = scene.suffix(&key(1, "a"));
        let stray = |number| (suffix.owner(&format!("stray-{number:02}")).unwrap(), Some(Bytes::new()));
        scene.write(std::array::from_fn::<_, 25, _>(stray));
        scene.write([(suffix.placed("e-9").unwrap(), Some(Bytes::new()))]);
        let told = scene.audited().other;
        assert_eq!(
            (told.len(), &*told[MAX_DESCRIBED]),
            (MAX_DESCRIBED + 2, "and 5 more of these"),
            "{}: {told:?}",
            scene.engine
        );
        scene.store.close().await;
    }
}

#[tokio::test]
async fn a_note_that_is_damaged_holds_up_nothing_that_it_tells_of() {
    for scene in DamageScene::each().await {
        let (engine, store) = (scene.engine, &scene.store);
        scene.damage(&key(1, "b"));
        let record = || Some(Record::of(&json!({"metadata": {}, "data": {"text": "new"}})));
        let txn = Transaction::one(key(1, "a"), Expect::Present, record());
        let note = |name: &str| Write { key: key(1, name), expect: Expect::Anything, record: record() };
        commit_with_notes(store, txn, vec![note("b"), note("c")]).await.unwrap();
        for name in ["a", "c"] {
            let written = store.get(&key(1, name)).await.unwrap().unwrap().to_value().unwrap();
            assert_eq!(written["data"]["text"], "new", "{engine}: {name}");
        }
        assert_eq!(store.known_damage(), [broken()], "{engine}: somebody hears of it");
        let txn = Transaction::one(key(1, "b"), Expect::Present, record());
        let refused = commit_with_notes(store, txn, vec![note("c")]).await.map(drop);
        assert!(is_broken(&refused), "{engine}: what it tells of is another matter");
        store.close().await;
    }
}

#[tokio::test]
async fn a_rewritten_object_is_no_longer_missing() {
    for scene in DamageScene::each().await {
        let (engine, lost) = (scene.engine, key(1, "b"));
        scene.forget(&lost);
        let request = RangeRequest::all(RangeScope::PlacedOn("e-1".into()));
        scene.names(request.clone().skip_damaged()).await;
        assert_eq!(scene.store.known_damage().len(), 1, "{engine}");
        scene.commit(&lost, Expect::Absent, Some(Record::of(&json!({"metadata": {}})))).await.unwrap();
        assert_eq!(scene.store.known_damage(), [], "{engine}");
        assert!(scene.store.get(&lost).await.unwrap().is_some(), "{engine}");
        scene.store.close().await;
    }
}

#[tokio::test]
async fn a_snapshot_without_damaged_objects_is_made_only_where_that_is_asked_for() {
    for scene in DamageScene::each().await {
        let engine = scene.engine;
        scene.damage(&key(1, "b"));
        scene.damage(&key(2, "c"));
        let mut taken = Vec::new();
        let refused = save(&*scene.store, &Seams::system(), OnDamage::Fail, &mut taken).await.unwrap_err();
        let words = refused.to_string();
        assert!(matches!(refused, SnapshotError::DamagedObjects(_)), "{engine}: {words}");
        for part in
            ["2 objects in the store are damaged", "shop/b\" of logical cluster root", "shop/c\"", "--skip-damaged"]
        {
            assert!(words.contains(part), "{engine}: {words}");
        }
        assert!(inspect(&*taken).is_err(), "{engine}: what there is of it is none");
        let mut partial = Vec::new();
        let saved = save(&*scene.store, &Seams::system(), OnDamage::Skip, &mut partial).await.unwrap();
        let inspected = inspect(&*partial).unwrap();
        assert_eq!(
            (inspected.objects, inspected.damaged.count, &inspected.damaged),
            (4, 2, &saved.damaged),
            "{engine}"
        );
        assert_eq!(scene.audited().objects, inspected.damaged, "{engine}: verification says the same");
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(Engine::Redb, Some(dir.path().to_owned()));
        restore(&config, &Seams::system(), &*partial, None).unwrap();
        let restored = crate::open::open(config, Seams::system()).unwrap();
        let page = restored.range(RangeRequest::all(RangeScope::AllClusters(maps()))).await.unwrap();
        assert_eq!(page.objects.len(), 4, "{engine}: the rest is whole");
        scene.store.close().await;
        restored.close().await;
    }
}

#[test]
fn however_many_are_known_each_resource_with_damage_has_one_that_is() {
    let ledger = super::DamageLedger::new(prometheus::IntGauge::new("a", "b").unwrap());
    let note = |cluster, name: &str| ledger.add(&DamagedObject { key: key(cluster, name), why: Damage::Checksum });
    for n in 0..super::MAX_KNOWN_DAMAGE + 10 {
        note(1, &format!("a{n}"));
    }
    assert_eq!(ledger.all().len(), super::MAX_KNOWN_DAMAGE);
    let is_new = |cluster, why| ledger.is_new(&DamagedObject { key: key(cluster, "late"), why });
    assert!(!is_new(1, Damage::Checksum) && is_new(2, Damage::Checksum));
    note(2, "late");
    note(2, "later");
    let of_other = || ledger.all().into_iter().filter(|found| found.key.cluster.get() == 2).collect::<Vec<_>>();
    assert_eq!(of_other().len(), 1, "a reader of it gets the damage");
    ledger.remove(&key(2, "late"));
    assert_eq!(of_other(), []);
    note(2, "later");
    assert_eq!(of_other().len(), 1, "and again with the next read");
    ledger.remove_cluster(LogicalClusterId::new(1));
    assert_eq!(ledger.all().len(), 1);
    note(1, "late");
    assert_eq!(ledger.all().len(), 2);
}

#[test]
fn the_number_of_known_damaged_addresses_is_bounded() {
    let ledger = super::DamageLedger::new(prometheus::IntGauge::new("a", "b").unwrap());
    for cluster in 0..super::MAX_KNOWN_DAMAGE as u64 + 10 {
        ledger.add(&DamagedObject { key: key(cluster, "x00"), why: Damage::Key });
    }
    assert_eq!(ledger.all().len(), super::MAX_KNOWN_DAMAGE);
    let real = DamagedObject { key: key(1, "late"), why: Damage::Checksum };
    ledger.add(&real);
    assert!(ledger.all().contains(&real), "they take no place of a resource");
    ledger.remove_cluster(LogicalClusterId::new(1));
    assert_eq!(ledger.all().len(), super::MAX_KNOWN_DAMAGE - 1);
    ledger.add(&DamagedObject { key: key(3, "x01"), why: Damage::Key });
    assert_eq!(ledger.all().len(), super::MAX_KNOWN_DAMAGE, "there is room for one again");
}

#[test]
fn a_malformed_key_of_any_length_is_named() {
    let named =
        |bytes: &[u8]| damaged_object(&ResourceRegistry::default(), bytes, Damage::Checksum).key.name.to_string();
    assert_eq!(named(&[0, 255]), "x00ff");
    let (long, longer) = (vec![7; 400], vec![7; 401]);
    assert!(named(&long).starts_with("x0707") && named(&long) != named(&longer));
}
