//! Gate of the write path: it admits all writes, only those that free space on a nearly full disk, or none.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::api::BackendError;

/// Effect of a write on disk space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WritePurpose {
    /// May take space.
    Any,
    /// Changes an object that is being deleted, such as removing a finalizer. It may use the first half of the reserve;
    /// the rest stays for deletions.
    Leave,
    /// Deletes, or compacts history. It may use all but the last quarter of the reserve: a deleted object becomes
    /// history first, which takes a little space until it is compacted.
    MakeRoom,
}

impl WritePurpose {
    /// All purposes, the one that needs most space first.
    pub(crate) const EACH: [Self; 3] = [Self::Any, Self::Leave, Self::MakeRoom];
}

/// Reason for refusing a write.
#[derive(Clone, Debug)]
pub(crate) enum GateRefusal {
    /// No disk space, for now.
    Full,
    /// Stopped permanently.
    Stopped(Arc<BackendError>),
}

/// Gate that admits writes or refuses them with a reason.
pub(crate) struct WriteGate(RwLock<GateState>);

#[derive(Clone)]
enum GateState {
    Open,
    /// Only writes that free space are admitted, until there is enough.
    Tight,
    /// No write is admitted until there is space again.
    Full,
    /// Stopped permanently.
    Stopped(Arc<BackendError>),
}

impl WriteGate {
    pub(crate) fn open() -> Self {
        Self(RwLock::new(GateState::Open))
    }

    /// # Errors
    /// Fails if no write of this purpose is admitted.
    pub(crate) fn check(&self, purpose: WritePurpose) -> Result<(), GateRefusal> {
        match (&*self.0.read(), purpose) {
            (GateState::Open, _) | (GateState::Tight, WritePurpose::Leave | WritePurpose::MakeRoom) => Ok(()),
            (GateState::Tight, WritePurpose::Any) | (GateState::Full, _) => Err(GateRefusal::Full),
            (GateState::Stopped(why), _) => Err(GateRefusal::Stopped(why.clone())),
        }
    }

    /// Returns true while the gate waits for disk space.
    pub(crate) fn is_short_of_room(&self) -> bool {
        matches!(*self.0.read(), GateState::Tight | GateState::Full)
    }

    /// Returns true while no write at all is admitted for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        matches!(*self.0.read(), GateState::Full)
    }

    /// Admits only writes that free space, unless the gate is closed already.
    pub(crate) fn narrow_for(&self, why: &BackendError) {
        let mut standing = self.0.write();
        if matches!(*standing, GateState::Open) {
            tracing::error!(error = %why, "the disk is nearly full: only deletions are accepted until there is space");
            *standing = GateState::Tight;
        }
    }

    /// Closes the gate: until [`WriteGate::reopen`] if the disk is full, permanently after another failure.
    pub(crate) fn close_for(&self, why: BackendError) {
        let mut standing = self.0.write();
        match &*standing {
            GateState::Stopped(_) => {}
            GateState::Full if why.is_full() => {}
            GateState::Open | GateState::Tight if why.is_full() => {
                tracing::error!(error = %why, "the disk is full: writes are rejected until there is space");
                *standing = GateState::Full;
            }
            GateState::Open | GateState::Tight | GateState::Full => *standing = GateState::Stopped(Arc::new(why)),
        }
    }

    /// Reopens the gate for writes of a purpose, unless it was stopped permanently.
    pub(crate) fn reopen(&self, purpose: WritePurpose) {
        let mut standing = self.0.write();
        *standing = match (&*standing, purpose) {
            (GateState::Tight | GateState::Full, WritePurpose::Any) => {
                tracing::info!("the disk has space again: writes are accepted");
                GateState::Open
            }
            (GateState::Full, WritePurpose::Leave | WritePurpose::MakeRoom) => {
                tracing::info!("the disk has some space again: deletions are accepted");
                GateState::Tight
            }
            (GateState::Open | GateState::Tight | GateState::Stopped(_), _) => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::engine::{failed, failure};

    fn full() -> BackendError {
        failure("writing")(io::Error::from(io::ErrorKind::StorageFull))
    }

    #[test]
    fn a_full_disk_may_have_room_again_and_a_failed_one_is_never_trusted_again() {
        for (case, failures, reopened, refused_after) in [
            ("nothing failed", vec![], false, None),
            ("a full disk", vec![full()], false, Some("no room")),
            ("a full disk that has room again", vec![full()], true, None),
            ("a failed disk", vec![failed("EIO")], true, Some("EIO")),
            ("a full disk that failed", vec![full(), failed("EIO")], true, Some("EIO")),
            ("a failed disk that is full", vec![failed("EIO"), full()], true, Some("EIO")),
        ] {
            let gate = WriteGate::open();
            failures.into_iter().for_each(|why| gate.close_for(why));
            if reopened {
                gate.reopen(WritePurpose::Any);
            }
            let why = gate.check(WritePurpose::Any).err().map(|shut| match shut {
                GateRefusal::Full => "no room".to_owned(),
                GateRefusal::Stopped(why) => why.context.clone(),
            });
            assert_eq!(why.as_deref(), refused_after, "{case}");
        }
    }

    #[test]
    fn less_room_does_not_let_more_in() {
        let gate = WriteGate::open();
        gate.narrow_for(&full());
        assert_eq!((gate.check(WritePurpose::Any).is_ok(), gate.check(WritePurpose::MakeRoom).is_ok()), (false, true));
        gate.close_for(full());
        gate.narrow_for(&full());
        assert!(gate.check(WritePurpose::MakeRoom).is_err(), "less room does not let more in");
        gate.reopen(WritePurpose::MakeRoom);
        assert_eq!((gate.check(WritePurpose::Any).is_ok(), gate.check(WritePurpose::MakeRoom).is_ok()), (false, true));
    }
}
