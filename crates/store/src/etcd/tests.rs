//! Tests of damage that two servers on one etcd see: one finds it, the other repairs it. Also of writes beyond the
//! limits.

use std::time::Duration;

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use super::{
    EtcdConfig, READ_TIMEOUT,
    client::EtcdClient,
    commit::{delete, put},
    layout::{EtcdLayout, RevisionMapping, range_of},
    open_etcd,
    proto::{PutRequest, RangeRequest as Read, RequestOp, TxnRequest, request_op::Request},
};
use crate::{
    api::{
        DynStore, Expect, RangeRequest, RangeScope, StoreError, Transaction, WatchScope,
        damage::{Damage, DamagedObject},
    },
    embedded::committer::QUEUE_BYTES,
    maintenance::retention::{CompactionOutcome, HistoryBounds},
    open::{Engine, StoreConfig},
};

/// Time limit of a deletion, including one that another server continues.
const SWEPT: Duration = Duration::from_secs(60);

fn key(name: &str) -> ObjectKey {
    let shop: NamespaceName = "shop".parse().unwrap();
    ObjectKey::namespaced(LogicalClusterId::new(1), GroupResource::new("", "configmaps"), shop, name.parse().unwrap())
}

/// Client that writes to etcd, bypassing all servers.
struct RawWriter {
    client: EtcdClient,
    layout: EtcdLayout,
}

impl RawWriter {
    async fn flip(&self, key: &ObjectKey) {
        let at = self.layout.object(key);
        let request = Read { key: at.clone().into(), ..Read::default() };
        let found = self.client.range(request, READ_TIMEOUT).await.unwrap();
        let mut value = found.kvs[0].value.to_vec();
        *value.last_mut().unwrap() ^= 4;
        self.write(put(at, Bytes::from(value))).await;
    }

    async fn put(&self, key: &[u8]) {
        self.write(put(key.to_vec(), Bytes::from_static(b"somebody else's"))).await;
    }

    /// No object key existed between these two.
    async fn never_had(&self, key: &ObjectKey, from: ResourceVersion, to: ResourceVersion) {
        let at = |number: ResourceVersion| self.layout.numbering.transaction(number.get());
        assert!(at(from) < at(to));
        for revision in at(from)..=at(to) {
            let request = Read { key: self.layout.object(key).into(), revision, ..Read::default() };
            assert_eq!(self.client.range(request, READ_TIMEOUT).await.unwrap().kvs, []);
        }
    }

    async fn remove(&self, key: &ObjectKey) {
        self.write(delete(self.layout.object(key))).await;
    }

    /// Waits until the sweep of a logical cluster has ended.
    async fn until_swept(&self, cluster: LogicalClusterId) {
        let sweep = Read { key: self.layout.sweep(cluster).into(), ..Read::default() };
        let swept = async {
            while !self.client.range(sweep.clone(), READ_TIMEOUT).await.unwrap().kvs.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(SWEPT, swept).await.expect("the logical cluster is swept");
    }

    async fn write(&self, operation: RequestOp) {
        let request = TxnRequest { success: vec![operation], ..TxnRequest::default() };
        self.client.write(request, READ_TIMEOUT).await.unwrap();
    }
}

fn endpoints() -> Vec<String> {
    let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
    urls.split(',').map(str::to_owned).collect()
}

async fn servers() -> (DynStore, DynStore, RawWriter) {
    servers_by(endpoints()).await
}

/// Two servers, one of which reaches etcd through a proxy.
async fn servers_by(way: Vec<String>) -> (DynStore, DynStore, RawWriter) {
    let mut etcd = EtcdConfig::new(endpoints());
    etcd.prefix = format!("/damage/{}/", Seams::system().uid());
    let config = StoreConfig::new(Engine::Memory, None);
    let by_way = EtcdConfig { endpoints: way, ..etcd.clone() };
    let (one, _) = open_etcd(&by_way, &config, &Seams::system()).await.unwrap();
    let (other, _) = open_etcd(&etcd, &config, &Seams::system()).await.unwrap();
    let layout = EtcdLayout { prefix: etcd.prefix.clone().into_bytes(), numbering: RevisionMapping { base: 0 } };
    let intruder = RawWriter { client: EtcdClient::new(&etcd).unwrap(), layout };
    let placement = json!({"clusters": [{"name": "east", "uid": "e-1", "phase": "Active", "epoch": 1}]}).to_string();
    let object = json!({"metadata": {"ownerReferences": [{"uid": "o-1"}],
        "annotations": {"portolan.dev/placement": placement}}});
    for name in ["a", "b", "c"] {
        one.commit(Transaction::one(key(name), Expect::Absent, Some(Record::of(&object)))).await.unwrap();
    }
    (one, other, intruder)
}

/// Returns the readable and the unreadable objects of a placement.
async fn placed(store: &DynStore) -> (Vec<String>, Vec<DamagedObject>) {
    let page = store.range(RangeRequest::all(RangeScope::PlacedOn("e-1".into())).skip_damaged()).await.unwrap();
    (page.objects.iter().map(|object| object.key.name.to_string()).collect(), page.damaged)
}

fn is_damaged<T>(outcome: Result<T, StoreError>, expected: Damage) -> bool {
    matches!(outcome, Err(StoreError::Damaged { why, .. }) if why == expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_repair_by_another_server_is_seen() {
    let (one, other, intruder) = servers().await;
    let mend = |name| other.commit(Transaction::one(key(name), Expect::Damaged, None));
    for (name, why, left) in [("b", Damage::Checksum, "a c"), ("c", Damage::Missing, "a")] {
        match why {
            Damage::Missing => intruder.remove(&key(name)).await,
            _ => intruder.flip(&key(name)).await,
        }
        let found = DamagedObject { key: key(name), why };
        // Later watches have seen the change.
        one.get(&key("a")).await.unwrap();
        let mut watch = one.watch(WatchScope::PlacedOn("e-1".into()), None).await.unwrap();
        assert_eq!(placed(&one).await.1, std::slice::from_ref(&found), "{why}");
        assert_eq!((one.known_damage(), other.known_damage()), (vec![found], vec![]), "{why}: only one has looked");
        assert!(is_damaged(one.get(&key(name)).await, why), "{why}");

        let before = one.current();
        mend(name).await.unwrap();
        if why == Damage::Missing {
            intruder.never_had(&key(name), before, other.current()).await;
        }
        let told = loop {
            match watch.next().await {
                Ok(batch) => assert!(batch.events.iter().all(|event| event.key != key(name)), "{why}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(told, StoreError::Damaged { .. }), "{why}: who has it in a list reads that again: {told}");
        for scope in [WatchScope::PlacedOn("e-1".into()), WatchScope::Resource(key(name).resource, None)] {
            let told = one.watch(scope.clone(), Some(before)).await.unwrap().next().await;
            assert!(is_damaged(told, why), "{why}: and so does who comes later: {scope:?}");
            one.watch(scope, Some(one.current())).await.unwrap();
        }
        for (server, store) in [("one", &one), ("the other", &other)] {
            assert_eq!(store.get(&key(name)).await.unwrap(), None, "{why}: {server}");
            assert_eq!(store.known_damage(), [], "{why}: {server}");
            let (names, damaged) = placed(store).await;
            assert_eq!((names.join(" "), damaged), (left.to_owned(), vec![]), "{why}: {server}");
        }
        assert!(matches!(mend(name).await, Err(StoreError::NotFound { .. })), "{why}: once");
        let plain = Some(Record::of(&json!({"metadata": {}})));
        one.commit(Transaction::one(key(name), Expect::Absent, plain)).await.unwrap();
        assert!(other.get(&key(name)).await.unwrap().is_some(), "{why}: its name is free");
        assert_eq!(placed(&other).await.0.join(" "), left, "{why}: no index takes it for the next of its name");
    }
    one.close().await;
    other.close().await;
}

/// Waits for events that the servers receive only from etcd.
async fn until(case: &str, holds: impl Fn() -> bool) {
    for _ in 0..200 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{case}: it does not come to that");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_foreign_etcd_key_is_reported_and_blocks_no_request() {
    let (one, other, intruder) = servers().await;
    let (cluster, maps) = (LogicalClusterId::new(1), GroupResource::new("", "configmaps"));
    let scope = WatchScope::Resource(maps.clone(), Some(cluster));
    let start = one.current();
    let mut watch = one.watch(scope.clone(), None).await.unwrap();
    let behind = [&intruder.layout.object(&key("a"))[..], b"more"].concat();
    let foreign = [intruder.layout.under(b'o', &[b"ther/key"]), intruder.layout.under(b'o', &[]), behind.clone()];
    for key in &foreign {
        intruder.put(key).await;
    }
    one.commit(Transaction::one(key("d"), Expect::Absent, Some(Record::of(&json!({"metadata": {}}))))).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].key, key("d"), "the feed continues");
    let mut late = one.watch(scope, Some(start)).await.unwrap();
    assert_eq!(late.next().await.unwrap().events[0].key, key("d"), "and so does history");
    for (server, store) in [("one", &one), ("the other", &other)] {
        until(server, || store.known_damage().len() == 3).await;
        assert!(store.known_damage().iter().all(|found| found.why == Damage::Key), "{server}");
        for (scope, count) in [
            (RangeScope::All, 3),
            (RangeScope::Cluster(cluster, maps.clone()), 1),
            (RangeScope::Everything(cluster), 1),
            (RangeScope::PlacedOn("e-1".into()), 0),
        ] {
            let all = RangeRequest::all(scope.clone());
            assert_eq!(is_damaged(store.range(all.clone()).await, Damage::Key), count > 0, "{server}: {scope:?}");
            let page = store.range(RangeRequest { limit: Some(10), ..all.skip_damaged() }).await.unwrap();
            let found = (page.objects.len(), page.damaged.len());
            assert_eq!(found, (if count > 0 { 4 } else { 3 }, count), "{server}: {scope:?}");
        }
        assert!(store.get(&key("a")).await.unwrap().is_some(), "{server}");
    }
    for key in [&foreign[0], &foreign[1]] {
        intruder.write(delete(key.clone())).await;
    }
    until("only one is left", || [&one, &other].iter().all(|store| store.known_damage().len() == 1)).await;
    one.delete_cluster(cluster).await.unwrap();
    intruder.until_swept(cluster).await;
    assert_eq!(one.range(RangeRequest::all(RangeScope::All).skip_damaged()).await.unwrap().objects, []);
    one.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn dangling_index_entries_go_with_their_logical_cluster() {
    let (one, other, intruder) = servers().await;
    intruder.remove(&key("b")).await;
    let missing = DamagedObject { key: key("b"), why: Damage::Missing };
    assert_eq!(placed(&other).await.1, std::slice::from_ref(&missing));
    let mut watch = other.watch(WatchScope::PlacedOn("e-1".into()), None).await.unwrap();
    one.delete_cluster(key("b").cluster).await.unwrap();
    let left = async |prefix: Vec<u8>| {
        let (from, to) = range_of(prefix);
        let request = Read { key: from.into(), range_end: to.into(), ..Read::default() };
        intruder.client.range(request, READ_TIMEOUT).await.unwrap().kvs.len()
    };
    intruder.until_swept(key("b").cluster).await;
    assert_eq!(left(intruder.layout.owned_in(key("b").cluster)).await, 0);
    until("it is known no more", || other.known_damage().is_empty()).await;
    assert_eq!(placed(&other).await.1, [missing], "who comes across it");
    assert_eq!(left(intruder.layout.placed_on("e-1").unwrap()).await, 0, "takes it away");
    for (server, store) in [("one", &one), ("the other", &other)] {
        assert_eq!((placed(store).await, store.known_damage()), ((vec![], vec![]), vec![]), "{server}");
    }
    let told = loop {
        match watch.next().await {
            Ok(batch) => assert!(batch.events.iter().all(|event| event.key != key("b"))),
            Err(error) => break error,
        }
    };
    assert!(matches!(told, StoreError::Damaged { .. }), "who has it in a list reads that again: {told}");
    one.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn many_entries_of_logical_clusters_that_are_gone_are_taken_away_by_few_writes() {
    let (one, other, intruder) = servers().await;
    let of = |cluster, n| ObjectKey { cluster: LogicalClusterId::new(cluster), ..key(&format!("n{n}")) };
    let scope = RangeScope::PlacedOn("e-1".into());
    for cluster in [7, 8] {
        let entries = (0..125).map(|n| intruder.layout.entry(&of(cluster, n), &scope).unwrap());
        let success = entries.map(|entry| put(entry, Bytes::new())).collect();
        intruder.client.write(TxnRequest { success, ..TxnRequest::default() }, READ_TIMEOUT).await.unwrap();
    }
    one.delete_cluster(LogicalClusterId::new(7)).await.unwrap();
    let left = async |prefix: Vec<u8>| {
        let (from, to) = range_of(prefix);
        let request = Read { key: from.into(), range_end: to.into(), ..Read::default() };
        intruder.client.range(request, READ_TIMEOUT).await.unwrap()
    };
    intruder.until_swept(LogicalClusterId::new(7)).await;
    let index = || intruder.layout.placed_on("e-1").unwrap();
    let before = left(index()).await;
    assert_eq!(before.kvs.len(), 3 + 250);
    assert_eq!(placed(&other).await.1.len(), 250);
    let after = left(index()).await;
    let revision = |page: &super::proto::RangeResponse| page.header.as_ref().unwrap().revision;
    assert_eq!(after.kvs.len(), 3 + 125, "those of a logical cluster that is there stay");
    assert!(revision(&after) - revision(&before) <= 3, "{} writes", revision(&after) - revision(&before));
    assert_eq!(other.known_damage().len(), 125);
    assert_eq!(placed(&other).await.1.len(), 125);
    one.close().await;
    other.close().await;
}

/// Checks reads of a hundred objects that do not fit into one answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn large_objects_that_an_index_names_are_read_in_as_many_answers_as_it_takes() {
    let (one, other, _) = servers().await;
    let large = Record::of(&json!({"metadata": {"ownerReferences": [{"uid": "large"}]}, "data": "x".repeat(1 << 20)}));
    for n in 0..70 {
        let txn = Transaction::one(key(&format!("large-{n}")), Expect::Absent, Some(large.clone()));
        one.commit(txn).await.unwrap();
    }
    let owned = RangeRequest::all(RangeScope::OwnedBy(key("a").cluster, "large".into()));
    assert_eq!(other.range(owned).await.unwrap().objects.len(), 70);
    one.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn each_read_reports_a_bounded_number_of_foreign_keys() {
    let (one, other, intruder) = servers().await;
    for chunk in 0..30 {
        let foreign = (0..100).map(|n| {
            let name = format!("/{chunk}/{n}");
            put(intruder.layout.under(b'o', &[name.as_bytes()]), Bytes::from_static(b"foreign"))
        });
        let request = TxnRequest { success: foreign.collect(), ..TxnRequest::default() };
        intruder.client.write(request, READ_TIMEOUT).await.unwrap();
    }
    let mut etcd = EtcdConfig::new(endpoints());
    etcd.prefix = String::from_utf8(intruder.layout.prefix.clone()).unwrap();
    let config = StoreConfig::new(Engine::Memory, None);
    let (late, _) = open_etcd(&etcd, &config, &Seams::system()).await.unwrap();
    for noted in [64, 128, 192] {
        let everything = RangeRequest::all(RangeScope::Everything(LogicalClusterId::new(1))).skip_damaged();
        assert_eq!(late.range(everything).await.unwrap().objects.len(), 3);
        assert_eq!(late.known_damage().len(), noted);
    }
    for store in [one, other, late] {
        store.close().await;
    }
}

/// Returns true if a server compacts a state when it may.
async fn forgets(store: &DynStore, held: ResourceVersion) -> bool {
    store.compact(store.current()).await.unwrap();
    store.oldest() > held
}

/// Waits until a server compacts a state, for longer than a lease.
async fn forgets_in_time(store: &DynStore, held: ResourceVersion) {
    let gone = async {
        while !forgets(store, held).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), gone).await.expect("no server holds it");
}

async fn change(store: &DynStore) {
    for name in ["a", "b", "c"] {
        let record = Some(Record::of(&json!({"metadata": {}})));
        store.commit(Transaction::one(key(name), Expect::Present, record)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_hold_of_one_server_stops_compaction_by_others() {
    let (one, other, _) = servers().await;
    for ends_with_the_server in [false, true] {
        let held = one.hold(None).await;
        let at = one.current();
        change(&other).await;
        let bounds = HistoryBounds { time: Duration::MAX, revisions: 1, bytes: u64::MAX };
        bounds.enforce(&*other, None).await.unwrap();
        assert!(!forgets(&other, at).await, "the other compacts, and keeps it");
        assert_eq!(bounds.enforce(&*other, None).await.unwrap(), CompactionOutcome::Held);
        let then = RangeRequest { at: Some(at), ..RangeRequest::all(RangeScope::All) };
        assert_eq!(one.range(then).await.unwrap().objects.len(), 3);
        let again = one.hold(Some(at)).await;
        if ends_with_the_server {
            one.close().await
        } else {
            drop(held)
        }
        if !ends_with_the_server {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!forgets(&other, at).await, "an older state is held as well");
            drop(again);
        }
        forgets_in_time(&other, at).await;
    }
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_hold_dropped_during_its_registration_is_released() {
    let (one, other, _) = servers().await;
    for is_in_etcd in [false, true] {
        let at = one.current();
        let mut hold = one.hold(Some(at));
        assert!(futures::poll!(&mut hold).is_pending());
        if is_in_etcd {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        change(&other).await;
        assert!(!is_in_etcd || !forgets(&other, at).await, "it is published although no reader waits");
        drop(hold);
        forgets_in_time(&other, at).await;
    }
    one.close().await;
    other.close().await;
}

#[tokio::test]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_foreign_etcd_key_holds_no_history() {
    let (one, other, intruder) = servers().await;
    let at = one.current();
    change(&other).await;
    let lease = intruder.client.grant(60, READ_TIMEOUT).await.unwrap();
    let put = PutRequest { key: intruder.layout.hold("mine").into(), value: Bytes::from_static(b"1"), lease };
    intruder.write(RequestOp { request: Some(Request::RequestPut(put)) }).await;
    intruder.put(&intruder.layout.hold("")).await;
    assert!(forgets(&other, at).await);
    one.close().await;
    other.close().await;
}

/// Proxy to etcd that can be cut.
struct CuttableProxy {
    url: String,
    is_open: watch::Sender<bool>,
}

impl CuttableProxy {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (is_open, opened) = watch::channel(true);
        let etcd = endpoints()[0].trim_start_matches("http://").to_owned();
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (mut opened, etcd) = (opened.clone(), etcd.clone());
                tokio::spawn(async move {
                    if *opened.borrow() {
                        let mut far = TcpStream::connect(etcd).await.unwrap();
                        tokio::select! {
                            // Either side may close a connection.
                            _ = copy_bidirectional(&mut near, &mut far) => {}
                            _ = opened.wait_for(|is_open| !is_open) => {}
                        }
                    }
                });
            }
        });
        Self { url, is_open }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_hold_expires_while_etcd_is_unreachable() {
    let bridge = CuttableProxy::new().await;
    let (one, other, _) = servers_by(vec![bridge.url.clone()]).await;
    let held = one.hold(None).await;
    let at = one.current();
    change(&other).await;
    // Longer than a lease: it is kept alive.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(!forgets(&other, at).await);
    bridge.is_open.send_replace(false);
    drop(held);
    // Longer than the attempts to announce its end, and too short for the server's lease to expire.
    tokio::time::sleep(Duration::from_millis(4500)).await;
    bridge.is_open.send_replace(true);
    forgets_in_time(&other, at).await;
    let held = one.hold(None).await;
    let at = one.current();
    change(&other).await;
    assert!(!forgets(&other, at).await, "it holds as before");
    drop(held);
    forgets_in_time(&other, at).await;
    one.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_server_that_missed_compacted_history_ends_its_watches() {
    let bridge = CuttableProxy::new().await;
    let (one, other, intruder) = servers_by(vec![bridge.url.clone()]).await;
    bridge.is_open.send_replace(false);
    let create = async |name: &str| {
        let record = Some(Record::of(&json!({"metadata": {}})));
        other.commit(Transaction::one(key(name), Expect::Absent, record)).await.unwrap();
        other.current()
    };
    for name in ["d", "e", "f"] {
        create(name).await;
    }
    other.compact(other.current()).await.unwrap();
    let between = create("g").await;
    intruder.remove(&key("c")).await;
    other.commit(Transaction::one(key("c"), Expect::Damaged, None)).await.unwrap();
    assert!(one.current() < other.oldest(), "it has missed what is forgotten");
    bridge.is_open.send_replace(true);
    until("it continues", || one.current() >= other.current()).await;
    for (server, store) in [("one", &one), ("the other", &other)] {
        let told = match store.watch(WatchScope::PlacedOn("e-1".into()), Some(between)).await {
            Ok(mut watch) => timeout(READ_TIMEOUT, watch.next()).await.expect(server).map(drop),
            Err(error) => Err(error),
        };
        assert!(matches!(told, Err(StoreError::Compacted { .. } | StoreError::Damaged { .. })), "{server}: {told:?}");
    }
    one.close().await;
    other.close().await;
}

#[tokio::test]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn writes_beyond_the_bytes_that_may_be_under_way_are_refused_and_write_nothing() {
    let (one, other, _) = servers().await;
    let large = Record::of(&json!({"metadata": {}, "data": "x".repeat(1 << 20)}));
    let commit =
        |n: usize| one.commit(Transaction::one(key(&format!("large-{n}")), Expect::Absent, Some(large.clone())));
    // None of them begins before this task waits.
    let answers: Vec<_> = (0..=QUEUE_BYTES >> 20).map(commit).collect();
    let mut refused = 0;
    for (n, answer) in answers.into_iter().enumerate() {
        let written = match answer.await {
            Ok(_) => true,
            Err(StoreError::Overloaded) => false,
            Err(other) => panic!("large-{n}: {other}"),
        };
        refused += usize::from(!written);
        assert_eq!(other.get(&key(&format!("large-{n}"))).await.unwrap().is_some(), written, "large-{n}");
    }
    assert!((1..=4).contains(&refused), "{refused} were refused");
    commit(QUEUE_BYTES).await.unwrap();
    one.close().await;
    other.close().await;
}
