//! sled engine, with what sled 0.34.7 lacks.
//!
//! - Values are kept in chunks of at most 4 KiB, so that nothing reaches the `blobs` folder, which sled never syncs.
//! - sled writes its log with `sync_file_range`, which syncs neither the file's length nor the disk's cache, but sled
//!   relies on it within a large batch: the call is replaced by `fdatasync` (`sync.c`). It does not report failures to
//!   sled, but releases sled's lock. A batch therefore counts as durable after `flush`, an `fdatasync` of `db` through
//!   a second descriptor, and a check that the lock is still held ([`files::LogFile`]).
//! - sled has no snapshots. A view sees its state through the values that later batches replaced (`replaced`). So no
//!   view waits for a batch, and no batch for a view, unless 64 MiB were replaced since the view began.
//! - A snapshot file that a killed process was writing is removed before opening: sled would refuse to start.
//! - The part of the log that sled replays on opening is checked before: sled skips damage in it (`replay`).
//! - After a failed write sled answers no request, not even reads. The folder is reopened then: views continue without
//!   the failed batch, and after a full disk batches do too.
//! - sled reports a write and a sync that found no space in the same way (NFS, thin volumes). Linux reports a failed
//!   sync once per descriptor (errseq, fsync(2)), so the second descriptor decides. After a failed sync no batch is
//!   taken, whatever the reason.

mod chunks;
mod close_note;
mod files;
mod flush;
mod replaced;
mod replay;
mod segment;
#[cfg(test)]
mod tests;

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
    close_note::CloseNote,
    files::LogFile,
    flush::Flusher,
    replaced::{ReplacedBatch, ReplacedValues, SledSnapshot},
};
use super::{Batch, KvCursor, KvResult, KvView, NotOpen, OrderedKv, RecoveryCallback, failed, failure, guard};
use crate::api::BackendError;

/// Open sled database.
struct OpenDb {
    db: Db,
}

/// Folder of sled, and the options to open it.
struct SledFolder {
    path: PathBuf,
    cache_bytes: usize,
    /// True if damage that sled would skip is refused.
    is_checked: bool,
}

impl SledFolder {
    fn open(&self) -> KvResult<OpenDb> {
        let path = &self.path;
        files::remove_unfinished_snapshots(path).map_err(failure("removing unfinished snapshots"))?;
        if self.is_checked {
            replay::check(path)?;
        }
        CloseNote::remove(path).map_err(failure("opening the store"))?;
        Ok(OpenDb { db: guarded("opening the store", || files::open(path, self.cache_bytes))? })
    }

    /// Opens the database, and syncs the files that sled creates on opening before anything is written.
    fn open_synced(&self) -> KvResult<OpenDb> {
        let open = self.open()?;
        match files::sync(&self.path) {
            Ok(()) => Ok(open),
            Err(error) => {
                close(open);
                Err(unsynced("syncing the store's files")(error))
            }
        }
    }

    /// Notes a clean close, once sled has released the folder.
    fn write_close_note(&self) {
        let noted = files::wait_until_released(&self.path).map_err(failure("closing the store"));
        if let Err(error) = noted.and_then(|()| replay::write_close_note(&self.path)) {
            tracing::warn!(%error, "the clean end of the store's log was not recorded: the next start assumes a crash");
        }
    }
}

/// Closes a database that failed, or whose disk failed: sled may panic once more.
fn close(open: OpenDb) {
    let _ = guarded("closing the store", move || {
        drop(open);
        Ok(())
    });
}

/// sled database.
pub(crate) struct SledKv {
    folder: SledFolder,
    open: RwLock<Option<OpenDb>>,
    flusher: Flusher,
    log: LogFile,
    past: ReplacedValues,
    /// Lock of the one batch in progress.
    writing: Mutex<()>,
    broken: AtomicBool,
    /// True if it broke because the disk was full.
    was_full: AtomicBool,
}

impl SledKv {
    /// Opens or creates the database in the folder `path`.
    ///
    /// # Errors
    /// Fails if the folder is damaged or cannot be used.
    pub(crate) fn open(path: &Path, cache_bytes: usize) -> KvResult<Self> {
        Self::open_in(SledFolder { path: path.to_owned(), cache_bytes, is_checked: true })
    }

    /// Opens a database like [`Self::open`], and accepts whatever sled recovers from a damaged log.
    ///
    /// # Errors
    /// Fails if sled can recover nothing, or the folder cannot be used.
    pub(crate) fn salvage(path: &Path, cache_bytes: usize) -> KvResult<Self> {
        Self::open_in(SledFolder { path: path.to_owned(), cache_bytes, is_checked: false })
    }

    fn open_in(folder: SledFolder) -> KvResult<Self> {
        let (open, path) = (folder.open_synced()?, &folder.path);
        let log = match LogFile::open(path).and_then(|log| log.check().map(|()| log)) {
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
            past: ReplacedValues::default(),
            writing: Mutex::default(),
            broken: AtomicBool::new(false),
            was_full: AtomicBool::new(false),
        })
    }

    /// Reopens the folder. Views do not change: a failed batch stays hidden. If nothing will be written, nothing is
    /// synced: a disk that fails to sync can still be read.
    fn reopen(&self, open_again: fn(&SledFolder) -> KvResult<OpenDb>) -> KvResult<()> {
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
        let OpenDb { db } = open.as_ref().ok_or(NotOpen)?;
        let (mut raw, mut before) = (::sled::Batch::default(), ReplacedBatch::new());
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

    /// Returns the failed sync behind a failure of sled, if there is one.
    fn failed_sync_behind(&self, why: BackendError) -> BackendError {
        if !why.is_full() {
            return why;
        }
        let is_open = self.open.read().is_some();
        let synced = if is_open { self.log.sync() } else { self.log.sync_pages() };
        synced.map_err(unsynced("syncing")).err().unwrap_or(why)
    }
}

impl OrderedKv for SledKv {
    fn view(&self, read: &mut dyn FnMut(&dyn KvView)) -> KvResult<()> {
        let open = self.open.read();
        let OpenDb { db } = open.as_ref().ok_or(NotOpen)?;
        guarded("reading the store", || {
            read(&SledView { db, shown: Some(self.past.snapshot()) });
            Ok(())
        })
    }

    fn commit(&self, batch: Batch) -> KvResult<()> {
        let _one = self.writing.lock();
        if self.broken.load(Ordering::Acquire) {
            return Err(failed("the store takes no write after a failure"));
        }
        let written = guarded("writing the store", || self.write(&batch)).map_err(|why| self.failed_sync_behind(why));
        // sled does not know of this sync's failure, and can still be read.
        let is_readable = written.is_ok();
        let written = written.and_then(|()| self.sync());
        // The replaced values of a failed batch are kept, so that views never see the batch.
        if let Err(why) = &written {
            self.was_full.store(why.is_full(), Ordering::Release);
            self.broken.store(true, Ordering::Release);
            if !is_readable && let Err(error) = self.reopen(SledFolder::open) {
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

    fn recover(&self, before: &mut RecoveryCallback<'_>) -> KvResult<()> {
        let _one = self.writing.lock();
        if !self.broken.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.was_full.load(Ordering::Acquire) {
            return Err(failed("the store takes no write after a failure"));
        }
        self.reopen(SledFolder::open_synced).map_err(|why| self.failed_sync_behind(why))?;
        self.log.check().map_err(unsynced("syncing"))?;
        {
            let open = self.open.read();
            let OpenDb { db } = open.as_ref().ok_or(NotOpen)?;
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
            Ok(()) if !self.broken.load(Ordering::Acquire) => self.folder.write_close_note(),
            Ok(()) => {}
            Err(_) => self.broken.store(true, Ordering::Release),
        }
    }
}

/// Maps an error of sled: I/O errors keep their source, and damage is described.
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

/// Marks a failed sync: the data may be lost, whatever the reason and however it looks afterwards.
fn unsynced(context: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |error| failure(context)(io::Error::other(error))
}

/// Turns a panic of sled into an error.
fn guarded<T>(what: &str, action: impl FnOnce() -> KvResult<T>) -> KvResult<T> {
    guard::guarded(what, "the files are", action)
}

struct SledView<'a> {
    db: &'a Db,
    /// State that the view sees; `None` for the stored one.
    shown: Option<SledSnapshot<'a>>,
}

impl SledView<'_> {
    fn raw(&self, key: &[u8]) -> ::sled::Result<Option<IVec>> {
        // In this order, so that a replacement in between is found.
        let stored = self.db.get(key)?;
        Ok(self.before(key).unwrap_or(stored))
    }

    /// Returns the value of a key in the view's state, if it was replaced since.
    fn before(&self, key: &[u8]) -> Option<Option<IVec>> {
        self.shown.as_ref().and_then(|shown| shown.get(key))
    }

    fn value(&self, key: &[u8], head: &IVec) -> KvResult<Bytes> {
        chunks::join(key, head, |key| self.raw(key).map_err(fault("reading")))
    }
}

impl KvView for SledView<'_> {
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>> {
        let head = self.raw(key).map_err(fault("reading"))?;
        head.map(|head| self.value(key, &head)).transpose()
    }

    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn KvCursor + 'v>> {
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
    /// Range of the keys that follow.
    from: Bound<Vec<u8>>,
    to: Vec<u8>,
}

impl SledCursor<'_> {
    fn read_stored(&mut self) -> KvResult<Option<(IVec, IVec)>> {
        let next = self.stored.as_mut().and_then(Iterator::next);
        next.transpose().map_err(fault("reading"))
    }

    /// Returns the next pair of the view's state: replaced values hide stored ones. Replaced values are looked up after
    /// the stored one was read, so that a replacement in between is found.
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

impl KvCursor for SledCursor<'_> {
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
