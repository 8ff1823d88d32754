//! The one place where a store failure becomes an answer to a client.

use portolan_store::{Damage, Damaged, StoreError};
use portolan_types::{GroupResource, NamespaceName, ObjectKey, Reason, ResourceVersion, Status, StatusCause};

/// Damaged objects that are named at once; upstream's bound.
const MAX_UNREADABLE: usize = 100;

/// The answer for a failure of the store.
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
        // Whoever knows paths tells more.
        StoreError::OverLimit { .. } => Status::new(Reason::Forbidden, "the workspace would store more than it may"),
        StoreError::Unknown => Status::new(
            Reason::Timeout,
            "the server did not learn in time whether the write happened: read before trying again",
        ),
        StoreError::Full(shortage) => {
            let full = Status::new(Reason::ServiceUnavailable, error.to_string());
            // Where somebody must make room first, clients would wait and try again for nothing.
            if shortage.is_over() { full.retry_after(1) } else { full }
        }
        // Whoever keeps the store tells the log why, once.
        StoreError::Unreachable { why } => {
            tracing::debug!(%why, "the storage cannot be reached");
            // Without Retry-After: the store has waited for it already, and clients would wait ten times as long.
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

/// The answer when an object is there and cannot be read. Said of it is only what its logical cluster knows.
pub(crate) fn corrupt(key: &ObjectKey, why: Damage) -> Status {
    Status::internal(format!("corrupt object, {}: {why}", called(key)))
}

/// The answer when objects that a list would have cannot be read (upstream's `aggregatedStorageError`).
pub(crate) fn unreadable(resource: &GroupResource, damaged: &[Damaged]) -> Status {
    let cause = |found: &Damaged| StatusCause {
        reason: "UnexpectedServerResponse".into(),
        message: format!("corrupt object, {}: {}", called(&found.key), found.why),
        field: called(&found.key),
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

/// What ends a watch of a damaged object that was deleted: nobody can show what it was (upstream's `parseError`).
pub(crate) fn deleted_unread(key: &ObjectKey, why: Damage) -> Status {
    let message = format!("saw a DELETED event, but object data is corrupt - {}: {why}", called(key));
    Status::new(Reason::StorageReadError, message)
}

fn called(key: &ObjectKey) -> String {
    let namespace = key.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
    format!("{}/{namespace}{}", key.resource, key.name)
}

/// The answer when a stored object cannot be read.
pub(crate) fn damaged(key: &ObjectKey, error: &serde_json::Error) -> Status {
    log(key, error);
    corrupt(key, Damage::Body)
}

/// Tells the log of an object whose bytes are what was written, and cannot be used: as the store tells of those that are not.
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

/// 410 of a watch or of a list at a revision.
fn too_old(asked: ResourceVersion, oldest: ResourceVersion) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// 504 with the cause that informers look for.
fn too_large(asked: ResourceVersion, current: ResourceVersion) -> Status {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause = StatusCause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        field: String::new(),
    };
    Status::new(Reason::Timeout, format!("Timeout: {message}")).with_cause(cause)
}
