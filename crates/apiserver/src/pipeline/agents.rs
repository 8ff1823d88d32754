//! Authorization of agents. It is separate from RBAC: no role can give an agent more rights, or give other users the
//! routes of agents.

use std::sync::Arc;

use http::{HeaderMap, Method};
use portolan_types::{LogicalClusterPath, Status};

use crate::{
    authn::{AgentAccess, Identity, Impersonation},
    directory::Directory,
    routing::{
        path::RequestedCluster,
        routes::{RouteEndpoint, RoutePolicy},
    },
};

use super::{authorization::AuthorizedRequest, head::RequestHead};

/// Request of an agent, or to a route of agents.
pub(super) struct AgentRequest {
    access: AgentAccess,
    endpoint: Option<RouteEndpoint>,
}

impl AgentRequest {
    /// Returns `None` for other clients on other routes.
    pub(super) fn of(head: &RequestHead, identity: &Identity) -> Option<Self> {
        let (access, route) = (identity.agent_access(), head.route);
        let is_concerned = access != AgentAccess::NoAgent || route.is_some_and(|r| r.policy == RoutePolicy::Agent);
        is_concerned.then(|| Self { access, endpoint: route.map(|route| route.endpoint) })
    }

    /// Allows agents, and no other users, to use the routes of agents.
    ///
    /// # Errors
    /// 403 for everything else, whether it exists or not.
    pub(super) fn authorize(
        self,
        directory: &Directory,
        head: RequestHead,
        identity: Identity,
        headers: &mut HeaderMap,
    ) -> Result<AuthorizedRequest, Status> {
        let endpoint = match (self.endpoint, &self.access) {
            (
                Some(endpoint @ RouteEndpoint::AgentCertificate),
                AgentAccess::Certified(_) | AgentAccess::Bootstrapping(_),
            )
            | (Some(endpoint @ RouteEndpoint::AgentTunnel), AgentAccess::Certified(_))
                if head.method == Method::POST =>
            {
                endpoint
            }
            _ => return Err(head.attributes.denial(&identity.user, "")),
        };
        if Impersonation::take(headers)?.is_some() {
            return Err(head.attributes.denial(&identity.user, "agents may not impersonate"));
        }
        let root = RequestedCluster::Path(LogicalClusterPath::root());
        let cluster = directory.resolve(&root, None).ok_or_else(|| Status::internal("there is no root"))?;
        // Charged to the workspace that registered the physical cluster.
        let home = self.access.workspace().and_then(|workspace| directory.by_id(workspace));
        let charged = home.unwrap_or_else(|| Arc::clone(&cluster));
        Ok(AuthorizedRequest { endpoint, head, identity, view: None, charged, cluster })
    }
}
