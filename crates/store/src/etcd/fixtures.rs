//! Golden fixtures of every format of the store in etcd, as text under `tests/fixtures`. This version must open each,
//! and write the newest format exactly so. A line has a transaction's number (etcd's revision plus the base), a key
//! without the prefix, and a value.

use std::fmt::Write as _;

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::{Value, json};

use super::{
    EtcdConfig, READ_TIMEOUT,
    client::EtcdClient,
    commit::{at, delete_all, put},
    layout::{EtcdLayout, RevisionMapping, range_of},
    open::FORMAT,
    open_etcd,
    proto::{KeyValue, RangeRequest as Read, RequestOp, TxnRequest},
};
use crate::{
    api::{DynStore, Expect, RangeRequest, RangeScope, StoreError, Transaction},
    fixtures::{fill, fixture, hex, unhex},
    open::{Engine, StoreConfig},
};

/// Every format that this version opens, the newest last.
const FORMATS: [u64; 1] = [1];
/// Number of the creating transaction, independent of other use of the same etcd.
const FOUNDING: u64 = 1_000_000;
/// Attempts to create a store without concurrent writes to the same etcd.
const MAX_ATTEMPTS: usize = 5;

/// Prefix in etcd with a constant name, because some values contain keys.
struct FixturePrefix {
    etcd: EtcdConfig,
    client: EtcdClient,
    layout: EtcdLayout,
}

impl FixturePrefix {
    /// Connects, and deletes the leftovers of the last run.
    async fn new() -> Self {
        let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
        let mut etcd = EtcdConfig::new(urls.split(',').map(str::to_owned).collect());
        etcd.prefix = "/fixture/".into();
        let layout = EtcdLayout { prefix: etcd.prefix.clone().into_bytes(), numbering: RevisionMapping { base: 0 } };
        let place = Self { client: EtcdClient::new(&etcd).unwrap(), etcd, layout };
        place.write(vec![delete_all(place.layout.prefix.clone())]).await;
        place
    }

    async fn open(&self) -> DynStore {
        open_etcd(&self.etcd, &StoreConfig::new(Engine::Memory, None), &Seams::system()).await.unwrap().0
    }

    async fn write(&self, success: Vec<RequestOp>) -> i64 {
        at(&self.client.write(TxnRequest { success, ..TxnRequest::default() }, READ_TIMEOUT).await.unwrap())
    }

    async fn all(&self) -> (i64, Vec<KeyValue>) {
        let (from, to) = range_of(self.layout.prefix.clone());
        let all = Read { key: from.into(), range_end: to.into(), ..Read::default() };
        let found = self.client.range(all, READ_TIMEOUT).await.unwrap();
        (found.header.unwrap().revision, found.kvs)
    }

    /// Creates the record of a store at the constant number; `None` if another client wrote meanwhile.
    async fn found(&self) -> Option<u64> {
        let founding = self.all().await.0 + 1;
        let base = FOUNDING - u64::try_from(founding).unwrap();
        let record = json!({"format": FORMAT, "identity": "fixture", "base": base.to_string()}).to_string();
        (self.write(vec![put(self.layout.meta(), record.into())]).await == founding).then_some(base)
    }

    /// Dumps everything, with the constant number as the base.
    async fn dump(&self, base: u64) -> String {
        let (prefix, mut kvs) = (self.layout.prefix.len(), self.all().await.1);
        kvs.sort_by_key(|kv| (kv.mod_revision, kv.key.clone()));
        let mut text = String::new();
        for kv in kvs {
            let value = if *kv.key == *self.layout.meta() {
                let mut record: Value = serde_json::from_slice(&kv.value).unwrap();
                record["base"] = FOUNDING.to_string().into();
                record.to_string().into_bytes()
            } else {
                kv.value.to_vec()
            };
            let number = base + u64::try_from(kv.mod_revision).unwrap();
            writeln!(text, "{number} {} {}", hex(&kv.key[prefix..]), hex(&value)).unwrap();
        }
        text
    }

    /// Writes a dump, transaction by transaction.
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
    for _ in 0..MAX_ATTEMPTS {
        let place = FixturePrefix::new().await;
        let Some(base) = place.found().await else { continue };
        let store = place.open().await;
        fill(&store).await;
        // The sweep of the logical cluster ends shortly after the answer.
        let sweep = RangeRequest::all(RangeScope::Everything(LogicalClusterId::new(3)));
        while !place.client.range(sweeps(&place), READ_TIMEOUT).await.unwrap().kvs.is_empty() {
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

fn sweeps(place: &FixturePrefix) -> Read {
    let (from, to) = range_of(place.layout.under(b'w', &[]));
    Read { key: from.into(), range_end: to.into(), ..Read::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn every_format_that_ever_was_opens() {
    for format in FORMATS {
        let (place, case) = (FixturePrefix::new().await, format!("format {format}"));
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
