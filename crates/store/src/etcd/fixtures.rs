//! A store of every format that ever was in etcd, as text under `tests/fixtures`: this version opens it, and writes the newest
//! format exactly so. A line is a transaction's number (etcd's revision and the base), a key without the prefix, and its value.

use std::fmt::Write as _;

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::{Value, json};

use super::{
    EtcdConfig, READ_PATIENCE,
    client::Client,
    commit::{at, delete_all, put},
    layout::{Layout, Numbering, range_of},
    open_etcd,
    opening::FORMAT,
    proto::{KeyValue, RangeRequest as Read, RequestOp, TxnRequest},
};
use crate::{
    DynStore, Engine, Expect, RangeRequest, RangeScope, StoreConfig, StoreError, Transaction,
    fixtures::{fill, fixture, hex, unhex},
};

/// Every format that this version opens, the newest last.
const FORMATS: [u64; 1] = [1];
/// The number of the founding, whatever else the same etcd has seen.
const FOUNDING: u64 = 1_000_000;
/// How often a store is made until nobody writes to the same etcd meanwhile.
const TRIES: usize = 5;

/// A prefix of etcd, the same each time: some values name keys.
struct Place {
    etcd: EtcdConfig,
    client: Client,
    layout: Layout,
}

impl Place {
    /// Where nothing is left of the last time.
    async fn new() -> Self {
        let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
        let mut etcd = EtcdConfig::new(urls.split(',').map(str::to_owned).collect());
        etcd.prefix = "/fixture/".into();
        let layout = Layout { prefix: etcd.prefix.clone().into_bytes(), numbering: Numbering { base: 0 } };
        let place = Self { client: Client::new(&etcd).unwrap(), etcd, layout };
        place.write(vec![delete_all(place.layout.prefix.clone())]).await;
        place
    }

    async fn open(&self) -> DynStore {
        open_etcd(&self.etcd, &StoreConfig::new(Engine::Memory, None), &Seams::system()).await.unwrap().0
    }

    async fn write(&self, success: Vec<RequestOp>) -> i64 {
        at(&self.client.write(TxnRequest { success, ..TxnRequest::default() }, READ_PATIENCE).await.unwrap())
    }

    async fn all(&self) -> (i64, Vec<KeyValue>) {
        let (from, to) = range_of(self.layout.prefix.clone());
        let all = Read { key: from.into(), range_end: to.into(), ..Read::default() };
        let found = self.client.range(all, READ_PATIENCE).await.unwrap();
        (found.header.unwrap().revision, found.kvs)
    }

    /// Founds a store whose founding has its number, unless somebody else writes meanwhile.
    async fn found(&self) -> Option<u64> {
        let founding = self.all().await.0 + 1;
        let base = FOUNDING - u64::try_from(founding).unwrap();
        let record = json!({"format": FORMAT, "identity": "fixture", "base": base.to_string()}).to_string();
        (self.write(vec![put(self.layout.meta(), record.into())]).await == founding).then_some(base)
    }

    /// All that there is, with the founding's number for a base.
    async fn dump(&self, base: u64) -> String {
        let (prefix, mut kvs) = (self.layout.prefix.len(), self.all().await.1);
        kvs.sort_by_key(|kv| (kv.mod_revision, kv.key.clone()));
        let mut text = String::new();
        for kv in kvs {
            let value = match *kv.key == *self.layout.meta() {
                true => {
                    let mut record: Value = serde_json::from_slice(&kv.value).unwrap();
                    record["base"] = FOUNDING.to_string().into();
                    record.to_string().into_bytes()
                }
                false => kv.value.to_vec(),
            };
            let number = base + u64::try_from(kv.mod_revision).unwrap();
            writeln!(text, "{number} {} {}", hex(&kv.key[prefix..]), hex(&value)).unwrap();
        }
        text
    }

    /// Writes what was dumped, transaction by transaction.
    async fn load(&self, text: &str) {
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        for transaction in lines.chunk_by(|one, next| one[0] == next[0]) {
            let pair =
                |line: &Vec<&str>| put([&self.layout.prefix[..], &unhex(line[1])].concat(), unhex(line[2]).into());
            self.write(transaction.iter().map(pair).collect()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn the_newest_format_is_written_exactly_as_documented() {
    let mut written = String::new();
    for _ in 0..TRIES {
        let place = Place::new().await;
        let Some(base) = place.found().await else { continue };
        let store = place.open().await;
        fill(&store).await;
        // The deletion of a logical cluster ends a moment after its answer.
        let sweep = RangeRequest::all(RangeScope::Everything(LogicalClusterId::new(3)));
        while !place.client.range(sweeps(&place), READ_PATIENCE).await.unwrap().kvs.is_empty() {
            assert_eq!(store.range(sweep.clone()).await.unwrap().objects, []);
        }
        store.close().await;
        written = place.dump(base).await;
        let newest = format!("etcd-{}.txt", FORMATS[FORMATS.len() - 1]);
        if written == fixture(&newest, Some(&written)) {
            return;
        }
    }
    panic!("what is written to etcd changed: give the format a new number, or keep it:\n{written}");
}

fn sweeps(place: &Place) -> Read {
    let (from, to) = range_of(place.layout.under(b'w', &[]));
    Read { key: from.into(), range_end: to.into(), ..Read::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn every_format_that_ever_was_opens() {
    for format in FORMATS {
        let (place, case) = (Place::new().await, format!("format {format}"));
        place.load(&fixture(&format!("etcd-{format}.txt"), None)).await;
        let store = place.open().await;
        let all = store.range(RangeRequest::all(RangeScope::All)).await.unwrap().objects;
        let mut found: Vec<_> = all.iter().map(|object| (&*object.key.name, object.key.cluster.get())).collect();
        found.sort_unstable();
        assert_eq!(found, [("b1", 1), ("b4", 4), ("p1", 1), ("p2", 1)], "{case}");
        let get = |name: &str| all.iter().find(|object| &*object.key.name == name).unwrap();
        let (first, last) = (get("b1"), get("b4"));
        assert!(first.created < first.revision && last.created == last.revision, "{case}");
        assert_eq!(get("p2").revision, get("p1").revision.plus(1), "{case}: they were written together");
        assert_eq!(first.record.to_value(first.revision).unwrap()["spec"]["n"], 7, "{case}");
        for index in [RangeScope::PlacedOn("e-1".into()), RangeScope::OwnedBy(LogicalClusterId::new(4), "o-1".into())] {
            assert!(store.range(RangeRequest::all(index)).await.unwrap().objects.contains(last), "{case}");
        }
        let write = |cluster: u64, name: &str, expect| {
            let boats = GroupResource::new("example.org", "boats");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::new(cluster), boats, name.parse().unwrap());
            store.commit(Transaction::one(key, expect, Some(Record::of(&json!({"metadata": {}})))))
        };
        let late = write(3, "late", Expect::Absent).await;
        assert!(matches!(late, Err(StoreError::ClusterGone { .. })), "{case}");
        let next: ResourceVersion = write(1, "b1", Expect::At(first.revision)).await.unwrap().into_inner().last;
        assert!(next > last.revision, "{case}");
        store.close().await;
    }
}
