//! Tests of the retention of history: each bound, holds, and failures.

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Seams};
use serde_json::json;

use super::*;
use crate::{
    engine::{Batch, OrderedKv as _},
    fixtures::SharedKv,
    layout::keys,
    object_client::ObjectClient,
    open::{Engine, StoreConfig, StoreParts, start},
    read::bookkeeping::initialize,
};

fn pod(name: &str) -> ObjectKey {
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "pods"), name.parse().unwrap())
}

fn metrics() -> HistoryMetrics {
    HistoryMetrics::register(&Registry::new()).unwrap()
}

async fn create(store: &DynStore, names: std::ops::Range<u64>) {
    let objects = ObjectClient::new(store.clone());
    for name in names {
        objects.create(&pod(&format!("p{name}")), &json!({})).await.unwrap();
    }
}

#[test]
fn whichever_bound_is_reached_first_counts() {
    let rv = |number| ResourceVersion::new(number).unwrap();
    for (case, oldest, aged, most, fewer, expected) in [
        ("nothing is old or much", 10, None, 5, 8, None),
        ("exactly as many as may be", 10, None, 10, 13, None),
        ("one more than may be", 10, None, 11, 14, Some(14)),
        ("what is old goes, also of few", 10, Some(12), 1, 1, Some(12)),
        ("what is old goes, also of many, where that is more", 10, Some(20), 11, 14, Some(20)),
        ("many go, also young ones", 10, Some(12), 40, 50, Some(50)),
        ("what is old is forgotten already", 10, Some(10), 1, 1, None),
        ("somebody else has forgotten more", 30, Some(20), 11, 14, None),
    ] {
        let upto = compaction_target(rv(oldest), aged.map(rv), rv(most), rv(fewer));
        assert_eq!(upto, expected.map(rv), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_kept_for_the_time_asked() {
    let store = crate::open::memory();
    let bounds = HistoryBounds { time: Duration::from_secs(300), revisions: u64::MAX, bytes: u64::MAX };
    let task = tokio::spawn(run_history_retention(store.clone(), bounds, metrics()));
    for minute in 1..=20u64 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        create(&store, minute..minute + 1).await;
        let age = store.current().get() - store.oldest().get();
        assert!((5..=11).contains(&age) || minute < 12, "{age} minutes are kept after {minute}");
    }
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn no_more_revisions_are_kept_than_asked_however_young_they_are() {
    let store = crate::open::memory();
    let bounds = HistoryBounds { time: Duration::from_secs(3600), revisions: 100, bytes: u64::MAX };
    let task = tokio::spawn(run_history_retention(store.clone(), bounds, metrics()));
    for second in 0..60 {
        create(&store, second * 10..(second + 1) * 10).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let kept = store.current().get() - store.oldest().get();
        assert!(kept <= 110 && (kept >= 75 || second < 8), "{kept} are kept after {second} s");
    }
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn due_history_is_compacted_when_its_hold_ends() {
    for bounds in [
        HistoryBounds { time: Duration::from_secs(300), revisions: u64::MAX, bytes: u64::MAX },
        HistoryBounds { time: Duration::from_secs(86_400), revisions: 8, bytes: u64::MAX },
    ] {
        let (store, metrics) = (crate::open::memory(), metrics());
        let task = tokio::spawn(run_history_retention(store.clone(), bounds, metrics.clone()));
        create(&store, 0..10).await;
        let held = store.hold(None).await;
        let at = store.current();
        create(&store, 10..30).await;
        tokio::time::sleep(Duration::from_secs(700)).await;
        assert_eq!(store.oldest(), at, "{bounds:?}: what is held stays, and what is before it goes");
        let done = metrics.compactions.with_label_values(&["done"]).get();
        tokio::time::sleep(Duration::from_secs(700)).await;
        assert_eq!(metrics.compactions.with_label_values(&["done"]).get(), done, "{bounds:?}: nothing more is done");
        assert!(metrics.held.get() > 700, "{bounds:?}: {} s", metrics.held.get());
        drop(held);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(store.oldest() > at, "{bounds:?}: what was due is not due anew");
        assert_eq!(metrics.held.get(), 0, "{bounds:?}");
        assert_eq!(metrics.compactions.with_label_values(&["done"]).get(), done + 1, "{bounds:?}");
        task.abort();
    }
}

/// A key of the history that names no revision fails every compaction, until it is gone.
#[tokio::test(start_paused = true)]
async fn a_compaction_that_fails_is_tried_again_for_as_long_as_it_takes() {
    let kv = SharedKv::default();
    initialize(&kv, &Seams::system()).unwrap();
    let base = StoreParts::in_memory(Box::new(kv.clone()));
    let store = start(base, &StoreConfig::new(Engine::Memory, None)).unwrap_or_else(|_| panic!("it starts"));
    create(&store, 0..20).await;
    let place = [&keys::history(5)[..], b"more"].concat();
    let write = |entry| {
        kv.commit(Batch::from([(place.clone(), entry)])).unwrap();
        kv.publish();
    };
    write(Some("damaged".into()));
    let (bounds, metrics) =
        (HistoryBounds { time: Duration::from_secs(300), revisions: 8, bytes: u64::MAX }, metrics());
    let task = tokio::spawn(run_history_retention(store.clone(), bounds, metrics.clone()));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let failed = metrics.compactions.with_label_values(&["failed"]).get();
    assert!((60..70).contains(&failed), "it is tried again, and later each time: {failed}");
    assert_eq!(u64::try_from(metrics.failing.get()), Ok(failed));
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(metrics.failing.get(), 0, "somebody else compacts now");
    let task = tokio::spawn(run_history_retention(store.clone(), bounds, metrics.clone()));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(metrics.failing.get() > 0);
    write(None);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(metrics.failing.get(), 0);
    assert!(store.current().get() - store.oldest().get() <= 8);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_long_hold_is_logged_at_intervals_and_always_shown_as_a_metric() {
    let held = || Ok(CompactionOutcome::Held);
    for (case, time, patience) in
        [("three times the time", 300, 900), ("within an hour", 86_400, 3600), ("not at once", 0, 60)]
    {
        let metrics = metrics();
        let mut noted =
            HeldHistory::new(HistoryBounds { time: Duration::from_secs(time), revisions: 8, bytes: u64::MAX });
        assert!(!noted.record(&held(), &metrics), "{case}");
        let mut told = Vec::new();
        for second in 1..=2 * patience + 1 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let outcome = if second % 7 == 0 { Err(StoreError::Unknown) } else { held() };
            if noted.record(&outcome, &metrics) {
                told.push(second);
            }
            assert_eq!(metrics.held.get(), second, "{case}");
        }
        assert_eq!(told, [patience, 2 * patience], "{case}");
        noted.record(&Ok(CompactionOutcome::Partly), &metrics);
        assert_eq!(metrics.held.get(), 0, "{case}: something was forgotten");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!noted.record(&held(), &metrics), "{case}: what is held now is not held for long");
        assert_eq!(metrics.held.get(), 5, "{case}");
        noted.record(&Ok(CompactionOutcome::Done), &metrics);
        assert_eq!(metrics.held.get(), 0, "{case}: all was forgotten");
    }
}

#[test]
fn short_holds_hide_no_failures() {
    let (metrics, mut failures) = (metrics(), 0);
    let failed = || Err(StoreError::Unknown);
    for (case, outcome, expected) in [
        ("it fails", failed(), 1),
        ("all that is due is held: nothing was tried", Ok(CompactionOutcome::Held), 1),
        ("it fails again", failed(), 2),
        ("nothing is due", Ok(CompactionOutcome::NotDue), 2),
        ("and again", failed(), 3),
        ("history without a hold was forgotten", Ok(CompactionOutcome::Partly), 0),
        ("it fails again", failed(), 1),
        ("all was forgotten", Ok(CompactionOutcome::Done), 0),
    ] {
        failures = record_outcome(&outcome, failures, &metrics);
        assert_eq!((failures, metrics.failing.get()), (expected, expected.into()), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_bytes_are_kept_than_asked_however_few_the_revisions() {
    const BOUND: u64 = 100_000;
    let store = crate::open::memory();
    let bounds = HistoryBounds { time: Duration::from_secs(3600), revisions: u64::MAX, bytes: BOUND };
    let task = tokio::spawn(run_history_retention(store.clone(), bounds, metrics()));
    let objects = ObjectClient::new(store.clone());
    objects.create(&pod("large"), &json!({"data": "x".repeat(10_000)})).await.unwrap();
    for second in 0..60 {
        let write = |object: &mut serde_json::Value| {
            object["second"] = json!(second);
            Ok::<_, StoreError>(crate::object_client::Step::Write)
        };
        assert!(objects.modify(&pod("large"), write).await.unwrap().is_some());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let kept = store.history_bytes().unwrap();
        assert!(kept <= BOUND + 11_000 && (kept >= BOUND / 2 || second < 8), "{kept} bytes are kept after {second} s");
    }
    assert!(store.current().get() - store.oldest().get() <= 11, "some revisions are kept");
    task.abort();
}

/// The bytes under all keys of superseded objects.
fn stored_bytes(kv: &SharedKv) -> u64 {
    let mut bytes = 0;
    let count = |view: &dyn crate::engine::KvView| {
        crate::read::bookkeeping::each(view, b"v", |_, value| {
            bytes += value.len() as u64;
            Some(())
        })
    };
    crate::engine::read(kv, count).unwrap().unwrap();
    bytes
}

#[tokio::test]
async fn superseded_bytes_are_counted_exactly_and_survive_a_restart() {
    let kv = SharedKv::default();
    initialize(&kv, &Seams::system()).unwrap();
    let opened = || {
        let base = StoreParts::in_memory(Box::new(kv.clone()));
        start(base, &StoreConfig::new(Engine::Memory, None)).unwrap_or_else(|_| panic!("it starts"))
    };
    let mut store = opened();
    for round in 0..6_u64 {
        let objects = ObjectClient::new(store.clone());
        for n in 0..20 {
            let size = usize::try_from((n * 37 + round * 101) % 500).unwrap();
            objects.create(&pod(&format!("p{round}-{n}")), &json!({"data": "x".repeat(size)})).await.unwrap();
        }
        for n in 0..15 {
            let write = |object: &mut serde_json::Value| {
                object["round"] = json!(round);
                Ok::<_, StoreError>(crate::object_client::Step::Write)
            };
            objects.modify(&pod(&format!("p{round}-{n}")), write).await.unwrap();
        }
        store
            .commit(crate::api::Transaction::one(pod(&format!("p{round}-3")), crate::api::Expect::Present, None))
            .await
            .unwrap();
        assert_eq!(store.history_bytes(), Some(stored_bytes(&kv)), "after writes");
        match round % 3 {
            0 => store.compact(store.back(round + 3)).await.unwrap(),
            1 => store.shrink_history(2000).await.unwrap(),
            _ => {
                store.close().await;
                store = opened();
            }
        }
        let counted = store.history_bytes().unwrap();
        assert_eq!(counted, stored_bytes(&kv), "round {round}");
        assert!(round % 3 != 1 || counted <= 2000, "{counted}");
    }
    store.delete_cluster(LogicalClusterId::ROOT).await.unwrap();
    assert_eq!(store.history_bytes(), Some(stored_bytes(&kv)));
    store.compact(store.current()).await.unwrap();
    assert_eq!((store.history_bytes(), stored_bytes(&kv)), (Some(0), 0));
}
