//! Span of a reconcile.

use std::{any::Any, fmt};

use portolan_types::{LogicalClusterId, NamespaceName, ObjectKey, ResourceVersion};
use tracing::{
    Span, debug_span,
    field::{Empty, debug, display},
};

/// Returns the span of a reconcile. A key that is neither an object nor a namespace is recorded as a whole.
pub(super) fn of<K: Any + fmt::Debug>(controller: &'static str, key: &K) -> Span {
    let span = debug_span!(
        "reconcile",
        controller,
        cluster = Empty,
        resource = Empty,
        namespace = Empty,
        name = Empty,
        resource_version = Empty,
        key = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    let any: &dyn Any = key;
    if let Some(object) = any.downcast_ref::<ObjectKey>() {
        span.record("cluster", display(object.cluster));
        span.record("resource", display(&object.resource));
        span.record("name", display(&object.name));
        if let Some(namespace) = object.namespace() {
            span.record("namespace", display(namespace));
        }
    } else if let Some((cluster, namespace)) = any.downcast_ref::<(LogicalClusterId, NamespaceName)>() {
        span.record("cluster", display(cluster));
        span.record("namespace", display(namespace));
    } else {
        span.record("key", debug(key));
    }
    span
}

/// Records the revision of the reconciled object in the present span.
pub(crate) fn record_revision(revision: ResourceVersion) {
    Span::current().record("resource_version", revision.get());
}
