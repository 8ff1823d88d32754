//! Maximal permission policy: an export can bound what its consumers do with its resources. The roles of the export's
//! workspace decide, for user names with a prefix.

use portolan_kinds::custom;
use portolan_store::DynStore;
use portolan_strategy::rbac::{MASTERS, User};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Status, apis};
use serde_json::Value;

use crate::{
    authz::{AuthorizationDecision, Authorizer as _, RbacAuthorizer},
    errors::status_for,
    kinds::DefinitionCatalog,
    requester::Requester,
    routing::attributes::Attributes,
};

/// Prefix of the names of users and groups in the roles of an export's workspace; kcp's.
const PREFIX: &str = "apis.kcp.io:binding:";

/// Sources of the policies of bound resources.
pub(crate) struct PolicySources<'a> {
    pub(crate) store: &'a DynStore,
    pub(crate) rbac: &'a RbacAuthorizer,
    pub(crate) kinds: &'a DefinitionCatalog,
}

impl PolicySources<'_> {
    /// Returns true if a policy may bound the request. Most requests are about built-in resources, which none bounds.
    pub(crate) fn may_bound(user: &User, attributes: &Attributes) -> bool {
        let resource = GroupResource::new(&*attributes.group, &*attributes.resource);
        let is_builtin = || attributes.group.is_empty() || custom::is_builtin_resource(&resource);
        attributes.is_resource() && !user.is_in(MASTERS) && !is_builtin()
    }

    /// Checks a request against the policy of the export that its resource comes from, if it comes from any. Needed
    /// only if [`PolicySources::may_bound`] returns true.
    ///
    /// # Errors
    /// 403 when the policy does not allow it; failure of the store.
    pub(crate) async fn check(
        &self,
        cluster: LogicalClusterId,
        requester: Requester<'_>,
        attributes: &Attributes,
    ) -> Result<(), Status> {
        let resource = GroupResource::new(&*attributes.group, &*attributes.resource);
        let binding = self.binding_of(cluster, &resource).await?;
        let Some(export) = binding.as_ref().and_then(apis::ExportAddress::of_bound) else { return Ok(()) };
        let policy = self.read(&export.key()).await?;
        let is_bounded =
            policy.and_then(|own| own.pointer("/spec/maximalPermissionPolicy/local").map(|own| !own.is_null()));
        if is_bounded != Some(true) {
            return Ok(());
        }
        let known = prefixed(&requester.known_in(export.cluster));
        match self.rbac.authorize(export.cluster, &known, attributes).await? {
            AuthorizationDecision::Allowed(_) => Ok(()),
            AuthorizationDecision::Denied(_) => {
                Err(attributes
                    .denial(requester.user, "the maximal permission policy of the APIExport does not allow it"))
            }
        }
    }

    /// Returns the binding that serves a resource. The catalog has its name, so that built-in kinds and a workspace's
    /// own definitions cost no read.
    async fn binding_of(&self, cluster: LogicalClusterId, resource: &GroupResource) -> Result<Option<Value>, Status> {
        let definition = self.kinds.definition(cluster, &resource.to_string()).await?;
        match definition.filter(|found| found.key.resource == apis::resource(apis::BINDINGS)) {
            Some(found) => self.read(&found.key).await,
            None => Ok(None),
        }
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<Value>, Status> {
        let stored = self.store.get(key).await.map_err(|e| status_for(&e))?;
        stored.map(|stored| stored.to_value().map_err(|e| status_for(&e))).transpose()
    }
}

fn prefixed(user: &User) -> User {
    let prefix = |name: &String| format!("{PREFIX}{name}");
    User { name: prefix(&user.name), groups: user.groups.iter().map(prefix).collect(), ..User::default() }
}
