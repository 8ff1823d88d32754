//! Names of resources that a tenant defines. The store numbers each resource that it sees, and the numbers are
//! limited: a tenant, which is a workspace in root with all below it, may use a part of them.
//!
//! Each name is a record beside the objects of the tenant's top logical cluster, and is deleted with them. A name
//! that no logical cluster of the tenant defines any longer can be replaced after a while, once the store has
//! reclaimed its number.

use std::time::Duration;

use jiff::Timestamp;
use portolan_kinds::custom;
use portolan_store::{Expect, RangeRequest, RangeScope, StoredObject, Write};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, ObjectName, Record, Status};
use serde_json::{Value, json};

use crate::{
    errors::{damaged, status_for},
    storage::StorageContext,
};

use super::{pending_write::PendingWrite, usage_limits::LimitContext};

/// Minimum time for which a name is kept.
const LEAST_KEPT: Duration = Duration::from_secs(3600);
/// Limit of definitions that are read to find a replaceable name.
const MAX_LOOKS: usize = 4096;

/// Returns the resource of these records; no kind is served under it.
fn names() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "definednames")
}

/// Adds the write that records the name of a definition. Returns the reason for a refusal.
///
/// # Errors
/// Failure of the store.
pub(super) async fn remember(
    context: &LimitContext,
    write: &mut PendingWrite<'_>,
    name: ObjectName,
) -> Result<Option<String>, Status> {
    let (storage, commit) = (&*context.storage, &mut *write.commit);
    let tenant = storage.directory.tenant(write.request.cluster);
    let key = ObjectKey { cluster: tenant, resource: names(), name, ..commit.key.clone() };
    if storage.store.get(&key).await.map_err(|e| status_for(&e))?.is_some() {
        return Ok(None);
    }
    let (recorded_names, most) = (recorded_names(storage, tenant).await?, context.limits.defined_names);
    if recorded_names.len() >= most {
        let Some(unused) = unused(storage, tenant, &recorded_names).await? else {
            return Ok(Some(format!("a workspace in root and all below it define at most {most} different resources")));
        };
        commit.companions.push(Write { key: unused.key.clone(), expect: Expect::At(unused.revision), record: None });
    }
    let record = json!({"metadata": {"name": key.name.as_str(), "creationTimestamp": storage.seams.now_text()}});
    commit.companions.push(Write { key, expect: Expect::Absent, record: Some(Record::of(&record)) });
    Ok(None)
}

async fn recorded_names(storage: &StorageContext, tenant: LogicalClusterId) -> Result<Vec<StoredObject>, Status> {
    let (mut request, mut found) = (RangeRequest::slices(RangeScope::Cluster(tenant, names())), Vec::new());
    loop {
        let page = storage.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        let next = request.next(&page);
        found.extend(page.objects);
        match next {
            Some(next) => request = next,
            None => return Ok(found),
        }
    }
}

/// Finds a name that is old enough and that no logical cluster of the tenant defines, with a bounded number of reads.
/// Each search starts at another place.
async fn unused<'a>(
    storage: &StorageContext,
    tenant: LogicalClusterId,
    recorded_names: &'a [StoredObject],
) -> Result<Option<&'a StoredObject>, Status> {
    // Each workspace in root is a tenant of its own.
    let is_root = tenant == LogicalClusterId::ROOT;
    let clusters = if is_root { vec![tenant] } else { storage.directory.subtree(tenant) };
    let mut start = [0; 2];
    storage.seams.entropy.fill(&mut start);
    let (start, looks) = (usize::from(u16::from_be_bytes(start)), (MAX_LOOKS / clusters.len().max(1)).max(1));
    let now = storage.seams.clock.now();
    for stored in (0..recorded_names.len().min(looks)).map(|n| &recorded_names[(start + n) % recorded_names.len()]) {
        if is_old(stored, now)? && !is_defined(storage, &clusters, stored).await? {
            return Ok(Some(stored));
        }
    }
    Ok(None)
}

fn is_old(stored: &StoredObject, now: Timestamp) -> Result<bool, Status> {
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    let since = value.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let since = since.and_then(|text| text.parse::<Timestamp>().ok());
    Ok(since.is_none_or(|since| now.duration_since(since).unsigned_abs() >= LEAST_KEPT))
}

async fn is_defined(
    storage: &StorageContext,
    clusters: &[LogicalClusterId],
    name: &StoredObject,
) -> Result<bool, Status> {
    let definitions = GroupResource::new(custom::GROUP, custom::RESOURCE);
    for cluster in clusters {
        let key = ObjectKey { cluster: *cluster, resource: definitions.clone(), ..name.key.clone() };
        if storage.store.get(&key).await.map_err(|e| status_for(&e))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
