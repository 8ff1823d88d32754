//! Tests of the sled engine.

use std::{collections::BTreeMap, sync::mpsc, time::Duration};

use super::*;
use crate::engine::read;

fn opened() -> (tempfile::TempDir, SledKv) {
    let dir = tempfile::tempdir().unwrap();
    let kv = SledKv::open(&dir.path().join("s"), 1 << 20).unwrap();
    (dir, kv)
}

fn put(key: &str, value: Option<Vec<u8>>) -> (Vec<u8>, Option<Bytes>) {
    (key.as_bytes().to_vec(), value.map(Bytes::from))
}

fn pairs(kv: &SledKv) -> Vec<(String, usize)> {
    read(kv, |view| {
        let mut cursor = view.scan(b"a", b"z").unwrap();
        let mut pairs = Vec::new();
        while let Some(key) = cursor.key() {
            let name = String::from_utf8(key.to_vec()).unwrap();
            assert_eq!(view.get(key).unwrap().unwrap(), cursor.value());
            pairs.push((name, cursor.value().len()));
            cursor.advance().unwrap();
        }
        pairs
    })
    .unwrap()
}

#[test]
fn damage_has_a_description() {
    let damaged = |at| fault("reading")(::sled::Error::Corruption { at, bt: () }).context;
    assert_eq!(damaged(None), "reading: the files are damaged");
    let full = fault("writing")(::sled::Error::Io(io::ErrorKind::StorageFull.into()));
    assert!(full.is_full(), "{full}");
}

#[test]
fn views_do_not_see_a_batch_before_it_is_published() {
    let (_dir, kv) = opened();
    kv.commit(Batch::from([put("a", Some(vec![1])), put("c", Some(vec![2; 9000]))])).unwrap();
    assert_eq!(pairs(&kv), []);
    kv.publish();
    let before = [("a".into(), 1), ("c".into(), 9000)];
    assert_eq!(pairs(&kv), before);
    kv.commit(Batch::from([put("a", None), put("b", Some(vec![3; 5000])), put("c", Some(vec![4; 10]))])).unwrap();
    assert_eq!(pairs(&kv), before);
    kv.publish();
    assert_eq!(pairs(&kv), [("b".into(), 5000), ("c".into(), 10)]);
}

/// Reads all pairs of a view by a scan that leaves time for concurrent writes.
fn scanned(view: &dyn KvView) -> BTreeMap<String, Vec<u8>> {
    let (mut pairs, mut cursor) = (BTreeMap::new(), view.scan(b"a", b"z").unwrap());
    while let Some(key) = cursor.key() {
        pairs.insert(String::from_utf8(key.to_vec()).unwrap(), cursor.value().to_vec());
        std::thread::yield_now();
        cursor.advance().unwrap();
    }
    pairs
}

#[test]
fn a_batch_is_written_while_a_long_scan_goes_on_which_does_not_see_it() {
    let (_dir, kv) = opened();
    let named = |n: usize| format!("k{n:04}");
    kv.commit((0..2000).map(|n| put(&named(n), Some(vec![0; 10 + n % 3 * 5000]))).collect()).unwrap();
    kv.publish();
    let before = read(&kv, scanned).unwrap();
    let (told, hears) = mpsc::channel();
    std::thread::scope(|scope| {
        read(&kv, |view| {
            let mut cursor = view.scan(b"a", b"z").unwrap();
            let mut seen = BTreeMap::new();
            while let Some(key) = cursor.key() {
                let key = String::from_utf8(key.to_vec()).unwrap();
                assert_eq!(view.get(key.as_bytes()).unwrap().unwrap(), cursor.value());
                seen.insert(key, cursor.value().to_vec());
                if seen.len() % 500 == 1 {
                    let (kv, told, round) = (&kv, told.clone(), seen.len());
                    scope.spawn(move || {
                        let changed = (0..2000).filter(|n| n % 7 != 0).map(|n| match n % 3 {
                            0 => put(&named(n), None),
                            1 => put(&named(n), Some(vec![1; 7000])),
                            _ => put(&format!("k{n:04}-{round}"), Some(vec![2])),
                        });
                        kv.commit(changed.collect()).unwrap();
                        kv.publish();
                        told.send(()).unwrap();
                    });
                    hears.recv_timeout(Duration::from_secs(60)).expect("the scan does not hold up the batch");
                }
                cursor.advance().unwrap();
            }
            assert!(seen == before && scanned(view) == before, "the state that was shown when it began");
        })
        .unwrap();
    });
    assert_eq!(read(&kv, |view| view.get(b"k0001").unwrap()).unwrap().unwrap(), vec![1; 7000]);
    assert_eq!(kv.past.kept(), 0, "nothing is kept without a hold");
}

#[test]
fn views_beside_many_batches_each_see_the_state_of_one() {
    const ROUNDS: u32 = 200;
    let (_dir, kv) = opened();
    let states = Mutex::new(vec![BTreeMap::new()]);
    let next = |round: u32, state: &BTreeMap<String, Vec<u8>>| {
        let mut batch = Batch::from([put("round", Some(round.to_be_bytes().to_vec()))]);
        // Some keys stay, some go, some come, and some values are split.
        let chosen =
            (0..300u32).filter(|n| (n.wrapping_mul(2_654_435_761) ^ round.wrapping_mul(40_503)).is_multiple_of(11));
        batch.extend(chosen.map(|n| {
            let (key, size) = (format!("k{n:03}"), if n % 5 == 0 { 9000 } else { 20 });
            put(&key, (!state.contains_key(&key)).then(|| vec![round as u8; size]))
        }));
        batch
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let mut state: BTreeMap<String, Vec<u8>> = states.lock().last().unwrap().clone();
                let batch = next(round, &state);
                for (key, value) in &batch {
                    let key = String::from_utf8(key.clone()).unwrap();
                    match value {
                        Some(value) => drop(state.insert(key, value.to_vec())),
                        None => drop(state.remove(&key)),
                    }
                }
                kv.commit(batch).unwrap();
                states.lock().push(state);
                kv.publish();
            }
            is_over.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    read(&kv, |view| {
                        let round = view.get(b"round").unwrap();
                        let round = round.map_or(0, |round| u32::from_be_bytes(round.as_ref().try_into().unwrap()));
                        let expected = states.lock()[round as usize].clone();
                        for _ in 0..2 {
                            assert!(scanned(view) == expected, "round {round}");
                        }
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(kv.past.kept(), 0);
}

#[test]
fn large_values_leave_the_blobs_folder_empty_and_no_chunks_behind() {
    let (dir, kv) = opened();
    for round in 0..3u8 {
        let batch = (0..40).map(|n| put(&format!("k{n:02}"), Some(vec![round; 700_000 >> (n % 8)])));
        kv.commit(batch.collect()).unwrap();
        kv.publish();
    }
    assert_eq!(std::fs::read_dir(dir.path().join("s/blobs")).unwrap().count(), 0);
    kv.commit((0..40).map(|n| put(&format!("k{n:02}"), None)).collect()).unwrap();
    kv.publish();
    assert_eq!(kv.open.read().as_ref().unwrap().db.len(), 0);
    assert_eq!(std::fs::read_dir(dir.path().join("s/blobs")).unwrap().count(), 0);
}

#[test]
fn a_full_disk_at_reopening_is_not_a_failed_sync() {
    let (_dir, kv) = opened();
    let full = || failure("opening the store")(io::Error::from(io::ErrorKind::StorageFull));
    assert!(kv.failed_sync_behind(full()).is_full());
    kv.close();
    let begun = portolan_types::MonotonicInstant::now();
    // sled's threads may still be releasing the lock.
    while kv.log.check().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "sled keeps its lock");
        std::thread::yield_now();
    }
    assert!(kv.failed_sync_behind(full()).is_full());
}

#[test]
fn a_snapshot_that_was_being_written_does_not_keep_the_store_from_opening() {
    let (dir, kv) = opened();
    kv.commit(Batch::from([put("a", Some(vec![1]))])).unwrap();
    kv.close();
    let unfinished = dir.path().join("s/snap.00000000000000FF.generating");
    std::fs::write(&unfinished, b"half").unwrap();
    let kv = SledKv::open(&dir.path().join("s"), 1 << 20).unwrap();
    assert_eq!(pairs(&kv), [("a".into(), 1)]);
    assert!(!unfinished.exists());
}

#[test]
fn a_closed_store_is_reported_as_closed_not_as_damaged() {
    let (_dir, kv) = opened();
    kv.close();
    let why = read(&kv, |_| ()).unwrap_err();
    assert!(NotOpen::is_cause_of(&why) && why.context == "the store is closed", "{why}");
}

#[test]
fn the_log_is_not_checked_while_sleds_threads_may_still_write_to_it() {
    use std::os::unix::fs::FileExt as _;
    let (dir, kv) = opened();
    kv.commit(Batch::from([put("a", Some(vec![1; 500]))])).unwrap();
    kv.publish();
    kv.close();
    let db = std::fs::File::options().read(true).write(true).open(dir.path().join("s/db")).unwrap();
    db.lock().unwrap();
    // The segment looks as if it was being written.
    let mut head = [0; 20];
    db.read_exact_at(&mut head, 0).unwrap();
    db.write_all_at(&[0xff; 20], 0).unwrap();
    std::thread::scope(|scope| {
        let again = scope.spawn(|| kv.reopen(SledFolder::open));
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        db.write_all_at(&head, 0).unwrap();
        db.unlock().unwrap();
        again.join().unwrap().unwrap();
    });
    assert_eq!(read(&kv, |view| view.get(b"a").unwrap()).unwrap().unwrap(), vec![1; 500]);
}
