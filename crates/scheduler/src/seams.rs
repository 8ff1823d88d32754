//! What the scheduler has to be told about the world around the store.

use portolan_placement::{Refusal, WouldBeClaim};
use portolan_store::Write;
use portolan_types::{
    BoxFuture, GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Status,
    placement::{ChargedClaims, ChargedPods},
};
use serde_json::Value;

use crate::kinds;

/// The tree of logical clusters. Must answer from memory.
pub trait ClusterTree: Send + Sync {
    /// The logical cluster itself and its ancestors, up to the root, with their paths. Empty when it is not known, or not any
    /// more, or when it or an ancestor is being deleted: nothing is placed there then.
    fn lineage(&self, cluster: LogicalClusterId) -> Vec<(LogicalClusterId, LogicalClusterPath)>;

    /// The logical cluster itself and all below it.
    fn subtree(&self, cluster: LogicalClusterId) -> Vec<LogicalClusterId>;
}

/// The RBAC verb `use` on physical clusters. Must answer from memory.
pub trait UseRights: Send + Sync {
    /// Whether objects of `cluster` may be placed on the physical cluster `name` that is registered in `home`, an ancestor or
    /// `cluster` itself.
    fn may_use(&self, cluster: LogicalClusterId, home: LogicalClusterId, name: &str) -> bool;

    /// Whether the rights to what is registered in `home` are known. Where they are not, nothing is concluded from them.
    fn are_known(&self, _home: LogicalClusterId) -> bool {
        true
    }
}

/// Which resource a kind is stored as.
pub trait KindCatalog: Send + Sync {
    /// The resource of a namespaced kind; `None` when there is no such kind.
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource>;
}

/// Whether pods of templates may be made, and what quotas are charged for them.
pub trait PodGate: Send + Sync {
    /// Asks whether `pod`, in the namespace of `owner`, would be let in if the controller that runs as `by` in `kube-system`
    /// sent it now. Nothing is stored. The answer is one such pod as quotas count it.
    ///
    /// # Errors
    /// What is said against it.
    fn admit<'a>(
        &'a self,
        owner: &'a ObjectKey,
        pod: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Result<AdmittedPod, NotAdmitted>>;

    /// One such pod as quotas count it, without asking anybody.
    fn measure(&self, pod: &Value) -> ChargedPods;

    /// The same for the first volume claim of a template. The answer is one such claim as quotas count it.
    ///
    /// # Errors
    /// What is said against it.
    fn admit_claim<'a>(
        &'a self,
        owner: &'a ObjectKey,
        claim: &'a WouldBeClaim,
        by: &'a str,
    ) -> BoxFuture<'a, Result<ChargedClaims, NotAdmitted>>;

    /// One such claim as quotas count it, without asking anybody.
    fn measure_claim(&self, claim: &WouldBeClaim) -> ChargedClaims;

    /// What is to be written with a placement for its pods to be charged to the quotas of the namespace. Others who charge
    /// them wait until the answer is dropped, and the writes fail when the quotas have been written meanwhile.
    ///
    /// # Errors
    /// What is said against it.
    fn charge<'a>(&'a self, owner: &'a ObjectKey, charge: Charge<'a>) -> BoxFuture<'a, Result<Charged, NotAdmitted>>;
}

/// A pod as admission has left it.
#[derive(Clone, Debug)]
pub struct AdmittedPod {
    /// The pod.
    pub pod: Value,
    /// One of it, as quotas count it.
    pub one: ChargedPods,
}

/// A change of what is charged for the pods of one object.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// One of them, when it has just been admitted.
    pub pod: Option<&'a Value>,
    /// What was charged.
    pub old: Option<&'a ChargedPods>,
    /// What is to be.
    pub new: Option<&'a ChargedPods>,
    /// The volume claims that were charged and were not there, by template.
    pub old_claims: &'a [ChargedClaims],
    /// Those that are to be and are not there.
    pub new_claims: &'a [ChargedClaims],
    /// They run already, so they are charged whatever the limit.
    pub forced: bool,
}

/// Quotas, charged.
pub struct Charged {
    /// To be committed with what is charged for: at most 64.
    pub writes: Vec<Write>,
    /// Kept until that is done.
    pub turn: Box<dyn Send>,
}

/// Why pods were not let in.
#[derive(Debug)]
pub enum NotAdmitted {
    /// They are refused: that is told.
    Refused(Refusal),
    /// Nobody could be asked now.
    Failed(Status),
}

/// The kinds that are placed without a policy, and no custom ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinKinds;

impl KindCatalog for BuiltinKinds {
    fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        kinds::PLACEABLE.iter().find(|p| p.group == group && p.kind == kind).map(kinds::Placeable::resource)
    }
}
