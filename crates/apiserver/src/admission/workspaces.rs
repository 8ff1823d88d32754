//! A Workspace makes the logical cluster of its path, in its own transaction: it is Ready at once. One that was deleted unread, as it
//! was damaged, has left its logical cluster behind: made anew, it has that one.

use portolan_machinery::rbac::MASTERS;
use portolan_store::{Expect, Write};
use portolan_types::{GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer,
    attributes::Attributes,
    authz::Authorizer as _,
    directory::{LogicalCluster, MAX_BYTES, MAX_OBJECTS, Phase, WorkspaceLimits, birth, key_of},
    objects::{Commit, CommitError, Entry},
};

use super::Request;

/// Keeps a deleted Workspace until the content of its logical cluster is gone.
pub const FINALIZER: &str = "core.kcp.io/logicalcluster";

/// What the server wrote into a Workspace stays, whatever a client sends.
pub(super) fn keep(workspace: &mut Value, old: &Value) {
    let Some(top) = workspace.as_object_mut() else { return };
    let spec = object::child_mut(top, "spec");
    for key in ["cluster", "URL", "type"] {
        match old.get("spec").and_then(|spec| spec.get(key)) {
            Some(value) => spec.insert(key.into(), value.clone()),
            None => spec.remove(key),
        };
    }
    if is_held(old) && !object::is_deleting(old) {
        hold(workspace);
    }
}

/// The finalizer of a deleted Workspace is the server's: without it, the logical cluster would live on without one.
///
/// # Errors
/// 403 when a write takes it off while the logical cluster is there.
pub(super) fn check_held(api: &ApiServer, request: &Request<'_>, object: &Value, old: &Value) -> Result<(), Status> {
    let id = old.pointer("/spec/cluster").and_then(Value::as_str).and_then(|text| text.parse().ok());
    let is_there = id.is_some_and(|id| api.directory.by_id(id).is_some());
    if is_held(old) && !is_held(object) && is_there {
        let why = format!("the finalizer {FINALIZER} goes when the logical cluster has gone");
        return Err(Status::forbidden(&request.kind.group_resource(), object::name(old), why));
    }
    Ok(())
}

fn is_held(workspace: &Value) -> bool {
    object::finalizers(workspace).any(|finalizer| finalizer == FINALIZER)
}

fn hold(workspace: &mut Value) {
    let finalizers = object::metadata_mut(workspace).entry("finalizers").or_insert_with(|| json!([]));
    if finalizers.is_null() {
        *finalizers = json!([]);
    }
    if let Some(list) = finalizers.as_array_mut().filter(|list| !list.iter().any(|f| f == FINALIZER)) {
        list.push(FINALIZER.into());
    }
}

pub(super) async fn furnish(
    api: &ApiServer,
    request: &Request<'_>,
    workspace: &mut Value,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let current = api.directory.by_id(request.cluster.id).filter(|c| c.phase == Phase::Ready);
    if current.is_none() {
        return Err(
            Status::forbidden(&request.kind.group_resource(), "", "the logical cluster is being deleted").into()
        );
    }
    let path = path_of(request, workspace)?;
    if let Some(there) = api.directory.by_path(&path) {
        return adopt(api, request, workspace, there.id, commit).await;
    }
    let uid = object::uid(workspace).ok_or_else(|| Status::internal("a new object has no uid"))?;
    let id = api.ids.next(&api.store).await?;
    let limits = limits_of(request, workspace)?;
    if !limits.is_none() {
        may_limit(api, request, workspace).await?;
    }
    let born = birth(id, path.clone(), Some((request.cluster.id, uid, limits)), &api.seams)?;
    complete(api, workspace, &path, id);
    commit.companions.extend(born.writes);
    commit.companions.extend(ownership(api, request, id));
    commit.entry = Some(Entry::New(born.cluster));
    Ok(())
}

/// Gives the logical cluster of a Workspace the limits that its annotations say, in the same transaction.
///
/// # Errors
/// 403 for users without the right to limit workspaces: a tenant must not lift what limits it.
pub(super) async fn limit(
    api: &ApiServer,
    request: &Request<'_>,
    (workspace, old): (&Value, &Value),
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let annotation = |object, key| object::annotation(object, key).map(str::to_owned);
    if [MAX_OBJECTS, MAX_BYTES].iter().all(|key| annotation(workspace, key) == annotation(old, key)) {
        return Ok(());
    }
    let limits = limits_of(request, workspace)?;
    may_limit(api, request, workspace).await?;
    let id = old.pointer("/spec/cluster").and_then(Value::as_str).and_then(|text| text.parse().ok());
    let Some(id) = id else { return Ok(()) };
    if let Some((limited, write)) = api.directory.limiting(id, limits).await? {
        commit.companions.push(write);
        commit.entry = Some(Entry::Changed(limited));
    }
    Ok(())
}

fn limits_of(request: &Request<'_>, workspace: &Value) -> Result<WorkspaceLimits, Status> {
    let invalid = |cause| Status::invalid(&request.kind.gvk.group_kind(), object::name(workspace), vec![cause]);
    WorkspaceLimits::of(workspace).map_err(invalid)
}

async fn may_limit(api: &ApiServer, request: &Request<'_>, workspace: &Value) -> Result<(), Status> {
    let asked = Attributes {
        verb: "limit".into(),
        group: (*request.kind.gvk.group).into(),
        version: (*request.kind.gvk.version).into(),
        resource: (*request.kind.resource).into(),
        name: object::name(workspace).into(),
        ..Attributes::default()
    };
    if api.rbac.authorize(request.cluster.id, request.user, &asked).await?.is_allowed() {
        return Ok(());
    }
    let why = format!("setting {MAX_OBJECTS} and {MAX_BYTES} takes the verb \"limit\" on workspaces.tenancy.kcp.io");
    Err(Status::forbidden(&request.kind.group_resource(), object::name(workspace), why))
}

/// Makes a Workspace that of a logical cluster which is there, unless it has one: the commit would find that. Nobody gets rights
/// in there that they did not have.
async fn adopt(
    api: &ApiServer,
    request: &Request<'_>,
    workspace: &mut Value,
    id: LogicalClusterId,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    // What this server knows may be older than the end of a workspace on another one.
    let stored = api.directory.stored(id).await?;
    let is_child = |there: &LogicalCluster| there.parent == Some(request.cluster.id) && there.phase == Phase::Ready;
    let child = stored.filter(|(there, _)| is_child(there));
    let Some((LogicalCluster { path, workspace: Some(uid), .. }, as_read)) = child else {
        let exists = Status::already_exists(&request.kind.group_resource(), object::name(workspace));
        return Err(CommitError::Exists(exists));
    };
    object::metadata_mut(workspace).insert("uid".into(), uid.to_string().into());
    complete(api, workspace, &path, id);
    // Its end would be written there.
    commit.checks.push((key_of(id), as_read));
    Ok(())
}

/// A deleted Workspace takes nothing new into its logical cluster: from the same transaction on.
pub(super) fn doom(api: &ApiServer, workspace: &Value, commit: &mut Commit) {
    let id = workspace.pointer("/spec/cluster").and_then(Value::as_str).and_then(|text| text.parse().ok());
    if let Some((marked, write)) = id.and_then(|id| api.directory.marking(id)) {
        commit.companions.push(write);
        commit.entry = Some(Entry::Changed(marked));
    }
}

/// Whoever makes a workspace may do everything in it.
fn ownership(api: &ApiServer, request: &Request<'_>, id: LogicalClusterId) -> Option<Write> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    // A service account is at home here and nobody there; the name in there would be a namesake's.
    if request.user.is_in(MASTERS) || request.user.name.starts_with("system:serviceaccount:") {
        return None;
    }
    let name = "workspace-admin";
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "uid": api.seams.uid(), "creationTimestamp": api.seams.now_text()},
        "subjects": [{"kind": "User", "apiGroup": GROUP, "name": request.user.name}],
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
    });
    let name = name.parse().expect("the name is a constant");
    let key = ObjectKey::cluster_scoped(id, GroupResource::new(GROUP, "clusterrolebindings"), name);
    Some(Write { key, expect: Expect::Absent, record: Some(Record::of(&binding)) })
}

fn path_of(request: &Request<'_>, workspace: &Value) -> Result<LogicalClusterPath, Status> {
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

fn complete(api: &ApiServer, workspace: &mut Value, path: &LogicalClusterPath, id: LogicalClusterId) {
    hold(workspace);
    let url = format!("https://{}/clusters/{path}", api.address());
    let Some(top) = workspace.as_object_mut() else { return };
    let spec = object::child_mut(top, "spec");
    spec.entry("type").or_insert_with(|| json!({"name": "universal", "path": "root"}));
    spec.insert("cluster".into(), id.to_string().into());
    spec.insert("URL".into(), url.into());
    top.insert("status".into(), json!({"phase": "Ready"}));
}
