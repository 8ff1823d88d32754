//! Flipped bits anywhere in redb's file: the store is refused, or whoever comes to them is told, or they are where nothing is. No
//! object is ever hidden, or shown as it was before or never was.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use super::{RedbKv, crash_many::Recorder, layout::BLOCK};
use crate::{
    DynStore, Engine, Event, Expect, OnDamage, RangeRequest, RangeScope, StoreConfig, StoredObject, Transaction,
    WatchScope,
    kv::OrderedKv as _,
    open::{Base, initialize, start},
    opening::Opening,
};

/// Objects of each of two resources in each of two logical clusters.
const OBJECTS: u64 = 30;
/// Bits that are flipped in a block that is used, and in one that is not.
const BITS: (usize, usize) = (6, 1);
/// How long a watch may take to bring what has happened.
const BROUGHT: Duration = Duration::from_secs(30);

/// `None` when it is refused, in clear words.
fn opened(disk: Recorder) -> Option<DynStore> {
    let kv = match RedbKv::on(disk, 8 * BLOCK, &Opening::default()) {
        Ok(kv) => kv,
        Err(error) => {
            // The second is what redb says of values that only it has looked at.
            let words = ["the store's file is not as it was written at byte", "All roots are corrupted", "begin"];
            assert!(words.iter().any(|words| error.context.contains(words)), "{error}");
            return None;
        }
    };
    start(Base::in_memory(Box::new(kv)), &StoreConfig::new(Engine::Memory, None)).ok()
}

fn resource(number: u64) -> GroupResource {
    GroupResource::new("", if number == 0 { "pods" } else { "secrets" })
}

fn keys() -> Vec<ObjectKey> {
    let key = |n: u64| {
        let name = format!("name-{:03}", n / 4).parse().unwrap();
        ObjectKey::cluster_scoped(LogicalClusterId::new(1 + n % 2), resource(n / 2 % 2), name)
    };
    (0..4 * OBJECTS).map(key).collect()
}

async fn put(store: &DynStore, key: &ObjectKey, text: Option<&str>) {
    let record = text.map(|text| {
        Record::of(&json!({"metadata": {"name": &*key.name, "ownerReferences": [{"uid": "owner"}]}, "data": text}))
    });
    store.commit(Transaction::one(key.clone(), Expect::Anything, record)).await.unwrap();
}

/// Objects small and large, some written again, some deleted, some history compacted.
async fn fill(store: &DynStore) {
    let keys = keys();
    for (n, key) in keys.iter().enumerate() {
        put(store, key, Some(&"x".repeat(200 + n))).await;
    }
    store.compact(ResourceVersion::new(40).unwrap()).await.unwrap();
    for key in keys.iter().step_by(3) {
        put(store, key, Some("again")).await;
    }
    put(store, &keys[7], Some(&"large".repeat(4000))).await;
    for key in keys.iter().skip(1).step_by(11) {
        put(store, key, None).await;
    }
}

/// All that a store shows; what it says that it cannot read is `None`.
struct Seen {
    each: Vec<Option<Option<StoredObject>>>,
    /// The latest state of all, that of each resource, that of an owner, and an older one.
    lists: Vec<Option<Vec<StoredObject>>>,
    events: Option<Vec<Arc<Event>>>,
}

impl Seen {
    async fn by(store: &DynStore) -> Self {
        let mut each = Vec::new();
        for key in keys() {
            each.push(store.get(&key).await.ok());
        }
        let cluster = LogicalClusterId::new(1);
        let all = || RangeRequest::all(RangeScope::All);
        let requests = [
            all(),
            RangeRequest::all(RangeScope::Cluster(cluster, resource(0))),
            RangeRequest::all(RangeScope::OwnedBy(cluster, "owner".into())),
            RangeRequest { at: ResourceVersion::new(130), ..all() },
            RangeRequest { on_damage: OnDamage::Skip, ..all() },
        ];
        let mut lists = Vec::new();
        for request in requests {
            let page = store.range(request).await.ok();
            // What it names as damaged it does not hide.
            lists.push(page.filter(|page| page.damaged.is_empty() && page.unnamed == 0).map(|page| page.objects));
        }
        Self { each, lists, events: events(store).await }
    }

    /// Whether all that is shown is as it should be; how much is not shown.
    fn lacks(&self, expected: &Self) -> Result<usize, &'static str> {
        let parts = [
            ("an object", lacks(&self.each, &expected.each)),
            ("a list", lacks(&self.lists, &expected.lists)),
            ("a watch", lacks(std::slice::from_ref(&self.events), std::slice::from_ref(&expected.events))),
        ];
        parts.into_iter().map(|(what, lacks)| lacks.ok_or(what)).sum()
    }
}

/// How many of the parts are not shown; `None` when one is shown that is other than expected.
fn lacks<T: PartialEq>(parts: &[Option<T>], expected: &[Option<T>]) -> Option<usize> {
    let fits = |(part, expected): (&Option<T>, &Option<T>)| part.is_none() || part == expected;
    let all_fit = parts.len() == expected.len() && parts.iter().zip(expected).all(fits);
    all_fit.then(|| parts.iter().filter(|part| part.is_none()).count())
}

/// What watches bring from the oldest revision on; `None` when one says that it cannot.
async fn events(store: &DynStore) -> Option<Vec<Arc<Event>>> {
    let mut events = Vec::new();
    for number in 0..2 {
        let mut watch = store.watch(WatchScope::Resource(resource(number), None), Some(store.oldest())).await.ok()?;
        while watch.progress() < store.current() {
            let next = tokio::time::timeout(BROUGHT, watch.next()).await.expect("it brings what has happened");
            events.extend(next.ok()?.events);
        }
    }
    Some(events)
}

/// A store's file, and what it shows. When the process was killed, the last commit may be missing as a whole: a damaged one looks as one
/// that never was.
struct Sample {
    bytes: Vec<u8>,
    shown: Vec<(ResourceVersion, Seen)>,
}

impl Sample {
    async fn new(is_closed: bool) -> Self {
        let disk = Recorder::default();
        let kv = RedbKv::on(disk.clone(), 1 << 20, &Opening::default()).unwrap();
        initialize(&kv, &Seams::system()).unwrap();
        kv.close();
        let store = opened(disk.clone()).unwrap();
        fill(&store).await;
        let mut shown = vec![(store.current(), Seen::by(&store).await)];
        put(&store, &keys()[9], Some("the last one")).await;
        let killed = disk.bytes();
        let last = (store.current(), Seen::by(&store).await);
        match is_closed {
            true => shown = vec![last],
            false => shown.push(last),
        }
        store.close().await;
        Self { bytes: if is_closed { disk.bytes() } else { killed }, shown }
    }

    /// Opens it with a bit flipped, before that or just after it.
    async fn flipped(&self, bit: usize, while_open: bool) -> Outcome {
        let disk = Recorder::of(self.bytes.clone());
        if !while_open {
            disk.flip(bit);
        }
        let Some(store) = opened(disk.clone()) else { return Outcome::Refused };
        if while_open {
            disk.flip(bit);
        }
        let seen = Seen::by(&store).await;
        let place = self.shown.iter().position(|(revision, _)| *revision == store.current());
        let place = place.unwrap_or_else(|| panic!("bit {bit}: it stands at {}", store.current()));
        let lacks =
            seen.lacks(&self.shown[place].1).unwrap_or_else(|what| panic!("bit {bit}: {what} is not as it was"));
        store.close().await;
        match (place + 1 == self.shown.len(), lacks) {
            (true, 0) => Outcome::Harmless,
            (true, _) => Outcome::Told,
            (false, _) => Outcome::CutOff,
        }
    }

    /// Bits of a block, in bytes that are used if there are such.
    fn bits(&self, block: usize) -> Vec<usize> {
        let begin = block * BLOCK;
        let used: Vec<usize> = (begin..begin + BLOCK).filter(|at| self.bytes[*at] != 0).collect();
        let number = |n: usize| (block * 7919 + n * 104_729).wrapping_mul(2_654_435_761) >> 7;
        match used.is_empty() {
            true => (0..BITS.1).map(|n| begin * 8 + number(n) % (BLOCK * 8)).collect(),
            // The first bytes say what the rest of a page is.
            false => (0..BITS.0)
                .map(|n| {
                    if n < 2 {
                        (begin + n * 3) * 8 + number(n) % 8
                    } else {
                        used[number(n) % used.len()] * 8 + number(n) % 8
                    }
                })
                .collect(),
        }
    }
}

/// What a bit came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    /// What could not be read said so.
    Told,
    /// The last commit before a kill was taken for one that was cut off.
    CutOff,
    Harmless,
}

/// (In builds with redb's own assertions opening reads all pages, and so refuses what others come to later.)
#[tokio::test]
async fn no_flipped_bit_anywhere_hides_or_changes_anything() {
    for (is_closed, flips) in [(true, &[false, true][..]), (false, &[false])] {
        let sample = Sample::new(is_closed).await;
        for while_open in flips.iter().copied() {
            let mut tally = BTreeMap::new();
            for bit in (0..sample.bytes.len() / BLOCK).flat_map(|block| sample.bits(block)) {
                *tally.entry(sample.flipped(bit, while_open).await).or_insert(0) += 1;
            }
            println!("closed: {is_closed}, open when it was flipped: {while_open}: {tally:?}");
            let found = if while_open { Outcome::Told } else { Outcome::Refused };
            assert!(tally[&found] > 50 && tally[&Outcome::Harmless] > 10, "{tally:?}");
            assert!(!(is_closed || while_open) || !tally.contains_key(&Outcome::CutOff), "{tally:?}");
        }
    }
}
