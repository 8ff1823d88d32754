//! Part file of an incomplete snapshot.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, Read as _},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, bail};
use portolan_store::{PartialSnapshot, SnapshotSummary};

use super::accepted;
use crate::cli::workspaces::inspect_named;

/// Returns the resumable part of a file.
pub(super) fn begun_in(part: &Path) -> Option<PartialSnapshot> {
    portolan_store::read_partial(BufReader::new(File::open(part).ok()?))
}

/// Returns the part of an interrupted snapshot.
///
/// # Errors
/// Fails if another process writes it and has it locked.
pub(super) fn left_in(part: &Path) -> anyhow::Result<Option<PartialSnapshot>> {
    let Ok(left) = File::open(part) else { return Ok(None) };
    match left.try_lock_shared() {
        Err(TryLockError::WouldBlock) => bail!("{} is being written by another snapshot save", part.display()),
        // File systems without locks cannot exclude other processes.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(portolan_store::read_partial(BufReader::new(left))),
    }
}

/// Opens a new part file. A snapshot holds every Secret, so an existing file is not reused: its content is copied
/// first, and the file stays until that is done.
pub(super) fn part_file(path: &Path, begun: Option<&PartialSnapshot>) -> anyhow::Result<File> {
    let (Some(PartialSnapshot { bytes, .. }), Ok(before)) = (begun, File::open(path)) else {
        return private_file(path).with_context(|| format!("{} cannot be written", path.display()));
    };
    let copy = path.with_added_extension("new");
    let mut made = private_file(&copy).with_context(|| format!("{} cannot be written", copy.display()))?;
    let copied = io::copy(&mut before.take(*bytes), &mut made).and_then(|_| fs::rename(&copy, path));
    if let Err(error) = copied {
        let _ = fs::remove_file(&copy);
        return Err(error).with_context(|| format!("{} cannot be copied", path.display()));
    }
    Ok(made)
}

/// Renames the part to the file if it is a complete snapshot, or may lack the objects that it lacks; removes it
/// otherwise. `named` tells that it was renamed.
pub(super) fn finish(
    out: &File,
    part: &Path,
    file: &Path,
    skip_damaged: bool,
    named: &AtomicBool,
) -> anyhow::Result<SnapshotSummary> {
    out.sync_all().with_context(|| format!("{} cannot be synced", part.display()))?;
    let written = File::open(part).with_context(|| format!("{} cannot be read", part.display()))?;
    let summary = inspect_named(BufReader::new(written)).map_err(anyhow::Error::from);
    let summary = summary.and_then(|summary| accepted(summary, skip_damaged));
    let summary = summary.inspect_err(|_| drop(fs::remove_file(part)))?;
    named.store(true, Ordering::Release);
    fs::rename(part, file).with_context(|| format!("{} cannot be moved there", part.display()))?;
    sync_dir_of(file).context("its name cannot be synced")?;
    Ok(summary)
}

/// Makes a new file that only its owner can read, and locks it if possible.
fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let _ = made.try_lock();
    Ok(made)
}

/// Syncs the directory, so that the name survives a loss of power.
fn sync_dir_of(file: &Path) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}
