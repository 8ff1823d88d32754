//! Folder of one run: data, logs and kubeconfigs of all its processes.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Folders of this process that are removed when dropped, for [`remove_all`].
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the folders when the process ends without drops.
pub fn remove_all() {
    for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // Children that were just killed may still have written: leftovers in a temporary folder do no harm.
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Folder that is removed when dropped, unless [`WorkDir::keep`] was called or the thread is panicking.
pub struct WorkDir {
    dir: Option<TempDir>,
    path: PathBuf,
}

impl WorkDir {
    /// Creates `$TMPDIR/portolan-<purpose>-…`.
    pub fn new(purpose: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("portolan-{purpose}-"))
            .tempdir()
            .context("cannot make a temporary folder")?;
        let path = dir.path().to_owned();
        FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        Ok(Self { dir: Some(dir), path })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder on disk and prints its path.
    pub fn keep(&mut self) {
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
