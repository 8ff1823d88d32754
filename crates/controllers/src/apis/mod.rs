//! Shared APIs: identities of exports, bindings to them, and the addresses of their views.
//!
//! One loop serves all logical clusters. A binding is reconciled with the others of its logical cluster, one after the
//! other, because they compete for resources.

mod binding_index;
mod bindings;
mod conflicts;
mod default_bindings;
mod exported_schemas;
mod exports;
mod slices;
mod unbinding;

use std::sync::Arc;

use portolan_kinds::Kind;
use portolan_types::{
    BoxFuture, GroupVersionKind, LogicalClusterId, LogicalClusterPath, Status,
    apis::{self, ExportAddress, ExportReference},
};
use serde_json::{Value, json};

use crate::plane::Plane;

pub use bindings::BindingController;
pub use default_bindings::{DefaultBindingController, PendingBindings};
pub use exports::ExportController;
pub use slices::SliceController;

/// Logical clusters by path, and the address of the server.
pub trait ExportDirectory: Send + Sync {
    /// Returns the logical cluster of a path.
    fn by_path(&self, path: &LogicalClusterPath) -> Option<LogicalClusterId>;

    /// Returns the path of a logical cluster.
    fn path_of(&self, cluster: LogicalClusterId) -> Option<LogicalClusterPath>;

    /// Returns the URL at which clients reach the server, without a slash at its end.
    fn url(&self) -> String;

    /// Returns the bindings that a Workspace in `parent` waits for; `None` if it waits for none.
    fn pending_bindings<'a>(
        &'a self,
        parent: LogicalClusterId,
        workspace: &'a Value,
    ) -> BoxFuture<'a, Result<Option<PendingBindings>, Status>>;

    /// Ends the wait of a logical cluster for its default bindings.
    fn end_bindings(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<(), Status>>;
}

/// Returns the export that a reference in `cluster` names; `None` if its workspace does not exist.
fn resolve(
    directory: &dyn ExportDirectory,
    cluster: LogicalClusterId,
    reference: &ExportReference,
) -> Option<ExportAddress> {
    let cluster = match &reference.path {
        None => cluster,
        Some(path) => directory.by_path(path)?,
    };
    Some(ExportAddress { cluster, name: reference.name.clone() })
}

fn kind_of(plane: &Arc<Plane>, version: &str, kind: &str) -> &'static Kind {
    let gvk = GroupVersionKind::new(apis::GROUP, version, kind);
    plane.table().kind(&gvk).expect("the table has apis.kcp.io")
}

/// Returns a condition that holds.
fn holds(condition: &str) -> Value {
    json!({"type": condition, "status": "True"})
}

/// Returns a condition that does not hold, for a reason.
fn fails(condition: &str, reason: &str, message: &str) -> Value {
    json!({"type": condition, "status": "False", "severity": "Error", "reason": reason, "message": message})
}

/// Returns the summary of conditions: the first that does not hold decides.
fn summary(conditions: &[Value]) -> Value {
    match conditions.iter().find(|own| own["status"] != "True") {
        None => holds("Ready"),
        Some(failed) => {
            let mut ready = failed.clone();
            ready["type"] = "Ready".into();
            ready
        }
    }
}
