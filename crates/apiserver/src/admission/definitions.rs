//! How much logical clusters may define, and that what is being undefined takes no new objects.
//!
//! The store gives each resource that it ever saw a number, which it does not take back. A logical cluster may use up so many and
//! no more: it remembers each name that it defined once, in a record of its own, beside its objects and gone with them.

use portolan_machinery::custom;
use portolan_store::{Expect, RangeRequest, RangeScope, Write};
use portolan_types::{GroupResource, ObjectKey, Record, Status, object};
use serde_json::{Value, json};

use crate::{
    ApiServer,
    errors::status_for,
    objects::{Commit, CommitError},
};

use super::{Operation, Request};

/// Definitions of one logical cluster at a time.
const MAX_DEFINITIONS: usize = 1024;
/// Names of resources that a logical cluster may define in its life.
const MAX_NAMES: usize = 2048;

/// Where the names are remembered; no kind is served under it.
fn names() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "definednames")
}

/// # Errors
/// 403 for new objects of a kind whose definition is being deleted.
pub(super) fn check_not_ending(request: &Request<'_>, object: &Value) -> Result<(), Status> {
    if !request.kind.is_ending || request.operation != Operation::Create {
        return Ok(());
    }
    let why = "create not allowed while custom resource definition is terminating";
    Err(Status::forbidden(&request.kind.group_resource(), object::name(object), why))
}

/// Remembers the name of a new definition in the same transaction.
///
/// # Errors
/// 403 when the logical cluster has too many definitions, or had too many names.
pub(super) async fn furnish(
    api: &ApiServer,
    request: &Request<'_>,
    definition: &Value,
    commit: &mut Commit,
) -> Result<(), CommitError> {
    let (cluster, name) = (request.cluster.id, object::name(definition));
    let refused = |why: String| Err(CommitError::Failed(Status::forbidden(&request.kind.group_resource(), name, why)));
    let definitions = GroupResource::new(custom::GROUP, custom::RESOURCE);
    if count(api, RangeScope::Cluster(cluster, definitions), MAX_DEFINITIONS).await? {
        return refused(format!("a logical cluster has at most {MAX_DEFINITIONS} definitions"));
    }
    let key = ObjectKey { resource: names(), ..commit.key.clone() };
    if api.store.get(&key).await.map_err(|e| status_for(&e))?.is_some() {
        return Ok(());
    }
    if count(api, RangeScope::Cluster(cluster, names()), MAX_NAMES).await? {
        return refused(format!("a logical cluster defines at most {MAX_NAMES} different resources in its life"));
    }
    let record = Some(Record::of(&json!({"metadata": {"name": name}})));
    commit.companions.push(Write { key, expect: Expect::Absent, record });
    Ok(())
}

/// Whether there are `limit` objects or more.
async fn count(api: &ApiServer, scope: RangeScope, limit: usize) -> Result<bool, Status> {
    let (mut request, mut found) = (RangeRequest::slices(scope), 0);
    loop {
        let page = api.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        found += page.objects.len();
        match request.next(&page) {
            _ if found >= limit => return Ok(true),
            Some(next) => request = next,
            None => return Ok(false),
        }
    }
}
