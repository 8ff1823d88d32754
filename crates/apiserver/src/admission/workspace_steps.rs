//! Ends of initializers and terminators: the logical cluster and its Workspace change in one transaction, so a
//! Workspace that shows no initializer is ready.

use portolan_store::{Expect, StoredObject};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status, lifecycle::LifecycleStage, object};
use serde_json::Value;

use crate::{
    commit::{CommitContext, CommitError, DirectoryEntry, ObjectCommit},
    directory::{Directory, LogicalCluster},
    errors::status_for,
    storage::StorageContext,
};

/// Attempts of a write that others conflict with.
const WRITE_ATTEMPTS: usize = 5;

/// Commits a changed logical cluster, and shows its stage on its Workspace.
///
/// # Errors
/// `Raced` if either has changed meanwhile.
pub(crate) async fn commit_stage(
    commits: &CommitContext,
    changed: LogicalCluster,
    expect: Expect,
) -> Result<(), CommitError> {
    let own = Directory::write_of(&changed, expect);
    let mut commit = match workspace_of(&commits.storage, &changed).await? {
        None => ObjectCommit::new(own.key, own.expect, own.record),
        Some(stored) => {
            let mut workspace = stored.to_value().map_err(|error| status_for(&error))?;
            object::metadata_mut(&mut workspace).remove("resourceVersion");
            let before = workspace.clone();
            changed.show_on_workspace(&mut workspace, &commits.storage.seams.now_text());
            if workspace == before && commits.storage.directory.by_id(changed.id).is_some_and(|known| *known == changed)
            {
                return Ok(());
            }
            let record = Some(Record::of(&workspace));
            let mut commit = ObjectCommit::new(stored.key, Expect::At(stored.revision), record);
            commit.companions.push(own);
            commit
        }
    };
    commit.entry = Some(DirectoryEntry::Changed(changed));
    commit.run(commits, None).await.map(drop)
}

/// Ends a step of a logical cluster, unless it has ended.
///
/// # Errors
/// Failure of the store; 409 after too many conflicts.
pub(crate) async fn end_step(
    commits: &CommitContext,
    cluster: LogicalClusterId,
    stage: LifecycleStage,
    step: &str,
) -> Result<(), Status> {
    let mut raced = Status::internal("no attempt was made");
    for _ in 0..WRITE_ATTEMPTS {
        let Some((current, expect)) = commits.storage.directory.stored(cluster).await? else { return Ok(()) };
        let Some(changed) = current.after_step(stage, step) else { return Ok(()) };
        match commit_stage(commits, changed, expect).await {
            Ok(()) => return Ok(()),
            Err(CommitError::Raced(status)) => raced = status,
            Err(error) => return Err(error.into_status()),
        }
    }
    Err(raced)
}

/// Begins the deletion of a logical cluster, and shows it on its Workspace if it has terminators. Returns true once its
/// content may be deleted.
///
/// # Errors
/// Failure of the store; 409 after too many conflicts.
pub(crate) async fn begin_deletion(commits: &CommitContext, cluster: LogicalClusterId) -> Result<bool, Status> {
    let (directory, seams) = (&commits.storage.directory, &commits.storage.seams);
    let mut raced = Status::internal("no attempt was made");
    for _ in 0..WRITE_ATTEMPTS {
        let latest = directory.latest(cluster).await.map_err(|error| status_for(&error))?;
        let Some((current, expect)) = latest else { return Ok(true) };
        if current.lifecycle.is_none() {
            return directory.begin_deletion(cluster, &seams.now_text()).await.map_err(|error| status_for(&error));
        }
        let begun = current.begun_deletion(&seams.now_text()).unwrap_or(current);
        let is_deleting = begun.is_deleting();
        match commit_stage(commits, begun, expect).await {
            Ok(()) => return Ok(is_deleting),
            Err(CommitError::Raced(status)) => raced = status,
            Err(error) => return Err(error.into_status()),
        }
    }
    Err(raced)
}

/// Returns the Workspace of a logical cluster; `None` if it has none, or one that cannot be read.
async fn workspace_of(storage: &StorageContext, cluster: &LogicalCluster) -> Result<Option<StoredObject>, Status> {
    let name = cluster.path.rsplit(':').next().and_then(|name| name.parse().ok());
    let Some(((parent, uid), name)) = cluster.parent.zip(cluster.workspace.as_ref()).zip(name) else {
        return Ok(None);
    };
    let key = ObjectKey::cluster_scoped(parent, GroupResource::new("tenancy.kcp.io", "workspaces"), name);
    let stored = match storage.store.get(&key).await {
        Err(portolan_store::StoreError::Damaged { .. }) => None,
        stored => stored.map_err(|error| status_for(&error))?,
    };
    let is_own =
        |stored: &StoredObject| stored.to_value().is_ok_and(|own: Value| object::uid(&own).as_ref() == Some(uid));
    Ok(stored.filter(is_own))
}
