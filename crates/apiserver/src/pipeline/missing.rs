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

/// Returns the logical cluster that a request to a workspace is charged to: where the workspace does not exist, its nearest ancestor.
pub(super) fn charged(api: &ApiServer, cluster: &Arc<LogicalCluster>, named: &Named) -> Arc<LogicalCluster> {
    if cluster.id != NO_CLUSTER {
        return cluster.clone();
    }
    let nearest = match named {
        Named::Path(path) => first_missing(api, path).map(|(holder, _)| holder),
        Named::Nothing | Named::Every | Named::Id(_) => None,
    };
    nearest.or_else(|| api.directory.by_id(LogicalClusterId::ROOT)).unwrap_or_else(|| cluster.clone())
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

#[cfg(test)]
mod tests {
    use portolan_machinery::rbac::User;
    use portolan_types::Seams;

    use super::*;
    use crate::{ApiServerConfig, authn::Peer};

    #[tokio::test]
    async fn requests_to_missing_workspaces_are_charged_to_the_nearest_ancestor() {
        let api = ApiServer::new(portolan_store::memory(), ApiServerConfig::in_memory(Seams::system())).await.unwrap();
        let admin = User { name: "admin".into(), groups: vec![MASTERS.into()], ..User::default() };
        let admin = Identity::global(admin);
        let workspace = r#"{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"a"}}"#;
        let create = http::Request::post("/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces")
            .header("content-type", "application/json")
            .body(http_body_util::Full::new(bytes::Bytes::from_static(workspace.as_bytes())))
            .unwrap();
        let peer = Peer::InProcess(Arc::new(admin.clone()));
        assert_eq!(super::super::answer(api.clone(), peer, create).await.status(), 201);
        for (path, expected) in [
            ("root:nope", "root"),
            ("root:nope:deeper", "root"),
            ("root:a:nope", "root:a"),
            ("root:a:nope:deeper", "root:a"),
            ("root:a", "root:a"),
        ] {
            let request = http::Request::get(format!("/clusters/{path}/api")).body(()).unwrap();
            let entry = super::super::door::read(&request.into_parts().0).unwrap();
            let named = entry.named.clone();
            let cluster = match api.directory.resolve(&named, None) {
                Some(cluster) => cluster,
                None => stand_in(&api, &entry, &admin, &mut HeaderMap::new()).await.unwrap(),
            };
            assert_eq!(charged(&api, &cluster, &named).path.to_string(), expected, "{path}");
        }
    }
}
