//! Default engine: one file, a copy-on-write tree, one fdatasync per batch.

mod checksummed_file;
mod checksums;
mod convert;
mod fail_stop;
mod layout;
mod page;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::redb::{
    AccessGuard, Builder, Database, Range, ReadOnlyTable, ReadableDatabase as _, StorageBackend, TableDefinition,
    backends::FileBackend,
};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

pub(crate) use self::convert::{Accept, NewerLayout, OlderLayout};
use self::{
    checksummed_file::ChecksummedFile,
    fail_stop::{DiskFailures, FailStopDisk},
};
use super::{Batch, KvCursor, KvResult, KvView, OrderedKv, RecoveryCallback, failed, failure, guard};
use crate::{
    api::{BackendError, open_progress::OpenProgress},
    layout::keys::meta,
};

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("portolan");
const CLOSED: &str = "the store is closed";
/// Interval of checks if the last view of a frozen database has ended.
const VIEWS: Duration = Duration::from_millis(1);

/// redb database.
///
/// redb may panic on a damaged file, so all calls run behind `catch_unwind`: a panic is an error of the read, or counts
/// as a failed disk.
pub(crate) struct RedbKv {
    disk: Arc<dyn StorageBackend>,
    cache_bytes: usize,
    database: Mutex<Option<OpenDatabase>>,
    /// State that views see.
    shown: RwLock<Option<Arc<Table>>>,
    /// State that views see after `publish`.
    committed: Mutex<Option<Arc<Table>>>,
    /// True if something was written since the last quick-repair commit.
    untidy: AtomicBool,
    broken: AtomicBool,
}

/// Open database, and the failures of its disk.
struct OpenDatabase {
    database: Database,
    failures: DiskFailures,
}

impl RedbKv {
    /// Opens a database like [`RedbKv::open_if`] and accepts any conversion.
    #[cfg(test)]
    pub(crate) fn open(path: &Path, cache_bytes: usize, opening: &OpenProgress) -> KvResult<Self> {
        Self::open_if(path, cache_bytes, opening, &|_| Ok(()))
    }

    /// Opens or creates the database at `path`. A file of an older format is converted first, if `accept` agrees.
    ///
    /// # Errors
    /// Fails if the file is in use, damaged, or of a format that this redb does not know; [`NewerLayout`] for a format
    /// that this version does not know; the errors of `accept`, with the file unchanged.
    pub(crate) fn open_if(
        path: &Path,
        cache_bytes: usize,
        opening: &OpenProgress,
        accept: &Accept<'_>,
    ) -> KvResult<Self> {
        convert::if_older(path, opening, accept)?;
        Self::on(file(path)?, cache_bytes, opening)
    }

    /// Opens the database at `path` on `disk`, a view of that file. Nothing is converted.
    ///
    /// # Errors
    /// [`OlderLayout`] if a conversion would be needed; otherwise the errors of [`RedbKv::open_if`].
    pub(crate) fn open_without_writing(
        path: &Path,
        disk: impl StorageBackend,
        cache_bytes: usize,
        opening: &OpenProgress,
    ) -> KvResult<Self> {
        convert::refuse_other(path)?;
        Self::on(disk, cache_bytes, opening)
    }

    /// Opens or creates the database on `disk`, which is empty or has checksums.
    pub(crate) fn on(disk: impl StorageBackend, cache_bytes: usize, opening: &OpenProgress) -> KvResult<Self> {
        let disk: Arc<dyn StorageBackend> = Arc::new(disk);
        let (opened, shown) = OpenDatabase::on(disk.clone(), cache_bytes, opening)?;
        Ok(Self {
            disk,
            cache_bytes,
            database: Mutex::new(Some(opened)),
            shown: RwLock::new(Some(Arc::new(shown))),
            committed: Mutex::new(None),
            untidy: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        })
    }

    fn write_checked(&self, batch: Batch, quick_repair: bool) -> KvResult<Table> {
        if self.broken.load(Ordering::Acquire) {
            return Err(failed("the store takes no write after a failure"));
        }
        let opened = self.database.lock();
        let opened = opened.as_ref().ok_or_else(|| failed(CLOSED))?;
        let written = guarded("writing the store", || opened.write(batch, quick_repair));
        let written = opened.failures.first().map_or(written, Err);
        if written.is_err() {
            self.broken.store(true, Ordering::Release);
        }
        written
    }

    /// Reopens the database on the disk as the failure left it, and shows it to views in place of the frozen one.
    fn reopen(&self, before: &mut RecoveryCallback<'_>) -> KvResult<()> {
        let mut database = self.database.lock();
        match database.as_ref().map(|opened| opened.failures.first()) {
            Some(Some(why)) if why.is_full() => {}
            Some(Some(why)) => return Err(why),
            Some(None) => return Err(failed("the store takes no write after a failure")),
            None => return Err(failed(CLOSED)),
        }
        let (opened, table) = OpenDatabase::on(self.disk.clone(), self.cache_bytes, &OpenProgress::default())?;
        let table = Arc::new(table);
        guarded("reading the store", || before(&RedbView(table.clone())))?;
        let frozen = self.shown.write().replace(table);
        // The new database does not know the views of the frozen one: their pages must not be overwritten yet.
        while frozen.as_ref().is_some_and(|table| Arc::strong_count(table) > 1) {
            std::thread::sleep(VIEWS);
        }
        drop(frozen);
        *self.committed.lock() = None;
        let frozen = database.replace(opened);
        self.broken.store(false, Ordering::Release);
        guarded("closing the frozen store", move || {
            drop(frozen);
            Ok(())
        })
    }
}

impl OpenDatabase {
    fn on(disk: Arc<dyn StorageBackend>, cache_bytes: usize, opening: &OpenProgress) -> KvResult<(Self, Table)> {
        let checked = Arc::new(ChecksummedFile::on(disk).map_err(refused)?);
        let (disk, failures) = FailStopDisk::new(checked.clone());
        let opened = guarded("opening the store", || {
            let database = create(disk, &checked, cache_bytes, opening)?;
            if open_table(&database).is_err() {
                let write = database.begin_write().map_err(failure("preparing the store"))?;
                write.open_table(TABLE).map_err(failure("preparing the store"))?;
                write.commit().map_err(failure("preparing the store"))?;
            }
            let table = open_table(&database)?;
            Ok((database, table))
        });
        if let Some(why) = failures.first() {
            return Err(why);
        }
        let (database, table) = opened.map_err(|error| match checked.damage() {
            Some(damage) if !error.context.contains(&damage) => failed(format!("{} ({damage})", error.context)),
            Some(_) | None => error,
        })?;
        failures.opened();
        Ok((Self { database, failures }, table))
    }

    fn write(&self, batch: Batch, quick_repair: bool) -> KvResult<Table> {
        let mut write = self.database.begin_write().map_err(failure("beginning a commit"))?;
        write.set_quick_repair(quick_repair);
        {
            let mut table = write.open_table(TABLE).map_err(failure("beginning a commit"))?;
            for (key, value) in batch {
                match value {
                    Some(value) => table.insert(key.as_slice(), &*value).map_err(failure("writing"))?,
                    None => table.remove(key.as_slice()).map_err(failure("writing"))?,
                };
            }
        }
        portolan_types::failpoint!("redb/batch-written");
        write.commit().map_err(failure("committing"))?;
        portolan_types::failpoint!("redb/batch-committed");
        open_table(&self.database)
    }
}

impl OrderedKv for RedbKv {
    fn view(&self, read: &mut dyn FnMut(&dyn KvView)) -> KvResult<()> {
        let table = self.shown.read().clone().ok_or_else(|| failed(CLOSED))?;
        guarded("reading the store", || {
            read(&RedbView(table));
            Ok(())
        })
    }

    fn commit(&self, batch: Batch) -> KvResult<()> {
        let table = self.write_checked(batch, false)?;
        self.untidy.store(true, Ordering::Release);
        *self.committed.lock() = Some(Arc::new(table));
        Ok(())
    }

    fn publish(&self) {
        let committed = self.committed.lock().take();
        if committed.is_some() {
            *self.shown.write() = committed;
        }
    }

    fn tidy(&self) -> KvResult<()> {
        if self.untidy.swap(false, Ordering::AcqRel) {
            let mark = Batch::from([(meta::TIDY.to_vec(), Some(Bytes::new()))]);
            *self.committed.lock() = Some(Arc::new(self.write_checked(mark, true)?));
            self.publish();
        }
        Ok(())
    }

    fn recover(&self, before: &mut RecoveryCallback<'_>) -> KvResult<()> {
        if self.broken.load(Ordering::Acquire) { self.reopen(before) } else { Ok(()) }
    }

    fn verify(&self) -> KvResult<()> {
        let mut database = self.database.lock();
        let opened = database.as_mut().ok_or_else(|| failed(CLOSED))?;
        *self.shown.write() = None;
        let checked = guarded("checking the store", || {
            let whole = opened.database.check_integrity().map_err(failure("checking the store"))?;
            Ok((whole, open_table(&opened.database)?))
        });
        let (whole, table) = checked?;
        *self.shown.write() = Some(Arc::new(table));
        if whole { Ok(()) } else { Err(failed("pages of the store's file are damaged")) }
    }

    fn uses_files_again(&self) -> bool {
        true
    }

    /// Not while a batch is written, which may take long.
    fn pages(&self) -> Option<usize> {
        self.database.try_lock()?.as_ref().map(|opened| opened.database.cache_stats().used_bytes())
    }

    fn close(&self) {
        *self.shown.write() = None;
        *self.committed.lock() = None;
        let database = self.database.lock().take();
        if guarded("closing the store", move || {
            drop(database);
            Ok(())
        })
        .is_err()
        {
            self.broken.store(true, Ordering::Release);
        }
    }
}

fn file(path: &Path) -> KvResult<FileBackend> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).map_err(failure("opening the store's file"))?;
    FileBackend::new(file).map_err(failure("opening the store's file"))
}

/// Opens the database. If redb read pages without a repair, their checksums must match; a repair has verified
/// everything that it keeps.
fn create(
    disk: FailStopDisk,
    checked: &ChecksummedFile,
    cache_bytes: usize,
    opening: &OpenProgress,
) -> KvResult<Database> {
    let repaired = Arc::new(AtomicBool::new(false));
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes).set_repair_callback({
        let (opening, repaired) = (opening.clone(), repaired.clone());
        move |session| {
            repaired.store(true, Ordering::Release);
            opening.checked(session.progress());
        }
    });
    let database = builder.create_with_backend(disk).map_err(failure("opening the store"))?;
    checked.opened(repaired.load(Ordering::Acquire)).map_err(refused)?;
    Ok(database)
}

/// Maps an error: damage is not a failure of the disk.
fn refused(error: io::Error) -> BackendError {
    match error.kind() {
        io::ErrorKind::InvalidData => failed(format!("opening the store: {error}")),
        _ => failure("opening the store's file")(error),
    }
}

/// Turns a panic of redb, which only a damaged file can cause, into an error.
fn guarded<T>(what: &str, action: impl FnOnce() -> KvResult<T>) -> KvResult<T> {
    guard::guarded(what, "the file is", action)
}

fn open_table(database: &Database) -> KvResult<Table> {
    let read = database.begin_read().map_err(failure("opening a snapshot"))?;
    read.open_table(TABLE).map_err(failure("opening a snapshot"))
}

struct RedbView(Arc<Table>);

impl KvView for RedbView {
    fn get(&self, key: &[u8]) -> KvResult<Option<Bytes>> {
        let value = self.0.get(key).map_err(failure("reading"))?;
        Ok(value.map(|guard| Bytes::copy_from_slice(guard.value())))
    }

    fn len_of(&self, key: &[u8]) -> KvResult<Option<u64>> {
        let value = self.0.get(key).map_err(failure("reading"))?;
        Ok(value.map(|guard| guard.value().len() as u64))
    }

    fn scan<'v>(&'v self, from: &[u8], to: &[u8]) -> KvResult<Box<dyn KvCursor + 'v>> {
        let mut cursor = RedbCursor { here: None, rest: None };
        if from < to {
            cursor.rest = Some(self.0.range::<&[u8]>(from..to).map_err(failure("reading"))?);
            cursor.advance()?;
        }
        Ok(Box::new(cursor))
    }
}

type Guard = AccessGuard<'static, &'static [u8]>;

struct RedbCursor {
    here: Option<(Guard, Guard)>,
    rest: Option<Range<'static, &'static [u8], &'static [u8]>>,
}

impl KvCursor for RedbCursor {
    fn key(&self) -> Option<&[u8]> {
        self.here.as_ref().map(|(key, _)| key.value())
    }

    fn value(&self) -> &[u8] {
        self.here.as_ref().map_or(&[], |(_, value)| value.value())
    }

    fn advance(&mut self) -> KvResult<()> {
        self.here = match &mut self.rest {
            Some(rest) => rest.next().transpose().map_err(failure::<::redb::StorageError>("reading"))?,
            None => None,
        };
        Ok(())
    }
}
