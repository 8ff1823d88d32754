//! Shared APIs: the controllers of exports and bindings over the directory of the API server.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use portolan_apiserver::ApiServer;
use portolan_controllers::{
    Loops, Plane,
    apis::{ExportDirectory, PendingBindings},
};
use portolan_types::{BoxFuture, LogicalClusterId, LogicalClusterPath, Status};
use serde_json::Value;

/// Directory of the API server, for the controllers of exports and bindings.
pub(crate) struct SharedApis(Arc<ApiServer>);

impl SharedApis {
    /// Adds the controllers.
    pub(crate) fn add_to(loops: Loops, api: &Arc<ApiServer>, plane: &Arc<Plane>) -> Loops {
        let directory: Arc<dyn ExportDirectory> = Arc::new(Self(api.clone()));
        portolan_controllers::shared_apis(loops, plane, &directory)
    }
}

impl ExportDirectory for SharedApis {
    fn by_path(&self, path: &LogicalClusterPath) -> Option<LogicalClusterId> {
        self.0.directory().by_path(path).map(|found| found.id)
    }

    fn path_of(&self, cluster: LogicalClusterId) -> Option<LogicalClusterPath> {
        self.0.directory().by_id(cluster).map(|found| found.path.clone())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn pending_bindings<'a>(
        &'a self,
        parent: LogicalClusterId,
        workspace: &'a Value,
    ) -> BoxFuture<'a, Result<Option<PendingBindings>, Status>> {
        Box::pin(async move {
            let pending = self.0.pending_bindings(parent, workspace).await?;
            Ok(pending.map(|(cluster, exports)| PendingBindings { cluster, exports }))
        })
    }

    fn end_bindings(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(self.0.end_bindings(cluster))
    }
}
