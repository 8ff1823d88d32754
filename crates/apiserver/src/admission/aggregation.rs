//! Shared roles that collect others: as soon as one collects what others do not have, the logical cluster has a copy of its own,
//! with a revision of its own, that watchers are told of. From then on a loop keeps its rules.

use portolan_store::{Expect, Write};
use portolan_types::{ObjectKey, Record, Status, object};
use serde_json::Value;

use crate::{
    ApiServer,
    authz::{ClusterRoles, OwnObjects},
    bootstrap,
    objects::Commit,
};

use super::{Request, lookup};

const CLUSTER_ROLES: (&str, &str) = ("rbac.authorization.k8s.io", "clusterroles");

/// Adds to the commit of a ClusterRole the copies of those that collect its rules.
pub(super) async fn furnish(
    api: &ApiServer,
    request: &Request<'_>,
    role: &Value,
    commit: &mut Commit,
) -> Result<(), Status> {
    // What bears no label is collected by nobody.
    if object::metadata(role).get("labels").is_none() {
        return Ok(());
    }
    let (mut own, damaged) = lookup::readable_in_cluster(api, request.cluster.id, CLUSTER_ROLES).await?;
    own.retain(|other| object::name(other) != object::name(role));
    own.push(role.clone());
    // A copy that is damaged is a copy. It grants nothing, and collects again once it was deleted.
    let is_damaged = |name: &str| damaged.iter().any(|found| *found.key.name == *name);
    let has_own = |name: &str| is_damaged(name) || own.iter().any(|other| object::name(other) == name);
    let shared: Vec<&str> = bootstrap::aggregated().filter(|name| !has_own(name)).collect();
    let (before, after) =
        (ClusterRoles::untouched(), ClusterRoles::new(OwnObjects { cluster_roles: own, ..OwnObjects::default() }));
    for name in shared.into_iter().filter(|name| before.rules(name) != after.rules(name)) {
        let Ok(name) = name.parse() else { continue };
        let key = ObjectKey { name, ..commit.key.clone() };
        let copy = bootstrap::one(api, request.cluster, &key, &after);
        commit.companions.extend(copy.map(|copy| Write {
            key: copy.key,
            expect: Expect::Absent,
            record: Some(Record::clone(&copy.record)),
        }));
    }
    Ok(())
}
