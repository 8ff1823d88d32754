//! Bookkeeping that a store reads before it starts.

use bytes::Bytes;
use portolan_types::{LogicalClusterId, Seams};

use crate::{
    api::{BackendError, StoreError},
    engine::{Batch, KvResult, KvView, OrderedKv, failed},
    layout::{
        MAX_REVISION,
        keys::{self, meta},
    },
    read::{
        resources::{self, ResourceRegistry},
        state::{StoreMarks, marks, superseded_bytes},
    },
};

/// Version of the shared layout. A store of a newer version is refused.
pub(crate) const FORMAT: u32 = 6;

/// Bookkeeping of a store.
pub(crate) struct StoreBookkeeping {
    /// Version of the layout that the store was last opened with.
    pub(crate) format: u32,
    pub(crate) marks: StoreMarks,
    /// Random ID that was assigned when the store was created, and never changes.
    pub(crate) identity: String,
    pub(crate) resources: ResourceRegistry,
    /// Logical clusters whose deletion is in progress.
    pub(crate) sweeps: Vec<LogicalClusterId>,
    /// Bytes of all superseded objects that history keeps.
    pub(crate) superseded: u64,
}

/// Error of reading the bookkeeping.
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
pub(crate) fn load(view: &dyn KvView) -> Result<StoreBookkeeping, LoadError> {
    let format = view.get(meta::FORMAT)?.and_then(|bytes| bytes.as_ref().try_into().ok()).map(u32::from_le_bytes);
    let format = match format {
        Some(known @ 1..=FORMAT) => known,
        Some(newer) if newer > FORMAT => return Err(LoadError::NewerFormat(newer)),
        Some(_) | None => return Err(LoadError::Damaged("it has no format version".into())),
    };
    let identity = view.get(meta::IDENTITY)?.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
    let identity = identity.ok_or_else(|| LoadError::Damaged("it has no identity".into()))?;
    let resources = ResourceRegistry::default();
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
    Ok(StoreBookkeeping {
        format,
        marks: marks(view)?,
        identity,
        resources,
        sweeps,
        superseded: superseded_bytes(view)?,
    })
}

/// Compares the marks with the end of the history. A store that takes itself for older than it is would assign
/// revisions twice.
///
/// # Errors
/// `Damaged` if they do not agree.
pub(crate) fn check_end(view: &dyn KvView, StoreMarks { last, floor }: StoreMarks) -> Result<(), LoadError> {
    let damaged = |what: String| Err(LoadError::Damaged(what));
    if floor > last || last > MAX_REVISION {
        return damaged(format!("it stands at revision {last}, and has forgotten history up to {floor}"));
    }
    if view.scan(&keys::history(last + 1), &keys::end_of(b"h"))?.key().is_some() {
        return damaged(format!("its history goes on after revision {last}, at which it stands"));
    }
    if last > floor && view.get(&keys::history(last))?.is_none() {
        return damaged(format!("its history lacks revision {last}, at which it stands"));
    }
    Ok(())
}

/// Calls `take` with each pair whose key begins with `prefix`.
///
/// # Errors
/// Failures of the engine, and a pair for which `take` returns `None`.
pub(crate) fn each(view: &dyn KvView, prefix: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Option<()>) -> KvResult<()> {
    let mut cursor = view.scan(prefix, &keys::end_of(prefix))?;
    while let Some(key) = cursor.key() {
        take(key, cursor.value()).ok_or_else(|| failed("an entry of the store's bookkeeping is malformed"))?;
        cursor.advance()?;
    }
    Ok(())
}

/// Returns the entry that marks a store as one of the newest format.
pub(crate) fn format_mark() -> (Vec<u8>, Option<Bytes>) {
    (meta::FORMAT.to_vec(), Some(Bytes::copy_from_slice(&FORMAT.to_le_bytes())))
}

/// Writes the bookkeeping of a new store. Revision 1 is the creation of the store itself.
pub(crate) fn initialize(kv: &dyn OrderedKv, seams: &Seams) -> KvResult<()> {
    kv.commit(first_marks(seams, 1))?;
    kv.publish();
    Ok(())
}

/// Returns the bookkeeping of a new store at revision `last`, without history.
pub(crate) fn first_marks(seams: &Seams, last: u64) -> Batch {
    let last = Bytes::copy_from_slice(&last.to_le_bytes());
    Batch::from([
        format_mark(),
        (meta::IDENTITY.to_vec(), Some(Bytes::copy_from_slice(seams.uid().as_bytes()))),
        (meta::LAST.to_vec(), Some(last.clone())),
        (meta::FLOOR.to_vec(), Some(last)),
    ])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use portolan_types::Seams;

    use super::*;
    use crate::{
        engine::{MemoryKv, read},
        read::bookkeeping::initialize,
    };

    #[test]
    fn marks_that_do_not_fit_the_history_are_found() {
        for (case, last, floor, history, words) in [
            ("a new store", 1, 1, None, None),
            ("with history", 9, 7, Some(9), None),
            ("of which all is forgotten", 9, 9, None, None),
            ("turned back", 8, 7, Some(9), Some("goes on after revision 8")),
            ("turned on", 10, 7, Some(9), Some("lacks revision 10")),
            ("forgotten ahead", 9, 10, Some(9), Some("forgotten history up to 10")),
            ("beyond all numbers", u64::MAX, 7, Some(9), Some("stands at revision 18446744073709551615")),
        ] {
            let kv = MemoryKv::default();
            initialize(&kv, &Seams::system()).unwrap();
            let entry = history.map(|revision| (keys::history(revision), Some(Bytes::new())));
            kv.commit(Batch::from_iter(entry)).unwrap();
            kv.publish();
            let checked = read(&kv, |view| check_end(view, StoreMarks { last, floor })).unwrap();
            match (checked, words) {
                (Ok(()), None) => {}
                (Err(told), Some(words)) => assert!(told.to_string().contains(words), "{case}: {told}"),
                (found, _) => panic!("{case}: {found:?}"),
            }
        }
    }
}
