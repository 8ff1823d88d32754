//! Disk that freezes at its first failure.
//!
//! After a failed write or sync the content of the disk is unknown, and a retry would only look like success. So the
//! file is frozen for the next start to recover from, and redb's later writes stay in memory. redb sees no failure, so
//! its readers continue, and the engine asks [`DiskFailures`] before it reports anything as durable.
//!
//! A full disk has lost nothing that was synced: a second database may be opened on it once there is space, while
//! readers of the first continue.
//!
//! redb takes one failed read for the end of the disk, and fails all later reads. But an unreadable or damaged sector
//! concerns only its page. So once the database is open, unreadable bytes are replaced by bytes that are not a page.
//! redb panics on them, which `crate::engine::guard` turns into an error of that read; all other reads work.

use std::{
    collections::HashSet,
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ::redb::{BackendError, StorageBackend};
use parking_lot::Mutex;

use super::checksummed_file::ChecksummedFile;

/// Replacement for unreadable bytes: no page begins with it, and no length or offset made of it is valid.
const NO_PAGE: u8 = 0xff;
/// Most unreadable offsets of the file that are logged individually.
const MAX_LOGGED: usize = 1000;

/// Handle that tells if the disk has failed.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskFailures(Arc<FailureState>);

#[derive(Debug, Default)]
struct FailureState {
    frozen: AtomicBool,
    /// True once the database is open: until then a failed read fails the opening.
    opened: AtomicBool,
    state: Mutex<State>,
    /// Offsets that could not be read, as far as they were logged.
    unreadable: Mutex<HashSet<u64>>,
}

#[derive(Debug, Default)]
struct State {
    first: Option<FirstFailure>,
    overlay: WriteOverlay,
}

/// Failure that froze the disk.
#[derive(Debug)]
struct FirstFailure {
    what: &'static str,
    kind: io::ErrorKind,
    words: String,
}

impl DiskFailures {
    /// Returns the first failure of the disk.
    pub(super) fn first(&self) -> Option<crate::api::BackendError> {
        if !self.is_frozen() {
            return None;
        }
        let state = self.0.state.lock();
        let FirstFailure { what, kind, words } = state.first.as_ref()?;
        let source = io::Error::new(*kind, words.clone());
        Some(crate::api::BackendError { context: format!("{what}: {words}"), source: Some(Box::new(source)) })
    }

    /// Marks the database as open: from now on a failed read concerns only its page.
    pub(super) fn opened(&self) {
        self.0.opened.store(true, Ordering::Release);
    }

    fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Acquire)
    }

    fn log_unreadable(&self, offset: u64, error: &io::Error) {
        let mut known = self.0.unreadable.lock();
        if known.len() < MAX_LOGGED && known.insert(offset) {
            tracing::error!(offset, %error, "a part of the store's file cannot be read: restore a snapshot");
        }
    }
}

/// Writes since the failure.
#[derive(Debug, Default)]
struct WriteOverlay {
    len: u64,
    writes: Vec<(u64, Vec<u8>)>,
}

/// Disk that freezes at its first failure.
#[derive(Debug)]
pub(super) struct FailStopDisk {
    disk: Arc<ChecksummedFile>,
    failures: DiskFailures,
}

impl FailStopDisk {
    pub(super) fn new(disk: Arc<ChecksummedFile>) -> (Self, DiskFailures) {
        let failures = DiskFailures::default();
        (Self { disk, failures: failures.clone() }, failures)
    }

    /// Runs `real` while the disk works, and `instead` once it is frozen.
    fn change(
        &self,
        what: &'static str,
        real: impl FnOnce(&ChecksummedFile) -> io::Result<()>,
        instead: impl FnOnce(&mut WriteOverlay),
    ) -> io::Result<()> {
        let mut state = self.failures.0.state.lock();
        if state.first.is_none() {
            let Err(error) = real(&self.disk) else { return Ok(()) };
            tracing::error!(what, error = %error, "the disk failed: the store's file is frozen");
            state.overlay.len = self.disk.len()?;
            state.first = Some(FirstFailure { what, kind: error.kind(), words: error.to_string() });
            self.failures.0.frozen.store(true, Ordering::Release);
        }
        instead(&mut state.overlay);
        Ok(())
    }
}

impl StorageBackend for FailStopDisk {
    fn len(&self) -> io::Result<u64> {
        if self.failures.is_frozen() { Ok(self.failures.0.state.lock().overlay.len) } else { self.disk.len() }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let read = if self.failures.is_frozen() {
            read_overlaid(&self.disk, &self.failures.0.state.lock().overlay, offset, out)
        } else {
            self.disk.read(offset, out)
        };
        match read {
            Err(error) if self.failures.0.opened.load(Ordering::Acquire) => {
                self.failures.log_unreadable(offset, &error);
                out.fill(NO_PAGE);
                Ok(())
            }
            read => read,
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change("resizing the file", |disk| disk.set_len(len), |overlay| overlay.len = len)
    }

    fn sync_data(&self) -> io::Result<()> {
        // If there is no space for the checksums, nothing is lost yet.
        self.change("writing the file", ChecksummedFile::write_checksums, |_| {})?;
        // Whatever the reason, a failed sync may have lost data.
        let sync = |disk: &ChecksummedFile| disk.sync_data().map_err(|error| io::Error::other(error.to_string()));
        self.change("syncing the file", sync, |_| {})
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let keep = |overlay: &mut WriteOverlay| overlay.writes.push((offset, data.to_vec()));
        self.change("writing the file", |disk| disk.write(offset, data), keep)
    }

    // The lock of the data directory keeps other processes out. A lock of redb's own would prevent opening a second
    // database beside a frozen one.

    fn try_lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

fn read_overlaid(disk: &ChecksummedFile, overlay: &WriteOverlay, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let end = offset + out.len() as u64;
    let covers = |(at, data): &(u64, Vec<u8>)| *at <= offset && at + data.len() as u64 >= end;
    // A block that was rewritten entirely may be half-written on disk.
    let newest = overlay.writes.iter().rposition(covers);
    if newest.is_none() {
        let available = disk.len()?.saturating_sub(offset).min(out.len() as u64);
        let (on_disk, beyond) = out.split_at_mut(usize::try_from(available).unwrap_or(usize::MAX).min(out.len()));
        if !on_disk.is_empty() {
            disk.read(offset, on_disk)?;
        }
        beyond.fill(0);
    }
    for (at, data) in overlay.writes.iter().skip(newest.unwrap_or(0)) {
        let (from, to) = ((*at).max(offset), (at + data.len() as u64).min(end));
        if from < to {
            let (source, target) =
                ((from - at) as usize..(to - at) as usize, (from - offset) as usize..(to - offset) as usize);
            out[target].copy_from_slice(&data[source]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ::redb::backends::InMemoryBackend;

    use super::*;
    use crate::engine::redb::layout::BLOCK;

    #[test]
    fn after_a_failure_the_disk_stays_as_it_was_and_reads_see_the_rest() {
        #[derive(Debug)]
        struct FailsToSync(InMemoryBackend);
        impl StorageBackend for FailsToSync {
            fn len(&self) -> io::Result<u64> {
                self.0.len()
            }
            fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
                self.0.read(offset, out)
            }
            fn set_len(&self, len: u64) -> io::Result<()> {
                self.0.set_len(len)
            }
            fn sync_data(&self) -> io::Result<()> {
                Err(io::Error::new(io::ErrorKind::StorageFull, "no room"))
            }
            fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
                self.0.write(offset, data)
            }
        }
        let below = Arc::new(ChecksummedFile::on(Arc::new(FailsToSync(InMemoryBackend::new()))).unwrap());
        let (disk, failures) = FailStopDisk::new(below.clone());
        let page = |letter: u8| vec![letter; BLOCK];
        let at = |page: u64| page * BLOCK as u64;
        below.opened(false).unwrap();
        let read = |disk: &dyn StorageBackend, page| {
            let mut out = vec![9; BLOCK];
            disk.read(at(page), &mut out).map(|()| out[0])
        };
        disk.set_len(at(3)).unwrap();
        disk.write(at(1), &page(b'a')).unwrap();
        disk.write(at(2), &page(b'b')).unwrap();
        assert!(failures.first().is_none());
        disk.sync_data().unwrap();
        let failure = failures.first().unwrap();
        assert!(failure.to_string().contains("no room") && !failure.is_full(), "a failed sync is never trusted again");
        disk.write(at(2), &page(b'c')).unwrap();
        disk.set_len(at(5)).unwrap();
        disk.write(at(3), &page(b'd')).unwrap();
        let seen = [1, 2, 3, 4].map(|page| read(&disk, page).unwrap());
        assert_eq!(seen, [b'a', b'c', b'd', 0]);
        assert_eq!([1, 2].map(|page| read(&*below, page).unwrap()), *b"ab");
        assert_eq!((below.len().unwrap(), disk.len().unwrap()), (at(3), at(5)));
    }

    #[test]
    fn of_a_page_that_was_written_half_readers_see_all() {
        /// Writes half of the last write.
        #[derive(Debug)]
        struct Half(InMemoryBackend);
        impl StorageBackend for Half {
            fn len(&self) -> io::Result<u64> {
                self.0.len()
            }
            fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
                self.0.read(offset, out)
            }
            fn set_len(&self, len: u64) -> io::Result<()> {
                self.0.set_len(len)
            }
            fn sync_data(&self) -> io::Result<()> {
                self.0.sync_data()
            }
            fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
                match data.first() {
                    Some(b'b') => self.0.write(offset, &data[..data.len() / 2]).and(Err(io::Error::other("EIO"))),
                    _ => self.0.write(offset, data),
                }
            }
        }
        let below = Arc::new(ChecksummedFile::on(Arc::new(Half(InMemoryBackend::new()))).unwrap());
        let (disk, failures) = FailStopDisk::new(below.clone());
        let (page, mut out) = (BLOCK as u64, vec![0; BLOCK]);
        disk.set_len(2 * page).unwrap();
        disk.write(page, &[b'a'; BLOCK]).unwrap();
        below.opened(false).unwrap();
        failures.opened();
        disk.write(page, &[b'b'; BLOCK]).unwrap();
        disk.read(page, &mut out).unwrap();
        assert_eq!(out, [b'b'; BLOCK]);
        assert_eq!(below.read(page, &mut out).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
