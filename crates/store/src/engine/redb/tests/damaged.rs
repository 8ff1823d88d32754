//! Flipped bits anywhere in redb's file: the store is refused, readers get an error, or the bit is unused. No object is
//! ever hidden, or shown in an older or wrong state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::json;

use super::{
    super::{RedbKv, layout::BLOCK},
    crash_many::Recorder,
};
use crate::{
    api::{
        DynStore, Event, Expect, OnDamage, RangeRequest, RangeScope, StoredObject, Transaction, WatchScope,
        open_progress::OpenProgress,
    },
    engine::OrderedKv as _,
    open::{Engine, StoreConfig, StoreParts, start},
    read::bookkeeping::initialize,
};

/// Objects of each of two resources in each of two logical clusters.
const OBJECTS: u64 = 30;
/// Bits that are flipped in a used block, and in an unused one.
const BITS: (usize, usize) = (6, 1);
/// Time limit of a watch for events that have happened.
const BROUGHT: Duration = Duration::from_secs(30);

/// Opens a store; `None` if it is refused with a clear error.
fn opened(disk: Recorder) -> Option<DynStore> {
    let kv = match RedbKv::on(disk, 8 * BLOCK, &OpenProgress::default()) {
        Ok(kv) => kv,
        Err(error) => {
            // The second is redb's error for values that only redb has checked.
            let words = ["the store's file is not as it was written at byte", "All roots are corrupted", "begin"];
            assert!(words.iter().any(|words| error.context.contains(words)), "{error}");
            return None;
        }
    };
    start(StoreParts::in_memory(Box::new(kv)), &StoreConfig::new(Engine::Memory, None)).ok()
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

/// Writes small and large objects, some updated, some deleted, some history compacted.
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

/// Everything that a store shows; `None` for parts that fail.
struct VisibleState {
    each: Vec<Option<Option<StoredObject>>>,
    /// Latest state of everything, of each resource, of an owner, and an older state.
    lists: Vec<Option<Vec<StoredObject>>>,
    events: Option<Vec<Arc<Event>>>,
}

impl VisibleState {
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
            // Objects reported as damaged are not hidden.
            lists.push(page.filter(|page| page.damaged.is_empty() && page.unnamed == 0).map(|page| page.objects));
        }
        Self { each, lists, events: events(store).await }
    }

    /// Checks that all shown parts are as expected; returns the number of failed ones.
    fn lacks(&self, expected: &Self) -> Result<usize, &'static str> {
        let parts = [
            ("an object", lacks(&self.each, &expected.each)),
            ("a list", lacks(&self.lists, &expected.lists)),
            ("a watch", lacks(std::slice::from_ref(&self.events), std::slice::from_ref(&expected.events))),
        ];
        parts.into_iter().map(|(what, lacks)| lacks.ok_or(what)).sum()
    }
}

/// Returns the number of failed parts; `None` if a shown part differs from the expected one.
fn lacks<T: PartialEq>(parts: &[Option<T>], expected: &[Option<T>]) -> Option<usize> {
    let fits = |(part, expected): (&Option<T>, &Option<T>)| part.is_none() || part == expected;
    let all_fit = parts.len() == expected.len() && parts.iter().zip(expected).all(fits);
    all_fit.then(|| parts.iter().filter(|part| part.is_none()).count())
}

/// Returns the events of watches from the oldest revision on; `None` if a watch fails.
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

/// File of a store, and its expected content. If the process was killed, the last commit may be missing entirely: a
/// damaged commit looks like one that never happened.
struct StoreSample {
    bytes: Vec<u8>,
    shown: Vec<(ResourceVersion, VisibleState)>,
}

impl StoreSample {
    async fn new(is_closed: bool) -> Self {
        let disk = Recorder::default();
        let kv = RedbKv::on(disk.clone(), 1 << 20, &OpenProgress::default()).unwrap();
        initialize(&kv, &Seams::system()).unwrap();
        kv.close();
        let store = opened(disk.clone()).unwrap();
        fill(&store).await;
        let mut shown = vec![(store.current(), VisibleState::by(&store).await)];
        put(&store, &keys()[9], Some("the last one")).await;
        let killed = disk.bytes();
        let last = (store.current(), VisibleState::by(&store).await);
        if is_closed {
            shown = vec![last]
        } else {
            shown.push(last)
        }
        store.close().await;
        Self { bytes: if is_closed { disk.bytes() } else { killed }, shown }
    }

    /// Opens the file with a flipped bit, flipped before the opening or right after it.
    async fn flipped(&self, bit: usize, while_open: bool) -> FlipOutcome {
        let disk = Recorder::of(self.bytes.clone());
        if !while_open {
            disk.flip(bit);
        }
        let Some(store) = opened(disk.clone()) else { return FlipOutcome::Refused };
        if while_open {
            disk.flip(bit);
        }
        let seen = VisibleState::by(&store).await;
        let place = self.shown.iter().position(|(revision, _)| *revision == store.current());
        let place = place.unwrap_or_else(|| panic!("bit {bit}: it stands at {}", store.current()));
        let lacks =
            seen.lacks(&self.shown[place].1).unwrap_or_else(|what| panic!("bit {bit}: {what} is not as it was"));
        store.close().await;
        match (place + 1 == self.shown.len(), lacks) {
            (true, 0) => FlipOutcome::Harmless,
            (true, _) => FlipOutcome::Told,
            (false, _) => FlipOutcome::CutOff,
        }
    }

    /// Returns bits of a block, in used bytes if there are any.
    fn bits(&self, block: usize) -> Vec<usize> {
        let begin = block * BLOCK;
        let used: Vec<usize> = (begin..begin + BLOCK).filter(|at| self.bytes[*at] != 0).collect();
        let number = |n: usize| (block * 7919 + n * 104_729).wrapping_mul(2_654_435_761) >> 7;
        if used.is_empty() {
            return (0..BITS.1).map(|n| begin * 8 + number(n) % (BLOCK * 8)).collect();
        }
        // The first bytes tell the kind of the page.
        let bit = |n: usize| {
            if n < 2 { (begin + n * 3) * 8 + number(n) % 8 } else { used[number(n) % used.len()] * 8 + number(n) % 8 }
        };
        (0..BITS.0).map(bit).collect()
    }
}

/// Result of a flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FlipOutcome {
    Refused,
    /// Failed reads reported it.
    Told,
    /// The last commit before a kill was taken for an interrupted one.
    CutOff,
    Harmless,
}

/// (In builds with redb's own assertions, opening reads all pages, so it refuses damage that other builds find later.)
#[tokio::test]
async fn no_flipped_bit_anywhere_hides_or_changes_anything() {
    for (is_closed, flips) in [(true, &[false, true][..]), (false, &[false])] {
        let sample = StoreSample::new(is_closed).await;
        for while_open in flips.iter().copied() {
            let mut tally = BTreeMap::new();
            for bit in (0..sample.bytes.len() / BLOCK).flat_map(|block| sample.bits(block)) {
                *tally.entry(sample.flipped(bit, while_open).await).or_insert(0) += 1;
            }
            println!("closed: {is_closed}, open when it was flipped: {while_open}: {tally:?}");
            let found = if while_open { FlipOutcome::Told } else { FlipOutcome::Refused };
            assert!(tally[&found] > 50 && tally[&FlipOutcome::Harmless] > 10, "{tally:?}");
            assert!(!(is_closed || while_open) || !tally.contains_key(&FlipOutcome::CutOff), "{tally:?}");
        }
    }
}
