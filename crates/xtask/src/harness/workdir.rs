//! The folder of one run: data, logs and kubeconfigs of everything it starts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

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
        Ok(Self { path: dir.path().to_owned(), dir: Some(dir) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder on disk and says where it is.
    pub(crate) fn keep(&mut self) {
        if let Some(dir) = self.dir.take() {
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
