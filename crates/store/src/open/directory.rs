//! The data directory: one process at a time, one engine, and a file that exists is a whole one.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use portolan_types::Seams;

use super::{
    Engine, OpenError, StoreConfig, initialize,
    unwritten::Unwritten,
    witness::{Held, Witness},
};
use crate::{
    BackendError, Opening, SnapshotError,
    kv::{KvResult, NewerLayout, OlderLayout, OrderedKv, RedbKv, SledKv, failed, failure, read},
    load::{FORMAT, Found, LoadError, load},
};

/// Held locked as long as a process has the store open.
const LOCK: &str = "store.lock";
/// How long who only looks at a lock may hold it.
const LOOK: Duration = Duration::from_millis(20);
/// redb's file.
const REDB: &str = "store.redb";
/// sled's folder.
const SLED: &str = "store.sled";
const ENGINES: [(&str, Engine); 2] = [(REDB, Engine::Redb), (SLED, Engine::Sled)];
/// Follows the name while an empty store is made, which the next start may do again.
const NEW: &str = ".new";
/// Follows the name while a store is made of a snapshot: what is left there is of a restore that was broken off, and an empty store
/// must not be taken for what it was to become.
const RESTORING: &str = ".restoring";

/// A data directory that this process alone uses, until it is dropped.
pub(crate) struct Home {
    dir: PathBuf,
    files: PathBuf,
    /// Nothing can be written there, and nothing is.
    is_read_only: bool,
    _lock: Option<File>,
}

impl Home {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The engine's file or folder.
    pub(super) fn files(&self) -> PathBuf {
        self.files.clone()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}

/// Locks the data directory and opens the engine's files in it.
pub(super) fn prepare(config: &StoreConfig, seams: &Seams) -> Result<(Box<dyn OrderedKv>, Home), OpenError> {
    let dir = config.dir.clone().ok_or(OpenError::NoDirectory(config.engine))?;
    make_private(&dir).map_err(io_error("making the data directory", &dir))?;
    let lock = lock(&dir, || thread::sleep(LOOK))?;
    refuse_other_engine(&dir, config.engine)?;
    portolan_types::failpoint!("store/directory-locked");
    let opener = opener(config.engine)?;
    let kv = opener.open(&dir, config, seams)?;
    portolan_types::failpoint!("store/engine-opened");
    Ok((kv, Home { files: dir.join(opener.name), dir, is_read_only: false, _lock: Some(lock) }))
}

/// As [`prepare`], for who only reads: a store that is there, also where nothing can be written.
///
/// # Errors
/// Those of [`find`] and [`prepare`]; `ReadOnly` for an engine that writes as soon as it is opened.
pub(super) fn prepare_to_read(config: &StoreConfig, seams: &Seams) -> Result<(Box<dyn OrderedKv>, Home), OpenError> {
    let dir = config.dir.clone().ok_or(OpenError::NoDirectory(config.engine))?;
    find(&dir)?;
    refuse_other_engine(&dir, config.engine)?;
    match prepare(config, seams) {
        Err(OpenError::Io { source, .. }) if forbids_writing(source.kind()) => peek(dir, config),
        prepared => prepared,
    }
}

fn forbids_writing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Opens a store for a look, which changes nothing: what redb writes to recover goes to memory.
///
/// # Errors
/// `InUse`; `ReadOnly` for an engine that must write; `Io`, of which [`is_older`] knows, for a store that would have to be converted;
/// those of the engine.
pub(super) fn peek(dir: PathBuf, config: &StoreConfig) -> Result<(Box<dyn OrderedKv>, Home), OpenError> {
    let lock = shared_lock(&dir)?;
    let files = dir.join(opener(config.engine)?.name);
    if config.engine != Engine::Redb {
        return Err(OpenError::ReadOnly { dir, engine: config.engine });
    }
    let disk = Unwritten::open(&files).map_err(io_error("opening", &files))?;
    let peeked = RedbKv::peek(&files, disk, config.cache_bytes, &config.opening);
    let kv = peeked.map_err(|error| match error.source {
        Some(source) if source.is::<OlderLayout>() => {
            io_error("opening", &files)(io::Error::new(io::ErrorKind::Unsupported, source))
        }
        source => refused(&dir, BackendError { source, ..error }),
    })?;
    Ok((Box::new(kv), Home { dir, files, is_read_only: true, _lock: lock }))
}

/// Whether a store was not opened only because nothing was to be written, and it is of an older format.
pub(super) fn is_older(error: &OpenError) -> bool {
    matches!(error, OpenError::Io { source, .. } if source.get_ref().is_some_and(|source| source.is::<OlderLayout>()))
}

/// Keeps servers out for as long as it is held, by the lock that they take; `None` where there is none.
///
/// # Errors
/// `InUse`; `Io` when the lock cannot be read.
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

/// Makes a store in a data directory that has none, with what `fill` writes.
///
/// # Errors
/// `Occupied` when there is one; those of `fill`, and of using the directory. No store is left then, and none is begun there until
/// this has been done again, or what is left was removed.
pub(crate) fn make<T>(
    config: &StoreConfig,
    fill: impl FnOnce(&dyn OrderedKv) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let dir = config.dir.clone().ok_or(OpenError::NoDirectory(config.engine))?;
    make_private(&dir).map_err(io_error("making the data directory", &dir))?;
    let _lock = lock(&dir, || thread::sleep(LOOK))?;
    refuse_other_engine(&dir, config.engine)?;
    let opener = opener(config.engine)?;
    if dir.join(opener.name).exists() || Witness::refuse_if_told(&dir, &dir.join(opener.name)).is_err() {
        return Err(SnapshotError::Occupied(dir));
    }
    // Also those of another engine: what is restored now is meant instead.
    for left in [REDB, SLED].map(|name| dir.join(format!("{name}{RESTORING}"))) {
        remove_if_there(&left).map_err(io_error("removing", &left))?;
    }
    opener.make(&dir, config, RESTORING, fill)
}

/// # Errors
/// `HalfRestored` when a restore was begun in the data directory, and broken off.
fn refuse_half_restored(dir: &Path) -> Result<(), OpenError> {
    let left = [REDB, SLED].map(|name| dir.join(format!("{name}{RESTORING}")));
    match left.into_iter().find(|left| left.exists()) {
        Some(left) => Err(OpenError::HalfRestored(left)),
        None => Ok(()),
    }
}

/// Whose store lies in a directory.
///
/// # Errors
/// Why there is none: `NoFolder`, `HalfRestored`, `Lost`, `NoStore`; `Io` when it cannot be looked for.
pub fn find(dir: &Path) -> Result<Engine, OpenError> {
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
    Witness::refuse_if_told(dir, &dir.join(REDB)).map_err(OpenError::Lost)?;
    Err(OpenError::NoStore(dir.to_owned()))
}

fn opener(engine: Engine) -> Result<Opener, OpenError> {
    match engine {
        Engine::Redb => Ok(Opener { name: REDB, open: open_redb, data: "" }),
        Engine::Sled => Ok(Opener { name: SLED, open: open_sled, data: "db" }),
        Engine::Memory => Err(OpenError::NoDirectory(engine)),
    }
}

/// Makes a directory and those above it that are missing. Each name is synced before the next folder is made in it: the store
/// would be lost with any of them. A process that was killed in between leaves one that is not, the lowest that is there.
fn make_private(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !as_folder(dir).exists()).collect();
    if let Some(lowest) = dir.ancestors().nth(missing.len()) {
        sync_found_name(as_folder(lowest))?;
    }
    let mut builder = fs::DirBuilder::new();
    // One that somebody else has just made is as good.
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    missing.into_iter().rev().try_for_each(|dir| {
        builder.create(dir)?;
        dir.parent().map_or(Ok(()), |parent| sync_folder(as_folder(parent)))
    })
}

/// A folder as the system wants it named: the parent of a relative name may be nothing.
pub(crate) fn as_folder(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes the name of a folder that is there durable. Where that cannot be (a folder above that may not be read, a file system
/// that is only read, or syncs no folders) it is not one that a process of ours has just made.
fn sync_found_name(folder: &Path) -> io::Result<()> {
    match folder.parent().map_or(Ok(()), |parent| sync_folder(as_folder(parent))) {
        Err(error) if is_not_ours(error.kind()) => Ok(()),
        synced => synced,
    }
}

fn is_not_ours(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::ReadOnlyFilesystem)
}

/// Locks a data directory, once more after a pause: who only looked ([`is_in_use`]) has let go by then.
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
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(io_error("locking", &path)(error)),
    }
}

/// Whether a process has the store in a directory open.
pub fn is_in_use(dir: &Path) -> bool {
    let lock = File::open(dir.join(LOCK)).and_then(|file| file.try_lock_shared().map_err(io::Error::from));
    lock.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Whose store a directory holds, if any.
pub fn found_in(dir: &Path) -> Option<Engine> {
    ENGINES.into_iter().find(|(name, _)| dir.join(name).exists()).map(|(_, engine)| engine)
}

fn refuse_other_engine(dir: &Path, engine: Engine) -> Result<(), OpenError> {
    match found_in(dir) {
        Some(found) if found != engine => Err(OpenError::OtherEngine { dir: dir.to_owned(), found }),
        Some(_) | None => Ok(()),
    }
}

/// How to open the files of an engine.
struct Opener {
    name: &'static str,
    open: fn(&Path, usize, &Opening) -> KvResult<Box<dyn OrderedKv>>,
    /// The file, within the engine's folder if it has one, that holds the data and is never empty.
    data: &'static str,
}

impl Opener {
    /// Opens the engine, or makes it when it is not there.
    fn open(&self, dir: &Path, config: &StoreConfig, seams: &Seams) -> Result<Box<dyn OrderedKv>, OpenError> {
        let damaged = |error| refused(dir, error);
        let path = dir.join(self.name);
        if !path.exists() {
            Witness::refuse_if_told(dir, &path).map_err(|what| damaged(failed(what)))?;
            refuse_half_restored(dir)?;
            self.make(dir, config, NEW, |kv| initialize(kv, seams).map_err(damaged))?;
        } else {
            // Whoever moved it in place may have been killed before the name was synced, and before it had its mark.
            Witness::settle(dir).and_then(|()| sync_folder(dir)).map_err(io_error("syncing", dir))?;
        }
        let data = self.data_in(&path);
        if fs::metadata(&data).map_or(0, |data| data.len()) == 0 {
            return Err(damaged(failed(format!("{} is empty or missing", data.display()))));
        }
        (self.open)(&path, config.cache_bytes, &config.opening).map_err(damaged)
    }

    /// Makes the engine's files under another name, and moves them in place when they are whole, so that empty or half-made
    /// ones under their own name can only mean damage.
    fn make<T, E: From<OpenError>>(
        &self,
        dir: &Path,
        config: &StoreConfig,
        ending: &str,
        fill: impl FnOnce(&dyn OrderedKv) -> Result<T, E>,
    ) -> Result<T, E> {
        let (path, new) = (dir.join(self.name), dir.join(format!("{}{ending}", self.name)));
        remove_if_there(&new).and_then(|()| Witness::forget_made(dir)).map_err(io_error("removing", &new))?;
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
                // What was to become of a snapshot stays: a server would begin with an empty store in its place.
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

/// Gives a store that is whole its own name, and its mark: without one it would be taken for a store of which an operator wants what is
/// left, whatever happens to it before its first start.
fn move_in_place(dir: &Path, new: &Path, path: &Path, found: &Found) -> Result<(), OpenError> {
    Witness::prepare(dir, found).and_then(|()| sync_folder(dir)).map_err(io_error("writing the mark in", dir))?;
    fs::rename(new, path).map_err(io_error("moving the new store in place", path))?;
    portolan_types::failpoint!("store/new-store-moved");
    // No mark is to outlive a power loss that its store does not.
    sync_folder(dir).map_err(io_error("syncing", dir))?;
    portolan_types::failpoint!("store/new-store-synced");
    Witness::settle(dir).and_then(|()| sync_folder(dir)).map_err(io_error("writing the mark in", dir))
}

/// What the system refuses is no damage, nor is what a newer version wrote.
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

fn open_redb(path: &Path, cache_bytes: usize, opening: &Opening) -> KvResult<Box<dyn OrderedKv>> {
    Ok(Box::new(RedbKv::open_if(path, cache_bytes, opening, &|kv| compare_with_mark(path, kv))?))
}

/// Compares what a store of an older format became with its mark, before nothing else is left of it.
///
/// # Errors
/// When the store ends before its mark, or the two do not fit together otherwise.
fn compare_with_mark(path: &Path, kv: &dyn OrderedKv) -> KvResult<()> {
    let Found { identity, marks, .. } = read(kv, load)?.map_err(|error| match error {
        LoadError::NewerFormat(newer) => failure("opening the store")(NewerLayout { found: newer, known: FORMAT }),
        LoadError::Damaged(_) => error.into(),
    })?;
    let dir = path.parent().unwrap_or(path).to_owned();
    let home = Home { dir, files: path.to_owned(), is_read_only: true, _lock: None };
    Held::compare(&home, &identity, marks.last).map_err(failed)
}

fn open_sled(path: &Path, cache_bytes: usize, _: &Opening) -> KvResult<Box<dyn OrderedKv>> {
    // A store that is there and has no mark is one of which an operator wants what is left.
    let is_wanted_whole = !path.exists() || path.parent().is_some_and(Witness::is_in);
    match is_wanted_whole {
        true => Ok(Box::new(SledKv::open(path, cache_bytes)?)),
        false => Ok(Box::new(SledKv::salvage(path, cache_bytes)?)),
    }
}

/// Waits until an engine's own threads have let go of a file that it had locked.
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

    #[test]
    fn who_only_looks_keeps_nobody_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOCK), []).unwrap();
        let looked = File::open(dir.path().join(LOCK)).unwrap();
        looked.lock_shared().unwrap();
        assert!(!is_in_use(dir.path()), "another one that looks");
        assert!(matches!(lock(dir.path(), || {}), Err(OpenError::InUse(_))));
        let locked = lock(dir.path(), || looked.unlock().unwrap()).unwrap();
        assert!(is_in_use(dir.path()));
        let refused = lock(dir.path(), || assert!(is_in_use(dir.path())));
        assert!(matches!(refused, Err(OpenError::InUse(_))));
        drop(locked);
        lock(dir.path(), || panic!("nobody holds it")).unwrap();
        assert!(!is_in_use(dir.path()));
    }

    /// Makes a store as a restore does.
    fn made(engine: Engine) -> (tempfile::TempDir, StoreConfig) {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig::new(engine, Some(dir.path().to_owned()));
        make(&config, fill).unwrap();
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
            let (dir, config) = made(engine);
            assert_eq!(Witness::told_in(dir.path()), Ok(Some(1)), "{engine}");
            assert!(matches!(make(&config, fill), Err(SnapshotError::Occupied(_))), "{engine}");
            assert_eq!(refusal(&config), None, "{engine}");
        }
    }

    #[test]
    fn a_bit_that_flips_in_sleds_log_before_the_first_start_is_not_passed_over() {
        let (dir, config) = made(Engine::Sled);
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
    fn whoever_is_killed_while_a_store_is_moved_in_place_leaves_one_that_is_marked_or_none() {
        for engine in [Engine::Redb, Engine::Sled] {
            let (dir, config) = made(engine);
            let name = opener(engine).unwrap().name;
            let in_dir = |name: &str| dir.path().join(name);
            let (path, mark, made) = (in_dir(name), in_dir("store.mark"), in_dir("store.mark.made"));
            fs::rename(&mark, &made).unwrap();
            assert_eq!(refusal(&config), None, "{engine}");
            assert!(mark.exists() && !made.exists(), "{engine}");
            // Before it was moved.
            for (ending, is_refused) in [(RESTORING, true), (NEW, false)] {
                fs::rename(&mark, &made).unwrap();
                fs::rename(&path, in_dir(&format!("{name}{ending}"))).unwrap();
                assert_eq!(refusal(&config).is_some(), is_refused, "{engine}{ending}");
                if is_refused {
                    make(&config, fill).unwrap();
                }
                assert_eq!(Witness::told_in(dir.path()), Ok(Some(1)), "{engine}{ending}");
                assert_eq!((refusal(&config), made.exists()), (None, false), "{engine}{ending}");
            }
        }
    }
}
