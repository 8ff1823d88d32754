//! Files in sled's folder, and their preparation before and after opening.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::Path,
    thread,
    time::Duration,
};

use ::sled::Db;

use super::fault;
use crate::engine::KvResult;

/// Retries, and the pause between them, while sled's own lock is held.
const MAX_RETRIES: u32 = 1000;
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Opens the database. Threads of a database that this process has just closed may still hold sled's lock; another
/// process cannot, since the data directory is locked.
pub(super) fn open(path: &Path, cache_bytes: usize) -> KvResult<Db> {
    let config = ::sled::Config::new()
        .path(path)
        .cache_capacity(cache_bytes as u64)
        .flush_every_ms(None)
        .mode(::sled::Mode::HighThroughput);
    let mut tries = 0;
    loop {
        match config.open() {
            Err(::sled::Error::Io(error)) if tries < MAX_RETRIES && error.to_string().contains("lock") => {
                tries += 1;
                thread::sleep(RETRY_PAUSE);
            }
            opened => return opened.map_err(fault("opening the store")),
        }
    }
}

/// Removes snapshots that a killed process was writing: sled takes one for complete and refuses to start.
pub(super) fn remove_unfinished_snapshots(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Waits until sled's threads have released its files.
///
/// # Errors
/// Fails if they do not.
pub(super) fn wait_until_released(path: &Path) -> io::Result<()> {
    let file = File::open(path.join("db"))?;
    for _ in 0..MAX_RETRIES {
        match file.try_lock_shared() {
            Ok(()) => return file.unlock(),
            Err(TryLockError::WouldBlock) => thread::sleep(RETRY_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other("sled keeps its lock"))
}

/// Syncs the files that sled creates, and their names.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    for name in ["conf", "db"] {
        File::open(path.join(name))?.sync_all()?;
    }
    for dir in [Some(path.join("blobs")), Some(path.to_owned()), path.parent().map(Path::to_owned)] {
        if let Some(dir) = dir.filter(|dir| dir.exists()) {
            File::open(dir)?.sync_all()?;
        }
    }
    Ok(())
}

/// sled's log through a descriptor of this engine, used to sync it.
pub(super) struct LogFile {
    file: File,
    /// True if locks reveal failed syncs. Not if locks belong to processes instead of descriptors (NFS).
    is_told: bool,
}

impl LogFile {
    /// Opens the log of a folder that sled has open.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let is_told = locks_belong_to_descriptors(&path.join("conf"))?;
        if !is_told {
            tracing::warn!(path = %path.display(), "failures to flush the disk's cache may go unnoticed on this file system");
        }
        Ok(Self { file: File::open(path.join("db"))?, is_told })
    }

    /// Syncs what sled wrote.
    ///
    /// # Errors
    /// Fails if this sync fails, or if a sync by sled failed since it opened the log.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.sync_pages()?;
        self.check()
    }

    /// Syncs like [`Self::sync`] while sled does not have the log open: only Linux reports failures of sled's syncs
    /// then.
    pub(super) fn sync_pages(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// # Errors
    /// Fails if a sync of sled's failed since it opened the log: sled has lost its lock then (`sync.c`).
    pub(super) fn check(&self) -> io::Result<()> {
        if !self.is_told {
            return Ok(());
        }
        match self.file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => {
                self.file.unlock()?;
                Err(io::Error::other("the disk failed to sync a part of the log"))
            }
        }
    }
}

fn locks_belong_to_descriptors(path: &Path) -> io::Result<bool> {
    let [one, other] = [File::open(path)?, File::open(path)?];
    Ok(one.try_lock().is_ok() && matches!(other.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_its_lock_is_not_synced() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["conf", "db"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let of_sled = File::open(dir.path().join("db")).unwrap();
        of_sled.lock().unwrap();
        let log = LogFile::open(dir.path()).unwrap();
        assert!(log.is_told && log.sync().is_ok());
        of_sled.unlock().unwrap();
        for _ in 0..2 {
            assert_eq!(log.sync().unwrap_err().to_string(), "the disk failed to sync a part of the log");
        }
    }
}
