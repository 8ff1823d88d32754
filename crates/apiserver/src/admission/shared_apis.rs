//! Shared APIs: the right to bind an export or to see its address, and the limits of exported schemas.

use portolan_types::{
    GroupResource, Status, apis,
    apis::{ExportAddress, ExportReference},
    object,
};
use serde_json::Value;

use crate::{
    authz::Authorizer as _, commit::CommitError, hooks::AdmissionRequest, routing::attributes::Attributes,
    views::ApiView,
};

use super::{defined_names, pending_write::PendingWrite, usage_limits::LimitContext, workspaces::WorkspaceContext};

/// Checks that a new binding or endpoint slice may be created: its creator needs the verb `bind` on the export, in the
/// export's workspace. An export that does not exist is refused like one without the right, so that neither reveals the
/// exports of another workspace. A slice for an export of the same workspace reveals nothing new.
///
/// # Errors
/// 403 without the right.
pub(super) async fn check_export(context: &WorkspaceContext, write: &PendingWrite<'_>) -> Result<(), CommitError> {
    let request = write.request;
    let is_slice = request.is(apis::GROUP, apis::SLICES);
    let (kind, field) =
        if is_slice { ("APIExportEndpointSlice", "/spec/export") } else { ("APIBinding", "/spec/reference/export") };
    let reference = write.object.pointer(field).and_then(ExportReference::of);
    let export = reference.and_then(|ExportReference { path, name }| {
        let cluster = match &path {
            None => request.cluster.id,
            Some(path) => context.storage.directory.by_path(path)?.id,
        };
        Some(ExportAddress { cluster, name })
    });
    let refused = || {
        let text = |key: &str| write.object.pointer(&format!("{field}/{key}")).and_then(Value::as_str);
        let (path, name) = (text("path").unwrap_or_default(), text("name").unwrap_or_default());
        write.forbidden(format!("unable to create {kind}: no permission to bind to export {path}:{name}"))
    };
    let Some(export) = export else { return Err(refused().into()) };
    if is_slice && export.cluster == request.cluster.id {
        return Ok(());
    }
    if may_bind(context, request, &export).await? { Ok(()) } else { Err(refused().into()) }
}

/// Returns true if the client of a request may bind an export, in the export's workspace.
///
/// # Errors
/// Failure to read its rights.
pub(super) async fn may_bind(
    context: &WorkspaceContext,
    request: &AdmissionRequest<'_>,
    export: &ExportAddress,
) -> Result<bool, Status> {
    let asked = Attributes {
        verb: "bind".into(),
        group: apis::GROUP.into(),
        version: "v1alpha2".into(),
        resource: apis::EXPORTS.into(),
        name: export.name.as_str().to_owned(),
        ..Attributes::default()
    };
    let user = request.requester.known_in(export.cluster);
    Ok(context.rbac.authorize(export.cluster, &user, &asked).await?.is_allowed())
}

/// Records the resource that a new schema describes among those that the tenant defines.
///
/// # Errors
/// 403 if the tenant defines too many.
pub(super) async fn check_schema(context: &LimitContext, write: &mut PendingWrite<'_>) -> Result<(), CommitError> {
    let text = |pointer: &str| write.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let resource = GroupResource::new(text("/spec/group"), text("/spec/names/plural"));
    let name = format!("{}.{}", resource.resource, resource.group);
    let (Ok(name), uid) = (name.parse(), object::meta_text(write.object, "uid")) else {
        return Err(write.forbidden("the names of the schema are too long").into());
    };
    if apis::bound_schema(write.request.cluster.id, &resource, uid).is_none() {
        return Err(write.forbidden("the names of the schema are too long").into());
    }
    let why = defined_names::remember(context, write, name).await?;
    why.map_or(Ok(()), |why| Err(write.forbidden(why).into()))
}

/// Checks a write through a view: it may neither see nor leave an object outside of the view.
///
/// # Errors
/// 404 for an object outside of the view, 403 for a write that would move one there.
pub(super) fn check_viewed_write(
    view: &ApiView,
    request: &AdmissionRequest<'_>,
    (object, old): (Option<&Value>, Option<&Value>),
) -> Result<(), Status> {
    let resource = request.kind.group_resource();
    if old.is_some_and(|old| !view.admits(old)) {
        return Err(Status::not_found(&resource, request.name));
    }
    if object.is_some_and(|object| !view.admits(object)) {
        let why = "the permission claim does not cover an object with these labels";
        return Err(Status::forbidden(&resource, request.name, why));
    }
    Ok(())
}
