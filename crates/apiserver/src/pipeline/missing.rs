//! Requests to a workspace that does not exist. Only those who could look for it among its siblings learn that; to all others it
//! looks like one in which they may do nothing.

use std::sync::Arc;

use http::{HeaderMap, Method};
use portolan_machinery::rbac::MASTERS;
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, Reason, ResourceVersion, Status, quoted::go_quoted,
};

use crate::{
    ApiServer,
    attributes::Attributes,
    authn::{Identity, Impersonation, authorize_impersonation},
    authz::Nothing,
    directory::{LogicalCluster, Phase},
    path::Named,
    routes::Endpoint,
};

use super::door::Entry;

const GROUP: &str = "tenancy.kcp.io";
const RESOURCE: &str = "workspaces";
/// An id that no logical cluster has: nothing is stored under it.
const NO_CLUSTER: LogicalClusterId = LogicalClusterId::new(u64::MAX);

/// Returns what stands in for the workspace where a request reads discovery or OpenAPI. kubectl reports an error of discovery five
/// times, and without the reason where it is a 404; so it is shown the built-in kinds, and its next request tells the reason.
///
/// # Errors
/// 404 for those who may know, and for all others what they get in a workspace that exists.
pub(super) async fn stand_in(
    api: &ApiServer,
    entry: &Entry,
    identity: &Identity,
    headers: &mut HeaderMap,
) -> Result<Arc<LogicalCluster>, Status> {
    if !may_know(api, &entry.named, identity, headers).await? {
        return Err(denied(entry, identity, headers).await);
    }
    let endpoint = entry.route.map(|route| route.endpoint);
    let describes_kinds = matches!(
        endpoint,
        Some(
            Endpoint::Groups
                | Endpoint::Group
                | Endpoint::GroupVersion
                | Endpoint::OpenApiIndex
                | Endpoint::OpenApiDocument
                | Endpoint::OpenApiV2
        )
    );
    if entry.method != Method::GET || !describes_kinds {
        return Err(not_found(&entry.named));
    }
    Ok(Arc::new(LogicalCluster {
        id: NO_CLUSTER,
        path: LogicalClusterPath::root(),
        parent: None,
        workspace: None,
        created: String::new(),
        since: ResourceVersion::FIRST,
        phase: Phase::Ready,
        limits: None,
    }))
}

fn not_found(named: &Named) -> Status {
    let name = match named {
        Named::Path(path) => path.to_string(),
        Named::Id(id) => id.to_string(),
        // These are always resolved, or refused before.
        Named::Nothing | Named::Every => return Status::no_such_path(),
    };
    let message = format!("workspace {} not found", go_quoted(&name));
    Status::new(Reason::NotFound, message).about(&GroupResource::new(GROUP, RESOURCE), &name)
}

/// Returns true for administrators of the server, and for those who may read the first workspace on the path that does not exist,
/// in the one that would hold it.
async fn may_know(
    api: &ApiServer,
    named: &Named,
    identity: &Identity,
    headers: &mut HeaderMap,
) -> Result<bool, Status> {
    if identity.user.is_in(MASTERS) {
        return Ok(true);
    }
    let Named::Path(path) = named else { return Ok(false) };
    if Impersonation::take(&mut headers.clone())?.is_some() {
        return Ok(false);
    }
    let Some((holder, name)) = first_missing(api, path) else { return Ok(false) };
    let attributes = Attributes {
        verb: "get".into(),
        group: GROUP.into(),
        version: "v1alpha1".into(),
        resource: RESOURCE.into(),
        name,
        ..Attributes::default()
    };
    Ok(api.rbac.authorize_identity(holder.id, identity, &attributes).await?.is_allowed())
}

/// The nearest ancestor that exists, and the name of the workspace that it lacks.
fn first_missing(api: &ApiServer, path: &LogicalClusterPath) -> Option<(Arc<LogicalCluster>, String)> {
    let mut missing = path.clone();
    loop {
        let parent = missing.parent()?;
        if let Some(holder) = api.directory.by_path(&parent) {
            return Some((holder, missing.rsplit(':').next()?.to_owned()));
        }
        missing = parent;
    }
}

/// The same words as for a logical cluster where the user may do nothing, nor act as anybody else.
async fn denied(entry: &Entry, identity: &Identity, headers: &mut HeaderMap) -> Status {
    let wanted = match Impersonation::take(headers) {
        Ok(None) => return entry.attributes.denial(&identity.user, ""),
        Ok(Some(wanted)) => wanted,
        Err(failure) => return failure,
    };
    // Whichever it is: nobody is allowed anything there.
    let asker = (LogicalClusterId::ROOT, &identity.user);
    match authorize_impersonation(&Nothing, asker, wanted, &entry.attributes).await {
        Ok(acting) => entry.attributes.denial(&acting.user, ""),
        Err(refused) => refused,
    }
}
