//! Reading one state: an object, the store's marks, and the two failures that any read can have.

use std::sync::Arc;

use portolan_types::{LogicalClusterId, ObjectKey, ResourceVersion};

use crate::{
    BackendError, RangeScope, StoreError, StoredObject,
    keys::{self, Suffix, meta},
    kv::View,
    resources::Resources,
    value::{Damage, decode},
};

/// Where a state stands in the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The last revision that was handed out: a transaction's boundary.
    pub(crate) last: u64,
    /// All events after it are kept: a transaction's boundary.
    pub(crate) floor: u64,
}

impl Marks {
    /// Whether a state may have what another has no more: it is older, or more of its history is kept.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.last < other.last || self.floor < other.floor
    }

    /// # Errors
    /// `Compacted` when events after `after` are gone.
    pub(crate) fn check_kept(self, after: u64) -> Result<(), StoreError> {
        match after < self.floor {
            true => Err(StoreError::Compacted { asked: revision(after)?, oldest: revision(self.floor)? }),
            false => Ok(()),
        }
    }

    /// # Errors
    /// `FutureRevision` when `asked` has not happened.
    pub(crate) fn check_happened(self, asked: u64) -> Result<(), StoreError> {
        match asked > self.last {
            true => Err(StoreError::FutureRevision { asked: revision(asked)?, current: revision(self.last)? }),
            false => Ok(()),
        }
    }
}

/// The marks of a state.
pub(crate) fn marks(view: &dyn View) -> Result<Marks, StoreError> {
    Ok(Marks { last: last(view)?, floor: number(view, meta::FLOOR)? })
}

/// The last revision of a state.
pub(crate) fn last(view: &dyn View) -> Result<u64, StoreError> {
    number(view, meta::LAST)
}

fn number(view: &dyn View, key: &[u8]) -> Result<u64, StoreError> {
    let value = view.get(key).map_err(backend)?.ok_or(Damage::Key).map_err(damaged)?;
    value.as_ref().try_into().map(u64::from_le_bytes).map_err(|_| damaged(Damage::Key))
}

/// The latest state of an object.
pub(crate) fn get(view: &dyn View, resources: &Resources, key: &ObjectKey) -> Result<Option<StoredObject>, StoreError> {
    let Some(resource) = resources.id_in(view, &key.resource)? else { return Ok(None) };
    let suffix = Suffix::new(key.cluster, resource, &key.scope, &key.name);
    let Some(value) = view.get(&suffix.object()).map_err(backend)? else { return Ok(None) };
    let version = decode(suffix.as_bytes(), &value).map_err(|why| StoreError::Damaged { key: key.clone(), why })?;
    Ok(Some(StoredObject {
        key: key.clone(),
        revision: version.revision,
        created: version.created,
        record: version.record,
    }))
}

/// Whether the index that `scope` reads names an object that is missing.
pub(crate) fn dangles(
    view: &dyn View,
    resources: &Resources,
    key: &ObjectKey,
    scope: &RangeScope,
) -> Result<bool, StoreError> {
    let Some(resource) = resources.id_in(view, &key.resource)? else { return Ok(false) };
    let suffix = Suffix::new(key.cluster, resource, &key.scope, &key.name);
    let entry = match scope {
        RangeScope::PlacedOn(uid) => suffix.placed(uid),
        RangeScope::OwnedBy(_, uid) => suffix.owner(uid),
        _ => None,
    };
    let Some(entry) = entry else { return Ok(false) };
    Ok(view.get(&entry).map_err(backend)?.is_some() && view.get(&suffix.object()).map_err(backend)?.is_none())
}

/// The logical clusters that were ever deleted.
pub(crate) fn gone_clusters(view: &dyn View) -> Result<Vec<LogicalClusterId>, StoreError> {
    let mut cursor = view.scan(meta::TOMBSTONES, &keys::end_of(meta::TOMBSTONES)).map_err(backend)?;
    let mut gone = Vec::new();
    while let Some(key) = cursor.key() {
        let id = meta::number(key).map(u64::from_be_bytes).ok_or(Damage::Key).map_err(damaged)?;
        gone.push(LogicalClusterId::new(id));
        cursor.advance().map_err(backend)?;
    }
    Ok(gone)
}

/// A number as a revision; only damage makes it zero.
pub(crate) fn revision(number: u64) -> Result<ResourceVersion, StoreError> {
    ResourceVersion::new(number).ok_or_else(|| damaged(Damage::Key))
}

/// A number as a revision that is known to be one.
pub(crate) fn as_revision(number: u64) -> ResourceVersion {
    ResourceVersion::new(number).unwrap_or(ResourceVersion::FIRST)
}

/// An engine's failure.
pub(crate) fn backend(error: BackendError) -> StoreError {
    StoreError::Backend(Arc::new(error))
}

/// Bytes that are not what was written.
pub(crate) fn damaged(damage: Damage) -> StoreError {
    backend(BackendError { context: format!("the store is damaged: {damage}"), source: Some(Box::new(damage)) })
}
