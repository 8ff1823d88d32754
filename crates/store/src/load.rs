//! What a store needs to know of its own before it starts.

use portolan_types::LogicalClusterId;

use crate::{
    BackendError, StoreError,
    keys::{self, meta},
    kv::{KvResult, View, failed},
    read::{Marks, marks},
    resources::{self, Resources},
};

/// The version of the shared layout. A store of a newer one is refused.
pub(crate) const FORMAT: u32 = 2;

/// The bookkeeping of a store.
pub(crate) struct Found {
    /// The version of the layout that it was last opened with.
    pub(crate) format: u32,
    pub(crate) marks: Marks,
    /// Made with the store, and never changed.
    pub(crate) identity: String,
    pub(crate) resources: Resources,
    /// Logical clusters whose deletion goes on.
    pub(crate) sweeps: Vec<LogicalClusterId>,
}

/// Why the bookkeeping is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("{0}")]
    Damaged(String),
    #[error("the store has format {0}, this version knows formats up to {FORMAT}")]
    NewerFormat(u32),
}

impl From<BackendError> for LoadError {
    fn from(error: BackendError) -> Self {
        Self::Damaged(error.context)
    }
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<LoadError> for BackendError {
    fn from(error: LoadError) -> Self {
        failed(error.to_string())
    }
}

/// Reads the bookkeeping.
pub(crate) fn load(view: &dyn View) -> Result<Found, LoadError> {
    let format = view.get(meta::FORMAT)?.and_then(|bytes| bytes.as_ref().try_into().ok()).map(u32::from_le_bytes);
    let format = match format {
        Some(known @ 1..=FORMAT) => known,
        Some(newer) if newer > FORMAT => return Err(LoadError::NewerFormat(newer)),
        Some(_) | None => return Err(LoadError::Damaged("it has no format version".into())),
    };
    let identity = view.get(meta::IDENTITY)?.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
    let identity = identity.ok_or_else(|| LoadError::Damaged("it has no identity".into()))?;
    let resources = Resources::default();
    each(view, meta::RESOURCES, |key, value| {
        let id = meta::number(key).map(u32::from_be_bytes)?;
        resources.add(id, resources::decode(value)?);
        Some(())
    })?;
    let mut sweeps = Vec::new();
    each(view, meta::SWEEPS, |key, _| {
        sweeps.push(LogicalClusterId::new(u64::from_be_bytes(meta::number(key)?)));
        Some(())
    })?;
    Ok(Found { format, marks: marks(view)?, identity, resources, sweeps })
}

fn each(view: &dyn View, prefix: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Option<()>) -> KvResult<()> {
    let mut cursor = view.scan(prefix, &keys::end_of(prefix))?;
    while let Some(key) = cursor.key() {
        take(key, cursor.value()).ok_or_else(|| failed("an entry of the store's bookkeeping is malformed"))?;
        cursor.advance()?;
    }
    Ok(())
}
