//! Opening a store: the data directory's lock, the engine's files, the format's version.

mod directory;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, Seams};

use self::directory::{Locked, prepare};
use crate::{
    BackendError, DynStore, StoreError,
    committer::Committer,
    core::Core,
    embedded::{EmbeddedStore, Writer},
    hub::{Hub, RingBudget},
    inline::Inline,
    keys::{self, meta},
    kv::{Batch, KvResult, MemoryKv, OrderedKv, View, failed, read},
    metrics::Metrics,
    read::{Marks, marks},
    resources::{self, Resources},
};

/// The version of the shared layout. A store of a newer one is refused.
const FORMAT: u32 = 1;

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
    /// Bytes of events that all watched resources keep together, beyond 64 KiB each.
    pub all_rings_bytes: usize,
    /// After this time the outcome of a write that the engine has not answered is called unknown.
    pub commit_timeout: Duration,
    /// Where metrics are registered.
    pub registry: Option<prometheus::Registry>,
}

impl StoreConfig {
    /// An engine with the default bounds: 16 MiB of cache, 2 MiB for a ring, 32 MiB for all, 30 seconds for a write.
    pub fn new(engine: Engine, dir: Option<PathBuf>) -> Self {
        Self {
            engine,
            dir,
            cache_bytes: 16 << 20,
            ring_bytes: 2 << 20,
            all_rings_bytes: 32 << 20,
            commit_timeout: Duration::from_secs(30),
            registry: None,
        }
    }
}

/// Why a store was not opened. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The engine needs a data directory.
    #[error("the {0:?} engine needs a data directory")]
    NoDirectory(Engine),
    /// Another process has it open.
    #[error("the data directory {0} is in use by another process")]
    InUse(PathBuf),
    /// The directory holds the store of another engine.
    #[error("the data directory {dir} holds a store of the {found:?} engine")]
    OtherEngine {
        /// The data directory.
        dir: PathBuf,
        /// Whose files are in it.
        found: Engine,
    },
    /// The store was written by a newer version.
    #[error("the store has format {found}, this version knows formats up to {FORMAT}; use the version that wrote it")]
    NewerFormat {
        /// The format on disk.
        found: u32,
    },
    /// The files are not those of a store, or not whole.
    #[error("the store in {dir} is damaged, restore it from a snapshot: {what}")]
    Damaged {
        /// The data directory.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The directory or a file cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's words.
        source: std::io::Error,
    },
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
    let Locked { kv, lock, dir } = match config.engine {
        Engine::Memory => in_memory(&seams)?,
        Engine::Redb | Engine::Sled => prepare(&config, &seams)?,
    };
    start(kv, lock, &config).map_err(|refusal| refusal.in_directory(dir))
}

/// A new store in memory with the default bounds. It runs in its callers' threads and needs no runtime.
pub fn memory() -> DynStore {
    memory_with(StoreConfig::new(Engine::Memory, None))
}

/// A new store in memory.
pub fn memory_with(config: StoreConfig) -> DynStore {
    open(StoreConfig { engine: Engine::Memory, ..config }, Seams::system()).expect("a map in memory opens")
}

fn in_memory(seams: &Seams) -> Result<Locked, OpenError> {
    let (kv, dir) = (MemoryKv::default(), PathBuf::new());
    initialize(&kv, seams).map_err(|error| OpenError::Damaged { dir: dir.clone(), what: error.context })?;
    Ok(Locked { kv: Box::new(kv), lock: None, dir })
}

/// Why an engine's content was not accepted.
pub(crate) enum Refusal {
    Damaged(String),
    NewerFormat(u32),
    Metrics(prometheus::Error),
    Thread(std::io::Error),
}

impl Refusal {
    fn in_directory(self, dir: PathBuf) -> OpenError {
        match self {
            Self::Damaged(what) => OpenError::Damaged { dir, what },
            Self::NewerFormat(found) => OpenError::NewerFormat { found },
            Self::Metrics(error) => OpenError::Metrics(error),
            Self::Thread(source) => OpenError::Io { what: "starting the committer".into(), source },
        }
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self::Damaged(error.context)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Starts a store on an engine that has been opened.
pub(crate) fn start(
    kv: Box<dyn OrderedKv>,
    lock: Option<std::fs::File>,
    config: &StoreConfig,
) -> Result<DynStore, Refusal> {
    let found = read(&*kv, load)??;
    let budget = RingBudget { each: config.ring_bytes, all: config.all_rings_bytes };
    let metrics = Metrics::new(config.registry.as_ref()).map_err(Refusal::Metrics)?;
    let core = Arc::new(Core {
        hub: Hub::new(found.marks, budget, metrics.watchers.clone()),
        resources: found.resources,
        metrics,
        stopped: std::sync::OnceLock::new(),
        kv,
    });
    let writer = match core.kv.is_in_memory() {
        true => Writer::Inline(Inline::default()),
        false => Writer::Thread(Committer::start(core.clone(), found.sweeps, lock).map_err(Refusal::Thread)?),
    };
    Ok(Arc::new(EmbeddedStore { core, writer, commit_timeout: config.commit_timeout }))
}

/// Writes the marks of a new store. Revision 1 is the store's own making.
pub(crate) fn initialize(kv: &dyn OrderedKv, seams: &Seams) -> KvResult<()> {
    let first = Bytes::copy_from_slice(&1u64.to_le_bytes());
    kv.commit(Batch::from([
        (meta::FORMAT.to_vec(), Some(Bytes::copy_from_slice(&FORMAT.to_le_bytes()))),
        (meta::IDENTITY.to_vec(), Some(Bytes::copy_from_slice(seams.uid().as_bytes()))),
        (meta::LAST.to_vec(), Some(first.clone())),
        (meta::FLOOR.to_vec(), Some(first)),
    ]))?;
    kv.publish();
    Ok(())
}

/// What a store needs to know of its own before it starts.
struct Found {
    marks: Marks,
    resources: Resources,
    sweeps: Vec<LogicalClusterId>,
}

fn load(view: &dyn View) -> Result<Found, Refusal> {
    let format = view.get(meta::FORMAT)?.and_then(|bytes| bytes.as_ref().try_into().ok()).map(u32::from_le_bytes);
    match format {
        Some(FORMAT) => {}
        Some(newer) if newer > FORMAT => return Err(Refusal::NewerFormat(newer)),
        Some(_) | None => return Err(Refusal::Damaged("it has no format version".into())),
    }
    let resources = Resources::default();
    each(view, meta::RESOURCES, |key, value| {
        let id = meta::number(key).map(u32::from_be_bytes)?;
        resources.add(id, resources::decode(value)?);
        Some(())
    })?;
    let mut sweeps = Vec::new();
    each(view, meta::SWEEPS, |key, _| {
        sweeps.push(LogicalClusterId::new(u64::from_be_bytes(meta::number(key)?)));
        Some(())
    })?;
    Ok(Found { marks: marks(view)?, resources, sweeps })
}

fn each(view: &dyn View, prefix: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Option<()>) -> KvResult<()> {
    let mut cursor = view.scan(prefix, &keys::end_of(prefix))?;
    while let Some(key) = cursor.key() {
        take(key, cursor.value()).ok_or_else(|| failed("an entry of the store's bookkeeping is malformed"))?;
        cursor.advance()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_store_of_a_known_format_starts() {
        for (case, format, accepted) in [
            ("its own format", Some(FORMAT), true),
            ("a newer format", Some(FORMAT + 1), false),
            ("an older format that never was", Some(0), false),
            ("no format", None, false),
        ] {
            let kv = MemoryKv::default();
            initialize(&kv, &Seams::system()).unwrap();
            let format = format.map(|format: u32| Bytes::copy_from_slice(&format.to_le_bytes()));
            kv.commit(Batch::from([(meta::FORMAT.to_vec(), format)])).unwrap();
            kv.publish();
            let started = start(Box::new(kv), None, &StoreConfig::new(Engine::Memory, None));
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
}
