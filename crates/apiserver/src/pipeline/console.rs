//! Authorization of the console's own routes. They hold nothing of any tenant, so no role decides: everybody may load
//! the pages and sign in, and every user may make a link to an own session.

use http::{HeaderMap, Method};
use portolan_types::{LogicalClusterPath, Reason, Status};

use crate::{
    authn::{Identity, Impersonation},
    directory::Directory,
    request::method_not_allowed,
    routing::{
        path::RequestedCluster,
        routes::{RouteEndpoint, RoutePolicy},
    },
};

use super::{authorization::AuthorizedRequest, head::RequestHead};

/// Request to a route of the console.
pub(super) struct ConsoleRequest(RouteEndpoint);

impl ConsoleRequest {
    /// Returns `None` for other routes.
    pub(super) fn of(head: &RequestHead) -> Option<Self> {
        head.route.filter(|route| route.policy == RoutePolicy::Console).map(|route| Self(route.endpoint))
    }

    /// Admits reads of pages, sign-ins, and links of authenticated users.
    ///
    /// # Errors
    /// 404 below a logical cluster, 405 for other methods, 403 for links of anonymous or impersonated users.
    pub(super) fn authorize(
        self,
        directory: &Directory,
        head: RequestHead,
        identity: Identity,
        headers: &mut HeaderMap,
    ) -> Result<AuthorizedRequest, Status> {
        if head.named != RequestedCluster::Unspecified {
            return Err(Status::no_such_path());
        }
        let is_read = head.method == Method::GET || head.method == Method::HEAD;
        let fits = match self.0 {
            RouteEndpoint::ConsoleSession => head.method == Method::POST || head.method == Method::DELETE,
            RouteEndpoint::ConsoleLink => head.method == Method::POST,
            _ => is_read,
        };
        if self.0 == RouteEndpoint::ConsoleLink && identity.is_anonymous() {
            return Err(head.attributes.denial(&identity.user, ""));
        }
        if !fits {
            return Err(method_not_allowed());
        }
        if Impersonation::take(headers)?.is_some() {
            return Err(Status::new(Reason::Forbidden, "the console has no sessions of impersonated users"));
        }
        let root = RequestedCluster::Path(LogicalClusterPath::root());
        let cluster = directory.resolve(&root, None).ok_or_else(|| Status::internal("there is no root"))?;
        let home = identity.home.and_then(|home| directory.by_id(home));
        let charged = home.unwrap_or_else(|| cluster.clone());
        Ok(AuthorizedRequest { endpoint: self.0, head, identity, view: None, charged, cluster })
    }
}
