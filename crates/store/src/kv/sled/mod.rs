//! The sled engine, with what sled 0.34.7 does not do by itself.
//!
//! - Values are kept in chunks of at most 4 KiB, so that nothing reaches the `blobs` folder, which sled never syncs.
//! - sled's log is written by `sync_file_range`, which neither syncs the file's length nor the disk's cache, and within a large
//!   batch sled relies on what it wrote so: that call is an `fdatasync` here (`sync.c`). It does not tell sled of failures, but gives
//!   up sled's lock then: a batch counts as durable after `flush`, an `fdatasync` of `db` through a second descriptor, and a look
//!   whether the lock still stands ([`files::Log`]).
//! - sled has no snapshots. Views see through the batches that were applied since their state was shown by what these replaced
//!   (`past`). So no view waits for a batch, and no batch for a view, unless 64 MiB were replaced since the view began.
//! - A snapshot file that a killed process was still writing is removed before opening: sled would refuse to start.
//! - What sled replays when it opens is checked before: it passes over what is damaged there (`replay`).
//! - After a failed write sled answers nothing any more, not even reads. The folder is opened again then: views go on, without
//!   what failed, and after a full disk so do batches.
//! - sled tells alike of a write and of a sync for which there was no room (NFS, thin volumes). Of the latter Linux tells each
//!   descriptor once (errseq, fsync(2)): ours decides. After a failed sync no batch is taken, whatever it failed for.

mod chunks;
mod ended;
mod files;
mod flush;
mod past;
mod replay;
mod segment;

use std::{
    io,
    ops::Bound,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use ::sled::{Db, IVec};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use self::{
    ended::Ended,
    files::Log,
    flush::Flusher,
    past::{Past, Replaced, Shown},
};
use super::{Batch, Before, Cursor, KvResult, NotOpen, OrderedKv, View, failed, failure, guard};
use crate::BackendError;

/// A sled database that is open.
struct Open {
    db: Db,
}

/// sled's folder, and how it is opened.
struct Folder {
    path: PathBuf,
    cache_bytes: usize,
    /// Whether damage is refused that sled would pass over.
    is_checked: bool,
}

impl Folder {
    fn open(&self) -> KvResult<Open> {
        let path = &self.path;
        files::remove_unfinished_snapshots(path).map_err(failure("removing unfinished snapshots"))?;
        if self.is_checked {
            replay::check(path)?;
        }
        Ended::remove(path).map_err(failure("opening the store"))?;
        Ok(Open { db: guarded("opening the store", || files::open(path, self.cache_bytes))? })
    }

    /// What sled makes anew when it opens is synced before anything is written.
    fn open_synced(&self) -> KvResult<Open> {
        let open = self.open()?;
        match files::sync(&self.path) {
            Ok(()) => Ok(open),
            Err(error) => {
                close(open);
                Err(unsynced("syncing the store's files")(error))
            }
        }
    }

    /// Once sled has let go of the folder.
    fn note_end(&self) {
        let noted = files::wait_until_released(&self.path).map_err(failure("closing the store"));
        if let Err(error) = noted.and_then(|()| replay::note_end(&self.path)) {
            tracing::warn!(%error, "the end of the store's log is not noted: the next start takes it for a crash");
        }
    }
}

/// Closes a database that failed, or whose disk did: it may say so once more, by a panic.
fn close(open: Open) {
    let _ = guarded("closing the store", move || {
        drop(open);
        Ok(())
    });
}

/// A sled database.
pub(crate) struct SledKv {
    folder: Folder,
    open: RwLock<Option<Open>>,
    flusher: Flusher,
    log: Log,
    past: Past,
    /// One batch at a time.
    writing: Mutex<()>,
    broken: AtomicBool,
    /// Whether it broke because there was no room.
    was_full: AtomicBool,
}

impl SledKv {
    /// Opens or makes the database in the folder `path`.
    ///
    /// # Errors
    /// When the folder is damaged or cannot be used.
    pub(crate) fn open(path: &Path, cache_bytes: usize) -> KvResult<Self> {
        Self::open_in(Folder { path: path.to_owned(), cache_bytes, is_checked: true })
    }

    /// As [`Self::open`], and goes on with what sled makes of a log that is damaged.
    ///
    /// # Errors
    /// When sled can make nothing of it, or the folder cannot be used.
    pub(crate) fn salvage(path: &Path, cache_bytes: usize) -> KvResult<Self> {
        Self::open_in(Folder { path: path.to_owned(), cache_bytes, is_checked: false })
    }

    fn open_in(folder: Folder) -> KvResult<Self> {
        let (open, path) = (folder.open_synced()?, &folder.path);
        let log = match Log::open(path).and_then(|log| log.check().map(|()| log)) {
            Ok(log) => log,
            Err(error) => {
                close(open);
                return Err(unsynced("syncing the store's files")(error));
            }
        };
        Ok(Self {
            folder,
            log,
            open: RwLock::new(Some(open)),
            flusher: Flusher::new().map_err(failure("starting a thread"))?,
            past: Past::default(),
            writing: Mutex::default(),
            broken: AtomicBool::new(false),
            was_full: AtomicBool::new(false),
        })
    }

    /// Opens the folder again. What views see does not change by it: a batch that failed stays hidden. Where nothing will be
    /// written, nothing is synced: a disk that fails to sync can still be read.
    fn reopen(&self, open_again: fn(&Folder) -> KvResult<Open>) -> KvResult<()> {
        let mut open = self.open.write();
        let failed = open.take();
        failed.into_iter().for_each(close);
        // Until then sled's threads may still write to the log, which is checked before it is opened.
        files::wait_until_released(&self.folder.path).map_err(failure("opening the store"))?;
        *open = Some(open_again(&self.folder)?);
        Ok(())
    }

    fn write(&self, batch: &Batch) -> KvResult<()> {
        let open = self.open.read();
        let Open { db } = open.as_ref().ok_or(NotOpen)?;
        let (mut raw, mut before) = (::sled::Batch::default(), Replaced::new());
        for (key, value) in batch {
            chunks::write(db, key, value.as_ref(), |key, value| {
                before.push((key.clone(), db.get(&key)?));
                match value {
                    Some(value) => raw.insert(key, value),
                    None => raw.remove(key),
                }
                Ok(())
            })
            .map_err(fault("reading"))?;
        }
        self.past.replace(before);
        db.apply_batch(raw).map_err(fault("writing"))?;
        portolan_types::failpoint!("sled/batch-applied");
        self.flusher.flush(db).map_err(fault("syncing"))?;
        portolan_types::failpoint!("sled/batch-flushed");
        Ok(())
    }

    fn sync(&self) -> KvResult<()> {
        self.log.sync().map_err(unsynced("syncing"))
    }

    /// A failure of sled's, or the failed sync that it comes from.
    fn judged(&self, why: BackendError) -> BackendError {
        if !why.is_full() {
            return why;
        }
        let is_open = self.open.read().is_some();
        let synced = if is_open { self.log.sync() } else { self.log.sync_pages() };
        synced.map_err(unsynced("syncing")).err().unwrap_or(why)
    }
}

impl OrderedKv for SledKv {
    fn view(&self, read: &mut dyn FnMut(&dyn View)) -> KvResult<()> {
        let open = self.open.read();
        let Open { db } = open.as_ref().ok_or(NotOpen)?;
        guarded("reading the store", || {
            read(&SledView { db, shown: Some(self.past.shown()) });
            Ok(())
        })
    }

    fn commit(&self, batch: Batch) -> KvResult<()> {
        let _one = self.writing.lock();
        if self.broken.load(Ordering::Acquire) {
            return Err(failed("the store takes no write after a failure"));
        }
        let written = guarded("writing the store", || self.write(&batch)).map_err(|why| self.judged(why));
        // sled knows nothing of a sync of ours that fails, and can still be read then.
        let is_readable = written.is_ok();
        let written = written.and_then(|()| self.sync());
        // What a failed batch replaced stays, so that views never see it.
        if let Err(why) = &written {
            self.was_full.store(why.is_full(), Ordering::Release);
            self.broken.store(true, Ordering::Release);
            if !is_readable && let Err(error) = self.reopen(Folder::open) {
                tracing::error!(%error, "the store cannot be read after a failed write");
            }
        }
        written
    }

    fn publish(&self) {
        if !self.broken.load(Ordering::Acquire) {
            self.past.show();
        }
    }

    fn tidy(&self) -> KvResult<()> {
        Ok(())
    }

    fn recover(&self, before: &mut Before<'_>) -> KvResult<()> {
        let _one = self.writing.lock();
        if !self.broken.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.was_full.load(Ordering::Acquire) {
            return Err(failed("the store takes no write after a failure"));
        }
        self.reopen(Folder::open_synced).map_err(|why| self.judged(why))?;
        self.log.check().map_err(unsynced("syncing"))?;
        {
            let open = self.open.read();
            let Open { db } = open.as_ref().ok_or(NotOpen)?;
            guarded("reading the store", || before(&SledView { db, shown: None }))?;
        }
        self.past.show();
        self.broken.store(false, Ordering::Release);
        Ok(())
    }

    fn close(&self) {
        let Some(open) = self.open.write().take() else { return };
        let closed = guarded("closing the store", move || {
            drop(open);
            Ok(())
        });
        match closed {
            Ok(()) if !self.broken.load(Ordering::Acquire) => self.folder.note_end(),
            Ok(()) => {}
            Err(_) => self.broken.store(true, Ordering::Release),
        }
    }
}

/// A failure of sled's, told as the system's where it is one, and in our words where the files are damaged.
fn fault(context: &'static str) -> impl FnOnce(::sled::Error) -> BackendError {
    move |error| match error {
        ::sled::Error::Io(error) => failure(context)(error),
        ::sled::Error::Corruption { at, .. } => {
            let place = at.map_or_else(String::new, |at| format!(" ({at})"));
            failed(format!("{context}: the files are damaged{place}"))
        }
        other => failure(context)(other),
    }
}

/// A sync that failed, for whatever reason: what was to be synced may be lost, however it looks afterwards.
fn unsynced(context: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |error| failure(context)(io::Error::other(error))
}

/// Turns a panic of sled into an error.
fn guarded<T>(what: &str, action: impl FnOnce() -> KvResult<T>) -> KvResult<T> {
    guard::guarded(what, "the files are", action)
}

struct SledView<'a> {
    db: &'a Db,
    /// The state that is seen; `None` for what is stored, whatever it is.
    shown: Option<Shown<'a>>,
}

impl SledView<'_> {
    fn raw(&self, key: &[u8]) -> ::sled::Result<Option<IVec>> {
        // In this order: what replaces it in between is found.
        let stored = self.db.get(key)?;
        Ok(self.before(key).unwrap_or(stored))
    }

    /// What a key was, if that was replaced since.
    fn before(&self, key: &[u8]) -> Option<Option<IVec>> {
        self.shown.as_ref().and_then(|shown| shown.get(key))
    }

    fn value(&self, key: &[u8], head: &IVec) -> KvResult<Bytes> {
        chunks::join(key, head, |key| self.raw(key).map_err(fault("reading")))
    }
}

impl View for SledView<'_> {
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>> {
        let head = self.raw(key).map_err(fault("reading"))?;
        head.map(|head| self.value(key, &head)).transpose()
    }

    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn Cursor + 'v>> {
        let bounds = (Bound::Included(from), Bound::Excluded(to.max(from)));
        let mut cursor = SledCursor {
            view: self,
            here: None,
            stored: (from < to).then(|| self.db.range::<&[u8], _>(bounds)),
            next_stored: None,
            from: Bound::Included(from.to_vec()),
            to: to.max(from).to_vec(),
        };
        cursor.next_stored = cursor.read_stored()?;
        cursor.advance()?;
        Ok(Box::new(cursor))
    }
}

struct SledCursor<'v> {
    view: &'v SledView<'v>,
    here: Option<(Vec<u8>, Bytes)>,
    stored: Option<::sled::Iter>,
    next_stored: Option<(IVec, IVec)>,
    /// The keys that are still to come.
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
}

impl SledCursor<'_> {
    fn read_stored(&mut self) -> KvResult<Option<(IVec, IVec)>> {
        let next = self.stored.as_mut().and_then(Iterator::next);
        next.transpose().map_err(fault("reading"))
    }

    /// The next pair of the state that is seen: what was replaced hides what is stored. It is looked for after what is stored was
    /// read, so that it is there if that came later.
    fn next_raw(&mut self) -> KvResult<Option<(Vec<u8>, IVec)>> {
        loop {
            let to = self.next_stored.as_ref().map_or(self.to.as_slice(), |(key, _)| key);
            let from = self.from.as_ref().map(Vec::as_slice);
            if let Some(gone) = self.view.shown.as_ref().and_then(|shown| shown.next(from, Bound::Excluded(to))) {
                self.from = Bound::Excluded(gone.0.clone());
                return Ok(Some(gone));
            }
            let next = self.read_stored()?;
            let Some((key, stored)) = std::mem::replace(&mut self.next_stored, next) else { return Ok(None) };
            let key = key.to_vec();
            self.from = Bound::Excluded(key.clone());
            if let Some(value) = self.view.before(&key).unwrap_or(Some(stored)) {
                return Ok(Some((key, value)));
            }
        }
    }
}

impl Cursor for SledCursor<'_> {
    fn key(&self) -> Option<&[u8]> {
        self.here.as_ref().map(|(key, _)| key.as_slice())
    }

    fn value(&self) -> &[u8] {
        self.here.as_ref().map_or(&[], |(_, value)| value)
    }

    fn shared(&self) -> Option<Bytes> {
        self.here.as_ref().map(|(_, value)| value.clone())
    }

    fn advance(&mut self) -> KvResult<()> {
        self.here = match self.next_raw()? {
            Some((key, head)) => {
                let value = self.view.value(&key, &head)?;
                Some((key, value))
            }
            None => None,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::mpsc,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::kv::read;

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
    fn damage_is_told_in_words() {
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

    /// All pairs of a view, by a scan that others have time to write beside.
    fn scanned(view: &dyn View) -> BTreeMap<String, Vec<u8>> {
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
        assert_eq!(kv.past.kept(), 0, "nothing is kept for nobody");
    }

    #[test]
    fn views_beside_many_batches_each_see_the_state_of_one() {
        const ROUNDS: u32 = 200;
        let (_dir, kv) = opened();
        let states = Mutex::new(vec![BTreeMap::new()]);
        let next = |round: u32, state: &BTreeMap<String, Vec<u8>>| {
            let mut batch = Batch::from([put("round", Some(round.to_be_bytes().to_vec()))]);
            // Some stay, some go, some come, and some are in pieces.
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
    fn a_full_disk_on_which_the_store_could_not_be_opened_again_is_no_failed_sync() {
        let (_dir, kv) = opened();
        let full = || failure("opening the store")(io::Error::from(io::ErrorKind::StorageFull));
        assert!(kv.judged(full()).is_full());
        kv.close();
        let begun = Instant::now();
        // sled's own threads may still be letting go.
        while kv.log.check().is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60), "sled keeps its lock");
            std::thread::yield_now();
        }
        assert!(kv.judged(full()).is_full());
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
    fn a_store_that_is_not_open_says_so_and_is_not_taken_for_damaged() {
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
        // As a segment looks that is just being written.
        let mut head = [0; 20];
        db.read_exact_at(&mut head, 0).unwrap();
        db.write_all_at(&[0xff; 20], 0).unwrap();
        std::thread::scope(|scope| {
            let again = scope.spawn(|| kv.reopen(Folder::open));
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            db.write_all_at(&head, 0).unwrap();
            db.unlock().unwrap();
            again.join().unwrap().unwrap();
        });
        assert_eq!(read(&kv, |view| view.get(b"a").unwrap()).unwrap().unwrap(), vec![1; 500]);
    }
}
