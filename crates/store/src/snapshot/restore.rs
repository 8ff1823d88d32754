//! Restore of a snapshot into a new store, and its inspection.

use std::{collections::HashSet, io::Read};

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::Value;

use super::{
    PartialSnapshot, SnapshotCounter, SnapshotError, SnapshotSummary, damaged,
    frame::{FrameKind, FrameReader},
    jump,
};
use crate::{
    api::damage::DamageList,
    engine::{Batch, OrderedKv},
    layout::{
        MAX_REVISION,
        keys::{self, KeySuffix, meta},
        record::{EncodedObject, ObjectVersion, decode},
    },
    open::{StoreConfig, create_store},
    read::{
        bookkeeping::first_marks,
        history::object_key,
        resources::{self, ResourceRegistry},
    },
};

/// Target size of a batch in bytes.
const BATCH: usize = 4 << 20;

/// Verifies a snapshot by reading all of it, and returns its summary.
///
/// # Errors
/// Fails if the input is not a snapshot, has a newer format, or is damaged or incomplete.
pub fn inspect(input: impl Read) -> Result<SnapshotSummary, SnapshotError> {
    read(input, &mut |_| Ok(()))
}

/// Verifies a snapshot like [`inspect`], and calls `each` with every object.
///
/// # Errors
/// Returns the errors of [`inspect`].
pub fn inspect_each(
    input: impl Read,
    each: &mut dyn FnMut(&ObjectKey, &Record),
) -> Result<SnapshotSummary, SnapshotError> {
    let known = ResourceRegistry::default();
    read(input, &mut |item| {
        match item {
            SnapshotItem::Resource(id, resource) => known.add(id, resource),
            SnapshotItem::Object(suffix, _, version) => {
                let parts = keys::parts(suffix.as_bytes()).ok_or_else(|| damaged("an object has no address"))?;
                each(&object_key(&known, parts)?, &version.record);
            }
            SnapshotItem::Gone(..) => {}
        }
        Ok(())
    })
}

/// Returns true if the input begins like a snapshot of any format.
pub fn is_snapshot(input: impl Read) -> bool {
    matches!(FrameReader::new(input), Ok(_) | Err(SnapshotError::NewerFormat { .. }))
}

/// Reads the complete frames of an interrupted snapshot; `None` if not even its header is complete.
pub fn read_partial(input: impl Read) -> Option<PartialSnapshot> {
    let mut reader = FrameReader::new(input).ok()?;
    let (FrameKind::Header, header) = reader.frame().ok()? else { return None };
    let SnapshotSummary { revision, taken, .. } = SnapshotDecoder::new(&header).ok()?.snapshot;
    let mut so_far = reader.so_far();
    while reader.frame().is_ok() {
        so_far = reader.so_far();
    }
    let (bytes, sha256) = so_far;
    Some(PartialSnapshot { revision, taken, bytes, sha256 })
}

/// Restores a snapshot into a directory without a store. The revision is raised above any that may have been assigned
/// after the snapshot was taken, or in an earlier restore of it, and so is `counter`. The store has no history: all
/// earlier watches must list again.
///
/// # Errors
/// Returns the errors of [`inspect`]; `Occupied`; the errors of the engine. No store is left then, and no empty one is
/// created there until the restore was repeated or its leftover removed.
pub fn restore(
    config: &StoreConfig,
    seams: &Seams,
    input: impl Read,
    counter: Option<&SnapshotCounter>,
) -> Result<SnapshotSummary, SnapshotError> {
    create_store(config, |kv| {
        let mut loader =
            SnapshotLoader { kv, batch: Batch::new(), bytes: 0, counter, last_resource: 0, place: None, counted: None };
        let snapshot = read(input, &mut |item| loader.add(item))?;
        let jump = jump(seams);
        let last =
            snapshot.revision.checked_add(jump).filter(|last| *last <= MAX_REVISION).and_then(ResourceVersion::new);
        let last = last.ok_or_else(|| damaged("its revision leaves no room for a higher one"))?;
        loader.count(jump, last)?;
        loader.batch.extend(first_marks(seams, last.get()));
        loader.flush()?;
        Ok(snapshot)
    })
}

/// Item of a snapshot.
pub(crate) enum SnapshotItem {
    Resource(u32, GroupResource),
    Object(KeySuffix, Bytes, ObjectVersion),
    Gone(LogicalClusterId, u64),
}

pub(crate) type ItemConsumer<'a> = dyn FnMut(SnapshotItem) -> Result<(), SnapshotError> + 'a;

/// Reads all of a snapshot, and passes its items to `take` in order.
pub(crate) fn read(input: impl Read, take: &mut ItemConsumer<'_>) -> Result<SnapshotSummary, SnapshotError> {
    let mut reader = FrameReader::new(input)?;
    let (FrameKind::Header, header) = reader.frame()? else { return Err(damaged("it does not begin with its header")) };
    let mut contents = SnapshotDecoder::new(&header)?;
    loop {
        let (kind, payload) = reader.frame()?;
        match kind {
            FrameKind::Header => return Err(damaged("it has two headers")),
            FrameKind::Resource => contents.resource(&payload, take)?,
            FrameKind::Objects => contents.objects(&payload.into(), take)?,
            FrameKind::Gone => contents.read_tombstone(&payload, take)?,
            FrameKind::End => {
                contents.check_end(&payload, reader.digest_before())?;
                break;
            }
        }
    }
    let bytes = reader.finish()?;
    Ok(SnapshotSummary { bytes, ..contents.snapshot })
}

/// Decoder state of a snapshot.
struct SnapshotDecoder {
    snapshot: SnapshotSummary,
    resources: HashSet<u32>,
    gone: HashSet<LogicalClusterId>,
}

impl SnapshotDecoder {
    fn new(header: &[u8]) -> Result<Self, SnapshotError> {
        let header: Value = serde_json::from_slice(header).map_err(damaged)?;
        let revision = header["revision"].as_str().and_then(|text| text.parse::<u64>().ok());
        let revision = revision.filter(|revision| (1..=MAX_REVISION).contains(revision));
        let snapshot = SnapshotSummary {
            revision: revision.ok_or_else(|| damaged("its header has no revision"))?,
            taken: header["taken"].as_str().unwrap_or_default().to_owned(),
            ..SnapshotSummary::default()
        };
        Ok(Self { snapshot, resources: HashSet::new(), gone: HashSet::new() })
    }

    fn resource(&mut self, payload: &[u8], take: &mut ItemConsumer<'_>) -> Result<(), SnapshotError> {
        let (id, name) = payload.split_first_chunk().ok_or_else(|| damaged("a resource has no number"))?;
        let id = u32::from_be_bytes(*id);
        match resources::decode(name).filter(|_| self.resources.insert(id)) {
            Some(resource) => take(SnapshotItem::Resource(id, resource)),
            None => Err(damaged("a resource is malformed")),
        }
    }

    fn objects(&mut self, payload: &Bytes, take: &mut ItemConsumer<'_>) -> Result<(), SnapshotError> {
        let mut rest = payload.clone();
        while !rest.is_empty() {
            let suffix = KeySuffix::from_bytes(&part(&mut rest)?);
            let value = part(&mut rest)?;
            let version = decode(suffix.as_bytes(), &value).map_err(damaged)?;
            let parts = keys::parts(suffix.as_bytes()).filter(|parts| self.resources.contains(&parts.resource));
            let Some(parts) = parts.filter(|_| version.revision.get() <= self.snapshot.revision) else {
                return Err(damaged("an object is not one of this snapshot"));
            };
            self.snapshot.objects += 1;
            // Objects that were not swept yet when the snapshot was taken: no sweep would remove them after the
            // restore.
            if !self.gone.contains(&parts.cluster) {
                take(SnapshotItem::Object(suffix, value, version))?;
            }
        }
        Ok(())
    }

    fn read_tombstone(&mut self, payload: &[u8], take: &mut ItemConsumer<'_>) -> Result<(), SnapshotError> {
        let id = payload.try_into().map(u64::from_be_bytes).map_err(damaged)?;
        let cluster = LogicalClusterId::new(id);
        if !self.resources.is_empty() || !self.gone.insert(cluster) {
            return Err(damaged("a logical cluster that is gone is out of place"));
        }
        self.snapshot.gone_clusters += 1;
        take(SnapshotItem::Gone(cluster, self.snapshot.revision))
    }

    fn check_end(&mut self, payload: &[u8], digest: &str) -> Result<(), SnapshotError> {
        let end: Value = serde_json::from_slice(payload).map_err(damaged)?;
        self.snapshot.damaged = left_out(&end["damaged"]);
        let counts = (end["objects"].as_u64(), end["goneClusters"].as_u64());
        let complete = counts == (Some(self.snapshot.objects), Some(self.snapshot.gone_clusters));
        if complete && end["sha256"].as_str() == Some(digest) {
            Ok(())
        } else {
            Err(damaged("its end does not fit what came before"))
        }
    }
}

/// Parses the list of left-out objects in the last frame.
fn left_out(end: &Value) -> DamageList {
    let names = end["first"].as_array().into_iter().flatten().filter_map(Value::as_str);
    DamageList { count: end["count"].as_u64().unwrap_or_default(), first: names.map(str::to_owned).collect() }
}

/// Splits a length-prefixed part off the front.
fn part(rest: &mut Bytes) -> Result<Bytes, SnapshotError> {
    let len = rest.first_chunk::<4>().map(|len| u32::from_le_bytes(*len) as usize);
    match len.filter(|len| *len <= rest.len() - 4) {
        Some(len) => {
            let _ = rest.split_to(4);
            Ok(rest.split_to(len))
        }
        None => Err(damaged("an object is cut off")),
    }
}

/// Writer of a snapshot's items into a new engine.
struct SnapshotLoader<'a> {
    kv: &'a dyn OrderedKv,
    batch: Batch,
    bytes: usize,
    counter: Option<&'a SnapshotCounter>,
    last_resource: u32,
    /// Key of the counter, once its resource is known.
    place: Option<KeySuffix>,
    /// Counter object of the snapshot.
    counted: Option<ObjectVersion>,
}

impl SnapshotLoader<'_> {
    fn add(&mut self, item: SnapshotItem) -> Result<(), SnapshotError> {
        match item {
            SnapshotItem::Resource(id, resource) => self.resource(id, &resource),
            SnapshotItem::Gone(cluster, at) => {
                self.put(meta::tombstone(cluster), [at.to_le_bytes(), at.to_le_bytes()].concat().into());
            }
            SnapshotItem::Object(suffix, _, version) if self.place.as_ref() == Some(&suffix) => {
                self.counted = Some(version)
            }
            SnapshotItem::Object(suffix, value, version) => {
                let header = &version.record.header;
                let owners = header.owners.iter().filter_map(|uid| suffix.owner(uid));
                let placed = header.placed_on.iter().filter_map(|uid| suffix.placed(uid));
                owners.chain(placed).for_each(|key| self.put(key, Bytes::new()));
                self.put(suffix.object(), value);
            }
        }
        if self.bytes >= BATCH { self.flush() } else { Ok(()) }
    }

    fn resource(&mut self, id: u32, resource: &GroupResource) {
        self.last_resource = self.last_resource.max(id);
        if let Some(SnapshotCounter { key, .. }) = self.counter.filter(|counter| counter.key.resource == *resource) {
            self.place = Some(KeySuffix::new(key.cluster, id, &key.scope, &key.name));
        }
        self.put(meta::resource(id), resources::encode(resource).into());
    }

    /// Writes the raised counter, also if the snapshot has none. The restore is its last write.
    fn count(&mut self, jump: u64, last: ResourceVersion) -> Result<(), SnapshotError> {
        let Some(counter) = self.counter else { return Ok(()) };
        if self.place.is_none() {
            let id = self.last_resource.checked_add(1).ok_or_else(|| damaged("it has too many resources"))?;
            self.resource(id, &counter.key.resource);
        }
        let created = self.counted.as_ref().map_or(last, |version| version.created);
        let value = self.counted.take().map(|version| version.record.to_value(version.revision));
        let raised = (counter.raise)(value.transpose().map_err(damaged)?, jump);
        let raised = raised.ok_or_else(|| damaged(format!("{} cannot be raised", counter.key)))?;
        if let Some(place) = self.place.take() {
            self.put(place.object(), EncodedObject::new(raised).seal(&place, last, created).0);
        }
        Ok(())
    }

    fn put(&mut self, key: Vec<u8>, value: Bytes) {
        self.bytes += key.len() + value.len();
        self.batch.insert(key, Some(value));
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        self.bytes = 0;
        self.kv.commit(std::mem::take(&mut self.batch))?;
        self.kv.publish();
        Ok(())
    }
}
