//! Upstream side of a syncer, as its workers see it. Through this trait the syncer reads and reports, without knowing
//! the store.

use serde_json::{Map, Value};

use crate::{
    BoxFuture,
    group::{GroupKind, GroupVersionKind},
    imported_services::ImportedServices,
    key::ObjectKey,
    names::{LogicalClusterId, Uid},
    placement::{CustomKindStatus, ProjectionSource, ResourceAmounts},
    scale_fields::ScaleFields,
    status::Status,
    version::ResourceVersion,
};

/// Object that is placed on the physical cluster, or projected from it.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamObject {
    /// Address of the object.
    pub key: ObjectKey,
    /// Revision of its last write.
    pub revision: ResourceVersion,
    /// Kind, in the version of `object`.
    pub kind: GroupVersionKind,
    /// Whole object with server annotations. The copy's entry is in its `PlacementRecord`.
    pub object: Value,
    /// True if the current template is not admitted yet: an existing copy stays as it is, and none is created.
    pub is_held: bool,
    /// Fields of the subresource `scale`, if the definition of a custom resource declares it.
    pub scale: Option<ScaleFields>,
}

impl UpstreamObject {
    /// Returns the wanted number of replicas in `object`, this one or a copy of it.
    pub fn wanted_in(&self, object: &Value) -> Option<i64> {
        match &self.scale {
            Some(scale) => scale.wanted(object),
            None => object.get("spec")?.get(self.wanted_field()).and_then(Value::as_i64),
        }
    }

    /// Sets the wanted number of replicas of a copy.
    pub fn set_wanted_in(&self, copy: &mut Value, replicas: i64) {
        match &self.scale {
            Some(scale) => scale.set_wanted(copy, replicas),
            None => {
                if let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.insert(self.wanted_field().into(), replicas.into());
                }
            }
        }
    }

    /// Returns the field of a built-in kind whose number its copies share.
    fn wanted_field(&self) -> &'static str {
        if (&*self.kind.group, &*self.kind.kind) == ("batch", "Job") { "parallelism" } else { "replicas" }
    }
}

/// Result of reading one object for one physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum UpstreamRead {
    /// The object is placed on the physical cluster, or projected from it.
    Placed(Box<UpstreamObject>),
    /// The object exists, and is not placed on the physical cluster, which learns nothing else about it.
    NotPlaced(UnplacedObject),
    /// The object was removed. This is proof.
    Absent,
}

impl UpstreamRead {
    /// Returns the object, if it is placed on the physical cluster.
    pub fn placed(self) -> Option<UpstreamObject> {
        match self {
            Self::Placed(upstream) => Some(*upstream),
            Self::NotPlaced(_) | Self::Absent => None,
        }
    }
}

/// Identity of an object that is not placed on the physical cluster, which suffices to delete a copy left there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnplacedObject {
    /// Uid of the object.
    pub uid: Option<Uid>,
    /// True if the object has a placement record.
    pub has_record: bool,
}

/// Keys of the objects on one physical cluster, without the objects, which may not fit into memory at once.
#[derive(Clone, Debug)]
pub struct PlacedSnapshot {
    /// Revision of the read; [`Upstream::changes`] reports all later changes.
    pub revision: ResourceVersion,
    /// Keys and uids, at this revision or later, in no order.
    pub objects: Vec<(ObjectKey, Option<Uid>)>,
}

/// Keys of changed objects. The changes only wake workers, which read the objects again.
#[derive(Clone, Debug)]
pub struct UpstreamChanges {
    /// Revision up to which all changes are included.
    pub revision: ResourceVersion,
    /// Keys of objects that were written or removed, or left this physical cluster.
    pub keys: Vec<ObjectKey>,
}

/// Failure of the upstream side. None of these proves anything about an object.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The object has changed since it was read: read again.
    #[error("the object has been modified")]
    Conflict,
    /// The events after this revision are gone: take a snapshot.
    #[error("the events are compacted")]
    Expired,
    /// The upstream side is unreachable or failed.
    #[error("upstream failed: {0}")]
    Failed(Status),
}

/// Stream of changes.
pub trait ChangeStream: Send {
    /// Waits for the next changes. After an error the stream has ended.
    fn next(&mut self) -> BoxFuture<'_, Result<UpstreamChanges, UpstreamError>>;
}

/// Report about one copy. It is untrusted: bounded, and only used for `.status`, and for the node of an unbound Pod.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// Upstream object.
    pub key: ObjectKey,
    /// Uid of the upstream object: a report about an earlier object of the name is dropped.
    pub uid: Uid,
    /// Physical cluster that reports.
    pub physical: Uid,
    /// `PlacedCopy::epoch` that the copy was made for.
    pub epoch: u64,
    /// State of the copy.
    pub state: CopyState,
    /// Name of the node, a DNS-1123 subdomain, if the copy is a bound Pod.
    pub node: Option<String>,
}

/// State of a copy on its physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyState {
    /// The copy exists.
    Synced {
        /// Upstream generation that the copy was made from.
        stamp: i64,
        /// True if generation and observedGeneration downstream agree, or the kind has none.
        is_current: bool,
        /// Downstream `spec.replicas`, if an autoscaler there owns it.
        scaled: Option<i64>,
        /// Downstream revision of a Deployment's template, counted from 1.
        revision: Option<u64>,
        /// Downstream `.status`; null if there is none.
        status: Value,
    },
    /// The copy cannot be created or updated.
    Failed {
        /// Upstream generation that could not be applied.
        generation: i64,
        /// Reason: one word, such as `Conflict`, `Invalid`, `NotSyncable`, `Unreachable`.
        reason: String,
        /// Message: one sentence.
        message: String,
    },
}

/// Report about a physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterReport {
    /// `Ok` if its API responds; otherwise reason and message.
    pub ready: Result<(), (String, String)>,
    /// Kubernetes version, if known.
    pub version: Option<String>,
    /// Sum over its nodes, if known.
    pub capacity: Option<ResourceAmounts>,
    /// Sum over its schedulable nodes, if known.
    pub allocatable: Option<ResourceAmounts>,
    /// Number of suspended deletions: for too many copies there was no firm proof that they may be deleted.
    pub deletions_held: u64,
    /// Number of copies that recently named a newer syncer, or a later stay, than upstream knows.
    pub forged: u64,
    /// Downstream namespaces that are needed and cannot be used, with one sentence each, sorted. They reveal names of
    /// tenants, so only administrators of the physical cluster may read them.
    pub namespace_conflicts: Vec<String>,
    /// Number of downstream namespaces with copies of former registrations, which may still run.
    pub left_behind: u64,
    /// Custom kinds that may go there, and how they are served, sorted; `None` while that is not known.
    pub custom_kinds: Option<Vec<CustomKindStatus>>,
    /// Definitions that were to go there and could not, with one sentence each, sorted.
    pub definition_conflicts: Vec<String>,
    /// Access of the pods there to their logical clusters; `None` while it is not known.
    pub pods: Option<PodAccessReport>,
}

/// Access of the pods on a physical cluster to their logical clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAccessReport {
    /// Address of the API server for pods; otherwise reason and message.
    pub server: Result<String, (&'static str, String)>,
    /// True if `<service>.<namespace>.svc` of the logical cluster resolves.
    pub are_names_resolved: bool,
}

/// Request for the token of the pods of a copy.
#[derive(Clone, Copy, Debug)]
pub struct PodTokenRequest<'a> {
    /// Physical cluster of the copy.
    pub physical: &'a Uid,
    /// Placed object.
    pub key: &'a ObjectKey,
    /// Uid of the placed object.
    pub uid: &'a Uid,
    /// ServiceAccount of its pods.
    pub account: &'a str,
    /// True if the pods ask for a token themselves, whatever the account says.
    pub is_asked: bool,
    /// Lifetime in seconds.
    pub seconds: i64,
}

/// Token of the pods of a copy, valid for the control plane only.
#[derive(Clone, PartialEq, Eq)]
pub struct PodToken {
    /// Token.
    pub token: String,
    /// Certificate authority of the API server, PEM.
    pub authority: String,
    /// Time at which it is renewed, in seconds since 1970: after 80 % of its life.
    pub renew_at: i64,
}

impl std::fmt::Debug for PodToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodToken").field("renew_at", &self.renew_at).finish_non_exhaustive()
    }
}

/// Custom kinds that one physical cluster may take besides those of `spec.syncedResources`, and definitions that go
/// there, as the policies of the workspace say where it is registered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CustomKindRules {
    /// Sorted kinds without duplicates; `*` means any kind of its group. At most
    /// [`crate::placement::MAX_CUSTOM_KINDS`].
    pub allowed: Vec<GroupKind>,
    /// Definitions that go there, sorted by name.
    pub definitions: Vec<SyncedDefinition>,
}

/// CustomResourceDefinition that goes to a physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncedDefinition {
    /// Logical cluster of the definition: that of the registration.
    pub cluster: LogicalClusterId,
    /// The definition.
    pub object: Value,
}

/// Returns the message about an unready physical cluster for users who do not run the server: `detail` if it is about
/// their own input, and one text for all connection failures, which could otherwise reveal the server's network.
pub fn public_detail<'a>(reason: &str, detail: &'a str) -> &'a str {
    match reason {
        "Unreachable" => "its API server cannot be reached; the log of the server has the details",
        "Unauthorized" => "its API server does not accept the credentials of the kubeconfig",
        "Forbidden" => "its API server does not allow the user of the kubeconfig what syncing needs",
        "NotReady" => "its API server is not ready; the log of the server has the details",
        _ => detail,
    }
}

/// Downstream objects to project upstream.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    /// Objects in their upstream form: upstream name and namespace, mapped owners, status included. The uid is assigned
    /// upstream on creation.
    pub put: Vec<(ObjectKey, Value)>,
    /// Keys of objects whose downstream deletion was seen.
    pub gone: Vec<ObjectKey>,
    /// Events in their upstream form, each with the upstream object that it is about. Nothing holds them there.
    pub events: Vec<(ObjectKey, ObjectKey, Value)>,
}

/// Debt: a copy or projected object that could not be deleted while its physical cluster was unreachable, to be deleted
/// on return.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Debt {
    /// Former upstream object.
    pub key: ObjectKey,
    /// Downstream location of a projected object. `None` for a copy, whose location follows from `key`.
    pub source: Option<ProjectionSource>,
    /// Downstream kind and version.
    pub kind: GroupVersionKind,
    /// Uid of the former upstream object.
    pub uid: Uid,
    /// Epoch of the copy.
    pub epoch: u64,
    /// True if objects that controllers made from it stay.
    pub is_orphan: bool,
}

/// Upstream side of a syncer, as the workers of one physical cluster see it.
///
/// Every call is limited to the objects of `physical`; the implementation enforces that.
pub trait Upstream: Send + Sync {
    /// Returns the name of the control plane, which distinguishes its copies from those of other control planes. It is
    /// generated once and stored with the objects; a control plane whose copies are older than this feature has no
    /// name.
    fn plane(&self) -> Option<&str>;

    /// Returns true if a `PhysicalCluster` with this uid exists. Copies of any other registration have no owner.
    fn exists<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<bool, UpstreamError>>;

    /// Lists the objects placed on or projected from `physical`, at one revision.
    fn snapshot<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<PlacedSnapshot, UpstreamError>>;

    /// Watches changes after `after`. Fails with `Expired` if they are no longer kept.
    fn changes<'a>(
        &'a self,
        physical: &'a Uid,
        after: ResourceVersion,
    ) -> BoxFuture<'a, Result<Box<dyn ChangeStream>, UpstreamError>>;

    /// Watches namespaces of all logical clusters, from now on.
    fn namespace_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>>;

    /// Reads the latest state of an object for `physical`. An object that follows as a reference counts as placed.
    fn get<'a>(&'a self, physical: &'a Uid, key: &'a ObjectKey) -> BoxFuture<'a, Result<UpstreamRead, UpstreamError>>;

    /// Returns the labels of the namespace of `key`; `None` when the object at `key` is not placed on `physical`.
    fn namespace_labels<'a>(
        &'a self,
        physical: &'a Uid,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<Option<Map<String, Value>>, UpstreamError>>;

    /// Watches imports of Services of all logical clusters, from now on. One changes with the endpoints of its Service.
    fn import_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>>;

    /// Returns the Services that the namespace of `key` imports; none when the object at `key` is not placed on
    /// `physical`.
    fn imported_services<'a>(
        &'a self,
        physical: &'a Uid,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<ImportedServices, UpstreamError>>;

    /// Returns true if the field at `pointer` (RFC 6901) in `object` has its default value.
    fn is_default(&self, object: &UpstreamObject, pointer: &str) -> bool;

    /// Returns the custom kinds that `physical` may take, and the definitions that go there.
    fn custom_kinds<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<CustomKindRules, UpstreamError>>;

    /// Issues a token for the pods of a copy. It ends with the object, and when the object leaves the physical cluster.
    /// `None`: the object is not placed there, or its account is missing or gives no tokens to pods.
    fn pod_token<'a>(&'a self, request: PodTokenRequest<'a>) -> BoxFuture<'a, Result<Option<PodToken>, UpstreamError>>;

    /// Stores the state of a copy and, in the same transaction, the merged upstream `.status`.
    fn report(&self, report: CopyReport) -> BoxFuture<'_, Result<(), UpstreamError>>;

    /// Confirms that a copy is gone: removes its entry from the record and, after the last entry of a deleted object,
    /// the object.
    fn confirm_gone<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a Uid,
        physical: &'a Uid,
        epoch: u64,
    ) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Writes and removes projected objects.
    fn project<'a>(&'a self, physical: &'a Uid, projection: Projection) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Lists the debts of `physical`.
    fn debts<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<Vec<Debt>, UpstreamError>>;

    /// Removes a paid debt.
    fn settle<'a>(&'a self, physical: &'a Uid, debt: &'a Debt) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Turns a deletion on an unreachable `physical` into a debt: removes the entry from the record and stores the
    /// debt, in one transaction.
    fn record_debt<'a>(&'a self, physical: &'a Uid, debt: Debt) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Returns the number of the newest syncer started for `physical`; older ones end. Copies downstream are no proof
    /// of it, because others may write there.
    fn newest_syncer<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<u64, UpstreamError>>;

    /// Records that `physical` has just been heard. `unbroken` counts the answers since its last silence.
    fn heartbeat<'a>(&'a self, physical: &'a Uid, unbroken: u64) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Stores the state of the physical cluster.
    fn report_cluster<'a>(
        &'a self,
        physical: &'a Uid,
        report: ClusterReport,
    ) -> BoxFuture<'a, Result<(), UpstreamError>>;
}
