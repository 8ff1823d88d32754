//! Keys of annotations and labels that Portolan gives a meaning. Those under `portolan.dev/` marked *server* are
//! written by the server only: what a client sends for them is ignored with a warning.

/// Server: names of the physical clusters an object is placed on, joined by `,`, for people and selectors.
pub const CLUSTERS: &str = "portolan.dev/clusters";
/// Server: the [`crate::placement::PlacementRecord`] as JSON.
pub const PLACEMENT: &str = "portolan.dev/placement";
/// User: names of physical clusters, joined by `,`, that this object or namespace must run on, within constraints.
pub const PIN: &str = "portolan.dev/pin";
/// User: `true` lets an object move although the data on its volumes stay behind: it starts on new, empty ones.
pub const ABANDON_VOLUMES: &str = "portolan.dev/abandon-volumes";
/// User: names of physical clusters, joined by `,`, whose copy of this object is written off while it is out of reach: it is
/// taken for gone without proof, so that what must run once may run elsewhere. The server takes it off once it has acted on it.
pub const WRITE_OFF: &str = "portolan.dev/write-off";
/// Admin, on a `PhysicalCluster`: how many of the deletions that are held back there may happen. Taken off once it is acted on.
pub const RELEASE_DELETIONS: &str = "portolan.dev/release-deletions";
/// Admin, on a `PhysicalCluster`: `adopt` or `delete` what registrations of the same cluster left there that are gone. Taken off once it is
/// acted on.
pub const LEFT_BEHIND: &str = "portolan.dev/left-behind";
/// Server: the logical cluster that holds the object; kcp's key.
pub const KCP_CLUSTER: &str = "kcp.io/cluster";
/// kubectl's copy of what was applied last; never goes downstream.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Which revision of its template a Deployment is at, counted from 1; of a ReplicaSet, which one it is. Each physical cluster counts
/// for itself; above, the highest shows.
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// Downstream label: the logical cluster id of the upstream object.
pub const DOWN_CLUSTER: &str = "sync.portolan.dev/cluster";
/// Downstream label: the readable upstream namespace.
pub const DOWN_NAMESPACE: &str = "sync.portolan.dev/namespace";
/// Downstream label of a namespace: a hash of the control plane and the logical cluster, by which selectors of namespaces stay
/// within one logical cluster.
pub const DOWN_TENANT: &str = "sync.portolan.dev/tenant";
/// Downstream annotation: the [`crate::placement::CopyIdentity`] as JSON.
pub const DOWN_IDENTITY: &str = "sync.portolan.dev/identity";
/// Downstream annotation: hash of what was applied last, so that a copy that needs no write gets none.
pub const DOWN_APPLIED: &str = "sync.portolan.dev/applied";
/// Downstream annotation: hash of the upstream pod template. Kubernetes hands it on from a Deployment to its ReplicaSet.
pub const DOWN_TEMPLATE: &str = "sync.portolan.dev/template";
/// Upstream annotation of a projected object: where it is downstream, as JSON ([`crate::placement::Source`] by the uid of
/// the physical cluster).
pub const SOURCE: &str = "sync.portolan.dev/source";
/// Upstream label of a projected object: the name of the physical cluster it runs on.
pub const PROJECTED_FROM: &str = "portolan.dev/cluster";
/// Name of the node that runs a Pod on its physical cluster. Upstream the Pod's node is the physical cluster.
pub const NODE: &str = "portolan.dev/node";

/// The annotations that only the server writes.
pub const SERVER_OWNED: [&str; 3] = [CLUSTERS, PLACEMENT, SOURCE];
/// The labels that only the server writes.
pub const SERVER_OWNED_LABELS: [&str; 1] = [PROJECTED_FROM];
