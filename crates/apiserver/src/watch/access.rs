//! Access of a running watch: the rights of its user, and the definition of its resource.

use std::sync::Arc;

use portolan_kinds::Served;
use portolan_types::{Reason, Status};

use crate::{
    authn::AccessContext,
    authz::{AuthorizationDecision, authorize_provider},
    kinds::DefinitionCatalog,
    permission_policy::PolicySources,
    reach::{ClusterReach, ReachRights},
    request::{RequestContext, ResourceTarget},
    step_access::StepAccess,
    views::{ApiView, LifecycleView},
};

use super::WatchContext;

/// Access of a watch, checked again while it runs.
pub(super) struct WatchAccess<'a> {
    context: &'a WatchContext,
    call: &'a RequestContext,
    target: &'a ResourceTarget,
    reach_rights: Option<&'a ReachRights>,
}

impl<'a> WatchAccess<'a> {
    pub(super) fn new(
        context: &'a WatchContext,
        call: &'a RequestContext,
        target: &'a ResourceTarget,
        reach_rights: Option<&'a ReachRights>,
    ) -> Self {
        Self { context, call, target, reach_rights }
    }

    /// Checks if the watch may continue. As in kube-apiserver, a watch of custom resources ends when their definition
    /// changes, and the client starts it again. It ends in the same way with the credential of its user: the tokens of
    /// pods are renewed, and clients that start again use the new one, but fail at an error among the events.
    ///
    /// # Errors
    /// Fails if the user lost the right to watch, or the logical cluster is gone. 410 when other physical clusters are
    /// in reach: no event shows those that are new, or hides those that are not.
    pub(super) async fn is_allowed(&self) -> Result<bool, Status> {
        match self.check().await {
            Err(denied) if denied.reason() == Reason::Unauthorized => Ok(false),
            checked => checked,
        }
    }

    /// Checks as [`Self::is_allowed`], with 401 if the credential has ended.
    async fn check(&self) -> Result<bool, Status> {
        let Self { context, call, target, reach_rights } = *self;
        let WatchContext { access, reads, kinds, .. } = context;
        if access.directory.by_id(call.cluster.id).is_none() {
            return Err(Status::no_such_path());
        }
        if let Some(view) = &call.view {
            return is_unchanged(view, access, call).await;
        }
        if let Some(view) = &call.lifecycle {
            check_step(view, access, call).await?;
            return Ok(true);
        }
        let (identity, cluster) = (&call.identity, call.cluster.id);
        identity.check_again(&access.authenticator, &*access.rbac, cluster, &call.attributes).await?;
        if let AuthorizationDecision::Denied(why) =
            Box::pin(access.rbac.authorize_identity(cluster, identity, &call.attributes)).await?
        {
            return Err(call.attributes.denial(&identity.user, &why));
        }
        if PolicySources::may_bound(&identity.user, &call.attributes) {
            let policies = PolicySources { store: &access.store, rbac: &access.rbac, kinds };
            policies.check(cluster, identity.requester(), &call.attributes).await?;
        }
        if let Some(at_start) = reach_rights {
            let now = ClusterReach::of(&reads.reach, &call.cluster, target).await?.map(|reach| reach.rights());
            if now.as_ref() != Some(at_start) {
                return Err(Status::expired("other physical clusters are in reach: list again"));
            }
        }
        is_as_defined(kinds, call, target).await
    }
}

/// Checks if a watch of a view may continue: its user still has the provider's right, and the export is the same.
///
/// # Errors
/// 403 without the right; 410 when the export has changed, so that the client lists again.
async fn is_unchanged(view: &ApiView, access: &AccessContext, call: &RequestContext) -> Result<bool, Status> {
    let (address, identity, attributes) = (&view.export.address, &call.identity, &call.attributes);
    identity.check_again(&access.authenticator, &*access.rbac, address.cluster, attributes).await?;
    authorize_provider(&access.rbac, address, identity.requester(), attributes).await?;
    if view.flattened.as_ref().is_some_and(|names| names.shows_own) {
        let verdict = access.rbac.authorize_identity(address.cluster, identity, attributes).await?;
        if !verdict.is_allowed() {
            return Err(Status::expired("the workspace of the APIExport is not shown any more: list again"));
        }
    }
    let now = ApiView::open(&access.store, address, view.target).await?;
    let spec = |view: &ApiView| view.export.object.get("spec").cloned();
    let is_same = |now: ApiView| now.export.identity == view.export.identity && spec(&now) == spec(view);
    if now.is_some_and(is_same) {
        return Ok(true);
    }
    Err(Status::expired("the APIExport has changed: list again"))
}

/// Checks that a watch through the view of a step may continue: its user still has the provider's right, and a watch of
/// the content of a workspace that the step is pending.
///
/// # Errors
/// 403 otherwise.
async fn check_step(view: &LifecycleView, access: &AccessContext, call: &RequestContext) -> Result<(), Status> {
    let (identity, attributes) = (&call.identity, &call.attributes);
    identity.check_again(&access.authenticator, &*access.rbac, view.home, attributes).await?;
    let steps = StepAccess { rbac: &access.rbac, store: &access.store, view };
    steps.check_right(identity.requester(), attributes).await?;
    if view.is_content {
        let cluster = access.directory.by_id(call.cluster.id).ok_or_else(Status::no_such_path)?;
        steps.acting_user(&cluster, identity.requester(), attributes).await?;
    }
    Ok(())
}

/// Returns true if a resource is still defined as at the start of the watch. While a definition is being deleted,
/// watchers receive the deletions of its objects.
async fn is_as_defined(
    kinds: &DefinitionCatalog,
    call: &RequestContext,
    target: &ResourceTarget,
) -> Result<bool, Status> {
    Ok(matches!(definition(kinds, call, target).await?, DefinitionChange::Same))
}

/// Returns true if a resource is defined differently than at the start of the watch. If the definition was deleted, the
/// last events are the deletions of its objects.
pub(super) async fn is_redefined(
    kinds: &DefinitionCatalog,
    call: &RequestContext,
    target: &ResourceTarget,
) -> Result<bool, Status> {
    Ok(matches!(definition(kinds, call, target).await?, DefinitionChange::Other))
}

/// State of a definition relative to the start of a watch.
enum DefinitionChange {
    Same,
    Other,
    Gone,
}

async fn definition(
    kinds: &DefinitionCatalog,
    call: &RequestContext,
    target: &ResourceTarget,
) -> Result<DefinitionChange, Status> {
    let Some(began) = &target.definition else { return Ok(DefinitionChange::Same) };
    match kinds.definition(began.key.cluster, &began.name).await? {
        None => return Ok(DefinitionChange::Gone),
        Some(now) if now.created != began.created => return Ok(DefinitionChange::Other),
        Some(now) if now.is_deleting => return Ok(DefinitionChange::Same),
        Some(_) => {}
    }
    let now = kinds.served(call.cluster.id).await?.surface.kind(&target.kind.gvk);
    // Equal definitions share one table.
    let is_same = |now: Served| now.kind.served && Arc::ptr_eq(&now.table, &target.table);
    Ok(if now.is_some_and(is_same) { DefinitionChange::Same } else { DefinitionChange::Other })
}
