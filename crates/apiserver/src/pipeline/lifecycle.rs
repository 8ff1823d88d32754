//! Requests through the view of an initializer or terminator: the right of its provider, then the pending step.

use std::sync::Arc;

use http::{HeaderMap, Method};
use portolan_types::Status;

use crate::{
    authn::{AccessContext, AskingUser, Identity, Impersonation, authorize_impersonation},
    directory::LogicalCluster,
    permission_policy::PolicySources,
    request::method_not_allowed,
    requester::Requester,
    routing::{
        path::RequestedCluster,
        routes::{self, Route, RoutePolicy},
    },
    step_access::StepAccess,
    views::{LifecycleView, StepAddress},
};

use super::{
    authorization::{AuthorizationContext, AuthorizedRequest},
    head::RequestHead,
};

/// Authorizes a request through the view of a step. For missing types and logical clusters, the answer is the same as
/// without rights.
///
/// # Errors
/// 401 for an identity of another logical cluster than the type's, 403 without the right, or in a logical cluster that
/// does not wait for the step, 404 for what is not in the view.
pub(super) async fn authorize(
    context: AuthorizationContext<'_>,
    address: StepAddress,
    head: RequestHead,
    (identity, headers): (Identity, &mut HeaderMap),
) -> Result<AuthorizedRequest, Status> {
    let access = context.access;
    let home = home_of(access, &address);
    if identity.home.is_some_and(|own| home.as_ref().is_none_or(|home| home.id != own)) {
        return Err(Status::unauthorized());
    }
    let Some(home) = home else { return Err(head.attributes.denial(&identity.user, "")) };
    let identity = match Impersonation::take(headers)? {
        None => identity,
        Some(wanted) => {
            let asker = AskingUser { cluster: home.id, user: &identity.user };
            let acting = authorize_impersonation(&*access.rbac, asker, wanted.clone(), &head.attributes).await?;
            acting.impersonated_by(identity, wanted)
        }
    };
    let step = format!("{}:{}", home.id, address.type_name);
    let mut view = LifecycleView { address, home: home.id, step, target: None, is_content: false };
    let reason = steps(access, &view).check_right(identity.requester(), &head.attributes).await?;
    let route = head.route.ok_or_else(|| routes::not_found_at(&head.path))?;
    let cluster = match &head.named {
        RequestedCluster::All => home.clone(),
        named => waiting(access, &view, named).ok_or_else(|| {
            let why = format!("{} {:?} cannot access this workspace", view.address.stage.step(), view.step);
            head.attributes.denial(&identity.user, &why)
        })?,
    };
    if head.named != RequestedCluster::All {
        cluster.check_active(&head.path)?;
    }
    view.target = (head.named != RequestedCluster::All).then_some(cluster.id);
    view.is_content = view.target.is_some() && !is_about_clusters(&head);
    let identity = if view.is_content {
        check_content_route(&head, route)?;
        let acting = steps(access, &view).acting_user(&cluster, identity.requester(), &head.attributes).await?;
        if PolicySources::may_bound(&acting, &head.attributes) {
            let policies = PolicySources { store: &access.store, rbac: &access.rbac, kinds: context.kinds };
            policies.check(cluster.id, Requester { user: &acting, home: None }, &head.attributes).await?;
        }
        Identity { foreign: Some(Arc::new(acting)), ..identity }
    } else {
        check_route(&head, route, view.target.is_none())?;
        identity.acting_in(cluster.id)
    };
    let head = RequestHead { reason, lifecycle: Some(Arc::new(view)), ..head };
    Ok(AuthorizedRequest { endpoint: route.endpoint, head, identity, view: None, charged: home, cluster })
}

fn steps<'a>(access: &'a AccessContext, view: &'a LifecycleView) -> StepAccess<'a> {
    StepAccess { rbac: &access.rbac, store: &access.store, view }
}

/// Returns the logical cluster of the WorkspaceType of a step, which its id or its path names.
fn home_of(access: &AccessContext, address: &StepAddress) -> Option<Arc<LogicalCluster>> {
    let by_id = || access.directory.by_id(address.workspace.parse().ok()?);
    by_id().or_else(|| access.directory.by_path(&address.workspace.parse().ok()?))
}

/// Returns a logical cluster that waits for the step.
fn waiting(access: &AccessContext, view: &LifecycleView, named: &RequestedCluster) -> Option<Arc<LogicalCluster>> {
    access.directory.resolve(named, None).filter(|cluster| view.admits(cluster.id, cluster.pending(view.address.stage)))
}

fn is_about_clusters(head: &RequestHead) -> bool {
    let asked = &head.attributes;
    asked.is_resource() && asked.group == "core.kcp.io" && asked.resource == "logicalclusters"
}

/// Checks that a route leads to the content of a workspace.
fn check_content_route(head: &RequestHead, route: &Route) -> Result<(), Status> {
    match route.policy {
        RoutePolicy::Resource | RoutePolicy::Path => Ok(()),
        RoutePolicy::Server | RoutePolicy::Agent | RoutePolicy::Console => Err(routes::not_found_at(&head.path)),
    }
}

/// Checks that a route leads to LogicalClusters, or describes them. Those of all are only read.
fn check_route(head: &RequestHead, route: &Route, is_about_all: bool) -> Result<(), Status> {
    let is_described = route.endpoint.describes_kinds();
    let verb = head.attributes.verb.as_str();
    match route.policy {
        RoutePolicy::Resource if !is_about_clusters(head) => Err(routes::not_found_at(&head.path)),
        RoutePolicy::Resource if is_about_all && !matches!(verb, "list" | "watch") => Err(method_not_allowed()),
        RoutePolicy::Resource => Ok(()),
        RoutePolicy::Path if is_described && head.method == Method::GET => Ok(()),
        RoutePolicy::Path if is_described => Err(method_not_allowed()),
        RoutePolicy::Path | RoutePolicy::Server | RoutePolicy::Agent | RoutePolicy::Console => {
            Err(routes::not_found_at(&head.path))
        }
    }
}
