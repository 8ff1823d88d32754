//! Seam of `metrics.k8s.io`: the resource usage of pods and nodes.

use std::sync::Arc;

use portolan_types::{BoxFuture, Status};
use serde_json::Value;

use crate::directory::LogicalCluster;

/// Resource that has a usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredResource {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
}

/// Authorized request for the usage of pods or nodes.
pub struct UsageRequest {
    /// The logical cluster.
    pub cluster: Arc<LogicalCluster>,
    /// Resource of the objects.
    pub resource: MeasuredResource,
    /// Pods or Nodes as read in the logical cluster: those that the request selects.
    pub objects: Vec<Value>,
}

/// Usage of pods or nodes.
#[derive(Debug, Default)]
pub struct MeasuredUsage {
    /// `PodMetrics` or `NodeMetrics`, in the order of the objects. An object without a known usage has none.
    pub items: Vec<Value>,
    /// Warnings for the client, such as the names of physical clusters that did not answer.
    pub warnings: Vec<String>,
}

/// Source of the resource usage of pods and nodes.
pub trait UsageSource: Send + Sync {
    /// Returns the usage of the objects of a request.
    ///
    /// # Errors
    /// A failure that concerns all objects. The errors of single physical clusters are warnings.
    fn usage(&self, request: UsageRequest) -> BoxFuture<'_, Result<MeasuredUsage, Status>>;
}
