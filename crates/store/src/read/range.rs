//! Range reads: many objects at one revision, in key order.

use bytes::{Bytes, BytesMut};
use portolan_types::{GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, Scope};

use crate::{
    api::{OnDamage, RangePage, RangeRequest, RangeScope, StoreError, StoredObject, damage::Damage},
    engine::KvView,
    layout::{
        history_entry::HistoryEntry,
        keys::{self, KeyParts, KeySuffix},
        record::{CheckedObject, ObjectVersion},
    },
    read::{
        cluster_index::NextCluster,
        history::object_key,
        merge::{MergedObject, ObjectMerge},
        resources::ResourceRegistry,
        skipped::{SkippedObjects, damaged_object},
        state::{StoreMarks, backend, damaged, marks, revision},
    },
};

/// Most objects counted for `remaining`; counting more is not cheap.
const MAX_COUNTED: usize = 20_000;

/// Budget of a read in place, before it moves to a reader thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadBudget {
    pub(crate) objects: usize,
    /// Bytes of these objects; the last one may exceed it.
    pub(crate) bytes: usize,
}

impl ReadBudget {
    pub(crate) const UNLIMITED: Self = Self { objects: usize::MAX, bytes: usize::MAX };
}

/// Reads a page; `None` if the budget is exhausted.
pub(crate) fn range(
    view: &dyn KvView,
    resources: &ResourceRegistry,
    request: &RangeRequest,
    budget: ReadBudget,
) -> Result<Option<RangePage>, StoreError> {
    let marks = marks(view)?;
    let at = state(view, marks, request)?;
    let mut reader = RangeReader {
        view,
        resources,
        request,
        marks,
        at,
        budget,
        objects: Vec::new(),
        passed: SkippedObjects::default(),
        bytes: 0,
        left_out: 0,
        bodies: BodyBlocks::default(),
        last: None,
    };
    let end = match &request.scope {
        RangeScope::All => reader.segment(&[]),
        RangeScope::AllClusters(resource) => reader.all_clusters(resource),
        RangeScope::Cluster(cluster, resource) => reader.resource(*cluster, resource, None),
        RangeScope::Namespace(cluster, resource, namespace) => reader.resource(*cluster, resource, Some(namespace)),
        RangeScope::Everything(cluster) => reader.segment(&keys::cluster_prefix(*cluster)),
        RangeScope::PlacedOn(uid) => reader.index(keys::placed_prefix(uid), keys::placed_suffix),
        RangeScope::OwnedBy(cluster, uid) => reader.index(keys::owner_prefix(*cluster, uid), keys::owner_suffix),
    }?;
    let (more, remaining) = match end {
        RangeEnd::Reached => (false, None),
        RangeEnd::Limit { remaining } => (true, remaining),
        // A slice may be shorter than requested, as long as there is a key to continue from. With a selector, the
        // entries after the last match would be read again.
        RangeEnd::Budget if reader.may_be_short() => (true, None),
        RangeEnd::Budget => return Ok(None),
    };
    let last = reader.last_read().cloned();
    let RangeReader { objects, passed, .. } = reader;
    let (damaged, unnamed) = passed.finish(more);
    Ok(Some(RangePage { revision: revision(at)?, objects, damaged, unnamed, last, more, remaining }))
}

/// Returns the revision to read: the boundary of the transaction of `request.at`.
fn state(view: &dyn KvView, marks: StoreMarks, request: &RangeRequest) -> Result<u64, StoreError> {
    let Some(at) = request.at.map(|at| at.get()) else { return Ok(marks.last) };
    marks.check_happened(at)?;
    marks.check_kept(at)?;
    if at == marks.last || at == marks.floor {
        return Ok(at);
    }
    let entry = view.get(&keys::history(at)).map_err(backend)?.ok_or(Damage::Key).map_err(damaged)?;
    Ok(at + u64::from(HistoryEntry::decode(at, &entry).map_err(damaged)?.remaining))
}

/// End of a part of a read.
enum RangeEnd {
    Reached,
    Limit { remaining: Option<u64> },
    Budget,
}

struct RangeReader<'a> {
    view: &'a dyn KvView,
    resources: &'a ResourceRegistry,
    request: &'a RangeRequest,
    marks: StoreMarks,
    at: u64,
    budget: ReadBudget,
    objects: Vec<StoredObject>,
    passed: SkippedObjects,
    /// Bytes of both.
    bytes: usize,
    /// Bytes of objects that the selector discards.
    left_out: usize,
    bodies: BodyBlocks,
    /// Resource and namespace of the last object, which neighbors share.
    last: Option<(u32, GroupResource, Scope)>,
}

impl RangeReader<'_> {
    fn is_latest(&self) -> bool {
        self.at == self.marks.last
    }

    fn is_full(&self) -> bool {
        self.is_at_limit()
            || (self.request.bytes.is_some_and(|bytes| self.bytes >= bytes) && self.last_read().is_some())
    }

    fn may_be_short(&self) -> bool {
        self.request.bytes.is_some()
            && self.request.labels.is_everything()
            && self.last_read().is_some()
            && !self.is_at_limit()
    }

    fn is_over_budget(&self) -> bool {
        self.budget.objects == 0 || self.bytes + self.left_out >= self.budget.bytes
    }

    fn is_at_limit(&self) -> bool {
        self.request.limit.is_some_and(|limit| self.objects.len() + self.passed.objects() >= limit)
    }

    fn resource(
        &mut self,
        cluster: LogicalClusterId,
        resource: &GroupResource,
        namespace: Option<&NamespaceName>,
    ) -> Result<RangeEnd, StoreError> {
        match self.resources.id_in(self.view, resource)? {
            Some(id) => self.segment(&keys::resource_prefix(cluster, id, namespace)),
            None => Ok(RangeEnd::Reached),
        }
    }

    /// Returns the key after which to start, without its letter.
    fn after(&self) -> Result<Option<KeySuffix>, StoreError> {
        let Some(after) = self.request.after.as_ref() else { return Ok(None) };
        let resource = self.resources.id_in(self.view, &after.resource)?;
        Ok(resource.map(|resource| KeySuffix::new(after.cluster, resource, &after.scope, &after.name)))
    }

    /// Reads the objects whose keys have a prefix.
    fn segment(&mut self, prefix: &[u8]) -> Result<RangeEnd, StoreError> {
        let mut from = prefix.to_vec();
        if let Some(after) = self.after()? {
            from = from.max(just_after(&after));
        }
        let mut merge = ObjectMerge::new(self.view, &from, &keys::end_of(prefix), self.at, self.is_latest())?;
        while let Some(found) = merge.next()? {
            if self.is_full() {
                drop(found);
                return self.count_rest(merge);
            }
            if self.is_over_budget() {
                return Ok(RangeEnd::Budget);
            }
            self.budget.objects -= 1;
            self.take(&found)?;
        }
        Ok(RangeEnd::Reached)
    }

    /// Counts the objects that follow, including the one that showed that there are more.
    fn count_rest(&self, mut merge: ObjectMerge<'_>) -> Result<RangeEnd, StoreError> {
        let whole = self.is_at_limit()
            && !matches!(self.request.scope, RangeScope::All | RangeScope::AllClusters(_))
            && self.request.labels.is_everything();
        let (bound, mut count) = (MAX_COUNTED.min(self.budget.objects), 1);
        while whole && count <= bound && merge.skip_one()? {
            count += 1;
        }
        Ok(match (whole, count > bound) {
            (true, false) => RangeEnd::Limit { remaining: Some(count as u64) },
            (true, true) if bound < MAX_COUNTED => RangeEnd::Budget,
            _ => RangeEnd::Limit { remaining: None },
        })
    }

    fn take(&mut self, found: &MergedObject<'_>) -> Result<(), StoreError> {
        let version = match self.version(found) {
            Ok(Some(version)) => version,
            Ok(None) => {
                self.left_out += found.value().len();
                return Ok(());
            }
            Err(why) => return self.pass(found.suffix(), found.value().len(), why),
        };
        let key = match keys::parts(found.suffix()).map(|parts| self.key(parts)) {
            Some(Ok(key)) => key,
            _ => return self.pass(found.suffix(), found.value().len(), Damage::Key),
        };
        let (revision, created, record) = (version.revision, version.created, version.record);
        self.bytes += record.body().len();
        self.passed.record_read();
        self.objects.push(StoredObject { key, revision, created, record });
        Ok(())
    }

    /// Decodes an object if its labels match.
    fn version(&mut self, found: &MergedObject<'_>) -> Result<Option<ObjectVersion>, Damage> {
        let stored = CheckedObject::check(found.suffix(), found.value())?;
        if !stored.matches(&self.request.labels)? {
            return Ok(None);
        }
        let bodies = &mut self.bodies;
        let body = |at| match found.shared() {
            Some(value) => value.slice(at..),
            None => bodies.keep(&found.value()[at..]),
        };
        stored.decode(body).map(Some)
    }

    /// Skips an object that cannot be read, if the request allows it.
    fn pass(&mut self, suffix: &[u8], len: usize, why: Damage) -> Result<(), StoreError> {
        let found = damaged_object(self.resources, suffix, why);
        if self.request.on_damage == OnDamage::Fail {
            return Err(found.into());
        }
        self.bytes += len;
        self.passed.add(found);
        Ok(())
    }

    /// Returns the cursor of the next page.
    fn last_read(&self) -> Option<&ObjectKey> {
        self.passed.last().or_else(|| self.objects.last().map(|object| &object.key))
    }

    /// Returns the address of an object, sharing parts with the previous one.
    fn key(&mut self, parts: KeyParts<'_>) -> Result<ObjectKey, StoreError> {
        if let Some((id, resource, scope)) = &self.last
            && *id == parts.resource
            && scope.namespace().map_or("", NamespaceName::as_str) == parts.namespace
        {
            let name: ObjectName = parts.name.parse().map_err(|_| damaged(Damage::Key))?;
            return Ok(ObjectKey { cluster: parts.cluster, resource: resource.clone(), scope: scope.clone(), name });
        }
        let key = object_key(self.resources, parts)?;
        self.last = Some((parts.resource, key.resource.clone(), key.scope.clone()));
        Ok(key)
    }

    /// Reads a resource of all logical clusters, seeking past other resources.
    fn all_clusters(&mut self, resource: &GroupResource) -> Result<RangeEnd, StoreError> {
        let Some(id) = self.resources.id_in(self.view, resource)? else { return Ok(RangeEnd::Reached) };
        let spread = self.resources.cluster_index();
        if !spread.is_complete_for(id) && self.budget != ReadBudget::UNLIMITED {
            return Ok(RangeEnd::Budget);
        }
        if !spread.is_whole() {
            spread.read(self.view)?;
        }
        let after = self.request.after.as_ref().map_or(0, |after| after.cluster.get());
        let mut next = Some(after);
        while let Some(cluster) = next {
            let Some(cluster) = self.next_cluster(cluster, id)? else { break };
            if self.is_over_budget() {
                return Ok(RangeEnd::Budget);
            }
            self.budget.objects -= 1;
            let prefix = keys::resource_prefix(cluster, id, None);
            match self.segment(&prefix)? {
                RangeEnd::Reached if cluster.get() != after => self.look_whether_empty(cluster, id, &prefix)?,
                RangeEnd::Reached => {}
                end => return Ok(end),
            }
            next = cluster.get().checked_add(1);
        }
        Ok(RangeEnd::Reached)
    }

    /// Removes a logical cluster from the index if nothing of the resource is left in it.
    fn look_whether_empty(&self, cluster: LogicalClusterId, id: u32, prefix: &[u8]) -> Result<(), StoreError> {
        let has_found = self.objects.last().is_some_and(|object| object.key.cluster == cluster);
        if has_found || !self.is_latest() {
            return Ok(());
        }
        for letter in [b'o', b'v'] {
            let from = keys::joined(letter, &[prefix]);
            if self.view.scan(&from, &keys::end_of(&from)).map_err(backend)?.key().is_some() {
                return Ok(());
            }
        }
        self.resources.cluster_index().mark_empty(cluster, id, self.marks);
        Ok(())
    }

    /// Returns the first logical cluster at or after `from` that may have objects of the resource.
    fn next_cluster(&self, from: u64, resource: u32) -> Result<Option<LogicalClusterId>, StoreError> {
        if let NextCluster::Known(next) = self.resources.cluster_index().next(resource, from, self.marks) {
            return Ok(next);
        }
        let latest = self.next_cluster_among(b'o', from, resource)?;
        if self.is_latest() {
            return Ok(latest);
        }
        let superseded = self.next_cluster_among(b'v', from, resource)?;
        Ok(latest.into_iter().chain(superseded).min())
    }

    fn next_cluster_among(&self, letter: u8, from: u64, resource: u32) -> Result<Option<LogicalClusterId>, StoreError> {
        let mut cluster = from;
        loop {
            let seek = keys::joined(letter, &[&keys::resource_prefix(LogicalClusterId::new(cluster), resource, None)]);
            let cursor = self.view.scan(&seek, &[letter + 1]).map_err(backend)?;
            let Some(key) = cursor.key() else { return Ok(None) };
            let (found, rest) = key[1..].split_first_chunk::<8>().ok_or(Damage::Key).map_err(damaged)?;
            let found_resource = rest.first_chunk::<4>().ok_or(Damage::Key).map_err(damaged)?;
            let (found, found_resource) = (u64::from_be_bytes(*found), u32::from_be_bytes(*found_resource));
            cluster = match found_resource.cmp(&resource) {
                std::cmp::Ordering::Equal => return Ok(Some(LogicalClusterId::new(found))),
                std::cmp::Ordering::Less => found,
                std::cmp::Ordering::Greater => match found.checked_add(1) {
                    Some(next) => next,
                    None => return Ok(None),
                },
            };
        }
    }

    /// Reads the objects that an index names. Only the latest state has indexes.
    fn index(
        &mut self,
        prefix: Option<Vec<u8>>,
        suffix_of: impl Fn(&[u8], &[u8]) -> Option<KeySuffix>,
    ) -> Result<RangeEnd, StoreError> {
        let Some(prefix) = prefix else { return Ok(RangeEnd::Reached) };
        if !self.is_latest() {
            return Err(StoreError::Compacted { asked: revision(self.at)?, oldest: revision(self.marks.last)? });
        }
        let after = self.after()?;
        let mut cursor = self.view.scan(&prefix, &keys::end_of(&prefix)).map_err(backend)?;
        while let Some(key) = cursor.key() {
            let suffix = suffix_of(key, &prefix).ok_or(Damage::Key).map_err(damaged)?;
            if after.as_ref().is_none_or(|after| suffix > *after) {
                if self.is_full() {
                    return Ok(RangeEnd::Limit { remaining: None });
                }
                if self.is_over_budget() {
                    return Ok(RangeEnd::Budget);
                }
                self.budget.objects -= 1;
                match self.view.get(&suffix.object()).map_err(backend)? {
                    Some(value) => self.take(&MergedObject::latest(suffix.as_bytes(), value))?,
                    None => self.pass(suffix.as_bytes(), 0, Damage::Missing)?,
                }
            }
            cursor.advance().map_err(backend)?;
        }
        Ok(RangeEnd::Reached)
    }
}

/// Allocator of bodies in shared blocks: one allocation for many objects that are read together. Keeping a single
/// object keeps its block.
#[derive(Default)]
struct BodyBlocks {
    block: BytesMut,
    last_block: usize,
}

impl BodyBlocks {
    /// Bytes of the first block, and of the largest.
    const BLOCKS: (usize, usize) = (2 << 10, 32 << 10);

    fn keep(&mut self, body: &[u8]) -> Bytes {
        if self.block.capacity() < body.len() {
            let next = (2 * self.last_block).clamp(Self::BLOCKS.0, Self::BLOCKS.1);
            self.last_block = next.max(body.len());
            self.block = BytesMut::with_capacity(self.last_block);
        }
        self.block.extend_from_slice(body);
        self.block.split().freeze()
    }
}

/// Returns a key after all keys of an object, including superseded states, and before those of any other.
fn just_after(suffix: &KeySuffix) -> Vec<u8> {
    [suffix.as_bytes(), &[u8::MAX; 9]].concat()
}
