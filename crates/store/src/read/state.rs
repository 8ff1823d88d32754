//! Reads of one state: an object, the store's marks, and the two errors that any read can have.

use std::sync::Arc;

use portolan_types::{LogicalClusterId, ObjectKey, ResourceVersion};

use crate::{
    api::{BackendError, RangeScope, StoreError, StoredObject, damage::Damage},
    engine::{KvView, failed},
    layout::{
        keys::{self, KeySuffix, meta},
        record::decode,
    },
    read::resources::ResourceRegistry,
};

/// Position of a state in the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreMarks {
    /// Last assigned revision: a transaction's boundary.
    pub(crate) last: u64,
    /// Revision after which all events are kept: a transaction's boundary.
    pub(crate) floor: u64,
}

impl StoreMarks {
    /// Returns true if this state may contain data that `other` lacks: it is older, or has more history.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.last < other.last || self.floor < other.floor
    }

    /// # Errors
    /// `Compacted` if events after `after` are gone.
    pub(crate) fn check_kept(self, after: u64) -> Result<(), StoreError> {
        if after < self.floor {
            Err(StoreError::Compacted { asked: revision(after)?, oldest: revision(self.floor)? })
        } else {
            Ok(())
        }
    }

    /// # Errors
    /// `FutureRevision` if `asked` has not happened.
    pub(crate) fn check_happened(self, asked: u64) -> Result<(), StoreError> {
        if asked > self.last {
            Err(StoreError::FutureRevision { asked: revision(asked)?, current: revision(self.last)? })
        } else {
            Ok(())
        }
    }
}

/// Reads the marks of a state.
pub(crate) fn marks(view: &dyn KvView) -> Result<StoreMarks, StoreError> {
    Ok(StoreMarks { last: last(view)?, floor: number(view, meta::FLOOR)? })
}

/// Reads the last revision of a state.
pub(crate) fn last(view: &dyn KvView) -> Result<u64, StoreError> {
    number(view, meta::LAST)
}

/// Reads the bytes of all superseded objects in the history of a state.
pub(crate) fn superseded_bytes(view: &dyn KvView) -> Result<u64, StoreError> {
    match view.get(meta::SUPERSEDED).map_err(backend)? {
        Some(value) => as_number(&value),
        None => Ok(0),
    }
}

fn number(view: &dyn KvView, key: &[u8]) -> Result<u64, StoreError> {
    let value = view.get(key).map_err(backend)?.ok_or(Damage::Key).map_err(damaged)?;
    as_number(&value)
}

fn as_number(value: &[u8]) -> Result<u64, StoreError> {
    value.try_into().map(u64::from_le_bytes).map_err(|_| damaged(Damage::Key))
}

/// Reads the latest state of an object.
pub(crate) fn get(
    view: &dyn KvView,
    resources: &ResourceRegistry,
    key: &ObjectKey,
) -> Result<Option<StoredObject>, StoreError> {
    let Some(resource) = resources.id_in(view, &key.resource)? else { return Ok(None) };
    let suffix = KeySuffix::new(key.cluster, resource, &key.scope, &key.name);
    let Some(value) = view.get(&suffix.object()).map_err(backend)? else { return Ok(None) };
    let version = decode(suffix.as_bytes(), &value).map_err(|why| StoreError::Damaged { key: key.clone(), why })?;
    Ok(Some(StoredObject {
        key: key.clone(),
        revision: version.revision,
        created: version.created,
        record: version.record,
    }))
}

/// Returns true if the index that `scope` reads names an object that is missing.
pub(crate) fn is_dangling(
    view: &dyn KvView,
    resources: &ResourceRegistry,
    key: &ObjectKey,
    scope: &RangeScope,
) -> Result<bool, StoreError> {
    let Some(resource) = resources.id_in(view, &key.resource)? else { return Ok(false) };
    let suffix = KeySuffix::new(key.cluster, resource, &key.scope, &key.name);
    let entry = match scope {
        RangeScope::PlacedOn(uid) => suffix.placed(uid),
        RangeScope::OwnedBy(_, uid) => suffix.owner(uid),
        _ => None,
    };
    let Some(entry) = entry else { return Ok(false) };
    Ok(view.get(&entry).map_err(backend)?.is_some() && view.get(&suffix.object()).map_err(backend)?.is_none())
}

/// Reads every logical cluster that was ever deleted.
pub(crate) fn deleted_clusters(view: &dyn KvView) -> Result<Vec<LogicalClusterId>, StoreError> {
    let mut cursor = view.scan(meta::TOMBSTONES, &keys::end_of(meta::TOMBSTONES)).map_err(backend)?;
    let mut gone = Vec::new();
    while let Some(key) = cursor.key() {
        let id = meta::number(key).map(u64::from_be_bytes).ok_or(Damage::Key).map_err(damaged)?;
        gone.push(LogicalClusterId::new(id));
        cursor.advance().map_err(backend)?;
    }
    Ok(gone)
}

/// Converts a number to a revision; only damage makes it zero.
pub(crate) fn revision(number: u64) -> Result<ResourceVersion, StoreError> {
    ResourceVersion::new(number).ok_or_else(|| damaged(Damage::Key))
}

/// Converts a number that is known to be a revision.
pub(crate) fn as_revision(number: u64) -> ResourceVersion {
    ResourceVersion::new(number).unwrap_or(ResourceVersion::FIRST)
}

/// Wraps a failure of the engine.
pub(crate) fn backend(error: BackendError) -> StoreError {
    StoreError::Backend(Arc::new(error))
}

/// Builds the error for damaged bytes.
pub(crate) fn damaged(damage: Damage) -> StoreError {
    backend(BackendError { context: format!("the store is damaged: {damage}"), source: Some(Box::new(damage)) })
}

/// Returns the error of a closed store.
pub(crate) fn closed() -> StoreError {
    backend(failed("the store is closed"))
}
