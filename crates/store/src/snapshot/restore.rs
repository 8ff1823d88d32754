//! Making a store of a snapshot, or only looking whether one could be made.

use std::{collections::HashSet, io::Read};

use bytes::Bytes;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, Seams};
use serde_json::Value;

use super::{
    Begun, Counter, HIGHEST, Snapshot, SnapshotError, damaged,
    frame::{Kind, Reader},
    jump,
};
use crate::{
    DamageList, StoreConfig,
    history::object_key,
    keys::{self, Suffix, meta},
    kv::{Batch, OrderedKv},
    open::{first_marks, make},
    resources::{self, Resources},
    value::{Prepared, Version, decode},
};

/// Bytes of a batch, give or take a frame.
const BATCH: usize = 4 << 20;

/// Reads all of a snapshot and tells what it is.
///
/// # Errors
/// When it is no snapshot, of a newer format, damaged or cut off.
pub fn inspect(input: impl Read) -> Result<Snapshot, SnapshotError> {
    read(input, &mut |_| Ok(()))
}

/// As [`inspect`], and tells of each object.
///
/// # Errors
/// Those of [`inspect`].
pub fn inspect_each(input: impl Read, each: &mut dyn FnMut(&ObjectKey, &Record)) -> Result<Snapshot, SnapshotError> {
    let known = Resources::default();
    read(input, &mut |item| {
        match item {
            Item::Resource(id, resource) => known.add(id, resource),
            Item::Object(suffix, _, version) => {
                let parts = keys::parts(suffix.as_bytes()).ok_or_else(|| damaged("an object has no address"))?;
                each(&object_key(&known, parts)?, &version.record);
            }
            Item::Gone(..) => {}
        }
        Ok(())
    })
}

/// Whether it begins as a snapshot of any format does.
pub fn is_snapshot(input: impl Read) -> bool {
    matches!(Reader::new(input), Ok(_) | Err(SnapshotError::NewerFormat { .. }))
}

/// What of a snapshot that was broken off is whole; `None` when not even its header is.
pub fn begun(input: impl Read) -> Option<Begun> {
    let mut reader = Reader::new(input).ok()?;
    let (Kind::Header, header) = reader.frame().ok()? else { return None };
    let Snapshot { revision, taken, .. } = Contents::new(&header).ok()?.snapshot;
    let mut so_far = reader.so_far();
    while reader.frame().is_ok() {
        so_far = reader.so_far();
    }
    let (bytes, sha256) = so_far;
    Some(Begun { revision, taken, bytes, sha256 })
}

/// Makes a store of a snapshot in a directory that has none. Its revision is raised above any that may have been given after
/// the snapshot was taken, or in a store that was restored of it before, and so is `counter`. It has no history: every watch of
/// before begins with a new list.
///
/// # Errors
/// As for [`inspect`]; `Occupied`; what the engine says. No store is left then, and none is begun there until a snapshot was restored, or
/// what is left was removed.
pub fn restore(
    config: &StoreConfig,
    seams: &Seams,
    input: impl Read,
    counter: Option<&Counter>,
) -> Result<Snapshot, SnapshotError> {
    make(config, |kv| {
        let mut loader =
            Loader { kv, batch: Batch::new(), bytes: 0, counter, last_resource: 0, place: None, counted: None };
        let snapshot = read(input, &mut |item| loader.add(item))?;
        let jump = jump(seams);
        let last = snapshot.revision.checked_add(jump).filter(|last| *last <= HIGHEST).and_then(ResourceVersion::new);
        let last = last.ok_or_else(|| damaged("its revision leaves no room for a higher one"))?;
        loader.count(jump, last)?;
        loader.batch.extend(first_marks(seams, last.get()));
        loader.flush()?;
        Ok(snapshot)
    })
}

/// What a snapshot holds.
pub(crate) enum Item {
    Resource(u32, GroupResource),
    Object(Suffix, Bytes, Version),
    Gone(LogicalClusterId, u64),
}

pub(crate) type Take<'a> = dyn FnMut(Item) -> Result<(), SnapshotError> + 'a;

/// Reads all of a snapshot and hands out what it holds, in its order.
pub(crate) fn read(input: impl Read, take: &mut Take<'_>) -> Result<Snapshot, SnapshotError> {
    let mut reader = Reader::new(input)?;
    let (Kind::Header, header) = reader.frame()? else { return Err(damaged("it does not begin with its header")) };
    let mut contents = Contents::new(&header)?;
    loop {
        let (kind, payload) = reader.frame()?;
        match kind {
            Kind::Header => return Err(damaged("it has two headers")),
            Kind::Resource => contents.resource(&payload, take)?,
            Kind::Objects => contents.objects(&payload.into(), take)?,
            Kind::Gone => contents.gone(&payload, take)?,
            Kind::End => {
                contents.check_end(&payload, reader.digest_before())?;
                break;
            }
        }
    }
    let bytes = reader.finish()?;
    Ok(Snapshot { bytes, ..contents.snapshot })
}

/// What was read so far.
struct Contents {
    snapshot: Snapshot,
    resources: HashSet<u32>,
    gone: HashSet<LogicalClusterId>,
}

impl Contents {
    fn new(header: &[u8]) -> Result<Self, SnapshotError> {
        let header: Value = serde_json::from_slice(header).map_err(damaged)?;
        let revision = header["revision"].as_str().and_then(|text| text.parse::<u64>().ok());
        let revision = revision.filter(|revision| (1..=HIGHEST).contains(revision));
        let snapshot = Snapshot {
            revision: revision.ok_or_else(|| damaged("its header has no revision"))?,
            taken: header["taken"].as_str().unwrap_or_default().to_owned(),
            ..Snapshot::default()
        };
        Ok(Self { snapshot, resources: HashSet::new(), gone: HashSet::new() })
    }

    fn resource(&mut self, payload: &[u8], take: &mut Take<'_>) -> Result<(), SnapshotError> {
        let (id, name) = payload.split_first_chunk().ok_or_else(|| damaged("a resource has no number"))?;
        let id = u32::from_be_bytes(*id);
        match resources::decode(name).filter(|_| self.resources.insert(id)) {
            Some(resource) => take(Item::Resource(id, resource)),
            None => Err(damaged("a resource is malformed")),
        }
    }

    fn objects(&mut self, payload: &Bytes, take: &mut Take<'_>) -> Result<(), SnapshotError> {
        let mut rest = payload.clone();
        while !rest.is_empty() {
            let suffix = Suffix::from_bytes(&part(&mut rest)?);
            let value = part(&mut rest)?;
            let version = decode(suffix.as_bytes(), &value).map_err(damaged)?;
            let parts = keys::parts(suffix.as_bytes()).filter(|parts| self.resources.contains(&parts.resource));
            let Some(parts) = parts.filter(|_| version.revision.get() <= self.snapshot.revision) else {
                return Err(damaged("an object is not one of this snapshot"));
            };
            self.snapshot.objects += 1;
            // What had not been swept yet when the snapshot was taken: nobody would ever remove it.
            if !self.gone.contains(&parts.cluster) {
                take(Item::Object(suffix, value, version))?;
            }
        }
        Ok(())
    }

    fn gone(&mut self, payload: &[u8], take: &mut Take<'_>) -> Result<(), SnapshotError> {
        let id = payload.try_into().map(u64::from_be_bytes).map_err(damaged)?;
        let cluster = LogicalClusterId::new(id);
        if !self.resources.is_empty() || !self.gone.insert(cluster) {
            return Err(damaged("a logical cluster that is gone is out of place"));
        }
        self.snapshot.gone_clusters += 1;
        take(Item::Gone(cluster, self.snapshot.revision))
    }

    fn check_end(&mut self, payload: &[u8], digest: &str) -> Result<(), SnapshotError> {
        let end: Value = serde_json::from_slice(payload).map_err(damaged)?;
        self.snapshot.damaged = left_out(&end["damaged"]);
        let counts = (end["objects"].as_u64(), end["goneClusters"].as_u64());
        let complete = counts == (Some(self.snapshot.objects), Some(self.snapshot.gone_clusters));
        match complete && end["sha256"].as_str() == Some(digest) {
            true => Ok(()),
            false => Err(damaged("its end does not fit what came before")),
        }
    }
}

/// What the end says was left out.
fn left_out(end: &Value) -> DamageList {
    let names = end["first"].as_array().into_iter().flatten().filter_map(Value::as_str);
    DamageList { count: end["count"].as_u64().unwrap_or_default(), first: names.map(str::to_owned).collect() }
}

/// Takes a length and so many bytes off the front.
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

/// Writes what a snapshot holds into a new engine.
struct Loader<'a> {
    kv: &'a dyn OrderedKv,
    batch: Batch,
    bytes: usize,
    counter: Option<&'a Counter>,
    last_resource: u32,
    /// The counter's, when its resource is known.
    place: Option<Suffix>,
    /// The counter as the snapshot has it.
    counted: Option<Version>,
}

impl Loader<'_> {
    fn add(&mut self, item: Item) -> Result<(), SnapshotError> {
        match item {
            Item::Resource(id, resource) => self.resource(id, &resource),
            Item::Gone(cluster, at) => {
                self.put(meta::tombstone(cluster), [at.to_le_bytes(), at.to_le_bytes()].concat().into());
            }
            Item::Object(suffix, _, version) if self.place.as_ref() == Some(&suffix) => self.counted = Some(version),
            Item::Object(suffix, value, version) => {
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
        if let Some(Counter { key, .. }) = self.counter.filter(|counter| counter.key.resource == *resource) {
            self.place = Some(Suffix::new(key.cluster, id, &key.scope, &key.name));
        }
        self.put(meta::resource(id), resources::encode(resource).into());
    }

    /// Writes the counter, also where there was none yet. Its last write is the restore.
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
            self.put(place.object(), Prepared::new(raised).seal(&place, last, created).0);
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
