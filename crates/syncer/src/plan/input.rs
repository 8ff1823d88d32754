//! Input of a plan.

use portolan_types::{
    GroupVersionKind, ObjectKey, Uid,
    upstream::{UnplacedObject, UpstreamObject},
};
use serde_json::Value;

use crate::{
    rules::SyncRules,
    transform::{AcceptedAudiences, LogicalView, MissingFields},
};

/// State of the upstream object. After a failed read there is no input, and nothing is planned.
#[derive(Clone, Copy, Debug)]
pub enum UpstreamState<'a> {
    /// The object is placed on the physical cluster, or projected from it.
    Present(&'a UpstreamObject),
    /// The object exists and is not placed on the physical cluster.
    NotPlaced(&'a UnplacedObject),
    /// The object has been removed.
    Removed {
        /// True if this worker saw it before.
        seen: bool,
    },
}

/// Input of one plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// Upstream address.
    pub key: &'a ObjectKey,
    /// State of the upstream object.
    pub upstream: UpstreamState<'a>,
    /// Downstream object at the address of the copy, with or without our identity.
    pub downstream: Option<&'a Value>,
    /// Namespace downstream; `None` at cluster scope.
    pub namespace: Option<&'a str>,
    /// Kind that the physical cluster serves for the resource, and true if it is namespaced.
    pub served: Option<(&'a GroupVersionKind, bool)>,
    /// True when an autoscaler downstream owns the number of replicas.
    pub autoscaled: bool,
    /// True when the copy is unchanged since the last apply. A difference to the applied body is then no drift: the
    /// physical cluster stores the same value in another form.
    pub settled: bool,
    /// Epoch of the newest syncer, which is recorded upstream.
    pub newest_syncer: u64,
    /// Fields of the object that the API of the physical cluster does not have.
    pub lacking: &'a MissingFields,
    /// Audiences of tokens that are credentials for the physical cluster's API server.
    pub audiences: &'a AcceptedAudiences,
    /// API and DNS that the pods of the copy use; `None` if they use those of the physical cluster.
    pub pods: Option<&'a LogicalView>,
}

/// Physical cluster that a plan is for.
#[derive(Clone, Copy, Debug)]
pub struct SyncTarget<'a> {
    /// Uid of the `PhysicalCluster`.
    pub physical: &'a Uid,
    /// Epoch of this syncer.
    pub syncer_epoch: u64,
    /// Resources that may be synced.
    pub rules: &'a SyncRules,
}
