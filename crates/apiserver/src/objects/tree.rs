//! Stored objects as trees.

use portolan_codec::conversion;
use portolan_store::StoredObject;
use portolan_types::{Status, object};
use serde_json::Value;

use crate::{errors::damaged, request::ResourceTarget};

/// Returns a stored object as a tree, in the version of the target.
pub(crate) fn tree(target: &ResourceTarget, stored: &StoredObject) -> Result<Value, Status> {
    let value = stored_tree(target, stored)?;
    Ok(if target.is_read_as_served() { value } else { conversion::from_storage(&target.kind, value) })
}

/// Returns a stored object as a tree, in its stored version.
///
/// # Errors
/// 500 when the record cannot be decoded.
pub(crate) fn stored_tree(target: &ResourceTarget, stored: &StoredObject) -> Result<Value, Status> {
    let mut value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    if target.has_no_revision() {
        object::metadata_mut(&mut value).remove("resourceVersion");
    }
    Ok(value)
}
