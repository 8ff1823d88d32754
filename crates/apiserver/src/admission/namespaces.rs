//! NamespaceLifecycle: objects are created only in namespaces that exist and are not terminating.

use portolan_store::Expect;
use portolan_types::{GroupResource, ObjectKey, Reason, Status, StatusCause};
use serde_json::Value;

use crate::{directory::ClusterPhase, errors::status_for, storage::StorageContext};

use super::forbidden;
use crate::hooks::AdmissionRequest;

pub(super) async fn preconditions(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    object: &Value,
) -> Result<Vec<(ObjectKey, Expect)>, Status> {
    if request.cluster.phase == ClusterPhase::Deleting && !request.kind.namespaced {
        let why = "the logical cluster is being deleted";
        return Err(Status::forbidden(&request.kind.group_resource(), "", why));
    }
    if request.namespace.is_empty() {
        return Ok(Vec::new());
    }
    let namespaces = GroupResource::new("", "namespaces");
    let name =
        request.namespace.parse().map_err(|e: portolan_types::InvalidName| Status::bad_request(e.to_string()))?;
    let key = ObjectKey::cluster_scoped(request.cluster.id, namespaces.clone(), name);
    let stored = storage.store.get(&key).await.map_err(|e| status_for(&e))?;
    let Some(stored) = stored else { return Err(Status::not_found(&namespaces, request.namespace)) };
    if stored.record.header.is_deleting {
        return Err(terminating(request, object));
    }
    // The precondition holds until the namespace is deleted or recreated; other writes to it do not matter.
    Ok(vec![(key, Expect::Lives { created: stored.created, written: stored.revision })])
}

fn terminating(request: &AdmissionRequest<'_>, object: &Value) -> Status {
    let namespace = request.namespace;
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let cause = StatusCause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".into(),
    };
    let status = forbidden(request, Some(object), why).with_cause(cause);
    debug_assert_eq!(status.reason(), Reason::Forbidden);
    status
}
