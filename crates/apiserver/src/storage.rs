//! Context of everything that reads or writes stored objects.

use std::sync::Arc;

use portolan_store::DynStore;
use portolan_types::Seams;

use crate::directory::Directory;

/// Store of all objects, the logical clusters in it, and the sources of time and randomness.
pub(crate) struct StorageContext {
    pub(crate) store: DynStore,
    pub(crate) directory: Arc<Directory>,
    pub(crate) seams: Seams,
}
