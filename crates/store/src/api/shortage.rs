//! Shortage of storage space.

use std::fmt;

/// Lack of storage space that refuses a write. All numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceShortage {
    /// The disk is nearly full.
    Disk {
        /// Free bytes; `None` if unknown.
        free: Option<u64>,
        /// Bytes that must be free for the refused write.
        wanted: u64,
        /// Bytes that must be free for changes of objects that are being deleted.
        leave: u64,
        /// Bytes that must be free for deletions.
        deletions: u64,
    },
    /// etcd's database has reached its quota.
    Etcd,
}

impl SpaceShortage {
    /// Returns true if there is space again, so that a retry of the write will succeed.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Disk { free: Some(free), wanted, .. } if free >= wanted)
    }
}

impl fmt::Display for SpaceShortage {
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
