//! The folder of one run: data, logs and kubeconfigs of everything it starts.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The folders of this process that would be removed when dropped, for [`remove_all`].
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes what the drops would have removed, when the process ends without them.
pub(crate) fn remove_all() {
    for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // Children that have just been killed may still have been writing: a rest is no harm in a temporary folder.
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Removed when dropped, unless [`WorkDir::keep`] was called or the thread is panicking.
pub(crate) struct WorkDir {
    dir: Option<TempDir>,
    path: PathBuf,
}

impl WorkDir {
    /// Makes `$TMPDIR/portolan-<purpose>-…`.
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("portolan-{purpose}-"))
            .tempdir()
            .context("cannot make a temporary folder")?;
        let path = dir.path().to_owned();
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        Ok(Self { dir: Some(dir), path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder on disk and says where it is.
    pub(crate) fn keep(&mut self) {
        if let Some(dir) = self.dir.take() {
            FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).retain(|folder| folder != &self.path);
            eprintln!("logs and data are kept in {}", dir.keep().display());
        }
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep();
        }
    }
}
