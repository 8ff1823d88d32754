//! `authorizer` of expressions: what the roles of a logical cluster allow whom.

use std::sync::Arc;

use portolan_cel::{Authorizer, Decision, PathCheck, ResourceCheck};
use portolan_machinery::rbac::User;
use portolan_types::{LogicalClusterId, Status};

use crate::{
    ApiServer,
    attributes::Attributes,
    authz::{ClusterRoles, RbacAuthorizer, Verdict},
};

/// The rights of a user and of service accounts, as they were when the request was evaluated.
pub(in crate::admission) struct Rights {
    cluster: LogicalClusterId,
    user: User,
    roles: Arc<ClusterRoles>,
}

impl Rights {
    /// Of the user of a request.
    pub(in crate::admission) async fn of(
        api: &ApiServer,
        cluster: LogicalClusterId,
        user: &User,
    ) -> Result<Self, Status> {
        Ok(Self { cluster, user: user.clone(), roles: api.rbac.roles(cluster).await? })
    }

    fn decide(&self, account: Option<&(String, String)>, attributes: &Attributes) -> Decision {
        let account = account.map(|(namespace, name)| service_account(namespace, name));
        let user = account.as_ref().unwrap_or(&self.user);
        let (allowed, reason) = match RbacAuthorizer::decide(self.cluster, &self.roles, user, attributes) {
            Verdict::Allowed(why) => (true, why),
            Verdict::Denied(why) => (false, why),
        };
        Decision { allowed, reason, error: None }
    }
}

/// A service account as nobody but its namespace and name tell of it.
fn service_account(namespace: &str, name: &str) -> User {
    let groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    User { name: format!("system:serviceaccount:{namespace}:{name}"), groups, ..User::default() }
}

impl Authorizer for Rights {
    fn resource(&self, account: Option<&(String, String)>, check: &ResourceCheck, verb: &str) -> Decision {
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

    fn path(&self, account: Option<&(String, String)>, check: &PathCheck, verb: &str) -> Decision {
        self.decide(account, &Attributes::of_path(verb, &check.path))
    }
}
