//! Names of physical clusters are unique along a path: a pin or a policy names one and the same wherever it is read.

use portolan_store::{Expect, RangeRequest, RangeScope};
use portolan_types::{ObjectKey, Status, object};
use serde_json::Value;

use crate::{
    ApiServer,
    errors::status_for,
    objects::{Commit, CommitError},
    reach::physical_clusters,
};

use super::{Request, room::Room};

/// Refuses a new physical cluster whose name one within reach has, or one that is registered below.
///
/// # Errors
/// 409 for such a name.
pub(super) async fn check_name(
    api: &ApiServer,
    request: &Request<'_>,
    physical: &Value,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let lineage = api.directory.lineage(request.cluster.id);
    let Some(root) = lineage.last() else { return Ok(()) };
    // All who register one decide one after the other.
    Room::PhysicalClusters.enter(api, root.id, commit).await?;
    let taken = || -> CommitError {
        CommitError::Exists(Status::already_exists(&request.kind.group_resource(), object::name(physical)))
    };
    for ancestor in lineage.iter().skip(1) {
        let key = ObjectKey { cluster: ancestor.id, ..commit.key.clone() };
        if api.store.get(&key).await.map_err(|error| status_for(&error))?.is_some() {
            return Err(taken());
        }
        commit.checks.push((key, Expect::Absent));
    }
    let mut next = Some(RangeRequest::slices(RangeScope::AllClusters(physical_clusters())).past_damage());
    while let Some(slice) = next {
        let page = api.store.range(slice.clone()).await.map_err(|error| status_for(&error))?;
        next = slice.next(&page);
        let named = page.objects.iter().filter(|other| other.key.name == commit.key.name);
        let is_below = |other: &ObjectKey| {
            api.directory.lineage(other.cluster).iter().skip(1).any(|above| above.id == request.cluster.id)
        };
        if named.map(|other| &other.key).any(is_below) {
            return Err(taken());
        }
    }
    Ok(())
}
