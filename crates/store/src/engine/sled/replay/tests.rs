use std::{ops::Range, os::unix::fs::FileExt as _};

use bytes::Bytes;

use super::*;
use crate::engine::{OrderedKv as _, SledKv, read};

/// sled's folder, closed or as a crash leaves it after its last batch.
struct ReplayScene {
    _dir: tempfile::TempDir,
    folder: PathBuf,
}

impl ReplayScene {
    /// Writes one batch per round to `keys` of 64 keys, with values of `bytes` bytes.
    fn new(rounds: Range<usize>, keys: usize, bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scene = Self { folder: dir.path().join("s"), _dir: dir };
        scene.go_on(rounds, keys, bytes);
        scene
    }

    fn go_on(&self, rounds: Range<usize>, keys: usize, bytes: usize) {
        let kv = SledKv::open(&self.folder, 1 << 20).unwrap();
        for round in rounds {
            let pair = |n: usize| (format!("k{:02}", (round * keys + n) % 64), format!("{round}-").repeat(bytes / 2));
            let batch = (0..keys).map(pair).map(|(key, value)| (key.into_bytes(), Some(Bytes::from(value))));
            kv.commit(batch.collect()).unwrap();
            kv.publish();
        }
        kv.close();
    }

    /// Leaves the log as a process that was killed would.
    fn break_off(self) -> Self {
        CloseNote::remove(&self.folder).unwrap();
        self
    }

    fn log(&self) -> ReplayedLog {
        ReplayedLog::open(&self.folder).unwrap().unwrap()
    }

    fn db(&self) -> File {
        File::options().read(true).write(true).open(self.folder.join("db")).unwrap()
    }

    /// Returns the error of a check with one changed byte, which is restored afterwards.
    fn changed(&self, place: u64, change: impl FnOnce(u8) -> u8) -> Option<String> {
        let (db, mut byte) = (self.db(), [0]);
        db.read_exact_at(&mut byte, place).unwrap();
        db.write_all_at(&[change(byte[0])], place).unwrap();
        let told = check(&self.folder).err().map(|error| error.context);
        db.write_all_at(&byte, place).unwrap();
        told
    }

    /// Returns the positions of batches in the log and in the file, in order.
    fn batches(&self) -> Vec<(u64, u64)> {
        let (log, mut batches) = (self.log(), Vec::new());
        for (lsn, place) in &log.places {
            walk(&log.segment(*place).unwrap(), lsn / SEGMENT_LEN, |message| {
                if message.begins_batch() {
                    batches.push((message.lsn(), place + message.lsn() % SEGMENT_LEN));
                }
            });
        }
        batches
    }
}

#[test]
fn a_flipped_bit_in_a_replayed_log_is_refused_after_a_clean_stop() {
    // The second time the log continues within a segment, from a snapshot.
    for runs in 1..=2 {
        let scene = ReplayScene::new(0..6, 4, 300);
        for run in 1..runs {
            scene.go_on(6 * run..6 * run + 6, 4, 300);
        }
        check(&scene.folder).unwrap();
        let log = scene.log();
        let end = log.end().unwrap();
        assert_eq!(log.places.len(), 1, "all is in one segment, and may be looked at bit by bit");
        assert_eq!(log.snapshot > 0, runs > 1);
        for place in (0..end).filter(|place| *place < 64 || place % 5 == 0) {
            let told = scene.changed(place, |byte| byte ^ (1 << (place % 8)));
            assert!(told.is_some_and(|told| told.contains("delete store.mark")), "byte {place} of {end}");
        }
        let len = scene.db().metadata().unwrap().len();
        for place in end..len.min(end + 100) {
            assert_eq!(scene.changed(place, |byte| byte ^ 1), None, "nothing was written at byte {place}");
        }
    }
}

#[test]
fn segments_that_are_damaged_cleared_or_cut_off_are_refused_after_a_clean_end() {
    let scene = ReplayScene::new(0..64, 4, 10_000);
    check(&scene.folder).unwrap();
    let (log, db) = (scene.log(), scene.db());
    assert!(log.places.len() > 3, "{}", log.places.len());
    for (lsn, place) in &log.places {
        let whole = log.segment(*place).unwrap();
        db.write_all_at(&vec![0; SEGMENT], *place).unwrap();
        assert!(check(&scene.folder).is_err(), "a cleared segment at {place}");
        db.write_all_at(&whole, *place).unwrap();
        // The last bytes of a segment are of no message.
        let used = if *lsn < log.tail() { SEGMENT_LEN - 64 } else { log.end().unwrap() - lsn };
        for at in (0..used).step_by(10_007) {
            let told = scene.changed(place + at, |byte| byte ^ 16);
            assert!(told.is_some(), "byte {at} of the segment of {lsn}");
        }
    }
    check(&scene.folder).unwrap();
    let len = db.metadata().unwrap().len();
    db.set_len(len / 2).unwrap();
    assert!(check(&scene.folder).is_err(), "half of the file");
}

#[test]
fn after_a_crash_only_its_last_two_batches_can_be_torn() {
    let scene = ReplayScene::new(0..12, 4, 300).break_off();
    check(&scene.folder).unwrap();
    let (batches, end) = (scene.batches(), scene.log().end().unwrap());
    assert_eq!(batches.len(), 12);
    let last = batches[batches.len() - 2].1;
    for place in (HEADER as u64..end).step_by(3) {
        let is_refused = scene.changed(place, |byte| byte ^ 32).is_some();
        assert_eq!(is_refused, place < last, "byte {place}, the last two batches begin at {last}");
    }
    for place in 0..HEADER as u64 {
        // Nothing says that there was a segment.
        assert!(scene.changed(place, |byte| byte ^ 1).is_some(), "byte {place} of the header");
    }
}

#[test]
fn a_torn_live_entry_is_refused_and_a_replaced_one_is_not() {
    let scene = ReplayScene::new(0..64, 4, 10_000).break_off();
    check(&scene.folder).unwrap();
    let log = scene.log();
    let (tail, replaced) = (log.tail(), log.replaced(log.end().unwrap()).unwrap());
    let (mut torn, mut refused) = (0, 0);
    for (lsn, place) in log.places.range(..tail) {
        let mut needed = 0;
        walk(&log.segment(*place).unwrap(), lsn / SEGMENT_LEN, |message| {
            needed +=
                usize::from(message.is_of_page() && replaced.get(&message.page).is_none_or(|by| *by <= message.lsn()));
        });
        let is_refused = scene.changed(place + HEADER as u64 + 6, |byte| byte ^ 1).is_some();
        // The message that is damaged may be the one that is needed.
        assert!(is_refused == (needed > 0) || needed == 1, "the segment of {lsn}, of which {needed} are needed");
        (torn, refused) = (torn + usize::from(!is_refused), refused + usize::from(is_refused));
    }
    assert!(torn > 0 && refused > 0, "{torn} {refused}");
}

#[test]
fn a_note_of_before_is_none() {
    let scene = ReplayScene::new(0..4, 4, 300);
    let noted = fs::read(scene.folder.join("ended")).unwrap();
    scene.go_on(4..8, 4, 300);
    let put_back = || fs::write(scene.folder.join("ended"), &noted).unwrap();
    put_back();
    check(&scene.folder).unwrap();
    let (_, last) = scene.batches().pop().unwrap();
    assert_eq!(scene.changed(last + 2, |byte| byte ^ 1), None, "as after a crash");
    fs::write(scene.folder.join("ended"), &noted[1..]).unwrap();
    assert!(check(&scene.folder).unwrap_err().context.contains("ended is damaged"));
}

#[test]
fn a_log_that_is_refused_is_not_changed_and_can_be_salvaged() {
    let scene = ReplayScene::new(0..6, 4, 300);
    let (_, place) = scene.batches()[2];
    scene.db().write_all_at(&[255], place + 3).unwrap();
    let before = fs::read(scene.folder.join("db")).unwrap();
    assert!(SledKv::open(&scene.folder, 1 << 20).is_err());
    assert!(fs::read(scene.folder.join("db")).unwrap() == before);
    let kv = SledKv::salvage(&scene.folder, 1 << 20).unwrap();
    let keys = read(&kv, |view| {
        let (mut keys, mut cursor) = (0, view.scan(b"k", b"l").unwrap());
        while cursor.key().is_some() {
            keys += 1;
            cursor.advance().unwrap();
        }
        keys
    });
    assert_eq!(keys.unwrap(), 8, "what the batches before it wrote");
}
