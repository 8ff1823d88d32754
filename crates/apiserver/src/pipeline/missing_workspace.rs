//! Requests to a workspace that does not exist. Only users who may read the workspaces of the parent learn that it does
//! not exist; for all others it looks like a workspace in which they have no rights.

use std::sync::Arc;

use http::{HeaderMap, Method};
use portolan_strategy::rbac::MASTERS;
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, Reason, ResourceVersion, Status, quoted::go_quoted,
};

use crate::{
    authn::{AccessContext, AskingUser, Identity, Impersonation, authorize_impersonation},
    authz::DenyAll,
    directory::{ClusterPhase, Directory, LogicalCluster},
    routing::{attributes::Attributes, path::RequestedCluster},
};

use super::head::RequestHead;

const GROUP: &str = "tenancy.kcp.io";
const RESOURCE: &str = "workspaces";
/// Id of no logical cluster: nothing is stored under it.
const NO_CLUSTER: LogicalClusterId = LogicalClusterId::new(u64::MAX);

/// Returns a stand-in for the missing workspace for requests of discovery and OpenAPI. kubectl prints an error of
/// discovery five times, and omits the message of a 404, so it is shown the built-in kinds, and its next request gets
/// the message.
///
/// # Errors
/// 404 for users who may know that it is missing; all others get the refusal of an existing workspace.
pub(super) async fn stand_in(
    access: &AccessContext,
    head: &RequestHead,
    identity: &Identity,
    headers: &mut HeaderMap,
) -> Result<Arc<LogicalCluster>, Status> {
    if !may_know(access, &head.named, identity, headers).await? {
        return Err(refusal(head, identity, headers).await);
    }
    let describes_kinds = head.route.is_some_and(|route| route.endpoint.describes_kinds());
    if head.method != Method::GET || !describes_kinds {
        return Err(not_found(&head.named));
    }
    Ok(Arc::new(LogicalCluster {
        id: NO_CLUSTER,
        path: LogicalClusterPath::root(),
        parent: None,
        workspace: None,
        created: String::new(),
        since: ResourceVersion::FIRST,
        phase: ClusterPhase::Ready,
        limits: None,
        lifecycle: None,
    }))
}

/// Returns the logical cluster that a request is charged to: for a missing workspace, the nearest existing ancestor.
pub(super) fn charged(
    directory: &Directory,
    cluster: &Arc<LogicalCluster>,
    named: &RequestedCluster,
) -> Arc<LogicalCluster> {
    if cluster.id != NO_CLUSTER {
        return cluster.clone();
    }
    let nearest = match named {
        RequestedCluster::Path(path) => first_missing(directory, path),
        RequestedCluster::Invalid(text) => first_missing(directory, text),
        RequestedCluster::Unspecified | RequestedCluster::All | RequestedCluster::Id(_) => None,
    };
    let nearest = nearest.map(|(holder, _)| holder);
    nearest.or_else(|| directory.by_id(LogicalClusterId::ROOT)).unwrap_or_else(|| cluster.clone())
}

fn not_found(named: &RequestedCluster) -> Status {
    let name = match named {
        RequestedCluster::Path(path) => path.to_string(),
        RequestedCluster::Id(id) => id.to_string(),
        RequestedCluster::Invalid(text) => text.clone(),
        // These are always resolved, or refused earlier.
        RequestedCluster::Unspecified | RequestedCluster::All => return Status::no_such_path(),
    };
    let message = format!("workspace {} not found", go_quoted(&name));
    Status::new(Reason::NotFound, message).about(&GroupResource::new(GROUP, RESOURCE), &name)
}

/// Returns the resource of workspaces.
pub(super) fn workspaces() -> GroupResource {
    GroupResource::new(GROUP, RESOURCE)
}

/// Returns true for administrators of the server, and for users who may get the first missing workspace of the path,
/// and act as themselves.
async fn may_know(
    access: &AccessContext,
    named: &RequestedCluster,
    identity: &Identity,
    headers: &mut HeaderMap,
) -> Result<bool, Status> {
    let acts_as_other = || Ok::<_, Status>(Impersonation::take(&mut headers.clone())?.is_some());
    if !identity.user.is_in(MASTERS) && acts_as_other()? {
        return Ok(false);
    }
    may_get(access, named, identity).await
}

/// Returns true for administrators of the server, and for users who may get the first missing workspace of the path in
/// the logical cluster that would hold it.
pub(super) async fn may_get(
    access: &AccessContext,
    named: &RequestedCluster,
    identity: &Identity,
) -> Result<bool, Status> {
    if identity.user.is_in(MASTERS) {
        return Ok(true);
    }
    let path = match named {
        RequestedCluster::Path(path) => path.as_str(),
        RequestedCluster::Invalid(text) => text,
        RequestedCluster::Unspecified | RequestedCluster::All | RequestedCluster::Id(_) => return Ok(false),
    };
    let Some((holder, name)) = first_missing(&access.directory, path) else { return Ok(false) };
    let attributes = Attributes {
        verb: "get".into(),
        group: GROUP.into(),
        version: "v1alpha1".into(),
        resource: RESOURCE.into(),
        name,
        ..Attributes::default()
    };
    Ok(access.rbac.authorize_identity(holder.id, identity, &attributes).await?.is_allowed())
}

/// Returns the nearest existing ancestor, and the name of the workspace that it lacks. The path may be invalid.
fn first_missing(directory: &Directory, path: &str) -> Option<(Arc<LogicalCluster>, String)> {
    // No deeper ancestor exists, and a path of a URL may have thousands of levels.
    let deepest = path.match_indices(':').nth(LogicalClusterPath::MAX_LEVELS).map_or(path.len(), |(at, _)| at);
    let mut rest = &path[..deepest];
    while let Some((ancestor, _)) = rest.rsplit_once(':') {
        let holder = ancestor.parse::<LogicalClusterPath>().ok().and_then(|path| directory.by_path(&path));
        if let Some(holder) = holder {
            let below = path.get(ancestor.len() + 1..)?;
            return Some((holder, below.split(':').next().unwrap_or_default().to_owned()));
        }
        rest = ancestor;
    }
    None
}

/// Returns the refusal of a logical cluster in which the user has no rights, not even to impersonate.
async fn refusal(head: &RequestHead, identity: &Identity, headers: &mut HeaderMap) -> Status {
    let wanted = match Impersonation::take(headers) {
        Ok(None) => return head.attributes.denial(&identity.user, ""),
        Ok(Some(wanted)) => wanted,
        Err(failure) => return failure,
    };
    // Any logical cluster will do: no user has rights there.
    let asker = AskingUser { cluster: LogicalClusterId::ROOT, user: &identity.user };
    match authorize_impersonation(&DenyAll, asker, wanted, &head.attributes).await {
        Ok(acting) => head.attributes.denial(&acting.user, ""),
        Err(refused) => refused,
    }
}

#[cfg(test)]
mod tests {
    use portolan_strategy::rbac::User;
    use portolan_types::Seams;

    use super::*;
    use crate::{ApiServer, ApiServerConfig, authn::Peer};

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
        assert_eq!(super::super::answer(api.clone(), peer, create.map(super::super::boxed_body)).await.status(), 201);
        let deep = format!("root:a{}", ":nope".repeat(1500));
        for (path, expected) in [
            (&*deep, "root:a"),
            ("root:nope", "root"),
            ("root:nope:deeper", "root"),
            ("root:a:nope", "root:a"),
            ("root:a:nope:deeper", "root:a"),
            ("root:a:Nope", "root:a"),
            ("root:a:Nope:deeper", "root:a"),
            ("Root:a", "root"),
            ("root:a", "root:a"),
        ] {
            let request = http::Request::get(format!("/clusters/{path}/api")).body(()).unwrap();
            let head = super::super::head::parse_head(&request.into_parts().0).unwrap();
            let named = head.named.clone();
            let cluster = match api.directory().resolve(&named, None) {
                Some(cluster) => cluster,
                None => stand_in(&api.access, &head, &admin, &mut HeaderMap::new()).await.unwrap(),
            };
            assert_eq!(charged(api.directory(), &cluster, &named).path.to_string(), expected, "{path}");
        }
    }
}
