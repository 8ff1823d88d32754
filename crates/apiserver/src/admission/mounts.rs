//! Workspaces that mount a physical cluster: they have no logical cluster, and requests to their path are proxied.

use portolan_types::{LogicalClusterPath, Status, StatusCause, object};
use serde_json::{Value, json};

use crate::{commit::CommitError, hooks::AdmissionRequest};

use super::{pending_write::PendingWrite, workspaces::WorkspaceContext};

/// Group and kind of the objects that may be mounted.
const MOUNTED: (&str, &str) = ("portolan.dev/", "PhysicalCluster");

/// Returns true for a reference to an object of a kind that may be mounted.
pub(crate) fn is_mountable(reference: &Value) -> bool {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    text("apiVersion").starts_with(MOUNTED.0) && text("kind") == MOUNTED.1 && !text("name").is_empty()
}

/// Returns true for a Workspace with a mount.
pub(super) fn is_mount(workspace: &Value) -> bool {
    workspace.pointer("/spec/mount").is_some_and(|mount| !mount.is_null())
}

/// Completes a new Workspace with a mount.
///
/// # Errors
/// 422 for a reference to an object that cannot be mounted.
pub(super) fn complete_mount(
    context: &WorkspaceContext,
    write: &mut PendingWrite<'_>,
    path: &LogicalClusterPath,
) -> Result<(), CommitError> {
    check_reference(write.request, write.object)?;
    let url = format!("{}/clusters/{path}", context.url);
    let Some(top) = write.object.as_object_mut() else { return Ok(()) };
    let spec = object::child_mut(top, "spec");
    // A client that could name a logical cluster here could delete it with the Workspace.
    spec.remove("cluster");
    spec.insert("URL".into(), url.into());
    top.insert("status".into(), json!({"phase": "Ready"}));
    Ok(())
}

/// Checks that a Workspace keeps or lacks its mount, as before the write.
///
/// # Errors
/// 422 for a Workspace that gains or loses a mount, and for an invalid reference.
pub(super) fn check_change(request: &AdmissionRequest<'_>, workspace: &Value, old: &Value) -> Result<(), Status> {
    if is_mount(workspace) != is_mount(old) {
        let why = "field is immutable: a workspace has either a logical cluster or a mount";
        return Err(invalid(request, workspace, "spec.mount", why));
    }
    check_reference(request, workspace)
}

fn check_reference(request: &AdmissionRequest<'_>, workspace: &Value) -> Result<(), Status> {
    let Some(mount) = workspace.pointer("/spec/mount").filter(|mount| !mount.is_null()) else { return Ok(()) };
    if is_mountable(&mount["ref"]) {
        return Ok(());
    }
    let why = "must name a PhysicalCluster of portolan.dev/v1alpha1 in the same workspace";
    Err(invalid(request, workspace, "spec.mount.ref", why))
}

fn invalid(request: &AdmissionRequest<'_>, workspace: &Value, field: &str, why: &str) -> Status {
    let (reason, message) = ("FieldValueInvalid".into(), format!("Invalid value: {why}"));
    let cause = StatusCause { reason, message, field: field.into() };
    Status::invalid(&request.kind.gvk.group_kind(), object::name(workspace), vec![cause])
}
