//! Disk space that is left for writes: free space on the disk, and reusable space in the engine's files.
//!
//! Deletions return little or nothing to the disk: redb keeps its file, and reuses its free pages. So a nearly full
//! disk still has space for as many bytes. sled reuses space too, but first takes several times as much of the disk.

mod estimate;
mod gauges;
mod scan;
#[cfg(test)]
mod tests;

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use portolan_types::MonotonicInstant;
use prometheus::{IntGauge, Opts, core::Collector};

pub(crate) use self::estimate::{estimated_freed, estimated_write};
use self::{
    estimate::estimated_pages,
    gauges::DiskGauges,
    scan::{FreePageScan, ScanState},
};
use crate::{
    api::{BackendError, shortage::SpaceShortage},
    engine::{
        Batch, KvResult,
        files::{disk_usage, free_disk_space},
    },
    write::gate::WritePurpose,
};

/// Bytes of redb's file per byte of checksums.
const BYTES_PER_CHECKSUM_BYTE: u64 = 1024;

/// Pause between two scans for free pages: the shortest one, and the multiple of the duration of a scan.
const SCAN_PAUSE: (Duration, u32) =
    if cfg!(test) { (Duration::from_millis(1), 1) } else { (Duration::from_secs(2), 20) };

/// Disk with the files of an engine.
pub(crate) trait StorageDisk: Send + Sync {
    /// Returns the free bytes that an unprivileged process may use.
    fn free(&self) -> io::Result<u64>;

    /// Returns the bytes that the engine's files take.
    fn taken(&self) -> io::Result<u64>;
}

/// File or directory of an engine.
pub(crate) struct EngineFiles(pub(crate) PathBuf);

impl StorageDisk for EngineFiles {
    fn free(&self) -> io::Result<u64> {
        free_disk_space(&self.0)
    }

    fn taken(&self) -> io::Result<u64> {
        disk_usage(&self.0)
    }
}

/// Disk of an engine in memory, which is never full.
struct UnlimitedDisk;

impl StorageDisk for UnlimitedDisk {
    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn taken(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// Disk space for writes. Writes are refused before it is used up, because an engine that runs out of space within a
/// commit must be opened again.
pub(crate) struct DiskSpace {
    reserve: u64,
    disk: Arc<dyn StorageDisk>,
    /// Approximate bytes of free pages in the engine's files, known from scans and compactions.
    reusable: AtomicU64,
    scan: Mutex<ScanState>,
}

impl DiskSpace {
    pub(crate) fn on(disk: impl StorageDisk + 'static, reserve: u64) -> Self {
        let scan = Mutex::new(ScanState::Paused(MonotonicInstant::now()));
        Self { reserve, disk: Arc::new(disk), reusable: AtomicU64::new(0), scan }
    }

    pub(crate) fn unlimited() -> Self {
        Self::on(UnlimitedDisk, 0)
    }

    /// Returns the bytes that the transactions of a batch may write, in the unit of [`estimated_write`]: a quarter of
    /// the free space beyond the part that is reserved for deletions; for deletions, a quarter of all free space. An
    /// engine takes up to twice as much for runs of pages, inner pages and checksums, and slices of maintenance come on
    /// top. No limit if the free space is unknown.
    ///
    /// # Errors
    /// Fails if less is free than is reserved from writes of this purpose.
    pub(crate) fn batch_budget(&self, purpose: WritePurpose) -> Result<u64, BackendError> {
        let reserved = self.reserved_from(purpose);
        let left = if purpose == WritePurpose::MakeRoom { 0 } else { self.reserved_from(WritePurpose::MakeRoom) };
        match self.disk.free() {
            Ok(free) if free < reserved => Err(BackendError {
                context: format!("{free} bytes are left on the disk, {reserved} are kept back"),
                source: Some(Box::new(io::Error::from(ErrorKind::StorageFull))),
            }),
            Ok(free) => Ok((free - left) / 4),
            Err(_) => Ok(u64::MAX),
        }
    }

    /// Returns true if less than twice the reserve is free, so that only workspaces that store little may grow.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let reserved = self.reserved_from(WritePurpose::Any);
        self.disk.free().is_ok_and(|free| free < reserved.saturating_mul(2))
    }

    /// Returns the bytes of history that the disk has space for: a quarter of the free space beyond the reserve, since
    /// redb may take twice as much; but at least a quarter of the reserve. None while writes are refused for lack of
    /// space. Then, and shortly before, a hold cannot keep more than a quarter of the reserve.
    pub(crate) fn history_budget(&self, refuses_writes: bool) -> HistoryBudget {
        let Ok(free) = self.disk.free() else { return HistoryBudget { most: u64::MAX, held: None } };
        let least = self.reserve / 4;
        let most = if refuses_writes { 0 } else { (free.saturating_sub(self.reserve) / 4).max(least) };
        let is_short = refuses_writes || free < self.reserve.saturating_add(least);
        HistoryBudget { most, held: is_short.then_some(least) }
    }

    /// Adds freed pages of the engine's files to the reusable space. Not needed while the disk has enough free space.
    pub(crate) fn add_reusable(&self, bytes: u64) {
        if bytes > 0 && self.is_nearly_full() {
            self.reusable.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the free bytes that are reserved from writes of a purpose.
    fn reserved_from(&self, purpose: WritePurpose) -> u64 {
        let has_reusable = self.reusable.load(Ordering::Relaxed) > 0;
        match (purpose, has_reusable) {
            (WritePurpose::Any, false) => self.reserve,
            (WritePurpose::Leave, false) => self.reserve / 2,
            (WritePurpose::Any | WritePurpose::Leave, true) => self.reserve / 8 * 3,
            (WritePurpose::MakeRoom, false) => self.reserve / 4,
            (WritePurpose::MakeRoom, true) => self.reserve / 8,
        }
    }

    /// Returns the present shortage for a refused write.
    pub(crate) fn shortage(&self, purpose: WritePurpose) -> SpaceShortage {
        let [_, leave, deletions] = WritePurpose::EACH.map(|purpose| self.reserved_from(purpose));
        let free = self.disk.free().ok();
        SpaceShortage::Disk { free, wanted: self.reserved_from(purpose), leave, deletions }
    }

    /// Subtracts the pages of a batch that is about to be written from the reusable space.
    pub(crate) fn charge_batch(&self, batch: &Batch) {
        let mut state = self.scan.lock();
        let reusable = self.reusable.load(Ordering::Relaxed);
        if reusable > 0 || matches!(*state, ScanState::InProgress(_)) {
            let written =
                batch.iter().filter_map(|(key, value)| Some(estimated_pages(key, value.as_ref()?))).sum::<u64>();
            self.reusable.store(reusable.saturating_sub(written), Ordering::Relaxed);
            if let ScanState::InProgress(scan) = &mut *state {
                scan.written += written;
            }
        }
    }

    /// Returns true while a scan is in progress; the next [`StoreCore::scan_free_pages`] continues it.
    pub(crate) fn is_scanning(&self) -> bool {
        matches!(*self.scan.lock(), ScanState::InProgress(_))
    }

    /// Returns metrics that measure the disk at each scrape.
    ///
    /// # Errors
    /// Fails if Prometheus rejects a name.
    pub(crate) fn gauges(&self) -> prometheus::Result<impl Collector + use<>> {
        let free = "Bytes that are free on the disk of the data directory.";
        let size = Opts::new("apiserver_storage_size_bytes", "Bytes of the disk that the store's files take.");
        Ok(DiskGauges {
            disk: self.disk.clone(),
            free: IntGauge::new("portolan_store_free_bytes", free)?,
            taken: IntGauge::with_opts(size.const_label("storage_cluster_id", "local-0"))?,
        })
    }

    /// Takes the scan in progress, or begins one if it is due.
    fn take_scan(&self) -> Option<FreePageScan> {
        let mut state = self.scan.lock();
        match &mut *state {
            ScanState::InProgress(scan) => Some(std::mem::take(scan)),
            ScanState::Paused(until) if *until <= MonotonicInstant::now() => Some(FreePageScan::default()),
            ScanState::Paused(_) => None,
        }
    }

    /// Cancels a scan that is not needed any longer.
    fn cancel_scan(&self) {
        let mut state = self.scan.lock();
        if matches!(*state, ScanState::InProgress(_)) {
            *state = ScanState::Paused(MonotonicInstant::now());
        }
    }

    /// Ends a scan. A failed one keeps the previous result.
    fn end_scan(&self, scan: &FreePageScan, free_pages: KvResult<u64>) {
        match free_pages {
            Ok(bytes) => {
                if bytes > 0 {
                    tracing::info!(bytes, "the store's files have room for writes");
                }
                self.reusable.store(bytes, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!(%error, "the scan for free pages in the store's files failed"),
        }
        *self.scan.lock() = ScanState::Paused(MonotonicInstant::now() + SCAN_PAUSE.0.max(scan.took * SCAN_PAUSE.1));
    }

    /// Returns the bytes of free pages if `needed` bytes are in use; 0 if they are too few to matter.
    fn free_pages(&self, needed: u64) -> u64 {
        let taken = self.disk.taken().unwrap_or(0);
        let free_pages = taken.saturating_sub(needed + needed / BYTES_PER_CHECKSUM_BYTE);
        if free_pages < self.reserve / 8 { 0 } else { free_pages }
    }
}

/// Bytes of history that the disk has space for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryBudget {
    /// Most bytes of superseded objects.
    pub(crate) most: u64,
    /// Most bytes that a hold can keep; `None` for no limit.
    held: Option<u64>,
}

impl HistoryBudget {
    /// Returns true if `superseded` bytes are more than a hold can keep.
    pub(crate) fn ends_holds(self, superseded: u64) -> bool {
        self.held.is_some_and(|held| superseded > held)
    }
}
