//! Decision about one copy, and the proof that it may be deleted.

use portolan_types::Uid;
use serde_json::Value;

use crate::rules::SyncRefusal;

/// Why a copy may be deleted: positive proof, never the lack of sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The upstream object was read and is being deleted, and its finalizers have run (for a Pod: its deletion was
    /// requested).
    Deleting,
    /// The record was read and says that the copy leaves.
    Leaving,
    /// This worker saw the upstream object, and a later read says it has been removed.
    Tombstone,
    /// A read shows that there is no upstream object, and this worker never saw one.
    NeverSeen,
    /// The upstream object was read and is another one of the same name.
    Superseded,
    /// The upstream object and its record were read, and the record names other physical clusters only.
    Unplaced,
    /// A debt was recorded for exactly this copy.
    Debt,
}

impl Proof {
    /// Returns true when a change of this very object was seen. The other proofs come in masses when something is wrong
    /// with the reads, so a brake limits them.
    pub fn is_firm(self) -> bool {
        match self {
            Self::Deleting | Self::Leaving | Self::Tombstone | Self::Debt => true,
            Self::NeverSeen | Self::Superseded | Self::Unplaced => false,
        }
    }
}

/// Conditional deletion of one copy.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyDeletion {
    /// Uid downstream.
    pub uid: String,
    /// resourceVersion downstream that was read.
    pub resource_version: String,
    /// Why it may go.
    pub proof: Proof,
    /// Seconds that pods get to stop; their own number when `None`.
    pub grace: Option<i64>,
}

/// Write of a whole copy by server-side apply.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyUpdate {
    /// Copy, with the uid and resourceVersion that were read.
    pub body: Value,
}

/// Decision about one copy.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyDecision {
    /// There is no downstream object, and there should be none.
    Nothing,
    /// The copy is up to date.
    Keep,
    /// The upstream object waits for admission: the copy stays unchanged, or absent.
    Wait,
    /// The physical cluster has its own object in the place of the copy.
    Local,
    /// Create the copy; this fails if an object of that name exists.
    Create(Value),
    /// Bring the copy up to date; it fails when the copy has changed since.
    Apply(CopyUpdate),
    /// Delete the copy, and confirm upstream when it is gone.
    Delete(CopyDeletion),
    /// The copy is being deleted: wait for its end.
    AwaitEnd,
    /// There is no downstream object any more, as it should be: confirm this upstream once it is proven.
    ConfirmGone {
        /// Uid upstream.
        uid: Uid,
        /// Epoch of the entry.
        epoch: u64,
    },
    /// The object cannot be synced; the reason is reported upstream.
    Refuse(SyncRefusal),
    /// The upstream state has changed since: read it again later.
    Stale,
    /// Upstream does not account for the copy, and nothing proves that it may go.
    Hold,
    /// The upstream object is a projection.
    Projected,
    /// A newer syncer has taken over, as upstream says.
    Fenced,
}
