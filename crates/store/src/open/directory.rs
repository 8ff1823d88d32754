//! Data directory: one process at a time, one engine, and only complete files under their final names.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use portolan_types::Seams;

use super::{
    Engine, OpenError, StoreConfig,
    high_water_mark::{HighWaterMark, MarkedDataDir},
    initialize,
    overlay_file::OverlayFile,
};
use crate::{
    api::{BackendError, open_progress::OpenProgress},
    engine::{
        KvResult, NewerLayout, OlderLayout, OrderedKv, RedbKv, SledKv, failed, failure,
        files::{as_folder, sync_folder},
        read,
    },
    read::bookkeeping::{FORMAT, LoadError, StoreBookkeeping, load},
};

/// Data directory that has a store already.
pub(crate) struct OccupiedDataDir(pub(crate) PathBuf);

/// Lock file, locked while a process has the store open.
const LOCK: &str = "store.lock";
/// Time for which [`is_in_use`] may hold the lock.
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// File of redb.
const REDB: &str = "store.redb";
/// Folder of sled.
const SLED: &str = "store.sled";
const ENGINES: [(&str, Engine); 2] = [(REDB, Engine::Redb), (SLED, Engine::Sled)];
/// Suffix of an empty store while it is created. The next start may create it again.
const NEW: &str = ".new";
/// Suffix of a store while a snapshot is restored into it. A leftover belongs to an interrupted restore, and must not
/// be replaced by an empty store.
const RESTORING: &str = ".restoring";

/// Data directory that this process has locked, until it is dropped.
pub(crate) struct LockedDataDir {
    dir: PathBuf,
    files: PathBuf,
    /// True if the disk is read-only; nothing is written then.
    is_read_only: bool,
    _lock: Option<File>,
}

impl LockedDataDir {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the engine's file or folder.
    pub(super) fn files(&self) -> PathBuf {
        self.files.clone()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the lock once more: the directory stays locked until both are dropped. `None` if it was not locked.
    ///
    /// # Errors
    /// Fails if the process has no file descriptor left.
    pub(super) fn share_lock(&self) -> Result<Option<DataDirLock>, OpenError> {
        let shared = self._lock.as_ref().map(File::try_clone).transpose();
        Ok(shared.map_err(io_error("sharing the lock", &self.dir))?.map(|file| DataDirLock { _file: file }))
    }
}

/// Lock of a data directory, held until it is dropped.
pub(crate) struct DataDirLock {
    _file: File,
}

impl DataDirLock {
    /// Locks a data directory.
    ///
    /// # Errors
    /// `InUse`; `Io` if the lock cannot be used.
    pub(crate) fn of(dir: &Path) -> Result<Self, OpenError> {
        lock(dir, || thread::sleep(LOCK_RETRY_PAUSE)).map(|file| Self { _file: file })
    }
}

/// Locks the data directory and opens the engine's files in it.
pub(super) fn prepare(config: &StoreConfig, seams: &Seams) -> Result<(Box<dyn OrderedKv>, LockedDataDir), OpenError> {
    let dir = config.dir.clone().ok_or(OpenError::NoDirectory(config.engine))?;
    make_private(&dir).map_err(io_error("making the data directory", &dir))?;
    let lock = lock(&dir, || thread::sleep(LOCK_RETRY_PAUSE))?;
    refuse_other_engine(&dir, config.engine)?;
    portolan_types::failpoint!("store/directory-locked");
    let opener = opener(config.engine)?;
    let kv = opener.open(&dir, config, seams)?;
    portolan_types::failpoint!("store/engine-opened");
    Ok((kv, LockedDataDir { files: dir.join(opener.name), dir, is_read_only: false, _lock: Some(lock) }))
}

/// Opens an existing store for reading, also from a read-only disk.
///
/// # Errors
/// Returns the errors of [`find_engine`] and [`prepare`]; `ReadOnly` for an engine that writes as soon as it is opened.
pub(super) fn prepare_to_read(
    config: &StoreConfig,
    seams: &Seams,
) -> Result<(Box<dyn OrderedKv>, LockedDataDir), OpenError> {
    let dir = config.dir.clone().ok_or(OpenError::NoDirectory(config.engine))?;
    find_engine(&dir)?;
    refuse_other_engine(&dir, config.engine)?;
    match prepare(config, seams) {
        Err(OpenError::Io { source, .. }) if forbids_writing(source.kind()) => open_without_writing(dir, config),
        prepared => prepared,
    }
}

fn forbids_writing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Opens a store without changing its files: redb's recovery writes go to memory.
///
/// # Errors
/// `InUse`; `ReadOnly` for an engine that must write; `Io` (see [`is_older_format`]) for a store that would have to be
/// converted; the errors of the engine.
pub(super) fn open_without_writing(
    dir: PathBuf,
    config: &StoreConfig,
) -> Result<(Box<dyn OrderedKv>, LockedDataDir), OpenError> {
    let lock = shared_lock(&dir)?;
    let files = dir.join(opener(config.engine)?.name);
    if config.engine != Engine::Redb {
        return Err(OpenError::ReadOnly { dir, engine: config.engine });
    }
    let disk = OverlayFile::open(&files).map_err(io_error("opening", &files))?;
    let peeked = RedbKv::open_without_writing(&files, disk, config.cache_bytes, &config.opening);
    let kv = peeked.map_err(|error| match error.source {
        Some(source) if source.is::<OlderLayout>() => {
            io_error("opening", &files)(io::Error::new(io::ErrorKind::Unsupported, source))
        }
        source => refused(&dir, BackendError { source, ..error }),
    })?;
    Ok((Box::new(kv), LockedDataDir { dir, files, is_read_only: true, _lock: lock }))
}

/// Returns true if the only reason why a store was not opened is that it has an older format and nothing may be
/// written.
pub(super) fn is_older_format(error: &OpenError) -> bool {
    matches!(error, OpenError::Io { source, .. } if source.get_ref().is_some_and(|source| source.is::<OlderLayout>()))
}

/// Takes the servers' lock in shared mode, so that no server starts while it is held. Returns `None` if there is no
/// lock file.
///
/// # Errors
/// `InUse`; `Io` if the lock cannot be read.
fn shared_lock(dir: &Path) -> Result<Option<File>, OpenError> {
    let path = dir.join(LOCK);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io_error("opening the lock", &path))?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(io_error("locking", &path)(error)),
    }
}

/// Creates a store in a data directory that has none, with the content that `fill` writes.
///
/// # Errors
/// `Occupied` if there is a store; the errors of `fill`, and of using the directory. After an error the directory has
/// no store, and none is created there until the restore is repeated or its leftover is removed.
pub(crate) fn create_store<T, E: From<OpenError> + From<OccupiedDataDir>>(
    config: &StoreConfig,
    fill: impl FnOnce(&dyn OrderedKv) -> Result<T, E>,
) -> Result<T, E> {
    let dir = config.dir.clone().ok_or(OpenError::NoDirectory(config.engine))?;
    make_private(&dir).map_err(io_error("making the data directory", &dir))?;
    let _lock = lock(&dir, || thread::sleep(LOCK_RETRY_PAUSE))?;
    refuse_other_engine(&dir, config.engine)?;
    let opener = opener(config.engine)?;
    if dir.join(opener.name).exists() || HighWaterMark::refuse_if_present(&dir, &dir.join(opener.name)).is_err() {
        return Err(OccupiedDataDir(dir).into());
    }
    // Leftovers of another engine are removed, too: this restore replaces them.
    for left in [REDB, SLED].map(|name| dir.join(format!("{name}{RESTORING}"))) {
        remove_if_there(&left).map_err(io_error("removing", &left))?;
    }
    opener.create_files(&dir, config, RESTORING, fill)
}

/// # Errors
/// `HalfRestored` if a restore into the data directory was interrupted.
fn refuse_half_restored(dir: &Path) -> Result<(), OpenError> {
    let left = [REDB, SLED].map(|name| dir.join(format!("{name}{RESTORING}")));
    match left.into_iter().find(|left| left.exists()) {
        Some(left) => Err(OpenError::HalfRestored(left)),
        None => Ok(()),
    }
}

/// Returns the engine of the store in a directory.
///
/// # Errors
/// `NoFolder`, `HalfRestored`, `Lost` or `NoStore` if there is no store; `Io` if the directory cannot be read.
pub fn find_engine(dir: &Path) -> Result<Engine, OpenError> {
    let is_there = |name: &str| {
        let path = dir.join(name);
        path.try_exists().map_err(io_error("looking for", &path))
    };
    if !dir.try_exists().map_err(io_error("looking for", dir))? {
        return Err(OpenError::NoFolder(dir.to_owned()));
    }
    for (name, engine) in ENGINES {
        if is_there(name)? {
            return Ok(engine);
        }
    }
    refuse_half_restored(dir)?;
    HighWaterMark::refuse_if_present(dir, &dir.join(REDB)).map_err(OpenError::Lost)?;
    Err(OpenError::NoStore(dir.to_owned()))
}

fn opener(engine: Engine) -> Result<EngineOpener, OpenError> {
    match engine {
        Engine::Redb => Ok(EngineOpener { name: REDB, open: open_redb, data: "" }),
        Engine::Sled => Ok(EngineOpener { name: SLED, open: open_sled, data: "db" }),
        Engine::Memory => Err(OpenError::NoDirectory(engine)),
    }
}

/// Creates a directory and its missing parents. Each name is synced before the next folder is created in it: the store
/// would be lost with any of them. A killed process may leave the deepest existing folder unsynced, so that one is
/// synced first.
fn make_private(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !as_folder(dir).exists()).collect();
    if let Some(lowest) = dir.ancestors().nth(missing.len()) {
        sync_found_name(as_folder(lowest))?;
    }
    let mut builder = fs::DirBuilder::new();
    // Another process may have created the folder just now.
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    missing.into_iter().rev().try_for_each(|dir| {
        builder.create(dir)?;
        dir.parent().map_or(Ok(()), |parent| sync_folder(as_folder(parent)))
    })
}

/// Syncs the name of an existing folder. Errors are ignored if the parent is not readable or its file system is
/// read-only or does not sync folders: such a folder was not created by this server.
fn sync_found_name(folder: &Path) -> io::Result<()> {
    match folder.parent().map_or(Ok(()), |parent| sync_folder(as_folder(parent))) {
        Err(error) if is_not_ours(error.kind()) => Ok(()),
        synced => synced,
    }
}

fn is_not_ours(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::ReadOnlyFilesystem)
}

/// Locks a data directory; retries once after a pause, because [`is_in_use`] may hold the lock briefly.
fn lock(dir: &Path, pause: impl FnOnce()) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path).map_err(io_error("opening the lock", &path))?;
    let locked = match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            pause();
            file.try_lock()
        }
        locked => locked,
    };
    match locked {
        // A directory that was exchanged meanwhile has another lock file.
        Ok(()) if is_file_at(&file, &path).map_err(io_error("locking", &path))? => Ok(file),
        Ok(()) | Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(io_error("locking", &path)(error)),
    }
}

/// Returns true if an open file is the one that a path names.
fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let (own, named) = (file.metadata()?, fs::metadata(path)?);
    Ok((own.dev(), own.ino()) == (named.dev(), named.ino()))
}

/// Returns true if a process has the store in a directory open.
pub fn is_in_use(dir: &Path) -> bool {
    let lock = File::open(dir.join(LOCK)).and_then(|file| file.try_lock_shared().map_err(io::Error::from));
    lock.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Returns the engine of the store in a directory, if there is one.
pub fn engine_in(dir: &Path) -> Option<Engine> {
    ENGINES.into_iter().find(|(name, _)| dir.join(name).exists()).map(|(_, engine)| engine)
}

fn refuse_other_engine(dir: &Path, engine: Engine) -> Result<(), OpenError> {
    match engine_in(dir) {
        Some(found) if found != engine => Err(OpenError::OtherEngine { dir: dir.to_owned(), found }),
        Some(_) | None => Ok(()),
    }
}

/// Functions and file names to open the files of an engine.
struct EngineOpener {
    name: &'static str,
    open: fn(&Path, usize, &OpenProgress) -> KvResult<Box<dyn OrderedKv>>,
    /// Path of the data file within the engine's folder, or empty. The data file is never empty.
    data: &'static str,
}

impl EngineOpener {
    /// Opens the engine's files, or creates them if missing.
    fn open(&self, dir: &Path, config: &StoreConfig, seams: &Seams) -> Result<Box<dyn OrderedKv>, OpenError> {
        let damaged = |error| refused(dir, error);
        let path = dir.join(self.name);
        if !path.exists() {
            HighWaterMark::refuse_if_present(dir, &path).map_err(|what| damaged(failed(what)))?;
            refuse_half_restored(dir)?;
            self.create_files(dir, config, NEW, |kv| initialize(kv, seams).map_err(damaged))?;
        } else {
            // A process that moved the files in place may have been killed before it synced the name and wrote the
            // mark.
            HighWaterMark::finish_move(dir).and_then(|()| sync_folder(dir)).map_err(io_error("syncing", dir))?;
        }
        let data = self.data_in(&path);
        if fs::metadata(&data).map_or(0, |data| data.len()) == 0 {
            return Err(damaged(failed(format!("{} is empty or missing", data.display()))));
        }
        (self.open)(&path, config.cache_bytes, &config.opening).map_err(damaged)
    }

    /// Creates the engine's files under another name and renames them when they are complete. Empty or incomplete files
    /// under the final name can therefore only mean damage.
    fn create_files<T, E: From<OpenError>>(
        &self,
        dir: &Path,
        config: &StoreConfig,
        ending: &str,
        fill: impl FnOnce(&dyn OrderedKv) -> Result<T, E>,
    ) -> Result<T, E> {
        let (path, new) = (dir.join(self.name), dir.join(format!("{}{ending}", self.name)));
        remove_if_there(&new).and_then(|()| HighWaterMark::remove_pending(dir)).map_err(io_error("removing", &new))?;
        let kv = (self.open)(&new, config.cache_bytes, &config.opening).map_err(|error| refused(dir, error))?;
        portolan_types::failpoint!("store/new-store-opened");
        let filled = fill(&*kv).and_then(|filled| {
            portolan_types::failpoint!("store/new-store-filled");
            kv.tidy().map_err(|error| refused(dir, error))?;
            let found = read(&*kv, load).and_then(|found| found.map_err(BackendError::from));
            Ok((filled, found.map_err(|error| refused(dir, error))?))
        });
        kv.close();
        wait_until_released(&self.data_in(&new)).map_err(io_error("closing", &new))?;
        match filled {
            Ok((filled, found)) => {
                portolan_types::failpoint!("store/new-store-closed");
                move_in_place(dir, &new, &path, &found)?;
                Ok(filled)
            }
            Err(why) => {
                // A half-restored store stays: otherwise a server would start with an empty store in its place.
                if ending != RESTORING {
                    remove_if_there(&new).map_err(io_error("removing", &new))?;
                }
                Err(why)
            }
        }
    }

    fn data_in(&self, path: &Path) -> PathBuf {
        if self.data.is_empty() { path.to_owned() } else { path.join(self.data) }
    }
}

/// Gives a complete store its final name and its mark. A store without a mark would be opened in salvage mode, even if
/// it is damaged before its first start.
fn move_in_place(dir: &Path, new: &Path, path: &Path, found: &StoreBookkeeping) -> Result<(), OpenError> {
    HighWaterMark::prepare(dir, found).and_then(|()| sync_folder(dir)).map_err(io_error("writing the mark in", dir))?;
    fs::rename(new, path).map_err(io_error("moving the new store in place", path))?;
    portolan_types::failpoint!("store/new-store-moved");
    // The mark must not survive a power loss that its store does not survive.
    sync_folder(dir).map_err(io_error("syncing", dir))?;
    portolan_types::failpoint!("store/new-store-synced");
    HighWaterMark::finish_move(dir).and_then(|()| sync_folder(dir)).map_err(io_error("writing the mark in", dir))
}

/// Maps an engine's error. Errors of the operating system and newer formats are not damage.
fn refused(dir: &Path, error: BackendError) -> OpenError {
    let damaged = OpenError::Damaged { dir: dir.to_owned(), what: error.context };
    let Some(source) = error.source else { return damaged };
    match source.downcast::<io::Error>() {
        Ok(source) => OpenError::Io { what: format!("using the store in {}", dir.display()), source: *source },
        Err(other) => match other.downcast_ref() {
            Some(NewerLayout { found, known }) => {
                OpenError::NewerFormat { found: (*found).into(), known: (*known).into() }
            }
            None => damaged,
        },
    }
}

fn open_redb(path: &Path, cache_bytes: usize, opening: &OpenProgress) -> KvResult<Box<dyn OrderedKv>> {
    Ok(Box::new(RedbKv::open_if(path, cache_bytes, opening, &|kv| compare_with_mark(path, kv))?))
}

/// Compares a converted store with its high-water mark before the original is replaced.
///
/// # Errors
/// Fails if the store ends before its mark, or belongs to another one.
fn compare_with_mark(path: &Path, kv: &dyn OrderedKv) -> KvResult<()> {
    let StoreBookkeeping { identity, marks, .. } = read(kv, load)?.map_err(|error| match error {
        LoadError::NewerFormat(newer) => failure("opening the store")(NewerLayout { found: newer, known: FORMAT }),
        LoadError::Damaged(_) => error.into(),
    })?;
    let dir = path.parent().unwrap_or(path).to_owned();
    let home = LockedDataDir { dir, files: path.to_owned(), is_read_only: true, _lock: None };
    MarkedDataDir::compare(&home, &identity, marks.last).map_err(failed)
}

fn open_sled(path: &Path, cache_bytes: usize, _: &OpenProgress) -> KvResult<Box<dyn OrderedKv>> {
    // An operator deletes the mark to salvage the readable part of a damaged store.
    let is_wanted_whole = !path.exists() || path.parent().is_some_and(HighWaterMark::is_in);
    if is_wanted_whole {
        Ok(Box::new(SledKv::open(path, cache_bytes)?))
    } else {
        Ok(Box::new(SledKv::salvage(path, cache_bytes)?))
    }
}

/// Waits until an engine's threads have released the lock of a file.
fn wait_until_released(path: &Path) -> io::Result<()> {
    File::open(path)?.lock()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let what = format!("{what} {}", path.display());
    move |source| OpenError::Io { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::SnapshotError;

    #[test]
    fn a_shared_lock_is_waited_for_and_an_exclusive_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOCK), []).unwrap();
        let looked = File::open(dir.path().join(LOCK)).unwrap();
        looked.lock_shared().unwrap();
        assert!(!is_in_use(dir.path()), "shared locks exclude only exclusive ones");
        assert!(matches!(lock(dir.path(), || {}), Err(OpenError::InUse(_))));
        let locked = lock(dir.path(), || looked.unlock().unwrap()).unwrap();
        assert!(is_in_use(dir.path()));
        let refused = lock(dir.path(), || assert!(is_in_use(dir.path())));
        assert!(matches!(refused, Err(OpenError::InUse(_))));
        drop(locked);
        lock(dir.path(), || panic!("no process holds it")).unwrap();
        assert!(!is_in_use(dir.path()));
    }

    #[test]
    fn the_lock_file_of_a_replaced_directory_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path(), || {}).unwrap();
        let replaced = lock(dir.path(), || {
            fs::remove_file(dir.path().join(LOCK)).unwrap();
            fs::write(dir.path().join(LOCK), []).unwrap();
            held.unlock().unwrap();
        });
        assert!(matches!(replaced, Err(OpenError::InUse(_))));
        lock(dir.path(), || panic!("the new lock file is free")).unwrap();
    }

    /// Creates a store as a restore does.
    fn created_store(engine: Engine) -> (tempfile::TempDir, StoreConfig) {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(engine, Some(dir.path().to_owned()));
        create_store(&config, fill).unwrap();
        (dir, config)
    }

    fn fill(kv: &dyn OrderedKv) -> Result<(), SnapshotError> {
        initialize(kv, &Seams::system())?;
        kv.commit([(b"t".to_vec(), Some("as it was restored".into()))].into())?;
        kv.publish();
        Ok(())
    }

    fn refusal(config: &StoreConfig) -> Option<String> {
        let prepared = prepare(config, &Seams::system()).map(|(kv, _home)| kv.close());
        prepared.err().map(|error| error.to_string())
    }

    #[test]
    fn a_store_has_its_mark_before_its_first_start() {
        for engine in [Engine::Redb, Engine::Sled] {
            let (dir, config) = created_store(engine);
            assert_eq!(HighWaterMark::read_revision(dir.path()), Ok(Some(1)), "{engine}");
            assert!(matches!(create_store(&config, fill), Err(SnapshotError::Occupied(_))), "{engine}");
            assert_eq!(refusal(&config), None, "{engine}");
        }
    }

    #[test]
    fn a_bit_that_flips_in_sleds_log_before_the_first_start_is_not_passed_over() {
        let (dir, config) = created_store(Engine::Sled);
        let log = dir.path().join("store.sled/db");
        let whole = fs::read(&log).unwrap();
        let at = whole.windows(18).position(|bytes| bytes == b"as it was restored").unwrap();
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        fs::write(&log, flipped).unwrap();
        let told = refusal(&config).unwrap();
        assert!(told.contains("delete store.mark"), "{told}");
        fs::write(&log, whole).unwrap();
        assert_eq!(refusal(&config), None);
    }

    #[test]
    fn a_kill_during_the_move_leaves_a_marked_store_or_none() {
        for engine in [Engine::Redb, Engine::Sled] {
            let (dir, config) = created_store(engine);
            let name = opener(engine).unwrap().name;
            let in_dir = |name: &str| dir.path().join(name);
            let (path, mark, made) = (in_dir(name), in_dir("store.mark"), in_dir("store.mark.made"));
            fs::rename(&mark, &made).unwrap();
            assert_eq!(refusal(&config), None, "{engine}");
            assert!(mark.exists() && !made.exists(), "{engine}");
            // The process was killed before the move.
            for (ending, is_refused) in [(RESTORING, true), (NEW, false)] {
                fs::rename(&mark, &made).unwrap();
                fs::rename(&path, in_dir(&format!("{name}{ending}"))).unwrap();
                assert_eq!(refusal(&config).is_some(), is_refused, "{engine}{ending}");
                if is_refused {
                    create_store(&config, fill).unwrap();
                }
                assert_eq!(HighWaterMark::read_revision(dir.path()), Ok(Some(1)), "{engine}{ending}");
                assert_eq!((refusal(&config), made.exists()), (None, false), "{engine}{ending}");
            }
        }
    }
}
