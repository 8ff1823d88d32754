//! The room that is left for writes: on the disk, and within the engine's own files.
//!
//! What is deleted gives little or nothing back to the disk: redb keeps its file, and writes into what it no longer needs of it. So a
//! disk that is nearly full has room for as much as that is. sled does so, too, but takes several times as much of the disk first.

#[cfg(test)]
mod tests;

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus::{
    IntGauge, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::{
    BackendError,
    core::Core,
    gate::Purpose,
    kv::{Batch, KvResult, View},
};

/// Bytes of a page of redb's: a larger value has a run of them that is a power of two.
const PAGE: u64 = 4096;
/// Bytes of redb's file for one byte of checksums beside them.
const CHECKED: u64 = 1024;

/// How long after a look into the engine's files the next one begins, at least; and how many times longer than it took.
const PAUSE: (Duration, u32) = match cfg!(test) {
    true => (Duration::from_millis(1), 1),
    false => (Duration::from_secs(2), 20),
};
/// Bytes, and pairs, that one slice of a look reads, give or take a pair.
const SLICE: (u64, usize) = (8 << 20, 8192);

/// A disk with an engine's files.
pub(crate) trait Disk: Send + Sync {
    /// Bytes that are free, for those without privileges.
    fn free(&self) -> io::Result<u64>;

    /// Bytes that the engine's files take.
    fn taken(&self) -> io::Result<u64>;
}

/// What there is too little room for. All numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Of the disk.
    Disk {
        /// What is free, where the system tells.
        free: Option<u64>,
        /// What must be free for what was refused.
        wanted: u64,
        /// What must be free for changes of what is being deleted.
        leave: u64,
        /// What must be free for deletions.
        deletions: u64,
    },
    /// Of etcd's database.
    Etcd,
}

impl Shortage {
    /// Whether there is room again, so that the same write is taken in a moment.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Disk { free: Some(free), wanted, .. } if free >= wanted)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match *self {
            Self::Etcd => f.write_str(
                "the disk is full: etcd's database has reached its quota, and no write is taken until there is room in it again",
            ),
            Self::Disk { free: None, .. } => f.write_str("the disk is full, and no write is taken until there is room again"),
            Self::Disk { free: Some(free), .. } if self.is_over() => {
                write!(f, "the disk was full, and has {} MiB free again: writes are taken in a moment", mib(free))
            }
            Self::Disk { free: Some(free), wanted, leave, deletions } => {
                let (free, wanted) = (mib(free), mib(wanted));
                match free {
                    free if free >= mib(leave) => write!(
                        f,
                        "the disk is nearly full, {free} MiB are free and this needs {wanted} MiB: only deletions, and changes of what \
                         is being deleted, are taken until there is room again"
                    ),
                    free if free >= mib(deletions) => write!(
                        f,
                        "the disk is nearly full, {free} MiB are free and this needs {wanted} MiB: only deletions are taken until \
                         there is room again"
                    ),
                    free => write!(
                        f,
                        "the disk is full, {free} MiB are free and this needs {wanted} MiB: no write is taken until there is room again"
                    ),
                }
            }
        }
    }
}

/// Bytes that are free on the disk of a folder, for those without privileges.
///
/// # Errors
/// What the system says of the folder.
pub fn free_room(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// A file or folder of an engine's, and the disk that it is on.
pub(crate) struct Files(pub(crate) PathBuf);

impl Disk for Files {
    fn free(&self) -> io::Result<u64> {
        free_room(&self.0)
    }

    fn taken(&self) -> io::Result<u64> {
        blocks(&self.0)
    }
}

/// Bytes of the disk that a file takes, or all files of a folder. Holes take none.
pub(crate) fn blocks(path: &Path) -> io::Result<u64> {
    let found = match fs::symlink_metadata(path) {
        // Engines remove files of theirs at any time.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        found => found?,
    };
    if found.is_dir() {
        return fs::read_dir(path)?.map(|entry| blocks(&entry?.path())).sum();
    }
    #[cfg(unix)]
    let taken = std::os::unix::fs::MetadataExt::blocks(&found) * 512;
    #[cfg(not(unix))]
    let taken = found.len();
    Ok(taken)
}

/// Memory, of which there is always enough.
struct Unlimited;

impl Disk for Unlimited {
    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn taken(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// The room that is left. Writing stops before the last of it is used: an engine that runs out of room within a commit must be
/// opened again.
pub(crate) struct Room {
    reserve: u64,
    disk: Arc<dyn Disk>,
    /// Bytes that may be written into the engine's files without a need for more of the disk, about.
    within: AtomicU64,
    looking: Mutex<Looking>,
}

/// Looking how much of the engine's files is not needed.
enum Looking {
    UnderWay(Look),
    NotBefore(Instant),
}

/// A look that is under way, slice by slice: while a state is read, no page is used again that was given up since.
#[derive(Default)]
struct Look {
    /// Where the next slice begins.
    from: Vec<u8>,
    /// Bytes of the file that all needs which is stored before that, superseded states included.
    needed: u64,
    /// Those of what was written since the look began.
    written: u64,
    took: Duration,
}

impl Room {
    pub(crate) fn on(disk: impl Disk + 'static, reserve: u64) -> Self {
        let looking = Mutex::new(Looking::NotBefore(Instant::now()));
        Self { reserve, disk: Arc::new(disk), within: AtomicU64::new(0), looking }
    }

    pub(crate) fn unlimited() -> Self {
        Self::on(Unlimited, 0)
    }

    /// How much the transactions of a batch may write, in bytes as [`written`] counts them: a quarter of what is free beyond what is
    /// kept for what makes room, which may have a quarter of that. An engine takes up to twice as much (runs of pages that are a power
    /// of two, the inner pages above each, and their checksums), and a slice of each chore comes on top. No bound where the system cannot tell.
    ///
    /// # Errors
    /// When less than the reserve is left, or than the part of it that the purpose leaves.
    pub(crate) fn check(&self, purpose: Purpose) -> Result<u64, BackendError> {
        let kept = self.kept(purpose);
        let left = if purpose == Purpose::MakeRoom { 0 } else { self.kept(Purpose::MakeRoom) };
        match self.disk.free() {
            Ok(free) if free < kept => Err(BackendError {
                context: format!("{free} bytes are left on the disk, {kept} are kept back"),
                source: Some(Box::new(io::Error::from(ErrorKind::StorageFull))),
            }),
            Ok(free) => Ok((free - left) / 4),
            Err(_) => Ok(u64::MAX),
        }
    }

    /// Returns true while so little is left that it is for those who store little: as much again as the reserve.
    pub(crate) fn is_tight(&self) -> bool {
        let kept = self.kept(Purpose::Any);
        self.disk.free().is_ok_and(|free| free < kept.saturating_mul(2))
    }

    /// Bytes of the disk that are not for writes of a purpose.
    fn kept(&self, purpose: Purpose) -> u64 {
        let is_within = self.within.load(Ordering::Relaxed) > 0;
        match (purpose, is_within) {
            (Purpose::Any, false) => self.reserve,
            (Purpose::Leave, false) => self.reserve / 2,
            (Purpose::Any | Purpose::Leave, true) => self.reserve / 8 * 3,
            (Purpose::MakeRoom, false) => self.reserve / 4,
            (Purpose::MakeRoom, true) => self.reserve / 8,
        }
    }

    /// What there is too little of for a write that was refused, as it is now.
    pub(crate) fn shortage(&self, purpose: Purpose) -> Shortage {
        let [_, leave, deletions] = Purpose::EACH.map(|purpose| self.kept(purpose));
        let free = self.disk.free().ok();
        Shortage::Disk { free, wanted: self.kept(purpose), leave, deletions }
    }

    /// Counts a batch that is about to be written as one that uses room within the engine's files.
    pub(crate) fn use_for(&self, batch: &Batch) {
        let mut looking = self.looking.lock();
        let within = self.within.load(Ordering::Relaxed);
        if within > 0 || matches!(*looking, Looking::UnderWay(_)) {
            let written = batch.iter().filter_map(|(key, value)| Some(needed(key, value.as_ref()?))).sum::<u64>();
            self.within.store(within.saturating_sub(written), Ordering::Relaxed);
            if let Looking::UnderWay(look) = &mut *looking {
                look.written += written;
            }
        }
    }

    /// Whether a look is under way, and goes on at the next [`Core::look_into_files`].
    pub(crate) fn is_looking(&self) -> bool {
        matches!(*self.looking.lock(), Looking::UnderWay(_))
    }

    /// What it is measured by, as metrics that are measured whenever they are asked for.
    ///
    /// # Errors
    /// Never, but for names that Prometheus refuses.
    pub(crate) fn gauges(&self) -> prometheus::Result<impl Collector + use<>> {
        let free = "Bytes that are free on the disk of the data directory.";
        let size = Opts::new("apiserver_storage_size_bytes", "Bytes of the disk that the store's files take.");
        Ok(Gauges {
            disk: self.disk.clone(),
            free: IntGauge::new("portolan_store_free_bytes", free)?,
            taken: IntGauge::with_opts(size.const_label("storage_cluster_id", "local-0"))?,
        })
    }

    /// The look that is under way, or a new one when it is time for that.
    fn look(&self) -> Option<Look> {
        let mut looking = self.looking.lock();
        match &mut *looking {
            Looking::UnderWay(look) => Some(std::mem::take(look)),
            Looking::NotBefore(then) if *then <= Instant::now() => Some(Look::default()),
            Looking::NotBefore(_) => None,
        }
    }

    /// Forgets a look for which nobody waits any more.
    fn give_up(&self) {
        let mut looking = self.looking.lock();
        if matches!(*looking, Looking::UnderWay(_)) {
            *looking = Looking::NotBefore(Instant::now());
        }
    }

    /// Ends a look. Only one that failed leaves what was known before.
    fn end(&self, look: &Look, within: KvResult<u64>) {
        match within {
            Ok(within) => {
                if within > 0 {
                    tracing::info!(bytes = within, "the store's files have room for writes");
                }
                self.within.store(within, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!(%error, "room in the store's files cannot be looked for"),
        }
        *self.looking.lock() = Looking::NotBefore(Instant::now() + PAUSE.0.max(look.took * PAUSE.1));
    }

    /// Bytes of the engine's files beyond those that it needs, with their checksums; none where that is not worth while.
    fn unneeded(&self, needed: u64) -> u64 {
        let taken = self.disk.taken().unwrap_or(0);
        let unneeded = taken.saturating_sub(needed + needed / CHECKED);
        if unneeded < self.reserve / 8 { 0 } else { unneeded }
    }
}

impl Core {
    /// While room is waited for, looks from time to time how much of the engine's files is not needed: a slice in each call. To be
    /// called by the thread that writes.
    pub(crate) fn look_into_files(&self) {
        if !self.gate.is_short_of_room() || !self.kv.uses_files_again() {
            return self.room.give_up();
        }
        let Some(mut look) = self.room.look() else { return };
        let began = Instant::now();
        let is_over = self.look_further(&mut look);
        look.took += began.elapsed();
        let unneeded = self.room.unneeded(look.needed + look.written);
        match is_over {
            Ok(false) if unneeded > 0 => *self.room.looking.lock() = Looking::UnderWay(look),
            Ok(_) => self.room.end(&look, Ok(unneeded)),
            Err(error) => self.room.end(&look, Err(error)),
        }
    }

    /// Counts a slice, and tells whether it was the last one.
    fn look_further(&self, look: &mut Look) -> KvResult<bool> {
        let count = |view: &dyn View| {
            let mut cursor = view.scan(&look.from, &[u8::MAX])?;
            let (mut read, mut pairs) = (0, 0);
            while let Some(key) = cursor.key() {
                if read >= SLICE.0 || pairs >= SLICE.1 {
                    look.from = key.to_vec();
                    look.needed += read;
                    return Ok(false);
                }
                (read, pairs) = (read + needed(key, cursor.value()), pairs + 1);
                cursor.advance()?;
            }
            look.needed += read;
            Ok(true)
        };
        self.view(count)?
    }
}

/// How much is written of so many pairs with so many bytes in their values: a pair may be alone in a page that is written anew.
pub(crate) fn written(pairs: usize, bytes: u64) -> u64 {
    bytes + pairs as u64 * PAGE
}

/// About how many bytes of its file redb needs for a pair, rather too many than too few: pages of several pairs are half full at
/// least, and one that is larger has a run of pages, which it may share with up to a page of others. Inner pages
/// are left out.
fn needed(key: &[u8], value: &[u8]) -> u64 {
    let bytes = (key.len() + value.len()) as u64;
    if bytes < PAGE { bytes * 2 } else { (bytes + PAGE).next_power_of_two() }
}

/// Says how much room there is whenever metrics are read.
struct Gauges {
    disk: Arc<dyn Disk>,
    free: IntGauge,
    taken: IntGauge,
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        [self.free.desc(), self.taken.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let measured = [(&self.free, self.disk.free()), (&self.taken, self.disk.taken())];
        let told = measured.into_iter().filter_map(|(gauge, bytes)| {
            gauge.set(i64::try_from(bytes.ok()?).unwrap_or(i64::MAX));
            Some(gauge.collect())
        });
        told.flatten().collect()
    }
}
