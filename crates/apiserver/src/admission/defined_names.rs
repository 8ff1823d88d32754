//! The names of resources that a tenant defines. The store gives each resource that it sees a number, and has so many of them:
//! a tenant, that is a workspace in root with all below it, may use up a part of them.
//!
//! A name is remembered as a record of its own beside the objects of the tenant's uppermost logical cluster, and goes with them.
//! One that nobody in the tenant defines any more may be given up for another after a while, in which the store takes the number
//! back.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use portolan_machinery::custom;
use portolan_store::{Expect, RangeRequest, RangeScope, StoredObject, Write};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Status};
use serde_json::{Value, json};

use crate::{
    ApiServer,
    directory::LogicalCluster,
    errors::{damaged, status_for},
    objects::Commit,
};

use super::Request;

/// How long a name is kept at least.
const LEAST_KEPT: Duration = Duration::from_secs(3600);
/// Definitions that are looked for, to find a name that can be given up.
const MAX_LOOKS: usize = 4096;

/// Where the names are remembered; no kind is served under it.
fn names() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "definednames")
}

/// Remembers a name with the write of its definition; why it cannot be.
///
/// # Errors
/// When the store fails.
pub(super) async fn remember(
    api: &ApiServer,
    request: &Request<'_>,
    name: &str,
    commit: &mut Commit,
) -> Result<Option<String>, Status> {
    let tenant = api.directory.tenant(request.cluster);
    let key = ObjectKey { cluster: tenant, resource: names(), ..commit.key.clone() };
    if api.store.get(&key).await.map_err(|e| status_for(&e))?.is_some() {
        return Ok(None);
    }
    let (known, most) = (known(api, tenant).await?, api.config.limits.defined_names);
    if known.len() >= most {
        let Some(unused) = unused(api, tenant, &known).await? else {
            return Ok(Some(format!("a workspace in root and all below it define at most {most} different resources")));
        };
        commit.companions.push(Write { key: unused.key.clone(), expect: Expect::At(unused.revision), record: None });
    }
    let record = json!({"metadata": {"name": name, "creationTimestamp": api.seams.now_text()}});
    commit.companions.push(Write { key, expect: Expect::Absent, record: Some(Record::of(&record)) });
    Ok(None)
}

async fn known(api: &ApiServer, tenant: LogicalClusterId) -> Result<Vec<StoredObject>, Status> {
    let (mut request, mut found) = (RangeRequest::slices(RangeScope::Cluster(tenant, names())), Vec::new());
    loop {
        let page = api.store.range(request.clone()).await.map_err(|e| status_for(&e))?;
        let next = request.next(&page);
        found.extend(page.objects);
        match next {
            Some(next) => request = next,
            None => return Ok(found),
        }
    }
}

/// A name that has been kept long enough and that no logical cluster of the tenant defines, if one is found with a bounded
/// number of looks. Each time they begin elsewhere.
async fn unused<'a>(
    api: &ApiServer,
    tenant: LogicalClusterId,
    known: &'a [StoredObject],
) -> Result<Option<&'a StoredObject>, Status> {
    let clusters: Vec<Arc<LogicalCluster>> =
        api.directory.all().into_iter().filter(|cluster| api.directory.tenant(cluster) == tenant).collect();
    let mut start = [0; 2];
    api.seams.entropy.fill(&mut start);
    let (start, looks) = (usize::from(u16::from_be_bytes(start)), (MAX_LOOKS / clusters.len().max(1)).max(1));
    let now = api.seams.clock.now();
    for stored in (0..known.len().min(looks)).map(|n| &known[(start + n) % known.len()]) {
        if is_old(stored, now)? && !is_defined(api, &clusters, stored).await? {
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

async fn is_defined(api: &ApiServer, clusters: &[Arc<LogicalCluster>], name: &StoredObject) -> Result<bool, Status> {
    let definitions = GroupResource::new(custom::GROUP, custom::RESOURCE);
    for cluster in clusters {
        let key = ObjectKey { cluster: cluster.id, resource: definitions.clone(), ..name.key.clone() };
        if api.store.get(&key).await.map_err(|e| status_for(&e))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
