//! Opening a store: the data directory's lock, the engine's files, the format's version.

mod directory;
mod high_water_mark;
mod overlay_file;
mod survey;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use portolan_types::{ObjectKey, Record, Seams};

use self::directory::prepare;
pub(crate) use self::{
    directory::{DataDirLock, LockedDataDir, OccupiedDataDir, create_store},
    high_water_mark::MarkedDataDir,
};
pub use self::{
    directory::{engine_in, find_engine, is_in_use},
    survey::{StoreSurvey, survey},
};
use crate::{
    api::{BackendError, DynStore, damage::DamageReport, hold::RevisionHolds, open_progress::OpenProgress},
    embedded::{
        committer::{Committer, DurableMark},
        inline::InlineCommitter,
        store::{EmbeddedStore, StoreWriter},
    },
    engine::{Batch, MemoryKv, OrderedKv, read},
    integrity::{
        audit::{ObjectVisitor, StoreAudit, audit},
        damage::DamageLedger,
        faults::FaultLog,
    },
    maintenance::scrubber::Scrubber,
    metrics::{PageCacheMetrics, StoreMetrics, register},
    read::bookkeeping::{FORMAT, LoadError, StoreBookkeeping, check_end, format_mark, initialize, load},
    reader_pool::ReaderPool,
    watch::{Hub, RingBudget},
    write::{
        accounts::CountedUsage,
        core::StoreCore,
        disk_space::{DiskSpace, EngineFiles},
        gate::WriteGate,
    },
};

/// Embedded engine that keeps the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Copy-on-write tree in one file; the default.
    Redb,
    /// Log-structured tree; selectable, see the engine decision for its cost.
    Sled,
    /// Memory only: nothing survives. For tests and simulated clusters.
    Memory,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redb => "redb",
            Self::Sled => "sled",
            Self::Memory => "memory",
        })
    }
}

/// Configuration of an embedded store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Engine.
    pub engine: Engine,
    /// Data directory, created if missing. The memory engine needs none.
    pub dir: Option<PathBuf>,
    /// Bytes of the engine's page cache.
    pub cache_bytes: usize,
    /// Bytes of events that one watched resource keeps for its watchers.
    pub ring_bytes: usize,
    /// Bytes of events that all watched resources and physical clusters keep together.
    pub all_rings_bytes: usize,
    /// Time after which the outcome of an unanswered write is reported as unknown.
    pub commit_timeout: Duration,
    /// Reserved disk space in bytes. With less free space the store takes no writes until there is more.
    pub disk_reserve: u64,
    /// Pause between two scrubs of the whole store; the first scrub starts soon after the start.
    pub look_every: Duration,
    /// Registry for the store's metrics.
    pub registry: Option<prometheus::Registry>,
    /// Progress of the opening.
    pub opening: OpenProgress,
}

impl StoreConfig {
    /// Returns the default configuration of an engine: 16 MiB of page cache (48 MiB on redb: a list of 10,000 objects
    /// of 1 KiB reads 40 MiB of pages, and is served from memory only if all of them fit), 2 MiB per ring, 32 MiB for
    /// all rings, 30 seconds for a write, 64 MiB of reserved disk space, one scrub a day.
    pub fn new(engine: Engine, dir: Option<PathBuf>) -> Self {
        Self {
            engine,
            dir,
            cache_bytes: if engine == Engine::Redb { 48 << 20 } else { 16 << 20 },
            ring_bytes: 2 << 20,
            all_rings_bytes: 32 << 20,
            commit_timeout: Duration::from_secs(30),
            disk_reserve: 64 << 20,
            look_every: Duration::from_secs(24 * 3600),
            registry: None,
            opening: OpenProgress::default(),
        }
    }
}

/// Error of opening a store. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The engine needs a data directory.
    #[error("the {0} engine needs a data directory")]
    NoDirectory(Engine),
    /// Another process has the store open.
    #[error("the data directory {0} is in use by another process")]
    InUse(PathBuf),
    /// The directory does not exist.
    #[error("there is no directory {0}")]
    NoFolder(PathBuf),
    /// The directory has no store.
    #[error("there is no store in {0}")]
    NoStore(PathBuf),
    /// The directory has a high-water mark, but its store is missing.
    #[error("{0}")]
    Lost(String),
    /// The disk is read-only, and the engine writes on opening.
    #[error(
        "the store in {dir} cannot be written, and {engine} writes to a store as soon as it is opened: copy the whole directory to where \
         it can be written, and name the copy"
    )]
    ReadOnly {
        /// Data directory.
        dir: PathBuf,
        /// Engine of the store.
        engine: Engine,
    },
    /// The directory has a store of another engine.
    #[error("the data directory {dir} holds a store of the {found} engine: --store {found}")]
    OtherEngine {
        /// Data directory.
        dir: PathBuf,
        /// Engine of the files in it.
        found: Engine,
    },
    /// The store was written by a newer version.
    #[error("the store has format {found}, this version knows formats up to {known}; use the version that wrote it")]
    NewerFormat {
        /// Format on disk, or in etcd.
        found: u64,
        /// Newest format that this version opens.
        known: u64,
    },
    /// The restore of a snapshot was interrupted.
    #[error(
        "a snapshot was being restored here, and that was broken off: run portolan snapshot restore again, or remove {0} to begin with an \
         empty store"
    )]
    HalfRestored(PathBuf),
    /// The files are not those of a store, or are incomplete.
    #[error("the store in {dir} is damaged, restore it from a snapshot: {what}")]
    Damaged {
        /// Data directory.
        dir: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// [`verify`] found damage.
    #[error("{dir}: {found}")]
    Unsound {
        /// Data directory.
        dir: PathBuf,
        /// Report of all damage.
        found: DamageReport,
    },
    /// The directory or a file cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed.
        what: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// etcd cannot be used.
    #[error("etcd: {0}")]
    Etcd(String),
    /// A metric could not be registered.
    #[error("the store's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Opens a store, or creates it if the directory has none. The store opens at its last commit, however the previous
/// process ended.
///
/// # Errors
/// Fails if the directory cannot be used or is in use, or does not hold an undamaged store of this engine and format.
pub fn open(config: StoreConfig, seams: Seams) -> Result<DynStore, OpenError> {
    let base = match config.engine {
        Engine::Memory => StoreParts::in_memory(in_memory(&seams)?),
        Engine::Redb | Engine::Sled => {
            let (kv, home) = prepare(&config, &seams)?;
            let room = DiskSpace::on(EngineFiles(home.files()), config.disk_reserve);
            StoreParts { kv, home: Some(home), room }
        }
    };
    let dir = base.home.as_ref().map(|home| home.dir().to_owned()).unwrap_or_default();
    let mut store = assemble(base, &config).map_err(|refusal| refusal.in_directory(dir))?;
    if !store.core.kv.is_in_memory() {
        let (core, registry) = (store.core.clone(), config.registry.as_ref());
        store.inspection = Some(Scrubber::start(core, config.look_every, seams.clock, registry)?);
    }
    Ok(Arc::new(store))
}

/// Opens an existing, unused store for reading, on redb also from a read-only disk. The caller must not write.
///
/// # Errors
/// Returns the errors of [`find_engine`] and [`open`]; `ReadOnly`.
pub fn open_to_read(config: StoreConfig, seams: &Seams) -> Result<DynStore, OpenError> {
    open_to_replace(config, seams).map(|(store, _)| store)
}

/// Opens an existing, unused store for reading, and returns the lock of its directory, which outlives the store.
///
/// # Errors
/// Returns the errors of [`open_to_read`].
pub(crate) fn open_to_replace(
    config: StoreConfig,
    seams: &Seams,
) -> Result<(DynStore, Option<DataDirLock>), OpenError> {
    let (kv, home) = directory::prepare_to_read(&config, seams)?;
    let lock = home.share_lock()?;
    let room = if home.is_read_only() {
        DiskSpace::unlimited()
    } else {
        DiskSpace::on(EngineFiles(home.files()), config.disk_reserve)
    };
    let dir = home.dir().to_owned();
    let store =
        assemble(StoreParts { kv, home: Some(home), room }, &config).map_err(|refusal| refusal.in_directory(dir))?;
    Ok((Arc::new(store), lock))
}

/// Opens an existing, unused store, reads all of it and closes it again. Also finds damage that opening does not
/// detect, such as a flipped bit in a page that was not read since.
///
/// # Errors
/// Returns the errors of [`open_to_read`]; `Unsound` with a report of all damage if there is any.
pub fn verify(config: StoreConfig, seams: Seams) -> Result<StoreAudit, OpenError> {
    verify_each(config, seams, &mut |_, _| {})
}

/// Verifies a store like [`verify`], and calls `each` with every readable latest object.
///
/// # Errors
/// Returns the errors of [`verify`].
pub fn verify_each(
    config: StoreConfig,
    seams: Seams,
    each: &mut dyn FnMut(&ObjectKey, &Record),
) -> Result<StoreAudit, OpenError> {
    let (kv, home) = directory::prepare_to_read(&config, &seams)?;
    let looked = look(&*kv, &home, each);
    kv.close();
    let dir = home.dir().to_owned();
    match looked {
        Ok((audit, found)) if found.is_empty() => Ok(audit),
        Ok((_, found)) => Err(OpenError::Unsound { dir, found }),
        Err(error) => Err(StoreStartError::Load(error).in_directory(dir)),
    }
}

/// Audits an opened store. Objects are read first: they have names, while an engine knows only that a part of its file
/// is damaged.
fn look(
    kv: &dyn OrderedKv,
    home: &LockedDataDir,
    each: ObjectVisitor<'_>,
) -> Result<(StoreAudit, DamageReport), LoadError> {
    let StoreBookkeeping { identity, marks, .. } = read(kv, load)??;
    let mut found = DamageReport::default();
    let audited = read(kv, |view| audit(view, &mut found, each));
    let audited = match audited {
        Ok(audited) => audited?,
        Err(error) => {
            found.other.push(error.context);
            StoreAudit::default()
        }
    };
    found.other.extend(kv.verify().err().map(|error| error.context));
    found.other.extend(MarkedDataDir::compare(home, &identity, marks.last).err());
    Ok((audited, found))
}

/// Creates a store in memory with the default limits. It runs in its callers' threads and needs no runtime.
pub fn memory() -> DynStore {
    memory_with(StoreConfig::new(Engine::Memory, None))
}

/// Creates a store in memory.
pub fn memory_with(config: StoreConfig) -> DynStore {
    open(StoreConfig { engine: Engine::Memory, ..config }, Seams::system()).expect("a map in memory opens")
}

fn in_memory(seams: &Seams) -> Result<Box<dyn OrderedKv>, OpenError> {
    let kv = MemoryKv::default();
    initialize(&kv, seams).map_err(|error| OpenError::Damaged { dir: PathBuf::new(), what: error.context })?;
    Ok(Box::new(kv))
}

/// Parts that a store is assembled from.
pub(crate) struct StoreParts {
    pub(crate) kv: Box<dyn OrderedKv>,
    pub(crate) home: Option<LockedDataDir>,
    pub(crate) room: DiskSpace,
}

impl StoreParts {
    /// Builds the parts of a store without a data directory.
    pub(crate) fn in_memory(kv: Box<dyn OrderedKv>) -> Self {
        Self { kv, home: None, room: DiskSpace::unlimited() }
    }
}

/// Error of starting a store on an opened engine.
pub(crate) enum StoreStartError {
    Load(LoadError),
    Metrics(prometheus::Error),
    Thread(std::io::Error),
}

impl StoreStartError {
    fn in_directory(self, dir: PathBuf) -> OpenError {
        match self {
            Self::Load(LoadError::Damaged(what)) => OpenError::Damaged { dir, what },
            Self::Load(LoadError::NewerFormat(found)) => {
                OpenError::NewerFormat { found: found.into(), known: FORMAT.into() }
            }
            Self::Metrics(error) => OpenError::Metrics(error),
            Self::Thread(source) => OpenError::Io { what: "starting the committer".into(), source },
        }
    }
}

impl From<LoadError> for StoreStartError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<BackendError> for StoreStartError {
    fn from(error: BackendError) -> Self {
        Self::Load(error.into())
    }
}

/// Starts a store on an opened engine.
#[cfg(test)]
pub(crate) fn start(base: StoreParts, config: &StoreConfig) -> Result<DynStore, StoreStartError> {
    Ok(Arc::new(assemble(base, config)?))
}

/// Assembles a store on an opened engine.
fn assemble(base: StoreParts, config: &StoreConfig) -> Result<EmbeddedStore, StoreStartError> {
    let StoreParts { kv, home, room } = base;
    let kv: Arc<dyn OrderedKv> = kv.into();
    let found = read(&*kv, load)??;
    read(&*kv, |view| check_end(view, found.marks))??;
    let found = if found.format == FORMAT { found } else { upgraded(&*kv)? };
    let marked = home.map(|home| MarkedDataDir::new(home, &found)).transpose().map_err(LoadError::Damaged)?;
    let mark = marked.map(|marked| Box::new(marked) as Box<dyn DurableMark>);
    let budget = RingBudget { each: config.ring_bytes, all: config.all_rings_bytes };
    let metrics = StoreMetrics::new(config.registry.as_ref()).map_err(StoreStartError::Metrics)?;
    if let Some(registry) = config.registry.as_ref().filter(|_| !kv.is_in_memory()) {
        register(registry, Box::new(room.gauges().map_err(StoreStartError::Metrics)?));
        if kv.pages().is_some() {
            register(registry, Box::new(PageCacheMetrics::of(kv.clone()).map_err(StoreStartError::Metrics)?));
        }
    }
    found.resources.cluster_index().report_in(metrics.spread.clone());
    let core = Arc::new(StoreCore {
        hub: Hub::new(found.marks, budget, &metrics),
        resources: found.resources,
        readers: ReaderPool::new(metrics.waiting_reads.clone()),
        damage: DamageLedger::new(metrics.damaged.clone()),
        faults: FaultLog::new(metrics.faults.clone()),
        superseded: AtomicU64::default(),
        metrics,
        gate: WriteGate::open(),
        holds: RevisionHolds::default(),
        room,
        kv,
    });
    core.note_superseded(found.superseded);
    let writer = if core.kv.is_in_memory() {
        StoreWriter::Inline(InlineCommitter::default())
    } else {
        StoreWriter::Thread(Committer::start(core.clone(), found.sweeps, mark).map_err(StoreStartError::Thread)?)
    };
    Ok(EmbeddedStore { inspection: None, core, writer, commit_timeout: config.commit_timeout })
}

/// Brings a store of an older format to the newest one: adds missing counts, and marks it. Older versions
/// would take the new entries for damage.
fn upgraded(kv: &dyn OrderedKv) -> Result<StoreBookkeeping, LoadError> {
    let counted = read(kv, CountedUsage::of)??;
    for batch in counted.batches().chain([Batch::from([format_mark()])]) {
        kv.commit(batch)?;
        kv.publish();
    }
    read(kv, load)?
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use portolan_types::LogicalClusterId;

    use super::*;
    use crate::layout::keys::meta;
    use crate::{
        api::{Expect, Transaction},
        object_client::ObjectClient,
    };

    #[test]
    fn only_a_store_of_a_known_format_starts() {
        for (case, format, accepted) in [
            ("its own format", Some(FORMAT), true),
            ("a newer format", Some(FORMAT + 1), false),
            ("the format before", Some(FORMAT - 1), true),
            ("an older format that never was", Some(0), false),
            ("no format", None, false),
        ] {
            let kv = MemoryKv::default();
            initialize(&kv, &Seams::system()).unwrap();
            let format = format.map(|format: u32| Bytes::copy_from_slice(&format.to_le_bytes()));
            kv.commit(Batch::from([(meta::FORMAT.to_vec(), format)])).unwrap();
            kv.publish();
            let started = start(StoreParts::in_memory(Box::new(kv)), &StoreConfig::new(Engine::Memory, None));
            assert_eq!(started.is_ok(), accepted, "{case}");
            if let Err(refusal) = started {
                let text = refusal.in_directory("dir".into()).to_string();
                assert!(text.contains("format"), "{text}");
            }
        }
    }

    #[test]
    fn metrics_are_registered_once() {
        let registry = prometheus::Registry::new();
        let config = StoreConfig { registry: Some(registry.clone()), ..StoreConfig::new(Engine::Memory, None) };
        let _stores = [memory_with(config.clone()), memory_with(config)];
        let names: Vec<String> = registry.gather().iter().map(|family| family.name().to_owned()).collect();
        assert!(names.contains(&"portolan_store_sync_seconds".to_owned()), "{names:?}");
    }

    #[tokio::test]
    async fn verification_tells_all_that_it_finds() {
        let dir = tempfile::tempdir().unwrap();
        let config = || StoreConfig::new(Engine::Redb, Some(dir.path().to_owned()));
        let objects = ObjectClient::new(open(config(), Seams::system()).unwrap());
        let put = |name: &str, text: &str| {
            let resource = portolan_types::GroupResource::new("", "configmaps");
            let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap());
            let record = Some(Record::of(&serde_json::json!({"data": text})));
            objects.store().commit(Transaction::one(key, Expect::Anything, record))
        };
        for (name, text) in [("a", "as it was first"), ("a", "as it is"), ("b", "what stays")] {
            put(name, text).await.unwrap();
        }
        objects.store().close().await;
        drop(objects);
        assert_eq!(verify(config(), Seams::system()).unwrap().objects, 2);
        for text in ["as it was first", "what stays"] {
            assert!(crate::testing::damage(dir.path(), text).unwrap() > 0);
        }
        std::fs::write(dir.path().join("store.mark"), "no mark").unwrap();
        let told = verify(config(), Seams::system()).unwrap_err().to_string();
        for part in [
            "1 object in the store is damaged:\n  configmaps \"b\" of logical cluster root",
            "\ndelete these objects, as docs/operating.md tells, or restore a snapshot\n",
            "\n1 earlier state of an object in the store is damaged:\n  configmaps \"a\"",
            "these go with the history (--history), nothing needs to be done about them\n",
            "restore it from a snapshot: checking the store",
            "store.mark",
        ] {
            assert!(told.contains(part), "{part:?} in {told}");
        }
    }
}
