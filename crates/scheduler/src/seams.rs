//! Traits for inputs of the scheduler that are not in the store.

use portolan_placement::{PodRefusal, TemplateClaim};
use portolan_store::Write;
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Status,
    placement::{ChargedClaims, ChargedPods},
};
use serde_json::Value;

use crate::kinds;

/// Tree of logical clusters. Answers from memory.
pub trait ClusterTree: Send + Sync {
    /// Returns the logical cluster and its ancestors up to the root, with their paths. Returns nothing if it is
    /// unknown, or if it or an ancestor is being deleted: nothing is placed there then.
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)>;

    /// Returns the logical cluster and all its descendants.
    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId>;
}

/// The RBAC verb `use` on physical clusters. Answers from memory.
pub trait UseRights: Send + Sync {
    /// Returns true if objects of `cluster` may be placed on the physical cluster `name` that is registered in `home`,
    /// an ancestor or `cluster` itself.
    fn may_use(&self, cluster: LogicalClusterId, home: LogicalClusterId, name: &str) -> bool;

    /// Returns true if the rights in `home` are known. Unknown rights allow no conclusion.
    fn are_known(&self, _home: LogicalClusterId) -> bool {
        true
    }
}

/// Resources of kinds.
pub trait KindCatalog: Send + Sync {
    /// Returns the resource of a namespaced kind; `None` if there is no such kind.
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource>;

    /// Returns true for the resource of a namespaced kind.
    fn has_resource(&self, resource: &GroupResource) -> bool;
}

/// Admission of the pods of templates, and their charge to quotas.
pub trait PodGate: Send + Sync {
    /// Runs admission for `pod`, in the namespace of `owner`, as if the controller that runs as `by` in `kube-system`
    /// sent it now. Nothing is stored. Returns the pod as quotas count it.
    ///
    /// # Errors
    /// The refusal, or the failure to ask.
    fn admit<'a>(
        &'a self,
        owner: &'a ObjectKey,
        pod: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Result<AdmittedPod, NotAdmitted>>;

    /// Returns the pod as quotas count it, without admission.
    fn measure(&self, pod: &Value) -> ChargedPods;

    /// Runs admission for the first volume claim of a template. Returns the claim as quotas count it.
    ///
    /// # Errors
    /// The refusal, or the failure to ask.
    fn admit_claim<'a>(
        &'a self,
        owner: &'a ObjectKey,
        claim: &'a TemplateClaim,
        by: &'a str,
    ) -> BoxFuture<'a, Result<ChargedClaims, NotAdmitted>>;

    /// Returns the claim as quotas count it, without admission.
    fn measure_claim(&self, claim: &TemplateClaim) -> ChargedClaims;

    /// Returns the writes that charge the pods to the quotas of the namespace, for the transaction of the placement.
    /// Other charges wait until the answer is dropped, and the writes fail if the quotas have been written meanwhile.
    ///
    /// # Errors
    /// The refusal, or the failure to ask.
    fn charge<'a>(
        &'a self,
        owner: &'a ObjectKey,
        charge: PodCharge<'a>,
    ) -> BoxFuture<'a, Result<PodChargeWrites, NotAdmitted>>;
}

/// Pod after admission.
#[derive(Clone, Debug)]
pub struct AdmittedPod {
    /// The pod.
    pub pod: Value,
    /// The pod as quotas count it.
    pub one: ChargedPods,
}

/// Change of the charge for the pods of one object.
#[derive(Clone, Copy, Debug)]
pub struct PodCharge<'a> {
    /// A pod that has just been admitted.
    pub pod: Option<&'a Value>,
    /// Present charge.
    pub old: Option<&'a ChargedPods>,
    /// New charge.
    pub new: Option<&'a ChargedPods>,
    /// Claims by template that are charged and do not exist yet.
    pub old_claims: &'a [ChargedClaims],
    /// Claims to be charged that do not exist yet.
    pub new_claims: &'a [ChargedClaims],
    /// Charges even beyond the limit, because the pods run already.
    pub forced: bool,
}

/// Writes that charge quotas.
pub struct PodChargeWrites {
    /// Writes of the transaction: at most 64.
    pub writes: Vec<Write>,
    /// Lock on the quotas, held until the commit.
    pub turn: Box<dyn Send>,
}

/// Failure of admission.
#[derive(Debug)]
pub enum NotAdmitted {
    /// Admission or a quota refuses the pods.
    Refused(PodRefusal),
    /// Admission could not be asked.
    Failed(Status),
}

/// Catalog of the kinds that are placed without a policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinKinds;

impl KindCatalog for BuiltinKinds {
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        kinds::PLACEABLE.iter().find(|p| p.group == group && p.kind == kind).map(kinds::Placeable::resource)
    }

    fn has_resource(&self, resource: &GroupResource) -> bool {
        kinds::placeable(resource).is_some()
    }
}
