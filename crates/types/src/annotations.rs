//! Keys of annotations and labels with a meaning in Portolan. Keys marked *server* are written by the server only;
//! values from clients are ignored with a warning.

/// Server: names of the object's physical clusters, joined by `,`, for people and selectors.
pub const CLUSTERS: &str = "portolan.dev/clusters";
/// Server: the [`crate::placement::PlacementRecord`] as JSON.
pub const PLACEMENT: &str = "portolan.dev/placement";
/// User: names of physical clusters, joined by `,`, that this object or namespace must run on, within constraints.
pub const PIN: &str = "portolan.dev/pin";
/// User: `true` lets an object move although the data on its volumes stay behind: it starts on new, empty ones.
pub const ABANDON_VOLUMES: &str = "portolan.dev/abandon-volumes";
/// User, on a claim: the [`crate::placement::VolumeStrategy`] of its data, which wins over that of a policy.
pub const VOLUME_STRATEGY: &str = "portolan.dev/volume-strategy";
/// User, a label of a StorageClass: `true` declares that its volumes have the same data on every physical cluster.
pub const SHARED_STORAGE: &str = "portolan.dev/shared";
/// User: lets a rollout leave a stage, as `<fingerprint>/<stage>`. The `Placement` names the value.
pub const APPROVE_ROLLOUT: &str = "portolan.dev/approve-rollout";
/// User: names of physical clusters, joined by `,`, whose copy of this object is written off while it is unreachable.
/// It counts as gone without proof, so that an object that must run once may run elsewhere. The server removes the
/// annotation once it has acted on it.
pub const WRITE_OFF: &str = "portolan.dev/write-off";
/// Set by writers of objects that placements depend on: hash of a `PlacementPlan`. The write is refused with 409 if the
/// plan has changed since. It is a precondition of one write, and never stored.
pub const EXPECT_PLAN: &str = "portolan.dev/expect-plan";
/// User: reason for which a move of this object does not wait for its new copies to be available. The server removes
/// the annotation once a copy has left by it.
pub const FORCE: &str = "portolan.dev/force";
/// Server: key of the `NoExecute` taint of an unreachable physical cluster.
pub const UNREACHABLE_TAINT: &str = "portolan.dev/unreachable";
/// Admin, on a `PhysicalCluster`: number of held deletions to release. Removed once it is acted on.
pub const RELEASE_DELETIONS: &str = "portolan.dev/release-deletions";
/// Admin, on a `PhysicalCluster`: `adopt` or `delete` the copies that former registrations of the same cluster left
/// there. Removed once it is acted on.
pub const LEFT_BEHIND: &str = "portolan.dev/left-behind";
/// User: `IfNoDiff` or `Always`, to take over an object that is downstream in the place of a copy.
pub const ADOPT: &str = "portolan.dev/adopt";
/// User: `true` lets an adoption restart the pods of a workload.
pub const ADOPT_RESTART: &str = "portolan.dev/adopt-restart";
/// User: `true` lets the copies stay on their physical clusters when the object is deleted. They are no copies then.
pub const KEEP: &str = "portolan.dev/keep";
/// User, on a CustomResourceDefinition: fields by which its objects name others that follow them, as
/// [`crate::declared_references`].
pub const REFERENCES: &str = "portolan.dev/references";
/// Server: logical cluster that holds the object; kcp's key.
pub const KCP_CLUSTER: &str = "kcp.io/cluster";
/// Path of the logical cluster of an object that others refer to.
pub const KCP_PATH: &str = "kcp.io/path";
/// kubectl's copy of the last applied configuration; never goes downstream.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Revision of a Deployment's or ReplicaSet's template, counted from 1. Each physical cluster counts for itself;
/// upstream shows the highest.
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// Downstream label: logical cluster id of the upstream object.
pub const DOWN_CLUSTER: &str = "sync.portolan.dev/cluster";
/// Downstream label: readable upstream namespace.
pub const DOWN_NAMESPACE: &str = "sync.portolan.dev/namespace";
/// Downstream label of a namespace: hash of the control plane and the logical cluster, which keeps namespace selectors
/// within one logical cluster.
pub const DOWN_TENANT: &str = "sync.portolan.dev/tenant";
/// Downstream annotation: the [`crate::placement::CopyIdentity`] as JSON.
pub const DOWN_IDENTITY: &str = "sync.portolan.dev/identity";
/// Downstream annotation: hash of the last applied configuration. A copy with the same hash needs no write.
pub const DOWN_APPLIED: &str = "sync.portolan.dev/applied";
/// Downstream annotation: hash of the upstream pod template. Kubernetes hands it on from a Deployment to its
/// ReplicaSet.
pub const DOWN_TEMPLATE: &str = "sync.portolan.dev/template";
/// Downstream annotation of a copy that stays when its object is deleted upstream.
pub const DOWN_KEEP: &str = "sync.portolan.dev/keep";
/// Downstream annotation of a copy: view of the logical cluster that its pods were made with, as JSON.
pub const DOWN_POD_VIEW: &str = "sync.portolan.dev/pod-view";
/// Downstream annotation of pods: upstream namespace, for files that have it.
pub const DOWN_POD_NAMESPACE: &str = "sync.portolan.dev/pod-namespace";
/// Downstream annotation of a Secret with the token of pods: account and time of renewal, as JSON.
pub const DOWN_POD_TOKEN: &str = "sync.portolan.dev/pod-token";
/// Downstream annotation of a namespace: Services that it imports, as JSON
/// ([`crate::imported_services::ImportedServices`]).
pub const DOWN_IMPORTED: &str = "sync.portolan.dev/imported";
/// Upstream annotation of a projected object: its downstream locations, as JSON ([`crate::placement::ProjectionSource`]
/// by the uid of the physical cluster).
pub const SOURCE: &str = "sync.portolan.dev/source";
/// Upstream label of a projected object: name of the physical cluster it runs on.
pub const PROJECTED_FROM: &str = "portolan.dev/cluster";
/// Name of the node that runs a Pod on its physical cluster. The upstream Pod's node is the physical cluster.
pub const NODE: &str = "portolan.dev/node";

/// Annotations that only the server writes.
pub const SERVER_OWNED: [&str; 3] = [CLUSTERS, PLACEMENT, SOURCE];
/// Labels that only the server writes.
pub const SERVER_OWNED_LABELS: [&str; 1] = [PROJECTED_FROM];
