//! The file that a snapshot is written into before it is one.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, Read as _},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, bail};
use portolan_store::{Begun, Snapshot};

use super::accepted;
use crate::cli::workspaces::inspect_named;

/// What of it can be gone on with.
pub(super) fn begun_in(part: &Path) -> Option<Begun> {
    portolan_store::begun(BufReader::new(File::open(part).ok()?))
}

/// What an earlier one left to go on with.
///
/// # Errors
/// When it is not left: whoever writes it has it locked.
pub(super) fn left_in(part: &Path) -> anyhow::Result<Option<Begun>> {
    let Ok(left) = File::open(part) else { return Ok(None) };
    match left.try_lock_shared() {
        Err(TryLockError::WouldBlock) => bail!("{} is being written by another snapshot save", part.display()),
        // Where files cannot be locked, nobody is kept out.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(portolan_store::begun(BufReader::new(left))),
    }
}

/// A snapshot holds every Secret: what an earlier one left, or somebody else laid there, is not written into. What there is of
/// it is copied, and stays where it is until that is done.
pub(super) fn part_file(path: &Path, begun: Option<&Begun>) -> anyhow::Result<File> {
    let (Some(Begun { bytes, .. }), Ok(before)) = (begun, File::open(path)) else {
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

/// Makes the part the file, when it is a whole snapshot, or what was left out may be: else it is none to go on with, and goes. `named`
/// tells that there is no part any more because it has its name.
pub(super) fn finish(
    out: &File,
    part: &Path,
    file: &Path,
    skip_damaged: bool,
    named: &AtomicBool,
) -> anyhow::Result<Snapshot> {
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

/// A new file that its owner alone can read, locked as far as that can be.
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

/// So that the name is there also after a loss of power.
fn sync_dir_of(file: &Path) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}
