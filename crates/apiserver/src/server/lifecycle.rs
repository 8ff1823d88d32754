//! Steps of logical clusters, for the controllers.

use portolan_types::{
    LogicalClusterId, Status,
    lifecycle::{BINDINGS_INITIALIZER, LifecycleStage},
};
use serde_json::Value;

use super::ApiServer;
use crate::{admission, errors::status_for};

impl ApiServer {
    /// Returns the logical cluster of a Workspace in `parent`, and the exports that it waits for, as `<path of the
    /// workspace>:<name>`; `None` if it waits for none.
    ///
    /// # Errors
    /// Failure of the store.
    pub async fn pending_bindings(
        &self,
        parent: LogicalClusterId,
        workspace: &Value,
    ) -> Result<Option<(LogicalClusterId, Vec<String>)>, Status> {
        let directory = self.directory();
        let child = directory.stored_child(parent, workspace).await.map_err(|error| status_for(&error))?;
        let Some(child) = child else { return Ok(None) };
        let Some((found, _)) = directory.latest(child).await.map_err(|error| status_for(&error))? else {
            return Ok(None);
        };
        let is_pending = found.pending(LifecycleStage::Initializing).iter().any(|own| own == BINDINGS_INITIALIZER);
        Ok(found.lifecycle.filter(|_| is_pending).map(|own| (child, own.bindings)))
    }

    /// Ends the initializer that stands for the default bindings of a logical cluster, unless it has ended.
    ///
    /// # Errors
    /// Failure of the store; 409 after too many conflicts.
    pub async fn end_bindings(&self, cluster: LogicalClusterId) -> Result<(), Status> {
        let stage = LifecycleStage::Initializing;
        admission::end_step(&self.writes.commits, cluster, stage, BINDINGS_INITIALIZER).await
    }

    /// Begins the deletion of a logical cluster. Returns true once its content may be deleted, which waits for its
    /// terminators; its Workspace shows them.
    ///
    /// # Errors
    /// Failure of the store; 409 after too many conflicts.
    pub async fn begin_deletion(&self, cluster: LogicalClusterId) -> Result<bool, Status> {
        admission::begin_deletion(&self.writes.commits, cluster).await
    }
}
