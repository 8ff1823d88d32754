//! Shared APIs: the controllers of exports and bindings over the directory of the API server.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use portolan_apiserver::ApiServer;
use portolan_controllers::{Loops, Plane, apis::ExportDirectory};
use portolan_types::{LogicalClusterId, LogicalClusterPath};

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
        format!("https://{}", self.0.address())
    }
}
