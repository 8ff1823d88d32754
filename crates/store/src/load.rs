//! What a store needs to know of its own before it starts.

use portolan_types::LogicalClusterId;

use crate::{
    BackendError, StoreError,
    keys::{self, meta},
    kv::{KvResult, View, failed},
    read::{Marks, marks},
    resources::{self, Resources},
    snapshot::HIGHEST,
};

/// The version of the shared layout. A store of a newer one is refused.
pub(crate) const FORMAT: u32 = 5;

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

/// Compares the marks with the history, which ends where the store stands: revisions would be given twice by a store that takes itself
/// for older than it is.
///
/// # Errors
/// `Damaged` when they do not fit together.
pub(crate) fn check_end(view: &dyn View, Marks { last, floor }: Marks) -> Result<(), LoadError> {
    let damaged = |what: String| Err(LoadError::Damaged(what));
    if floor > last || last > HIGHEST {
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

fn each(view: &dyn View, prefix: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Option<()>) -> KvResult<()> {
    let mut cursor = view.scan(prefix, &keys::end_of(prefix))?;
    while let Some(key) = cursor.key() {
        take(key, cursor.value()).ok_or_else(|| failed("an entry of the store's bookkeeping is malformed"))?;
        cursor.advance()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use portolan_types::Seams;

    use super::*;
    use crate::{
        kv::{Batch, MemoryKv, OrderedKv as _, read},
        open::initialize,
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
            let checked = read(&kv, |view| check_end(view, Marks { last, floor })).unwrap();
            match (checked, words) {
                (Ok(()), None) => {}
                (Err(told), Some(words)) => assert!(told.to_string().contains(words), "{case}: {told}"),
                (found, _) => panic!("{case}: {found:?}"),
            }
        }
    }
}
