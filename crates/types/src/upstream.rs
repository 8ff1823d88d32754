//! The logical side, as the workers of one physical cluster see it. The syncer knows nothing of stores: it reads and
//! reports through this.

use serde_json::Value;

use crate::{
    BoxFuture,
    group::GroupVersionKind,
    key::ObjectKey,
    names::Uid,
    placement::{Resources, Source},
    status::Status,
    version::ResourceVersion,
};

/// An object that is placed on, or projected from, the physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamObject {
    /// Its address.
    pub key: ObjectKey,
    /// Its last write.
    pub revision: ResourceVersion,
    /// Kind and the version that `object` is in.
    pub kind: GroupVersionKind,
    /// The whole object, server annotations included. The copy's own entry is in its `PlacementRecord`.
    pub object: Value,
    /// What it says now has not been let in, or not yet: a copy stays as it is, and none is made.
    pub is_held: bool,
}

/// Which objects are on one physical cluster: named only, since there may be more of them than fit into memory at once.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// All changes after it are told by [`Upstream::changes`].
    pub revision: ResourceVersion,
    /// At this revision or later, with their uids, in no order.
    pub objects: Vec<(ObjectKey, Option<Uid>)>,
}

/// What changed, by key: the level is read again, events are only wake-ups.
#[derive(Clone, Debug)]
pub struct Changes {
    /// All changes up to this revision are named.
    pub revision: ResourceVersion,
    /// Objects that were written or removed, or left this physical cluster.
    pub keys: Vec<ObjectKey>,
}

/// Why the logical side did not answer. None of these proves anything about an object.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The object is newer than what was reported about: read again.
    #[error("the object has been modified")]
    Conflict,
    /// The events after this revision are gone: take a snapshot.
    #[error("the events are compacted")]
    Expired,
    /// The logical side cannot be reached or failed.
    #[error("upstream failed: {0}")]
    Failed(Status),
}

/// A stream of changes.
pub trait ChangeStream: Send {
    /// Waits for the next changes. After an error the stream is over.
    fn next(&mut self) -> BoxFuture<'_, Result<Changes, UpstreamError>>;
}

/// The state of one copy, as the physical cluster shows it. Untrusted: bounded, and only ever used as `.status`, and as the
/// node of a Pod that has none yet.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// The upstream object.
    pub key: ObjectKey,
    /// Its uid: a report about an older object of the name is dropped.
    pub uid: Uid,
    /// The physical cluster that reports.
    pub physical: Uid,
    /// `PlacedCopy::epoch` that the copy was made for.
    pub epoch: u64,
    /// What the physical cluster shows.
    pub state: CopyState,
    /// Of a Pod that is bound there: the name of its node, a DNS-1123 subdomain.
    pub node: Option<String>,
}

/// What the physical cluster shows of a copy.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyState {
    /// The copy is there.
    Synced {
        /// Upstream generation that the copy was made from.
        stamp: i64,
        /// Generation and observedGeneration downstream agree, or the kind has none.
        is_current: bool,
        /// `spec.replicas` downstream, when an autoscaler there owns it.
        scaled: Option<i64>,
        /// Which revision of its template a Deployment is at downstream, counted from 1.
        revision: Option<u64>,
        /// `.status` downstream; null when it has none.
        status: Value,
    },
    /// The copy cannot be made or updated.
    Failed {
        /// Upstream generation that could not be made or updated.
        generation: i64,
        /// One word, such as `Conflict`, `Invalid`, `NotSyncable`, `Unreachable`.
        reason: String,
        /// One sentence.
        message: String,
    },
}

/// The state of a physical cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterReport {
    /// `Ok` when its API answers; otherwise a word and a sentence why not.
    pub ready: Result<(), (String, String)>,
    /// Kubernetes version, when it is known.
    pub version: Option<String>,
    /// Sum over its nodes, when it is known.
    pub capacity: Option<Resources>,
    /// Sum over its schedulable nodes, when it is known.
    pub allocatable: Option<Resources>,
    /// Copies whose deletion is held back, because deletions without firm proof came in masses.
    pub deletions_held: u64,
    /// Copies found lately that named a newer syncer, or a later stay, than upstream knows.
    pub forged: u64,
    /// Namespaces downstream that objects are to go to and that cannot be used, with one sentence each. Sorted. They name
    /// what tenants have: only who cares for the physical cluster may read them.
    pub namespace_conflicts: Vec<String>,
    /// Namespaces downstream with copies of registrations that are gone: they may run there unseen.
    pub left_behind: u64,
}

/// Returns the sentence about a physical cluster that is not ready for those who do not run the server: `detail` where it is about what
/// they wrote themselves, and one text for all failures of a connection, which would else let them look around in its network.
pub fn public_detail<'a>(reason: &str, detail: &'a str) -> &'a str {
    match reason {
        "Unreachable" => "its API server cannot be reached; the log of the server has the details",
        "Unauthorized" => "its API server does not accept the credentials of the kubeconfig",
        "Forbidden" => "its API server does not allow the user of the kubeconfig what syncing needs",
        "NotReady" => "its API server is not ready; the log of the server has the details",
        _ => detail,
    }
}

/// Objects that the physical cluster made, to be shown above.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    /// Objects as they should be upstream: upstream name and namespace, owners mapped, status included. No uid: upstream
    /// gives its own at the first time.
    pub put: Vec<(ObjectKey, Value)>,
    /// Objects whose downstream tombstone was seen.
    pub gone: Vec<ObjectKey>,
    /// Events as they should be upstream, each with the upstream object that it is about. Nothing holds them there.
    pub events: Vec<(ObjectKey, ObjectKey, Value)>,
}

/// A copy, or an object that the physical cluster made, that could not be deleted while its physical cluster was out of
/// reach, to be deleted on return.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Debt {
    /// The former upstream object.
    pub key: ObjectKey,
    /// Where a projected object is downstream. `None` for a copy, whose place follows from `key`.
    pub below: Option<Source>,
    /// Kind and version downstream.
    pub kind: GroupVersionKind,
    /// Its uid.
    pub uid: Uid,
    /// Epoch of the copy.
    pub epoch: u64,
    /// True when the objects that its controllers made of it stay.
    pub is_orphan: bool,
}

/// The logical side, as the workers of one physical cluster see it.
///
/// Everything is limited to what is placed on `physical`; the implementation enforces that.
pub trait Upstream: Send + Sync {
    /// What tells the copies of this control plane from those of all others: made once, and kept with its objects. One that
    /// had copies before there were names has none, for good.
    fn plane(&self) -> Option<&str>;

    /// Whether there is a `PhysicalCluster` of this uid. What another one has left downstream belongs to nobody any more.
    fn exists<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<bool, UpstreamError>>;

    /// All objects placed on or projected from `physical`, read at one revision.
    fn snapshot<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<Snapshot, UpstreamError>>;

    /// The changes after `after`. Ends with `Expired` when they are not kept any more.
    fn changes<'a>(
        &'a self,
        physical: &'a Uid,
        after: ResourceVersion,
    ) -> BoxFuture<'a, Result<Box<dyn ChangeStream>, UpstreamError>>;

    /// Changes of namespaces of all logical clusters, from now on.
    fn namespace_changes(&self) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, UpstreamError>>;

    /// The latest state of an object; `None` is positive: it has been removed.
    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Option<UpstreamObject>, UpstreamError>>;

    /// Whether what `pointer` (RFC 6901) names in `object` is what would hold without it: a default.
    fn is_default(&self, object: &UpstreamObject, pointer: &str) -> bool;

    /// Stores the state of a copy and, in the same transaction, the merged `.status` upstream.
    fn report(&self, report: CopyReport) -> BoxFuture<'_, Result<(), UpstreamError>>;

    /// The copy is proven gone: takes the entry off the record and, when it was the last of a deleting object, removes that.
    fn confirm_gone<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a Uid,
        physical: &'a Uid,
        epoch: u64,
    ) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Writes and removes projected objects.
    fn project<'a>(&'a self, physical: &'a Uid, projection: Projection) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Debts recorded for `physical`.
    fn debts<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<Vec<Debt>, UpstreamError>>;

    /// The debt is paid.
    fn settle<'a>(&'a self, physical: &'a Uid, debt: &'a Debt) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Turns what should be deleted from an unreachable `physical` into a debt: takes the entry off the record and notes the
    /// debt in the same transaction.
    fn record_debt<'a>(&'a self, physical: &'a Uid, debt: Debt) -> BoxFuture<'a, Result<(), UpstreamError>>;

    /// Number of the newest syncer that was ever started for `physical`. An older one ends. What copies downstream say of it
    /// is no proof: others may write there.
    fn newest_syncer<'a>(&'a self, physical: &'a Uid) -> BoxFuture<'a, Result<u64, UpstreamError>>;

    /// Stores the state of the physical cluster itself.
    fn report_cluster<'a>(
        &'a self,
        physical: &'a Uid,
        report: ClusterReport,
    ) -> BoxFuture<'a, Result<(), UpstreamError>>;
}
