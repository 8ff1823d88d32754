//! Memory for the objects of all physical clusters, with limits per registration, per workspace, and in total.
//!
//! [`SyncMemoryBudget`] is shared by all syncers of a server. Each syncer has one [`RegistrationMemory`]; every holder
//! of its physical cluster's bytes has a [`SyncMemoryCharge`], which returns them on drop. A charge that does not fit
//! fails immediately and stops only its own syncer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_types::LogicalClusterId;

use crate::{client::DownstreamError, worker::SyncLimits};

/// Part of the budget that only registrations in root may take: a quarter.
const ROOT_PART: u64 = 4;

/// Budget of bytes of memory for the objects of all physical clusters of one server.
#[derive(Debug)]
pub struct SyncMemoryBudget {
    total: u64,
    usage: Mutex<BudgetUsage>,
}

/// Bytes that are taken now.
#[derive(Debug, Default)]
struct BudgetUsage {
    all: u64,
    /// Bytes of registrations outside root.
    outside_root: u64,
    by_workspace: HashMap<LogicalClusterId, u64>,
}

impl Default for SyncMemoryBudget {
    fn default() -> Self {
        Self::new(Self::DEFAULT_BYTES)
    }
}

impl SyncMemoryBudget {
    /// Default budget: 4 GiB.
    pub const DEFAULT_BYTES: u64 = 4 << 30;

    /// Creates a budget of `total` bytes. Registrations outside root may use three quarters of it, and those of one
    /// workspace at most half of the part that the other workspaces leave. Registrations of root may use the rest.
    pub fn new(total: u64) -> Self {
        Self { total, usage: Mutex::default() }
    }

    /// Returns the bytes that are taken now.
    pub fn used(&self) -> u64 {
        self.usage().all
    }

    fn usage(&self) -> MutexGuard<'_, BudgetUsage> {
        self.usage.lock().expect("no code panics under this lock")
    }

    /// Replaces a charge of `before` bytes by one of `after` bytes.
    ///
    /// # Errors
    /// The bound that would be exceeded; then nothing changes. A charge can always shrink.
    fn replace(&self, workspace: LogicalClusterId, before: u64, after: u64) -> Result<(), MemoryExcess> {
        let mut usage = self.usage();
        if after > before {
            self.check(&usage, workspace, after - before)?;
        }
        let move_to = |sum: u64| sum.saturating_sub(before).saturating_add(after);
        usage.all = move_to(usage.all);
        if workspace == LogicalClusterId::ROOT {
            return Ok(());
        }
        usage.outside_root = move_to(usage.outside_root);
        let taken = usage.by_workspace.entry(workspace).or_default();
        *taken = move_to(*taken);
        if *taken == 0 {
            usage.by_workspace.remove(&workspace);
        }
        Ok(())
    }

    fn check(&self, usage: &BudgetUsage, workspace: LogicalClusterId, more: u64) -> Result<(), MemoryExcess> {
        let fits = |taken: u64, most: u64| taken.saturating_add(more) <= most;
        if workspace != LogicalClusterId::ROOT {
            let taken = usage.by_workspace.get(&workspace).copied().unwrap_or_default();
            // A workspace may take as much as stays free (dynamic thresholds, Choudhury and Hahne): however many
            // workspaces use their maximum, there is room for one more.
            let pool = self.total - self.total / ROOT_PART;
            let share = pool.saturating_sub(usage.outside_root.saturating_sub(taken)) / 2;
            if !fits(taken, share) {
                return Err(MemoryExcess::Workspace { bytes: share });
            }
        }
        if fits(usage.all, self.total) { Ok(()) } else { Err(MemoryExcess::Server) }
    }
}

/// Bound that one more charge would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryExcess {
    /// Limits of one registration.
    Registration(SyncLimits),
    /// Share of the workspace of the registration.
    Workspace {
        /// Most bytes.
        bytes: u64,
    },
    /// Budget of the server.
    Server,
}

impl MemoryExcess {
    pub(crate) fn error(self) -> DownstreamError {
        let bound = match self {
            Self::Registration(SyncLimits { objects, bytes }) => format!(
                "at most {objects} objects with Portolan's label, taking {bytes} bytes of memory, are held of one physical cluster; \
                 nothing is synced there, and nothing deleted, until it has fewer"
            ),
            Self::Workspace { bytes } => format!(
                "the objects of all physical clusters that are registered in this workspace may take {bytes} bytes of memory; \
                 nothing is synced there, and nothing deleted, until they have fewer"
            ),
            Self::Server => {
                "the objects of all physical clusters take as much memory as the server has for them; nothing is \
                             synced there, and nothing deleted, until there is room"
                    .to_owned()
            }
        };
        DownstreamError::Excessive(bound)
    }
}

/// Memory of one registration: cached objects of its physical cluster, and its incoming data.
#[derive(Debug)]
pub(crate) struct RegistrationMemory {
    budget: Arc<SyncMemoryBudget>,
    workspace: LogicalClusterId,
    limits: SyncLimits,
    /// Bytes that arrive now.
    arriving: Mutex<u64>,
}

impl RegistrationMemory {
    /// Creates the memory of a registration in `workspace`. `limits` apply to the cache, and separately to incoming
    /// data.
    pub(crate) fn new(budget: Arc<SyncMemoryBudget>, workspace: LogicalClusterId, limits: SyncLimits) -> Arc<Self> {
        Arc::new(Self { budget, workspace, limits, arriving: Mutex::default() })
    }

    /// Returns the limits of the cache.
    pub(crate) fn limits(&self) -> SyncLimits {
        self.limits
    }

    /// Returns an empty charge for the cache.
    pub(crate) fn held(self: &Arc<Self>) -> SyncMemoryCharge {
        SyncMemoryCharge { memory: Some(self.clone()), bytes: 0, is_arriving: false }
    }

    /// Returns an empty charge for what arrives: texts and trees of answers, and lists that have not been read to their
    /// end.
    pub(crate) fn arriving(self: &Arc<Self>) -> SyncMemoryCharge {
        SyncMemoryCharge { memory: Some(self.clone()), bytes: 0, is_arriving: true }
    }

    /// Returns the bytes that arrive now.
    #[cfg(test)]
    pub(crate) fn bytes_arriving(&self) -> u64 {
        *self.arriving.lock().expect("no code panics under this lock")
    }

    /// Checks that `bytes` more could be held now.
    pub(crate) fn check(&self, bytes: u64) -> Result<(), MemoryExcess> {
        self.budget.check(&self.budget.usage(), self.workspace, bytes)
    }

    fn replace(&self, charge: &SyncMemoryCharge, after: u64) -> Result<(), MemoryExcess> {
        if !charge.is_arriving {
            return self.budget.replace(self.workspace, charge.bytes, after);
        }
        let mut arriving = self.arriving.lock().expect("no code panics under this lock");
        let sum = arriving.saturating_sub(charge.bytes).saturating_add(after);
        if after > charge.bytes && sum > self.limits.bytes {
            return Err(MemoryExcess::Registration(self.limits));
        }
        self.budget.replace(self.workspace, charge.bytes, after)?;
        *arriving = sum;
        Ok(())
    }
}

/// Converts a length to a number of bytes.
pub(crate) fn byte_count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Bytes that something takes of the memory of a registration, until it is dropped. The default one is not counted.
#[derive(Debug, Default)]
pub(crate) struct SyncMemoryCharge {
    memory: Option<Arc<RegistrationMemory>>,
    bytes: u64,
    is_arriving: bool,
}

impl SyncMemoryCharge {
    /// Changes the charge to `bytes`.
    ///
    /// # Errors
    /// The bound that would be exceeded; then the charge stays. Shrinking never fails.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), MemoryExcess> {
        if let Some(memory) = &self.memory {
            memory.replace(self, bytes)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Adds `bytes` to the charge.
    ///
    /// # Errors
    /// Fails as [`Self::resize`] does.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), MemoryExcess> {
        self.resize(self.bytes.saturating_add(byte_count(bytes)))
    }

    /// Takes `bytes` off the charge.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let fits = self.resize(self.bytes.saturating_sub(bytes));
        debug_assert!(fits.is_ok(), "a charge can always shrink");
    }
}

impl Drop for SyncMemoryCharge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests;
