//! Mapping of store errors to responses.

use portolan_store::{Damage, DamagedObject, StoreError};
use portolan_types::{GroupResource, NamespaceName, ObjectKey, Reason, ResourceVersion, Status, StatusCause};

/// Most damaged objects that one response names, as in kube-apiserver.
const MAX_UNREADABLE: usize = 100;

/// Maps a store error to its response.
pub(crate) fn status_for(error: &StoreError) -> Status {
    match error {
        StoreError::NotFound { key } => Status::not_found(&key.resource, &key.name),
        StoreError::AlreadyExists { key } => Status::already_exists(&key.resource, &key.name),
        StoreError::Conflict { key, .. } => Status::modified(&key.resource, &key.name),
        StoreError::Compacted { asked, oldest } => too_old(*asked, *oldest),
        StoreError::FutureRevision { asked, current } => too_large(*asked, *current),
        StoreError::TooLarge { what } => {
            Status::new(Reason::RequestEntityTooLarge, format!("Request entity too large: {what}"))
        }
        StoreError::Overloaded => Status::too_many_requests("the server is overloaded, please try again later", 1),
        StoreError::ClusterGone { .. } => Status::no_such_path(),
        // Callers that know paths return more detail.
        StoreError::OverLimit { .. } => Status::new(Reason::Forbidden, "the workspace would store more than it may"),
        StoreError::Unknown => Status::new(
            Reason::Timeout,
            "the server did not learn in time whether the write happened: read before trying again",
        ),
        StoreError::Full(shortage) => {
            let full = Status::new(Reason::ServiceUnavailable, error.to_string());
            // Without `Retry-After` if somebody must free space first.
            if shortage.is_over() { full.retry_after(1) } else { full }
        }
        // The store has logged the reason.
        StoreError::Unreachable { why } => {
            tracing::debug!(%why, "the storage cannot be reached");
            // Without `Retry-After`: the store has retried already, and clients would wait ten times as long.
            Status::new(Reason::ServiceUnavailable, "the storage cannot be reached at present")
        }
        StoreError::Damaged { key, why } => corrupt(key, *why),
        StoreError::NotDamaged { key } => Status::internal(format!("{} is not damaged", key.name)),
        StoreError::Backend(cause) => {
            tracing::error!(error = %cause, "storage failed");
            Status::internal("storage failed")
        }
    }
}

/// Returns the response for an object that cannot be read. It contains only facts of its logical cluster.
pub(crate) fn corrupt(key: &ObjectKey, why: Damage) -> Status {
    Status::internal(format!("corrupt object, {}: {why}", printed_key(key)))
}

/// Returns the response for a list with unreadable objects (kube-apiserver's `aggregatedStorageError`).
pub(crate) fn unreadable(resource: &GroupResource, damaged: &[DamagedObject]) -> Status {
    let cause = |found: &DamagedObject| StatusCause {
        reason: "UnexpectedServerResponse".into(),
        message: format!("corrupt object, {}: {}", printed_key(&found.key), found.why),
        field: printed_key(&found.key),
    };
    let mut causes: Vec<_> = damaged.iter().take(MAX_UNREADABLE).map(cause).collect();
    if damaged.len() > MAX_UNREADABLE {
        let message = "too many errors, the list is truncated".into();
        causes.push(StatusCause { reason: "FieldValueTooMany".into(), message, field: String::new() });
    }
    let status =
        Status::new(Reason::StorageReadError, format!("failed to read one or more {resource} from the storage"));
    causes.into_iter().fold(status.about(resource, "list"), Status::with_cause)
}

/// Returns the error that ends a watch when a damaged object is deleted, whose last state is unknown (kube-apiserver's
/// `parseError`).
pub(crate) fn deleted_unreadable(key: &ObjectKey, why: Damage) -> Status {
    let message = format!("saw a DELETED event, but object data is corrupt - {}: {why}", printed_key(key));
    Status::new(Reason::StorageReadError, message)
}

fn printed_key(key: &ObjectKey) -> String {
    let namespace = key.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
    format!("{}/{namespace}{}", key.resource, key.name)
}

/// Logs a damaged object and returns its response.
pub(crate) fn damaged(key: &ObjectKey, error: &serde_json::Error) -> Status {
    log(key, error);
    corrupt(key, Damage::Body)
}

/// Logs an object whose stored bytes are intact but cannot be decoded. The store logs all other damage.
pub(crate) fn log(key: &ObjectKey, why: &dyn std::fmt::Display) {
    tracing::error!(
        cluster = %key.cluster,
        resource = %key.resource,
        namespace = key.namespace().map_or("", NamespaceName::as_str),
        name = %key.name,
        error = %why,
        "a stored object is damaged: it is as it was written, and cannot be used",
    );
}

/// Returns the 410 of a watch or list at a compacted revision.
fn too_old(asked: ResourceVersion, oldest: ResourceVersion) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// Returns the 504 with the cause that informers check.
fn too_large(asked: ResourceVersion, current: ResourceVersion) -> Status {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause = StatusCause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    };
    Status::new(Reason::Timeout, format!("Timeout: {message}")).with_cause(cause)
}
