//! The one place that leaves the async runtime's threads for long reads.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::{StoreError, core::Core, kv::failed, read::backend};

/// How long a read may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Microseconds: it runs where it is.
    Light,
    /// It may take milliseconds, or wait for the disk.
    Heavy,
}

/// Runs a read in place, or on a thread for blocking when it is heavy and may wait at all.
pub(crate) async fn run<T: Send + 'static>(
    core: &Arc<Core>,
    weight: Weight,
    read: impl FnOnce(&Core) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let runtime = match weight {
        Weight::Heavy if !core.kv.is_in_memory() => Handle::try_current().ok(),
        Weight::Heavy | Weight::Light => None,
    };
    let Some(runtime) = runtime else { return read(core) };
    let core = core.clone();
    let task = runtime.spawn_blocking(move || read(&core));
    task.await.unwrap_or_else(|_| Err(backend(failed("reading the store: the file is damaged"))))
}
