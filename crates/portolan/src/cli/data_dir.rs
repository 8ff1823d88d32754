//! Stores in data directories, and errors about them.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use portolan_store::{Engine, OpenError};

/// Returns the path of the store in a data directory.
pub(super) fn store_in(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

/// Returns the engine of the store in a data directory; `None` if there is none.
///
/// # Errors
/// Fails if the directory is missing, unreadable, or holds half a store.
pub(super) fn engine_in(data_dir: &Path) -> anyhow::Result<Option<Engine>> {
    match data_dir.try_exists() {
        Ok(true) => {}
        Ok(false) => return Err(anyhow!("there is no directory {}: is --data-dir right?", data_dir.display())),
        Err(source) => {
            return Err(explained(OpenError::Io { what: format!("looking for {}", data_dir.display()), source }));
        }
    }
    match portolan_store::find_engine(&store_in(data_dir)) {
        Ok(engine) => Ok(Some(engine)),
        Err(OpenError::NoStore(_) | OpenError::NoFolder(_)) => Ok(None),
        Err(other) => Err(explained(other)),
    }
}

/// Returns the error of opening a store, with an action if the error itself names none.
pub(super) fn explained(error: OpenError) -> anyhow::Error {
    match &error {
        OpenError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => anyhow::Error::from(error)
            .context("the data directory is another user's: run this as the user of the server, or as root"),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn missing_incomplete_and_unreadable_files_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let told = |data_dir: &Path| format!("{:#}", engine_in(data_dir).unwrap_err());
        let missing = told(&dir.path().join("nowhere"));
        assert!(missing.contains("there is no directory") && missing.contains("nowhere"), "{missing}");
        assert!(engine_in(dir.path()).unwrap().is_none(), "there is none yet");
        let store = store_in(dir.path());
        fs::create_dir(&store).unwrap();
        assert!(engine_in(dir.path()).unwrap().is_none(), "an empty folder is none");
        fs::create_dir(store.join("store.sled.restoring")).unwrap();
        let half = told(dir.path());
        assert!(half.contains("a snapshot was being restored here") && half.contains("store.sled.restoring"), "{half}");
        fs::write(store.join("store.redb"), []).unwrap();
        assert_eq!(engine_in(dir.path()).unwrap(), Some(Engine::Redb), "a store that is there counts");
        symlink("around", dir.path().join("around")).unwrap();
        let unseen = told(&dir.path().join("around"));
        assert!(unseen.contains("looking for"), "{unseen}");
        let denied = OpenError::Io { what: "looking for it".into(), source: ErrorKind::PermissionDenied.into() };
        let denied = explained(denied).to_string();
        assert!(denied.contains("run this as the user of the server"), "{denied}");
    }
}
