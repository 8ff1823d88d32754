//! Files and folders of engines: their size on the disk, and durable names.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::Path,
};

/// Returns the free bytes on the disk of a directory that an unprivileged process may use.
///
/// # Errors
/// Returns the errors of the system call.
pub fn free_disk_space(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Returns the bytes of the disk that a file, or all files of a directory, take. Holes take none.
pub(crate) fn disk_usage(path: &Path) -> io::Result<u64> {
    let found = match fs::symlink_metadata(path) {
        // Engines may remove a file at any time.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        found => found?,
    };
    if found.is_dir() {
        return fs::read_dir(path)?.map(|entry| disk_usage(&entry?.path())).sum();
    }
    #[cfg(unix)]
    let taken = std::os::unix::fs::MetadataExt::blocks(&found) * 512;
    #[cfg(not(unix))]
    let taken = found.len();
    Ok(taken)
}

/// Maps the empty parent of a relative path to `.`.
pub(crate) fn as_folder(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Syncs the names in a folder.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
