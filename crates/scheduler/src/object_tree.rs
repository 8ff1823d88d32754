//! Stored bytes as trees.

use std::sync::Arc;

use portolan_store::{BackendError, StoreError, StoredObject};
use serde_json::Value;

/// The tree of a stored object.
///
/// # Errors
/// `Backend` when storage is damaged.
pub(crate) fn value(stored: &StoredObject) -> Result<Value, StoreError> {
    stored.record.to_value(stored.revision).map_err(|error| {
        let context = format!("{} is damaged", stored.key);
        StoreError::Backend(Arc::new(BackendError { context, source: Some(Box::new(error)) }))
    })
}
