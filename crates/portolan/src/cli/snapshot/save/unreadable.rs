//! Errors of a store that cannot be read to its end.

use std::path::Path;

use portolan_store::{OpenError, SnapshotError, StoreError};

/// Error of a store that cannot be saved, however often it is tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UnreadableStore(String);

const RESTORE: &str = "restore the last snapshot into a new data directory, and keep this one until that is well";

impl UnreadableStore {
    /// Makes the error for a store that can be opened.
    pub(super) fn in_part(data_dir: &Path, why: &str) -> Self {
        let shown = data_dir.display();
        Self(format!(
            "the store of {shown} cannot be read to its end, and a snapshot would come to the same place again: {why}\n\
             what can be done, in this order:\n  \
             portolan verify --data-dir {shown}    names all that is damaged, once the server is stopped\n  \
             delete unread what is named, if it is objects, as docs/operating.md tells, and save again\n  \
             otherwise {RESTORE}"
        ))
    }

    /// Makes the error for a store that no server can open.
    fn as_a_whole(why: &str) -> Self {
        Self(format!("there is no snapshot of a store that cannot be opened: {why}\n{RESTORE}"))
    }
}

/// Returns the error; for a damaged store, with the possible actions.
pub(super) fn unreadable(data_dir: &Path, error: anyhow::Error) -> anyhow::Error {
    use SnapshotError::{Backend, Store};
    let told = format!("{error:#}");
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(Backend(_) | Store(StoreError::Backend(_) | StoreError::Damaged { .. })), _) => {
            UnreadableStore::in_part(data_dir, &told).into()
        }
        (_, Some(OpenError::Damaged { .. })) => UnreadableStore::as_a_whole(&told).into(),
        _ => error,
    }
}
