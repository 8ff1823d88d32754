//! Loops that one of several servers runs for all.

use std::sync::Arc;

use portolan_apiserver::{ApiServer, authn::SecretClaims};
use portolan_controllers::{
    Plane,
    inventory::InventoryController,
    token_secrets::{TokenSecretController, TokenSigner},
    workspaces,
};
use portolan_store::{DynStore, HistoryBounds, HistoryMetrics, LeaderElection, StoreError, run_history_retention};
use portolan_types::{BoxFuture, LogicalClusterId, Status};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    autoscaling::GlobalAutoscaler, multicluster_services::MulticlusterServiceController,
    physical_clusters::RetirementController, resource_metrics::ClusterUsage, sharing::SharedApis,
    upstream::StoreUpstream,
};

/// Controllers of the whole control plane.
pub(crate) struct ElectedControllers {
    pub(crate) api: Arc<ApiServer>,
    pub(crate) plane: Arc<Plane>,
    pub(crate) upstream: Arc<StoreUpstream>,
    pub(crate) usage: ClusterUsage,
}

impl ElectedControllers {
    /// Runs the controllers until `shutdown`, whenever this server leads.
    pub(crate) async fn run(self, roles: Arc<LeaderElection>, shutdown: CancellationToken) {
        let Self { api, plane, upstream, usage } = self;
        while let Some(term) = shutdown.run_until_cancelled(roles.take("controllers")).await {
            let workspaces = workspaces::WorkspaceController::new(plane.clone(), Arc::new(ApiDirectory(api.clone())));
            let retired = RetirementController::new(&plane, upstream.clone());
            let tokens = TokenSecretController::new(plane.clone(), &api.pki().ca, signer(&api));
            let loops = portolan_controllers::common(&plane, &api.pki().ca).with(tokens).with(workspaces).with(retired);
            let loops = loops.with(InventoryController::new(plane.clone(), &api.pki().ca));
            let scaler = GlobalAutoscaler::new(plane.clone(), api.directory().clone(), Arc::new(usage.clone()));
            let loops = SharedApis::add_to(loops.with(scaler), &api, &plane);
            let loops = loops.with(MulticlusterServiceController::new(plane.clone()));
            let (end, lost) = (shutdown.child_token(), term.lost().clone());
            let ending = end.clone();
            tokio::join!(loops.run(end.clone()), async move {
                ending.run_until_cancelled(lost.cancelled()).await;
                ending.cancel();
            });
        }
    }
}

/// Returns the signer of service account tokens in Secrets.
fn signer(api: &ApiServer) -> TokenSigner {
    let tokens = api.tokens().clone();
    Arc::new(move |token| {
        let claims = SecretClaims::new(token.cluster, token.namespace, token.account, token.uid, token.secret);
        tokens.issue_for_secret(&claims).map_err(Status::internal)
    })
}

/// Compactor of the history.
pub(crate) struct HistoryCompactor {
    pub(crate) store: DynStore,
    pub(crate) bounds: HistoryBounds,
    pub(crate) metrics: HistoryMetrics,
}

impl HistoryCompactor {
    /// Compacts the history until `shutdown`, whenever this server leads.
    pub(crate) async fn run(self, roles: Arc<LeaderElection>, shutdown: CancellationToken) {
        while let Some(term) = shutdown.run_until_cancelled(roles.take("history")).await {
            tokio::select! {
                never = run_history_retention(self.store.clone(), self.bounds, self.metrics.clone()) => match never {},
                () = term.lost().cancelled() => {}
                () = shutdown.cancelled() => return,
            }
        }
    }
}

/// Directory of the API server, for the workspace controller.
pub(crate) struct ApiDirectory(pub(crate) Arc<ApiServer>);

impl workspaces::ClusterDirectory for ApiDirectory {
    fn begin_deletion(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<bool, Status>> {
        Box::pin(self.0.begin_deletion(cluster))
    }

    fn child<'a>(
        &'a self,
        parent: LogicalClusterId,
        workspace: &'a Value,
    ) -> BoxFuture<'a, Result<Option<LogicalClusterId>, StoreError>> {
        Box::pin(self.0.directory().stored_child(parent, workspace))
    }

    fn mark_deleting(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.0.directory().mark_deleting(cluster))
    }

    fn children(&self, parent: LogicalClusterId) -> Vec<LogicalClusterId> {
        self.0.directory().children(parent).iter().map(|child| child.id).collect()
    }

    fn remove(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.0.directory().remove(cluster))
    }
}
