//! The `authorizer` variable of expressions, over the roles of a logical cluster.

use std::sync::Arc;

use portolan_cel::{AuthorizerDecision, ExpressionAuthorizer, PathCheck, ResourceCheck};
use portolan_strategy::rbac::User;
use portolan_types::{LogicalClusterId, Status};

use crate::{
    authz::{AuthorizationDecision, ClusterRoles, RbacAuthorizer},
    routing::attributes::Attributes,
};

/// Rights of a user and of service accounts, fixed at the time of the request.
pub(in crate::admission) struct ExpressionRights {
    cluster: LogicalClusterId,
    user: User,
    roles: Arc<ClusterRoles>,
}

impl ExpressionRights {
    /// Returns the rights of the requesting user.
    pub(in crate::admission) async fn of(
        rbac: &RbacAuthorizer,
        cluster: LogicalClusterId,
        user: &User,
    ) -> Result<Self, Status> {
        Ok(Self { cluster, user: user.clone(), roles: rbac.roles(cluster).await? })
    }

    fn decide(&self, account: Option<&(String, String)>, attributes: &Attributes) -> AuthorizerDecision {
        let account = account.map(|(namespace, name)| service_account(namespace, name));
        let user = account.as_ref().unwrap_or(&self.user);
        let (allowed, reason) = match RbacAuthorizer::decide(self.cluster, &self.roles, user, attributes) {
            AuthorizationDecision::Allowed(why) => (true, why),
            AuthorizationDecision::Denied(why) => (false, why),
        };
        AuthorizerDecision { allowed, reason, error: None }
    }
}

/// Returns a service account as known from its namespace and name alone.
fn service_account(namespace: &str, name: &str) -> User {
    let groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    User { name: format!("system:serviceaccount:{namespace}:{name}"), groups, ..User::default() }
}

impl ExpressionAuthorizer for ExpressionRights {
    fn resource(&self, account: Option<&(String, String)>, check: &ResourceCheck, verb: &str) -> AuthorizerDecision {
        let attributes = Attributes {
            verb: verb.to_owned(),
            group: check.group.clone(),
            version: "*".to_owned(),
            resource: check.resource.clone(),
            subresource: check.subresource.clone(),
            namespace: check.namespace.clone(),
            name: check.name.clone(),
            ..Attributes::default()
        };
        self.decide(account, &attributes)
    }

    fn path(&self, account: Option<&(String, String)>, check: &PathCheck, verb: &str) -> AuthorizerDecision {
        self.decide(account, &Attributes::of_path(verb, &check.path))
    }
}
