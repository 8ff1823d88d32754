//! Replacement of an embedded store by one whose objects are stored as the present keys store them. A new file has
//! neither the history nor the free pages in which earlier bytes would stay.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use portolan_types::Seams;

use super::{keyring::Keyring, resealed::ResealedStore};
use crate::{
    api::OnDamage,
    open::{DataDirLock, OpenError, StoreConfig, open_to_replace},
    snapshot::{SnapshotCounter, SnapshotError, SnapshotSummary, restore, save},
};

/// Failure to replace a store. The store is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The objects cannot be read or written.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A file cannot be written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ReplaceError {
    let path = path.to_owned();
    move |source| ReplaceError::Io { path, source }
}

/// Replaces an unused embedded store in `config.dir`. Its revision is raised as in a restore, so watches list again.
/// The new store and a snapshot need as much disk space as the store.
///
/// # Errors
/// A store that is in use or damaged, an object that no key opens, or a disk that is full.
pub async fn rewrite_embedded(
    config: StoreConfig,
    keyring: Keyring,
    seams: &Seams,
    counter: Option<&SnapshotCounter>,
) -> Result<SnapshotSummary, ReplaceError> {
    let dir = config.dir.clone().unwrap_or_default();
    let [fresh, file] = rewrite_paths(&dir);
    let fresh_config = StoreConfig::new(config.engine, Some(fresh.clone()));
    // No process may write to the store before the new one is in its place.
    let (store, old_lock) = open_to_replace(config, seams)?;
    // Leftovers of an interrupted attempt.
    remove(&fresh)?;
    remove(&file)?;
    let sealed = ResealedStore::new(store.clone(), keyring, seams.clone());
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(&file).map_err(at(&file))?;
    let mut out = BufWriter::new(created);
    let saved = save(&sealed, seams, OnDamage::Fail, &mut out).await;
    let written = saved.and_then(|summary| Ok(out.flush().map(|()| summary)?));
    let restored = written.and_then(|_| {
        let input = BufReader::new(File::open(&file)?);
        restore(&fresh_config, seams, input, counter)
    });
    store.close().await;
    drop((sealed, store));
    remove(&file)?;
    let summary = restored.inspect_err(|_| drop(fs::remove_dir_all(&fresh)))?;
    let new_lock = DataDirLock::of(&fresh)?;
    exchange(&fresh, &dir)?;
    // The old store now has the name of the new one.
    remove(&fresh)?;
    drop((old_lock, new_lock));
    Ok(summary)
}

/// Returns the paths that a rewrite of a store uses: the directory of the new store, and a snapshot.
fn rewrite_paths(dir: &Path) -> [PathBuf; 2] {
    ["rewritten", "rewritten.snapshot"].map(|ending| dir.with_extension(ending))
}

/// Returns what an interrupted rewrite of a store left behind. It may be the earlier store, with plain objects; the
/// next rewrite removes it.
pub fn interrupted_rewrite(dir: &Path) -> Option<PathBuf> {
    rewrite_paths(dir).into_iter().find(|path| path.exists())
}

/// Exchanges two directories in one step, durably.
fn exchange(one: &Path, other: &Path) -> Result<(), ReplaceError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(|error| at(other)(error.into()))?;
    let parent = other.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(at(parent))
}

/// Removes a file or a directory, if it exists.
fn remove(path: &Path) -> Result<(), ReplaceError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
