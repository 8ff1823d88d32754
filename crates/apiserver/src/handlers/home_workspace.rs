//! Home workspaces: the Workspace `~` of root is the one of the user who reads it, and is created by the first read.

use std::sync::Arc;

use portolan_store::{Expect, StoredObject};
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, ObjectName, Record, ResourceVersion, Status,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::{
    ApiServer,
    admission::{WorkspaceContext, ownership},
    commit::{CommitError, DirectoryEntry, ObjectCommit},
    directory::{ClusterLifecycle, ClusterOwner, LogicalCluster, WorkspaceLimits, prepare_cluster},
    errors::{damaged, status_for},
    request::{RequestContext, ResourceTarget},
};

/// Name in the URL.
const ALIAS: &str = "~";
/// First label of the paths of home workspaces.
const FIRST_LABEL: &str = "user";
/// Start of labels that are hashes of user names.
const HASHED: &str = "x-";

/// Returns true for a read of the home workspace of the caller.
pub(super) fn is_asked(call: &RequestContext, target: &ResourceTarget) -> bool {
    target.hooks().has_home && call.cluster.id == LogicalClusterId::ROOT && call.captures.name == ALIAS
}

/// Returns the Workspace that stands for the home workspace of the caller. It is not stored.
///
/// # Errors
/// 403 for an identity that is valid in one logical cluster only, such as a service account.
pub(super) async fn read(
    api: &Arc<ApiServer>,
    call: &RequestContext,
    target: &ResourceTarget,
) -> Result<StoredObject, Status> {
    let identity = &call.identity;
    if identity.home.is_some_and(|home| home != LogicalClusterId::ROOT)
        || identity.user.name.starts_with("system:serviceaccount:")
    {
        let why = "identities of one logical cluster have no home workspace";
        return Err(Status::forbidden(&target.resource(), ALIAS, why));
    }
    let label = label_of(&identity.user.name);
    let path = format!("{FIRST_LABEL}:{label}").parse::<LogicalClusterPath>();
    let path = path.map_err(|_| Status::internal("the path of a home workspace is invalid"))?;
    let home = match api.storage.directory.by_path(&path) {
        Some(home) => home,
        None => create(api, call, &label, path).await?,
    };
    Ok(face(&api.writes.admission.context.workspaces, call, target, &home))
}

/// Returns the label of a user: her name if it is a label, or else its hash. Different names have different labels.
fn label_of(user: &str) -> String {
    let is_label = !user.contains(':') && user.parse::<LogicalClusterPath>().is_ok();
    if is_label && !user.starts_with(HASHED) {
        return user.to_owned();
    }
    let hash = Sha256::digest(user);
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{HASHED}{hex}")
}

/// Creates a home workspace, or returns the one that another request created meanwhile.
async fn create(
    api: &Arc<ApiServer>,
    call: &RequestContext,
    label: &str,
    path: LogicalClusterPath,
) -> Result<Arc<LogicalCluster>, Status> {
    let (storage, context) = (&api.storage, &api.writes.admission.context.workspaces);
    let name: ObjectName = label.parse().map_err(|_| Status::internal("the name of a home workspace is invalid"))?;
    let marker = ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, GroupResource::new("portolan.dev", "homes"), name);
    let id = context.ids.next(&storage.store).await?;
    let (limits, lifecycle) = (WorkspaceLimits::default(), ClusterLifecycle::default());
    let owner = ClusterOwner { parent: LogicalClusterId::ROOT, workspace: None, limits, lifecycle };
    let born = prepare_cluster(id, path, Some(owner), &context.template);
    // Its key makes a second home of the same user impossible.
    let record = Record::of(&json!({"metadata": {"name": label}, "cluster": id.to_string()}));
    let mut commit = ObjectCommit::new(marker.clone(), Expect::Absent, Some(record));
    commit.companions.extend(born.writes);
    commit.companions.extend(ownership(&storage.seams, &call.identity.user, id));
    commit.entry = Some(DirectoryEntry::New(born.cluster));
    match commit.run(&api.writes.commits, None).await {
        Ok(_) => {
            let there = storage.directory.by_id(id);
            there.ok_or_else(|| Status::internal("a new home workspace is missing"))
        }
        Err(CommitError::Exists(_)) => existing(api, &marker).await,
        Err(error) => Err(error.into_status()),
    }
}

/// Returns the home workspace that a marker names; the directory of this server may lag behind it.
async fn existing(api: &Arc<ApiServer>, marker: &ObjectKey) -> Result<Arc<LogicalCluster>, Status> {
    let missing = || Status::internal("a home workspace is missing");
    let stored = api.storage.store.get(marker).await.map_err(|e| status_for(&e))?.ok_or_else(missing)?;
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(marker, &e))?;
    let id = value["cluster"].as_str().and_then(|id| id.parse().ok()).ok_or_else(missing)?;
    let (home, _) = api.storage.directory.stored(id).await?.ok_or_else(missing)?;
    Ok(Arc::new(home))
}

/// Returns the Workspace of a home workspace, as kcp shows it.
fn face(
    context: &WorkspaceContext,
    call: &RequestContext,
    target: &ResourceTarget,
    home: &LogicalCluster,
) -> StoredObject {
    let owner = json!({"username": call.identity.user.name}).to_string();
    let workspace = json!({
        "apiVersion": "tenancy.kcp.io/v1alpha1",
        "kind": "Workspace",
        "metadata": {
            "name": "cluster",
            "uid": home.id.to_string(),
            "creationTimestamp": home.created,
            "annotations": {
                "kcp.io/cluster": home.id.to_string(),
                "kcp.io/path": home.path,
                "experimental.tenancy.kcp.io/owner": owner,
            },
        },
        "spec": {
            "type": {"name": "home", "path": "root"},
            "cluster": home.id.to_string(),
            "URL": format!("{}/clusters/{}", context.url, home.id),
        },
        "status": {"phase": "Ready"},
    });
    let name = "cluster".parse().expect("the name is a constant");
    StoredObject {
        key: ObjectKey::cluster_scoped(call.cluster.id, target.stored_as(), name),
        revision: ResourceVersion::FIRST,
        created: ResourceVersion::FIRST,
        record: Arc::new(Record::of(&workspace)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_of_users_differ_and_are_labels() {
        let hash = label_of("a:b");
        let users = ["ann", "a:b", "Ann", "ann@example.com", "x-ann", "", "oidc:ann", &hash, &"a".repeat(300)];
        let labels: HashSet<String> = users.iter().map(|user| label_of(user)).collect();
        assert_eq!(labels.len(), users.len(), "{labels:?}");
        for label in &labels {
            assert!(format!("user:{label}").parse::<LogicalClusterPath>().is_ok(), "{label}");
        }
        assert_eq!(label_of("ann"), "ann");
    }
}
