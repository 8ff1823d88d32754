//! Whether writes are taken: always, not while the disk is full, or not any more.

use std::{io, path::PathBuf, sync::Arc};

use parking_lot::RwLock;

use crate::{BackendError, StoreError};

/// Lets writes in, or says why not.
pub(crate) struct Gate(RwLock<Standing>);

#[derive(Clone)]
enum Standing {
    Open,
    /// Until there is room again.
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
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match &*self.0.read() {
            Standing::Open => Ok(()),
            Standing::Full => Err(StoreError::Full),
            Standing::Stopped(why) => Err(StoreError::Backend(why.clone())),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        matches!(*self.0.read(), Standing::Full)
    }

    /// Takes no write until [`Gate::reopen`] when the disk is full, and none any more after another failure.
    pub(crate) fn close_for(&self, why: BackendError) {
        let mut standing = self.0.write();
        match &*standing {
            Standing::Stopped(_) => {}
            Standing::Full if why.is_full() => {}
            Standing::Open if why.is_full() => {
                tracing::error!(error = %why, "the disk is full, no write is taken until there is room again");
                *standing = Standing::Full;
            }
            Standing::Open | Standing::Full => *standing = Standing::Stopped(Arc::new(why)),
        }
    }

    /// Takes writes again, unless they were stopped for good.
    pub(crate) fn reopen(&self) {
        let mut standing = self.0.write();
        if matches!(*standing, Standing::Full) {
            tracing::info!("the disk has room again, writes are taken");
            *standing = Standing::Open;
        }
    }
}

/// The room that is left on the disk. Writing stops before the last of it is used: an engine that runs out of room within a
/// commit must be opened again.
pub(crate) struct Room {
    reserve: u64,
    free: Box<dyn Fn() -> io::Result<u64> + Send + Sync>,
}

impl Room {
    /// On the file system of a directory.
    pub(crate) fn in_directory(dir: PathBuf, reserve: u64) -> Self {
        Self::measured(reserve, move || {
            let found = rustix::fs::statvfs(&dir)?;
            Ok(found.f_bavail.saturating_mul(found.f_frsize))
        })
    }

    /// As a function tells it.
    pub(crate) fn measured(reserve: u64, free: impl Fn() -> io::Result<u64> + Send + Sync + 'static) -> Self {
        Self { reserve, free: Box::new(free) }
    }

    /// Memory, of which there is always enough.
    pub(crate) fn unlimited() -> Self {
        Self::measured(0, || Ok(u64::MAX))
    }

    /// # Errors
    /// When less than the reserve is left. A system that cannot tell is taken to have room.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        match (self.free)() {
            Ok(free) if free < self.reserve => Err(BackendError {
                context: format!("{free} bytes are left on the disk, {} are kept back", self.reserve),
                source: Some(Box::new(io::Error::from(io::ErrorKind::StorageFull))),
            }),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::failed;

    fn full() -> BackendError {
        Room::measured(2, || Ok(1)).check().unwrap_err()
    }

    #[test]
    fn a_full_disk_may_have_room_again_and_a_failed_one_is_never_trusted_again() {
        for (case, failures, reopened, refused_after) in [
            ("nothing failed", vec![], false, None),
            (
                "a full disk",
                vec![full()],
                false,
                Some("the disk is full: nothing is written until there is room again"),
            ),
            ("a full disk that has room again", vec![full()], true, None),
            ("a failed disk", vec![failed("EIO")], true, Some("the storage backend failed: EIO")),
            ("a full disk that failed", vec![full(), failed("EIO")], true, Some("the storage backend failed: EIO")),
            ("a failed disk that is full", vec![failed("EIO"), full()], true, Some("the storage backend failed: EIO")),
        ] {
            let gate = Gate::open();
            failures.into_iter().for_each(|why| gate.close_for(why));
            if reopened {
                gate.reopen();
            }
            assert_eq!(gate.check().err().map(|why| why.to_string()).as_deref(), refused_after, "{case}");
        }
    }

    #[test]
    fn room_is_what_the_file_system_has_beyond_the_reserve() {
        let dir = std::env::temp_dir();
        assert!(Room::in_directory(dir.clone(), 1).check().is_ok());
        let told = Room::in_directory(dir, u64::MAX).check().unwrap_err();
        assert!(told.is_full() && told.to_string().contains("left on the disk"), "{told}");
        assert!(Room::measured(u64::MAX, || Err(io::ErrorKind::Unsupported.into())).check().is_ok());
        assert!(Room::unlimited().check().is_ok());
    }
}
