//! Whether writes are taken: all, only those that make room while the disk is nearly full, none, or none any more.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::BackendError;

/// What a write does to the room on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// It may take some.
    Any,
    /// It changes what is being deleted, as finalizers are taken off. The first half of the reserve is open to it: who changes
    /// such objects all the time leaves the rest to those that delete.
    Leave,
    /// It deletes or forgets history. All but the last quarter of the reserve is open to it: what is deleted becomes history
    /// first, which takes a little room until it is compacted.
    MakeRoom,
}

impl Purpose {
    /// The one that needs most room first.
    pub(crate) const EACH: [Self; 3] = [Self::Any, Self::Leave, Self::MakeRoom];
}

/// Why a write is not let in.
#[derive(Clone, Debug)]
pub(crate) enum Shut {
    /// There is no room, for now.
    Full,
    /// For good.
    Stopped(Arc<BackendError>),
}

/// Lets writes in, or says why not.
pub(crate) struct Gate(RwLock<Standing>);

#[derive(Clone)]
enum Standing {
    Open,
    /// Only what makes room is let in, until there is enough.
    Tight,
    /// Nothing is let in until there is room again.
    Full,
    /// For good.
    Stopped(Arc<BackendError>),
}

impl Gate {
    pub(crate) fn open() -> Self {
        Self(RwLock::new(Standing::Open))
    }

    /// # Errors
    /// When no write is taken.
    pub(crate) fn check(&self, purpose: Purpose) -> Result<(), Shut> {
        match (&*self.0.read(), purpose) {
            (Standing::Open, _) | (Standing::Tight, Purpose::Leave | Purpose::MakeRoom) => Ok(()),
            (Standing::Tight, Purpose::Any) | (Standing::Full, _) => Err(Shut::Full),
            (Standing::Stopped(why), _) => Err(Shut::Stopped(why.clone())),
        }
    }

    /// Whether room is waited for.
    pub(crate) fn is_short_of_room(&self) -> bool {
        matches!(*self.0.read(), Standing::Tight | Standing::Full)
    }

    /// Whether nothing at all is let in until there is room.
    pub(crate) fn is_full(&self) -> bool {
        matches!(*self.0.read(), Standing::Full)
    }

    /// Lets in only what makes room, unless nothing is let in already.
    pub(crate) fn narrow_for(&self, why: &BackendError) {
        let mut standing = self.0.write();
        if matches!(*standing, Standing::Open) {
            tracing::error!(error = %why, "the disk is nearly full, only deletions are taken until there is room again");
            *standing = Standing::Tight;
        }
    }

    /// Takes no write until [`Gate::reopen`] when the disk is full, and none any more after another failure.
    pub(crate) fn close_for(&self, why: BackendError) {
        let mut standing = self.0.write();
        match &*standing {
            Standing::Stopped(_) => {}
            Standing::Full if why.is_full() => {}
            Standing::Open | Standing::Tight if why.is_full() => {
                tracing::error!(error = %why, "the disk is full, no write is taken until there is room again");
                *standing = Standing::Full;
            }
            Standing::Open | Standing::Tight | Standing::Full => *standing = Standing::Stopped(Arc::new(why)),
        }
    }

    /// Takes writes again, or those that make room, unless they were stopped for good.
    pub(crate) fn reopen(&self, purpose: Purpose) {
        let mut standing = self.0.write();
        *standing = match (&*standing, purpose) {
            (Standing::Tight | Standing::Full, Purpose::Any) => {
                tracing::info!("the disk has room again, writes are taken");
                Standing::Open
            }
            (Standing::Full, Purpose::Leave | Purpose::MakeRoom) => {
                tracing::info!("the disk has some room again, deletions are taken");
                Standing::Tight
            }
            (Standing::Open | Standing::Tight | Standing::Stopped(_), _) => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::kv::{failed, failure};

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
            let gate = Gate::open();
            failures.into_iter().for_each(|why| gate.close_for(why));
            if reopened {
                gate.reopen(Purpose::Any);
            }
            let why = gate.check(Purpose::Any).err().map(|shut| match shut {
                Shut::Full => "no room".to_owned(),
                Shut::Stopped(why) => why.context.clone(),
            });
            assert_eq!(why.as_deref(), refused_after, "{case}");
        }
    }

    #[test]
    fn less_room_does_not_let_more_in() {
        let gate = Gate::open();
        gate.narrow_for(&full());
        assert_eq!((gate.check(Purpose::Any).is_ok(), gate.check(Purpose::MakeRoom).is_ok()), (false, true));
        gate.close_for(full());
        gate.narrow_for(&full());
        assert!(gate.check(Purpose::MakeRoom).is_err(), "less room does not let more in");
        gate.reopen(Purpose::MakeRoom);
        assert_eq!((gate.check(Purpose::Any).is_ok(), gate.check(Purpose::MakeRoom).is_ok()), (false, true));
    }
}
