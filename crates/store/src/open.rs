//! Opening a store: the data directory's lock, the engine's files, the format's version.

mod directory;
mod survey;
mod unwritten;
mod witness;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use portolan_types::{ObjectKey, Record, Seams};

use self::directory::prepare;
pub(crate) use self::{
    directory::{Home, as_folder, make, sync_folder},
    witness::Held,
};
pub use self::{
    directory::{find, found_in, is_in_use},
    survey::{Survey, survey},
};
use crate::{
    BackendError, DynStore, Findings, Opening,
    audit::{Audit, Each, audit},
    blocking::Readers,
    committer::Committer,
    core::Core,
    damage::Ledger,
    embedded::{EmbeddedStore, Writer},
    faults::Faults,
    gate::Gate,
    holds::Holds,
    hub::{Hub, RingBudget},
    inline::Inline,
    inspection::Inspection,
    keys::meta,
    kv::{Batch, KvResult, MemoryKv, OrderedKv, read},
    load::{FORMAT, Found, LoadError, check_end, load},
    metrics::{Metrics, Pages, register},
    room::{Files, Room},
};

/// Which embedded engine keeps the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One file, a copy-on-write tree; the default.
    Redb,
    /// A log-structured tree; selectable, see the engine decision for its cost.
    Sled,
    /// Nothing survives; for tests and simulated clusters.
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

/// How to open a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// The engine.
    pub engine: Engine,
    /// The data directory, made when it is missing. The memory engine needs none.
    pub dir: Option<PathBuf>,
    /// Bytes that the engine may use to keep pages in memory.
    pub cache_bytes: usize,
    /// Bytes of events that one watched resource keeps for its watchers.
    pub ring_bytes: usize,
    /// Bytes of events that all watched resources, and watched physical clusters, keep together.
    pub all_rings_bytes: usize,
    /// After this time the outcome of a write that the engine has not answered is called unknown.
    pub commit_timeout: Duration,
    /// Room on the disk, in bytes, that is left to others: with less, no write is taken until there is more.
    pub disk_reserve: u64,
    /// How long after a look at all that is stored the next one begins; the first comes soon.
    pub look_every: Duration,
    /// Where metrics are registered.
    pub registry: Option<prometheus::Registry>,
    /// Tells how far opening has come.
    pub opening: Opening,
}

impl StoreConfig {
    /// An engine with the default bounds: 16 MiB of cache, on redb 48 MiB (a list of 10,000 objects of 1 KiB goes through 40 MiB of
    /// pages, and comes from memory only if all of them fit), 2 MiB for a ring, 32 MiB for all, 30 seconds for a write, 64 MiB of
    /// room kept back, a look at all that is stored each day.
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
            opening: Opening::default(),
        }
    }
}

/// Why a store was not opened. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The engine needs a data directory.
    #[error("the {0} engine needs a data directory")]
    NoDirectory(Engine),
    /// Another process has it open.
    #[error("the data directory {0} is in use by another process")]
    InUse(PathBuf),
    /// The directory is not there.
    #[error("there is no directory {0}")]
    NoFolder(PathBuf),
    /// The directory has no store.
    #[error("there is no store in {0}")]
    NoStore(PathBuf),
    /// The directory had a store, of which only the mark is there.
    #[error("{0}")]
    Lost(String),
    /// Nothing can be written, and the engine must.
    #[error(
        "the store in {dir} cannot be written, and {engine} writes to a store as soon as it is opened: copy the whole directory to where \
         it can be written, and name the copy"
    )]
    ReadOnly {
        /// The store's directory.
        dir: PathBuf,
        /// Whose store it is.
        engine: Engine,
    },
    /// The directory holds the store of another engine.
    #[error("the data directory {dir} holds a store of the {found} engine: --store {found}")]
    OtherEngine {
        /// The data directory.
        dir: PathBuf,
        /// Whose files are in it.
        found: Engine,
    },
    /// The store was written by a newer version.
    #[error("the store has format {found}, this version knows formats up to {known}; use the version that wrote it")]
    NewerFormat {
        /// The format on disk, or in etcd.
        found: u64,
        /// The newest one that this version opens there.
        known: u64,
    },
    /// A snapshot was not restored to its end.
    #[error(
        "a snapshot was being restored here, and that was broken off: run portolan snapshot restore again, or remove {0} to begin with an \
         empty store"
    )]
    HalfRestored(PathBuf),
    /// The files are not those of a store, or not whole.
    #[error("the store in {dir} is damaged, restore it from a snapshot: {what}")]
    Damaged {
        /// The data directory.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// [`verify`] found something wrong.
    #[error("{dir}: {found}")]
    Unsound {
        /// The data directory.
        dir: PathBuf,
        /// All of it.
        found: Findings,
    },
    /// The directory or a file cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// etcd cannot be used.
    #[error("etcd: {0}")]
    Etcd(String),
    /// A metric could not be made.
    #[error("the store's metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Opens a store, or makes it when the directory has none. Opens it at its last commit, whatever happened to the process
/// that had it open before.
///
/// # Errors
/// When the directory cannot be used, is in use, or holds something else than a whole store of this engine and format.
pub fn open(config: StoreConfig, seams: Seams) -> Result<DynStore, OpenError> {
    let base = match config.engine {
        Engine::Memory => Base::in_memory(in_memory(&seams)?),
        Engine::Redb | Engine::Sled => {
            let (kv, home) = prepare(&config, &seams)?;
            let room = Room::on(Files(home.files()), config.disk_reserve);
            Base { kv, home: Some(home), room }
        }
    };
    let dir = base.home.as_ref().map(|home| home.dir().to_owned()).unwrap_or_default();
    let mut store = assemble(base, &config).map_err(|refusal| refusal.in_directory(dir))?;
    if !store.core.kv.is_in_memory() {
        let (core, registry) = (store.core.clone(), config.registry.as_ref());
        store.inspection = Some(Inspection::start(core, config.look_every, seams.clock, registry)?);
    }
    Ok(Arc::new(store))
}

/// Opens a store that is there and not in use, for who only reads: also where nothing can be written, on redb. Writes are not to be made.
///
/// # Errors
/// Those of [`find`] and [`open`]; `ReadOnly`.
pub fn open_to_read(config: StoreConfig, seams: &Seams) -> Result<DynStore, OpenError> {
    let (kv, home) = directory::prepare_to_read(&config, seams)?;
    let room = match home.is_read_only() {
        true => Room::unlimited(),
        false => Room::on(Files(home.files()), config.disk_reserve),
    };
    let dir = home.dir().to_owned();
    let store = assemble(Base { kv, home: Some(home), room }, &config).map_err(|refusal| refusal.in_directory(dir))?;
    Ok(Arc::new(store))
}

/// Opens a store that is there and not in use, reads all that is in it, and closes it again. Finds also what opening does not
/// look at, such as a flipped bit in a page that nobody has read since.
///
/// # Errors
/// Those of [`open_to_read`]; `Unsound` when anything is not as it was written, or missing: all that is found.
pub fn verify(config: StoreConfig, seams: Seams) -> Result<Audit, OpenError> {
    verify_each(config, seams, &mut |_, _| {})
}

/// As [`verify`], and tells of each latest object that can be read.
///
/// # Errors
/// Those of [`verify`].
pub fn verify_each(
    config: StoreConfig,
    seams: Seams,
    each: &mut dyn FnMut(&ObjectKey, &Record),
) -> Result<Audit, OpenError> {
    let (kv, home) = directory::prepare_to_read(&config, &seams)?;
    let looked = look(&*kv, &home, each);
    kv.close();
    let dir = home.dir().to_owned();
    match looked {
        Ok((audit, found)) if found.is_empty() => Ok(audit),
        Ok((_, found)) => Err(OpenError::Unsound { dir, found }),
        Err(error) => Err(Refusal::Load(error).in_directory(dir)),
    }
}

/// Objects first: where an engine knows only that something is wrong with a part of its file, they have names.
fn look(kv: &dyn OrderedKv, home: &Home, each: Each<'_>) -> Result<(Audit, Findings), LoadError> {
    let Found { identity, marks, .. } = read(kv, load)??;
    let mut found = Findings::default();
    let audited = read(kv, |view| audit(view, &mut found, each));
    let audited = match audited {
        Ok(audited) => audited?,
        Err(error) => {
            found.other.push(error.context);
            Audit::default()
        }
    };
    found.other.extend(kv.verify().err().map(|error| error.context));
    found.other.extend(Held::compare(home, &identity, marks.last).err());
    Ok((audited, found))
}

/// A new store in memory with the default bounds. It runs in its callers' threads and needs no runtime.
pub fn memory() -> DynStore {
    memory_with(StoreConfig::new(Engine::Memory, None))
}

/// A new store in memory.
pub fn memory_with(config: StoreConfig) -> DynStore {
    open(StoreConfig { engine: Engine::Memory, ..config }, Seams::system()).expect("a map in memory opens")
}

fn in_memory(seams: &Seams) -> Result<Box<dyn OrderedKv>, OpenError> {
    let kv = MemoryKv::default();
    initialize(&kv, seams).map_err(|error| OpenError::Damaged { dir: PathBuf::new(), what: error.context })?;
    Ok(Box::new(kv))
}

/// What a store stands on.
pub(crate) struct Base {
    pub(crate) kv: Box<dyn OrderedKv>,
    pub(crate) home: Option<Home>,
    pub(crate) room: Room,
}

impl Base {
    /// Without a data directory.
    pub(crate) fn in_memory(kv: Box<dyn OrderedKv>) -> Self {
        Self { kv, home: None, room: Room::unlimited() }
    }
}

/// Why an engine's content was not accepted.
pub(crate) enum Refusal {
    Load(LoadError),
    Metrics(prometheus::Error),
    Thread(std::io::Error),
}

impl Refusal {
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

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self::Load(error.into())
    }
}

/// Starts a store on an engine that has been opened.
#[cfg(test)]
pub(crate) fn start(base: Base, config: &StoreConfig) -> Result<DynStore, Refusal> {
    Ok(Arc::new(assemble(base, config)?))
}

/// A store on an engine that has been opened.
fn assemble(base: Base, config: &StoreConfig) -> Result<EmbeddedStore, Refusal> {
    let Base { kv, home, room } = base;
    let kv: Arc<dyn OrderedKv> = kv.into();
    let found = read(&*kv, load)??;
    read(&*kv, |view| check_end(view, found.marks))??;
    if found.format < FORMAT {
        // From now on it holds what an older version would take for damage.
        kv.commit(Batch::from([format_mark()]))?;
        kv.publish();
    }
    let held = home.map(|home| Held::new(home, &found)).transpose().map_err(LoadError::Damaged)?;
    let budget = RingBudget { each: config.ring_bytes, all: config.all_rings_bytes };
    let metrics = Metrics::new(config.registry.as_ref()).map_err(Refusal::Metrics)?;
    if let Some(registry) = config.registry.as_ref().filter(|_| !kv.is_in_memory()) {
        register(registry, Box::new(room.gauges().map_err(Refusal::Metrics)?));
        if kv.pages().is_some() {
            register(registry, Box::new(Pages::of(kv.clone()).map_err(Refusal::Metrics)?));
        }
    }
    found.resources.spread().count_in(metrics.spread.clone());
    let core = Arc::new(Core {
        hub: Hub::new(found.marks, budget, &metrics),
        resources: found.resources,
        readers: Readers::new(metrics.waiting_reads.clone()),
        damage: Ledger::new(metrics.damaged.clone()),
        faults: Faults::new(metrics.faults.clone()),
        metrics,
        gate: Gate::open(),
        holds: Holds::default(),
        room,
        kv,
    });
    let writer = match core.kv.is_in_memory() {
        true => Writer::Inline(Inline::default()),
        false => Writer::Thread(Committer::start(core.clone(), found.sweeps, held).map_err(Refusal::Thread)?),
    };
    Ok(EmbeddedStore { inspection: None, core, writer, commit_timeout: config.commit_timeout })
}

fn format_mark() -> (Vec<u8>, Option<Bytes>) {
    (meta::FORMAT.to_vec(), Some(Bytes::copy_from_slice(&FORMAT.to_le_bytes())))
}

/// Writes the bookkeeping of a new store. Revision 1 is the store's own making.
pub(crate) fn initialize(kv: &dyn OrderedKv, seams: &Seams) -> KvResult<()> {
    kv.commit(first_marks(seams, 1))?;
    kv.publish();
    Ok(())
}

/// The bookkeeping of a new store that stands at revision `last` and has no history.
pub(crate) fn first_marks(seams: &Seams, last: u64) -> Batch {
    let last = Bytes::copy_from_slice(&last.to_le_bytes());
    Batch::from([
        format_mark(),
        (meta::IDENTITY.to_vec(), Some(Bytes::copy_from_slice(seams.uid().as_bytes()))),
        (meta::LAST.to_vec(), Some(last.clone())),
        (meta::FLOOR.to_vec(), Some(last)),
    ])
}

#[cfg(test)]
mod tests {
    use portolan_types::LogicalClusterId;

    use super::*;
    use crate::{Expect, Objects, Transaction};

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
            let started = start(Base::in_memory(Box::new(kv)), &StoreConfig::new(Engine::Memory, None));
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
        let objects = Objects::new(open(config(), Seams::system()).unwrap());
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
