//! Aggregated shared roles. A shared role may collect rules in one logical cluster that it does not have elsewhere.
//! That logical cluster then gets a stored copy of the role, whose revision watchers see, and a control loop keeps the
//! rules of the copy current.

use portolan_store::{Expect, Write};
use portolan_types::{GroupResource, ObjectKey, Record, Status, object};

use crate::{
    authz::{ClusterRoles, OwnObjects, shared_objects},
    storage::StorageContext,
};

use super::{lookup, pending_write::PendingWrite};

/// Returns the resource of ClusterRoles.
fn cluster_roles() -> GroupResource {
    GroupResource::new("rbac.authorization.k8s.io", "clusterroles")
}

/// Adds to the commit of a ClusterRole copies of the shared roles that collect its rules.
pub(super) async fn add_dependent_writes(storage: &StorageContext, write: &mut PendingWrite<'_>) -> Result<(), Status> {
    let (role, cluster) = (&*write.object, write.request.cluster);
    // A role without labels is never collected.
    if object::metadata(role).get("labels").is_none() {
        return Ok(());
    }
    let (mut own, damaged) = lookup::readable_in_cluster(storage, cluster.id, cluster_roles()).await?;
    own.retain(|other| object::name(other) != object::name(role));
    own.push(role.clone());
    // A damaged copy is still a copy. It grants nothing, and collects again after it is deleted.
    let is_damaged = |name: &str| damaged.iter().any(|found| *found.key.name == *name);
    let has_own = |name: &str| is_damaged(name) || own.iter().any(|other| object::name(other) == name);
    let shared: Vec<&str> = shared_objects::aggregated().filter(|name| !has_own(name)).collect();
    let (before, after) =
        (ClusterRoles::shared_only(), ClusterRoles::new(OwnObjects { cluster_roles: own, ..OwnObjects::default() }));
    for name in shared.into_iter().filter(|name| before.rules(name) != after.rules(name)) {
        let Ok(name) = name.parse() else { continue };
        let key = ObjectKey { name, ..write.commit.key.clone() };
        let copy = shared_objects::aggregated_role(cluster, &key, &after);
        write.commit.companions.extend(copy.map(|copy| Write {
            key: copy.key,
            expect: Expect::Absent,
            record: Some(Record::clone(&copy.record)),
        }));
    }
    Ok(())
}
