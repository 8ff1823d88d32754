//! Data directories: the lock and the mark of a server whose objects are in etcd, and refusals of directories that do
//! not fit the storage.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use anyhow::{Context as _, bail};
use portolan_store::Engine;

/// File that marks the data directory of a server with objects in etcd.
const MARK: &str = "etcd.mark";

/// File that a server with objects in etcd locks, to keep others from its address and certificates.
const LOCK: &str = "server.lock";

/// Refuses a data directory with an embedded store, whose objects would be missing.
pub(crate) fn refuse_embedded_store(data_dir: &Path) -> anyhow::Result<()> {
    let store = data_dir.join("store");
    if store.exists() {
        bail!("{} holds a store of its own; name another --data-dir, or move it by snapshot", data_dir.display());
    }
    Ok(())
}

/// Locks the data directory of a server with objects in etcd, for as long as the file is open.
///
/// # Errors
/// Fails if another server holds the lock, or the directory cannot be written.
pub fn lock(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join(LOCK);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
    let opened =
        made.and_then(|()| OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path));
    let lock = opened.with_context(|| format!("{} cannot be written", path.display()))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => bail!("{} is in use by another process", data_dir.display()),
        // A file system without locks cannot keep a second server out.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

/// Returns true if a server holds the data directory with [`lock`].
pub fn is_locked(data_dir: &Path) -> bool {
    let lock = File::open(data_dir.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Marks a data directory of a server whose objects are in etcd.
pub fn mark_etcd(data_dir: &Path) -> anyhow::Result<()> {
    let mark = data_dir.join(MARK);
    let text = "The objects of this server are in etcd (--store etcd).\n";
    fs::write(&mark, text).with_context(|| format!("{} cannot be written", mark.display()))
}

/// Refuses a data directory whose objects are in etcd, where an embedded store would be empty.
pub fn refuse_etcd_data_dir(data_dir: &Path) -> anyhow::Result<()> {
    let mark = data_dir.join(MARK);
    if mark.exists() {
        bail!(
            "the objects of {} are in etcd: --store etcd; to have others here in a store of its own, remove {}",
            data_dir.display(),
            mark.display()
        );
    }
    Ok(())
}

/// Refuses the memory engine in a data directory with a store, whose objects would be missing. Logs that memory keeps
/// nothing.
pub(crate) fn refuse_memory_engine(engine: Engine, data_dir: &Path) -> anyhow::Result<()> {
    if engine != Engine::Memory {
        return Ok(());
    }
    if let Some(found) = portolan_store::engine_in(&data_dir.join("store")) {
        bail!("{} holds a store of the {found} engine: --store {found}", data_dir.display());
    }
    tracing::warn!("--store memory: all objects are lost when the server stops");
    Ok(())
}

#[cfg(test)]
mod tests {
    use portolan_store::StoreConfig;
    use portolan_types::Seams;

    use super::*;

    #[test]
    fn a_directory_with_a_store_of_its_own_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        refuse_embedded_store(folder.path()).unwrap();
        refuse_etcd_data_dir(folder.path()).unwrap();
        mark_etcd(folder.path()).unwrap();
        let refused = refuse_etcd_data_dir(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("--store etcd") && refused.contains("etcd.mark"), "{refused}");
        fs::create_dir(folder.path().join("store")).unwrap();
        assert!(refuse_embedded_store(folder.path()).is_err());
    }

    #[test]
    fn memory_is_refused_where_a_store_lies() {
        let folder = tempfile::tempdir().unwrap();
        refuse_memory_engine(Engine::Memory, folder.path()).unwrap();
        let config = StoreConfig::new(Engine::Sled, Some(folder.path().join("store")));
        drop(portolan_store::open(config, Seams::system()).unwrap());
        let refused = refuse_memory_engine(Engine::Memory, folder.path()).unwrap_err().to_string();
        assert!(refused.ends_with("holds a store of the sled engine: --store sled"), "{refused}");
        refuse_memory_engine(Engine::Sled, folder.path()).unwrap();
    }
}
