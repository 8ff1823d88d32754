//! Reads of many objects.

use std::sync::Arc;

use portolan_types::{
    GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, Record, ResourceVersion,
};

use super::damage::DamagedObject;

/// Stored object as of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Address of the object.
    pub key: ObjectKey,
    /// Revision of its last write.
    pub revision: ResourceVersion,
    /// Revision of its first write.
    pub created: ResourceVersion,
    /// Header and body.
    pub record: Arc<Record>,
}

/// Set of objects that a range reads, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeScope {
    /// Every object of all logical clusters.
    All,
    /// Resource of all logical clusters, by cluster.
    AllClusters(GroupResource),
    /// Resource of one logical cluster.
    Cluster(LogicalClusterId, GroupResource),
    /// Resource in one namespace.
    Namespace(LogicalClusterId, GroupResource, NamespaceName),
    /// Every object of one logical cluster.
    Everything(LogicalClusterId),
    /// Every object placed on the physical cluster of this UID (the syncer's index). Only at the latest state.
    PlacedOn(String),
    /// Every object of one logical cluster that names this UID as an owner. Only at the latest state.
    OwnedBy(LogicalClusterId, String),
}

/// Request for a page of objects.
#[derive(Clone, Debug)]
pub struct RangeRequest {
    /// Set of objects to read.
    pub scope: RangeScope,
    /// Revision of the state to read; `None` reads the latest one.
    pub at: Option<ResourceVersion>,
    /// Last key of the previous page.
    pub after: Option<ObjectKey>,
    /// Most objects to return; `None` returns all.
    pub limit: Option<usize>,
    /// Approximate limit in bytes. A page has at least one object, and may be shorter if that suits the engine.
    pub bytes: Option<usize>,
    /// Label selector, evaluated on headers only.
    pub labels: LabelSelector,
    /// Treatment of damaged objects in the range.
    pub on_damage: OnDamage,
    /// Estimated bytes per object, if known. An engine uses it to size its requests to a remote storage service.
    pub each: Option<usize>,
}

/// Treatment of objects that cannot be read, in a read of many objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// Fails the read and names the first damaged object.
    Fail,
    /// Skips damaged objects and names each in [`RangePage::damaged`], whatever its labels. A caller must not treat a
    /// skipped object as deleted.
    Skip,
}

/// Bytes of one slice, for readers that need few objects at a time.
pub const SLICE_BYTES: usize = 256 * 1024;

impl RangeRequest {
    /// Requests all objects of a scope at the latest state.
    pub fn all(scope: RangeScope) -> Self {
        Self {
            scope,
            at: None,
            after: None,
            limit: None,
            bytes: None,
            labels: LabelSelector::everything(),
            on_damage: OnDamage::Fail,
            each: None,
        }
    }

    /// Makes the request skip damaged objects.
    #[must_use]
    pub fn skip_damaged(self) -> Self {
        Self { on_damage: OnDamage::Skip, ..self }
    }

    /// Requests a scope at the latest state in slices of [`SLICE_BYTES`]; [`RangeRequest::next`] continues.
    pub fn slices(scope: RangeScope) -> Self {
        Self { bytes: Some(SLICE_BYTES), ..Self::all(scope) }
    }

    /// Returns the request for the objects after `page`, at the revision of `page`; `None` after the last page. Not for
    /// scopes that can be read at the latest state only.
    pub fn next(&self, page: &RangePage) -> Option<Self> {
        let last = page.last.as_ref().filter(|_| page.more)?;
        let each = page.each().or(self.each);
        Some(Self { at: Some(page.revision), after: Some(last.clone()), each, ..self.clone() })
    }
}

/// Page of objects.
#[derive(Clone, Debug)]
pub struct RangePage {
    /// Revision of the state that was read: a transaction's boundary, from which a watch continues without a gap.
    pub revision: ResourceVersion,
    /// Objects, in key order.
    pub objects: Vec<StoredObject>,
    /// Damaged objects, if the request skips them. They count toward the limits of the page like other objects. Entries
    /// without an address ([`Damage::Key`](crate::api::damage::Damage::Key)) do not count, and the first thousand of
    /// them are listed.
    pub damaged: Vec<DamagedObject>,
    /// Number of further entries without an address.
    pub unnamed: usize,
    /// Last object of the page, damaged or not.
    pub last: Option<ObjectKey>,
    /// True if a limit cut the page: continue after `last`.
    pub more: bool,
    /// Number of objects after this page. Set if `limit` cut the page, no selector was given, and the engine can count
    /// cheaply.
    pub remaining: Option<u64>,
}

impl RangePage {
    /// Returns the average bytes of an object in the page.
    fn each(&self) -> Option<usize> {
        let bytes: usize = self.objects.iter().map(|object| object.record.body().len()).sum();
        bytes.checked_div(self.objects.len())
    }
}
