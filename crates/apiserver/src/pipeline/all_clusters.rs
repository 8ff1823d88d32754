//! Requests to all logical clusters, `/clusters/*`: administrators of the server list and watch what is stored in them.

use http::{HeaderMap, Method};
use portolan_strategy::rbac::MASTERS;
use portolan_types::{LogicalClusterId, Status};

use crate::{
    authn::{AccessContext, AskingUser, Identity, Impersonation, authorize_impersonation},
    request::method_not_allowed,
    routing::routes::{self, RouteEndpoint},
};

use super::{authorization::AuthorizedRequest, head::RequestHead};

/// Authorizes a request to all logical clusters.
///
/// # Errors
/// 403 for all others than administrators of the server; 405 for a write, and for a read of one object.
pub(super) async fn authorize(
    access: &AccessContext,
    head: RequestHead,
    identity: Identity,
    headers: &mut HeaderMap,
) -> Result<AuthorizedRequest, Status> {
    let identity = match Impersonation::take(headers)? {
        None => identity,
        Some(wanted) => {
            let asker = AskingUser { cluster: LogicalClusterId::ROOT, user: &identity.user };
            let acting = authorize_impersonation(&*access.rbac, asker, wanted.clone(), &head.attributes).await?;
            acting.impersonated_by(identity, wanted)
        }
    };
    if head.attributes.is_resource() && !matches!(head.attributes.verb.as_str(), "list" | "watch") {
        return Err(method_not_allowed());
    }
    // An impersonated group is one of the logical cluster that vouches for it.
    let is_administrator = identity.home.is_none() && identity.user.is_in(MASTERS);
    if !is_administrator || !(head.attributes.is_resource() || is_discovery(&head)) {
        return Err(head.attributes.denial(&identity.user, ""));
    }
    let route = head.route.ok_or_else(|| routes::not_found_at(&head.path))?;
    let root = access.directory.by_id(LogicalClusterId::ROOT).ok_or_else(|| Status::internal("there is no root"))?;
    let head = RequestHead { spans_all: true, ..head };
    Ok(AuthorizedRequest { endpoint: route.endpoint, head, identity, view: None, charged: root.clone(), cluster: root })
}

fn is_discovery(head: &RequestHead) -> bool {
    let endpoint = head.route.map(|route| route.endpoint);
    let is_described =
        matches!(endpoint, Some(RouteEndpoint::Groups | RouteEndpoint::Group | RouteEndpoint::GroupVersion));
    is_described && head.method == Method::GET
}
