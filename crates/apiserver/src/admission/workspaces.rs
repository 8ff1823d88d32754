//! Workspaces: creating one creates the logical cluster of its path in the same transaction, so it is Ready at once.
//! A damaged Workspace that was deleted unread leaves its logical cluster behind, and a new Workspace of the name
//! adopts it.

use std::sync::Arc;

use portolan_store::{Expect, Write};
use portolan_strategy::rbac::{MASTERS, User};
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, Seams, Status, Uid,
    lifecycle::is_step_label, object,
};
use serde_json::{Value, json};

use crate::{
    authz::{Authorizer as _, RbacAuthorizer},
    commit::{CommitError, DirectoryEntry, ObjectCommit},
    directory::{
        ClusterLifecycle, ClusterOwner, ClusterPhase, ClusterTemplate, Directory, IdAllocator, LIMIT_ANNOTATIONS,
        LogicalCluster, WorkspaceLimits, key_of, prepare_cluster,
    },
    hooks::AdmissionRequest,
    routing::attributes::Attributes,
    storage::StorageContext,
};

use super::{mounts, pending_write::PendingWrite, workspace_types};

/// Finalizer that keeps a deleted Workspace until the content of its logical cluster is gone.
pub const FINALIZER: &str = "core.kcp.io/logicalcluster";

/// Context of writes of Workspaces.
pub(crate) struct WorkspaceContext {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) rbac: Arc<RbacAuthorizer>,
    pub(crate) ids: IdAllocator,
    /// Objects of new logical clusters.
    pub(crate) template: ClusterTemplate,
    /// URL at which clients reach the server.
    pub(crate) url: String,
}

/// Restores the fields of a Workspace that only the server writes.
pub(super) fn restore_server_fields(workspace: &mut Value, old: &Value) {
    let Some(top) = workspace.as_object_mut() else { return };
    let spec = object::child_mut(top, "spec");
    for key in ["cluster", "URL", "type"] {
        match old.get("spec").and_then(|spec| spec.get(key)) {
            Some(value) => spec.insert(key.into(), value.clone()),
            None => spec.remove(key),
        };
    }
    for key in [OWNER_ANNOTATION, CLUSTER_ANNOTATION] {
        if let Some(value) = object::annotation(old, key) {
            let annotations = object::child_mut(object::metadata_mut(workspace), "annotations");
            annotations.insert(key.into(), value.into());
        }
    }
    if has_finalizer(old) && !object::is_deleting(old) {
        add_finalizer(workspace);
    }
    restore_stage(workspace, old);
}

/// Restores the stage of the logical cluster, so that no client shows steps as ended.
fn restore_stage(workspace: &mut Value, old: &Value) {
    let status = |key: &str| old.get("status").and_then(|status| status.get(key)).cloned();
    let labels = old.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let own: Vec<_> = labels.filter(|(key, _)| is_step_label(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let sent = workspace.pointer("/metadata/labels").and_then(Value::as_object);
    if !own.is_empty() || sent.is_some_and(|sent| sent.keys().any(|key| is_step_label(key))) {
        let labels = object::child_mut(object::metadata_mut(workspace), "labels");
        labels.retain(|key, _| !is_step_label(key));
        labels.extend(own);
    }
    let Some(top) = workspace.as_object_mut().filter(|top| top.contains_key("status")) else { return };
    for key in ["phase", "initializers", "terminators"] {
        match status(key) {
            Some(value) => object::child_mut(top, "status").insert(key.into(), value),
            None => object::child_mut(top, "status").remove(key),
        };
    }
}

/// Keeps the server's finalizer on a deleted Workspace: otherwise the logical cluster would survive without one.
///
/// # Errors
/// 403 for a write that removes it while the logical cluster exists.
pub(super) fn check_finalizer(
    directory: &Directory,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: &Value,
) -> Result<(), Status> {
    let is_there = directory.child(request.cluster.id, old).is_some();
    if has_finalizer(old) && !has_finalizer(object) && is_there {
        let why = format!("the finalizer {FINALIZER} goes when the logical cluster has gone");
        return Err(Status::forbidden(&request.kind.group_resource(), object::name(old), why));
    }
    Ok(())
}

fn has_finalizer(workspace: &Value) -> bool {
    object::finalizers(workspace).any(|finalizer| finalizer == FINALIZER)
}

fn add_finalizer(workspace: &mut Value) {
    let finalizers = object::metadata_mut(workspace).entry("finalizers").or_insert_with(|| json!([]));
    if finalizers.is_null() {
        *finalizers = json!([]);
    }
    if let Some(list) = finalizers.as_array_mut().filter(|list| !list.iter().any(|f| f == FINALIZER)) {
        list.push(FINALIZER.into());
    }
}

/// Adds to the commit of a Workspace the writes of its logical cluster: the logical cluster itself if the Workspace is
/// new, or else its changed limits.
///
/// # Errors
/// 403 in a logical cluster that is being deleted, and for limits without the right to set them; 409 for a path that
/// is taken.
pub(super) async fn add_dependent_writes(
    context: &WorkspaceContext,
    write: &mut PendingWrite<'_>,
) -> Result<(), CommitError> {
    match write.old {
        None => add_cluster(context, write).await,
        Some(old) => {
            mounts::check_change(write.request, write.object, old)?;
            add_limit_write(context, write, old).await
        }
    }
}

async fn add_cluster(context: &WorkspaceContext, write: &mut PendingWrite<'_>) -> Result<(), CommitError> {
    let (storage, request) = (&*context.storage, write.request);
    // An initializer may create workspaces in one that it initializes.
    let is_alive = |c: &Arc<LogicalCluster>| matches!(c.phase, ClusterPhase::Initializing | ClusterPhase::Ready);
    if !storage.directory.by_id(request.cluster.id).is_some_and(|current| is_alive(&current)) {
        return Err(
            Status::forbidden(&request.kind.group_resource(), "", "the logical cluster is being deleted").into()
        );
    }
    let path = path_of(request, write.object)?;
    if mounts::is_mount(write.object) {
        return mounts::complete_mount(context, write, &path);
    }
    let of_type = workspace_types::resolve(context, request, write.object).await?;
    let lifecycle = set_type(write, of_type);
    if let Some(there) = storage.directory.by_path(&path) {
        return adopt(context, write, there.id).await;
    }
    let uid = object::uid(write.object).ok_or_else(|| Status::internal("a new object has no uid"))?;
    let id = context.ids.next(&storage.store).await?;
    let limits = limits_of(request, write.object)?;
    if !limits.is_none() {
        may_limit(&context.rbac, request, write.object).await?;
    }
    let limits = limits.below(request.cluster);
    if !limits.is_none() {
        let annotations = object::child_mut(object::metadata_mut(write.object), "annotations");
        annotations.extend(limits.annotations().map(|(key, value)| (key.to_owned(), value.into())));
    }
    let owner = ClusterOwner { parent: request.cluster.id, workspace: Some(uid), limits, lifecycle };
    let born = prepare_cluster(id, path, Some(owner), &context.template);
    complete(context, write.object, born.cluster.entry());
    write.commit.companions.extend(born.writes);
    write.commit.companions.extend(ownership(&storage.seams, request.user, id));
    write.commit.entry = Some(DirectoryEntry::New(born.cluster));
    Ok(())
}

/// Adds a write of the limits in a Workspace's annotations to its logical cluster, in the same transaction.
///
/// # Errors
/// 403 without the right to limit workspaces, since a tenant must not lift its own limits.
async fn add_limit_write(
    context: &WorkspaceContext,
    write: &mut PendingWrite<'_>,
    old: &Value,
) -> Result<(), CommitError> {
    let (request, workspace) = (write.request, &*write.object);
    let is_same = |key: &&str| object::annotation(workspace, key) == object::annotation(old, key);
    if LIMIT_ANNOTATIONS.iter().all(is_same) {
        return Ok(());
    }
    let limits = limits_of(request, workspace)?;
    may_limit(&context.rbac, request, workspace).await?;
    let id = old.pointer("/spec/cluster").and_then(Value::as_str).and_then(|text| text.parse().ok());
    let Some(id) = id else { return Ok(()) };
    let limiting = context.storage.directory.limiting(id, limits).await?;
    if let Some((limited, limit_write)) = limiting.filter(|(limited, _)| limited.is_of(request.cluster.id, old)) {
        write.commit.companions.push(limit_write);
        write.commit.entry = Some(DirectoryEntry::Changed(limited));
    }
    Ok(())
}

fn limits_of(request: &AdmissionRequest<'_>, workspace: &Value) -> Result<WorkspaceLimits, Status> {
    let invalid = |cause| Status::invalid(&request.kind.gvk.group_kind(), object::name(workspace), vec![cause]);
    WorkspaceLimits::of(workspace).map_err(invalid)
}

async fn may_limit(rbac: &RbacAuthorizer, request: &AdmissionRequest<'_>, workspace: &Value) -> Result<(), Status> {
    let asked = Attributes {
        verb: "limit".into(),
        group: (*request.kind.gvk.group).into(),
        version: (*request.kind.gvk.version).into(),
        resource: (*request.kind.resource).into(),
        name: object::name(workspace).into(),
        ..Attributes::default()
    };
    if rbac.authorize(request.cluster.id, request.user, &asked).await?.is_allowed() {
        return Ok(());
    }
    let keys = LIMIT_ANNOTATIONS.join(", ");
    let why = format!("setting {keys} takes the verb \"limit\" on workspaces.tenancy.kcp.io");
    Err(Status::forbidden(&request.kind.group_resource(), object::name(workspace), why))
}

/// Binds a Workspace to an existing logical cluster that has no Workspace, which the commit checks. No user gets new
/// rights in the logical cluster.
async fn adopt(
    context: &WorkspaceContext,
    write: &mut PendingWrite<'_>,
    id: LogicalClusterId,
) -> Result<(), CommitError> {
    let request = write.request;
    // The directory of this server may lag behind the end of a workspace on another server.
    let stored = context.storage.directory.stored(id).await?;
    let is_alive = |phase| matches!(phase, ClusterPhase::Initializing | ClusterPhase::Ready);
    let is_child = |there: &LogicalCluster| there.parent == Some(request.cluster.id) && is_alive(there.phase);
    let child = stored.filter(|(there, _)| is_child(there));
    let Some((there @ LogicalCluster { workspace: Some(_), .. }, as_read)) = child else {
        let exists = Status::already_exists(&request.kind.group_resource(), object::name(write.object));
        return Err(CommitError::Exists(exists));
    };
    let uid = there.workspace.as_ref().map(Uid::to_string).unwrap_or_default();
    object::metadata_mut(write.object).insert("uid".into(), uid.into());
    complete(context, write.object, &there);
    // The end of the logical cluster would be written to this key.
    write.commit.checks.push((key_of(id), as_read));
    Ok(())
}

/// Closes the logical cluster of a deleted Workspace to new objects, from the same transaction on.
pub(super) fn on_deletion_marked(
    storage: &StorageContext,
    parent: LogicalClusterId,
    workspace: &Value,
    commit: &mut ObjectCommit,
) {
    let child = storage.directory.child(parent, workspace);
    let marking = child.and_then(|child| storage.directory.marking(child.id, &storage.seams.now_text()));
    if let Some((marked, write)) = marking {
        commit.companions.push(write);
        commit.entry = Some(DirectoryEntry::Changed(marked));
    }
}

/// Returns a binding that makes the creator of a workspace its administrator.
pub(crate) fn ownership(seams: &Seams, user: &User, id: LogicalClusterId) -> Option<Write> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    // A service account exists only in its own logical cluster; in the new one the name would be another account's.
    if user.is_in(MASTERS) || user.name.starts_with("system:serviceaccount:") {
        return None;
    }
    let name = "workspace-admin";
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "uid": seams.uid(), "creationTimestamp": seams.now_text()},
        "subjects": [{"kind": "User", "apiGroup": GROUP, "name": user.name}],
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
    });
    let name = name.parse().expect("the name is a constant");
    let key = ObjectKey::cluster_scoped(id, GroupResource::new(GROUP, "clusterrolebindings"), name);
    Some(Write { key, expect: Expect::Absent, record: Some(Record::of(&binding)) })
}

fn path_of(request: &AdmissionRequest<'_>, workspace: &Value) -> Result<LogicalClusterPath, Status> {
    let name = object::name(workspace);
    request.cluster.path.child(name).map_err(|error| {
        let cause = portolan_types::StatusCause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {name:?}: {}", error.rule()),
            field: "metadata.name".into(),
        };
        Status::invalid(&request.kind.gvk.group_kind(), name, vec![cause])
    })
}

/// Annotations of a Workspace that only the server writes: its creator, and the logical cluster that it has.
const OWNER_ANNOTATION: &str = "experimental.tenancy.kcp.io/owner";
const CLUSTER_ANNOTATION: &str = "internal.tenancy.kcp.io/cluster";

/// Writes the type into a new Workspace. Returns the steps that the type asks for.
fn set_type(write: &mut PendingWrite<'_>, of_type: workspace_types::WorkspaceType) -> ClusterLifecycle {
    let owner = json!({"username": write.request.user.name}).to_string();
    let metadata = object::metadata_mut(write.object);
    object::child_mut(metadata, "labels").extend(of_type.labels);
    if metadata.get("labels").and_then(Value::as_object).is_some_and(serde_json::Map::is_empty) {
        metadata.remove("labels");
    }
    object::child_mut(metadata, "annotations").insert(OWNER_ANNOTATION.into(), owner.into());
    if let Some(top) = write.object.as_object_mut() {
        object::child_mut(top, "spec").insert("type".into(), of_type.reference);
    }
    of_type.lifecycle
}

fn complete(context: &WorkspaceContext, workspace: &mut Value, cluster: &LogicalCluster) {
    let LogicalCluster { id, path, .. } = cluster;
    add_finalizer(workspace);
    let url = format!("{}/clusters/{path}", context.url);
    let annotations = object::child_mut(object::metadata_mut(workspace), "annotations");
    annotations.insert(CLUSTER_ANNOTATION.into(), id.to_string().into());
    let Some(top) = workspace.as_object_mut() else { return };
    let spec = object::child_mut(top, "spec");
    spec.insert("cluster".into(), id.to_string().into());
    spec.insert("URL".into(), url.into());
    let now = context.storage.seams.now_text();
    let scheduled = json!({"type": "WorkspaceScheduled", "status": "True", "lastTransitionTime": now});
    top.insert("status".into(), json!({"conditions": [scheduled]}));
    cluster.show_on_workspace(workspace, &now);
}
