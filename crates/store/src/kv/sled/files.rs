//! sled's folder: what is done before and after opening it.

use std::{
    fs::{self, File},
    io,
    path::Path,
    thread,
    time::Duration,
};

use ::sled::Db;

use super::fault;
use crate::kv::KvResult;

/// How often, and after which pause, opening is tried again while sled's own lock is held.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// Opens the database. sled's threads may still be letting go of one that this process has just closed; another process
/// cannot have it, because the data directory is locked.
pub(super) fn open(path: &Path, cache_bytes: usize) -> KvResult<Db> {
    let config = ::sled::Config::new()
        .path(path)
        .cache_capacity(cache_bytes as u64)
        .flush_every_ms(None)
        .mode(::sled::Mode::HighThroughput);
    let mut tries = 0;
    loop {
        match config.open() {
            Err(::sled::Error::Io(error)) if tries < TRIES && error.to_string().contains("lock") => {
                tries += 1;
                thread::sleep(PAUSE);
            }
            opened => return opened.map_err(fault("opening the store")),
        }
    }
}

/// Removes snapshots that a killed process was still writing: sled takes one for a whole one and refuses to start.
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

/// Syncs the files that sled makes, and their names.
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
