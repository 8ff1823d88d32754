//! Rights of the provider of an initializer or terminator.

use portolan_store::DynStore;
use portolan_strategy::rbac::{MASTERS, PolicyRule, User};
use portolan_types::{GroupResource, ObjectKey, Reason, Status};
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    authz::{AuthorizationDecision, Authorizer as _, RbacAuthorizer, shared_objects},
    directory::LogicalCluster,
    errors::status_for,
    requester::Requester,
    routing::attributes::Attributes,
    views::LifecycleView,
};

const GROUP: &str = "tenancy.kcp.io";
const TYPES: &str = "workspacetypes";

/// Checks of requests through the view of a step.
#[derive(Clone, Copy)]
pub(crate) struct StepAccess<'a> {
    pub(crate) rbac: &'a RbacAuthorizer,
    pub(crate) store: &'a DynStore,
    pub(crate) view: &'a LifecycleView,
}

impl StepAccess<'_> {
    /// Checks the right to end the step, in the logical cluster of the type. Returns the reason for audit events.
    ///
    /// # Errors
    /// 403 without the right, or without the type.
    pub(crate) async fn check_right(self, requester: Requester<'_>, attributes: &Attributes) -> Result<String, Status> {
        let Self { rbac, view, .. } = self;
        let asked = Attributes {
            verb: view.address.stage.verb().into(),
            group: GROUP.into(),
            version: "v1alpha1".into(),
            resource: TYPES.into(),
            name: view.address.type_name.clone(),
            ..Attributes::default()
        };
        let known = requester.known_in(view.home);
        match rbac.authorize(view.home, &known, &asked).await? {
            AuthorizationDecision::Allowed(why) => Ok(why),
            AuthorizationDecision::Denied(why) => Err(attributes.denial(requester.user, &why)),
        }
    }

    /// Returns the user that a request to the content acts as: the one who created the workspace, or the caller itself
    /// if the type has permissions, as a stranger with those.
    ///
    /// # Errors
    /// 403 if neither may do it, or the step is not pending; 503 if the type does not exist.
    pub(crate) async fn acting_user(
        self,
        cluster: &LogicalCluster,
        requester: Requester<'_>,
        attributes: &Attributes,
    ) -> Result<User, Status> {
        let Self { rbac, view, .. } = self;
        let denial = |why: &str| Err(attributes.denial(requester.user, why));
        let (stage, step) = (view.address.stage, &view.step);
        let Some(lifecycle) = cluster.lifecycle.as_ref().filter(|_| view.admits(cluster.id, cluster.pending(stage)))
        else {
            return denial(&format!("{} {step:?} cannot access this workspace", stage.step()));
        };
        let rules = self.permissions().await?;
        if !rules.is_empty() {
            let allowed = rules.iter().any(|rule| rule.allows(attributes.action()));
            let stranger = requester.known_in(cluster.id).into_owned();
            return if allowed {
                Ok(stranger)
            } else {
                denial("the permissions of the workspace type do not cover it")
            };
        }
        let mut owner = lifecycle.owner();
        // A service account of another workspace has no rights in the one that it created.
        if owner.name.starts_with("system:serviceaccount:") {
            owner.groups.push(MASTERS.to_owned());
        }
        match rbac.authorize(cluster.id, &owner, attributes).await? {
            AuthorizationDecision::Allowed(_) => Ok(owner),
            AuthorizationDecision::Denied(why) => denial(&why),
        }
    }

    /// Returns the permissions that the type gives its provider.
    async fn permissions(self) -> Result<Vec<PolicyRule>, Status> {
        let name = &self.view.address.type_name;
        let missing = || Status::generic(Reason::ServiceUnavailable, format!("workspace type {name:?} does not exist"));
        let name = name.parse().map_err(|_| missing())?;
        let key = ObjectKey::cluster_scoped(self.view.home, GroupResource::new(GROUP, TYPES), name);
        let stored = self.store.get(&key).await.map_err(|error| status_for(&error))?;
        let own = match stored {
            Some(stored) => stored.to_value().map_err(|error| status_for(&error))?,
            None => shared_objects::builtin_workspace_type(&key).cloned().ok_or_else(missing)?,
        };
        let field = format!("/spec/{}Permissions", self.view.address.stage.step());
        let rules = own.pointer(&field).and_then(Value::as_array).into_iter().flatten();
        let rules =
            rules.map(|rule| PolicyRule::deserialize(rule).map_err(|error| Status::internal(error.to_string())));
        rules.collect()
    }
}
