//! Saving a snapshot of any store while it is in use.

use std::{collections::HashMap, io};

use bytes::Bytes;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, ResourceVersion, Seams};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    PartialSnapshot, SnapshotError, SnapshotSummary, damaged,
    frame::{FrameKind, FrameWriter, hex},
};
use crate::{
    api::{OnDamage, RangePage, RangeRequest, RangeScope, Store, StoredObject, damage::DamageList},
    layout::{keys::KeySuffix, record::EncodedObject},
    read::resources,
};

/// Objects and bytes that are read at once.
const PAGE: (usize, usize) = (500, 1 << 20);
/// Target size of a frame of objects in bytes.
const FRAME: usize = 256 << 10;

/// Sink of a snapshot's bytes.
pub trait SnapshotSink: Send {
    /// Takes a piece of any length. Waits while the receiver is slower.
    fn put(&mut self, piece: Bytes) -> BoxFuture<'_, io::Result<()>>;
}

impl<W: io::Write + Send> SnapshotSink for W {
    fn put(&mut self, piece: Bytes) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(self.write_all(&piece)))
    }
}

/// Writes the latest state of a store to `out`. Concurrent writes are not included. Damaged objects are left out and
/// named in the last frame, or make the snapshot fail.
///
/// # Errors
/// `Io` of `out`; `Store` if the store fails; `DamagedObjects` with all of them, unless they are to be skipped.
pub async fn save(
    store: &dyn Store,
    seams: &Seams,
    on_damage: OnDamage,
    out: &mut dyn SnapshotSink,
) -> Result<SnapshotSummary, SnapshotError> {
    save_at(store, (None, seams.now_text()), on_damage, out).await
}

/// Completes an interrupted snapshot: writes the bytes after its complete frames. The earlier bytes are produced again
/// and compared.
///
/// # Errors
/// Returns the errors of [`save`]; `Other` if the earlier bytes differ now, such as after a logical cluster was
/// deleted; `Store` if the revision is compacted or belongs to another store. Nothing was written then.
pub async fn resume_save(
    store: &dyn Store,
    begun: &PartialSnapshot,
    on_damage: OnDamage,
    out: &mut dyn SnapshotSink,
) -> Result<SnapshotSummary, SnapshotError> {
    let at = ResourceVersion::new(begun.revision).ok_or_else(|| damaged("it has no revision"))?;
    let mut rest = ResumingSink { out, begun, left: begun.bytes, hash: Sha256::new(), is_other: false };
    let saved = save_at(store, (Some(at), begun.taken.clone()), on_damage, &mut rest).await;
    if rest.is_other || rest.left > 0 && saved.is_ok() { Err(SnapshotError::Other(begun.revision)) } else { saved }
}

async fn save_at(
    store: &dyn Store,
    (at, taken): (Option<ResourceVersion>, String),
    on_damage: OnDamage,
    out: &mut dyn SnapshotSink,
) -> Result<SnapshotSummary, SnapshotError> {
    let _held = store.hold(at).await;
    let slice = RangeRequest {
        at,
        limit: Some(PAGE.0),
        bytes: Some(PAGE.1),
        ..RangeRequest::all(RangeScope::All).skip_damaged()
    };
    let mut gone = store.deleted_clusters().await?;
    let mut page = loop {
        let page = store.range(slice.clone()).await?;
        // A logical cluster deleted in between would be in neither list, and its last objects would stay in the
        // snapshot forever.
        let now = store.deleted_clusters().await?;
        if now == gone {
            break page;
        }
        gone = now;
    };
    let revision = page.revision;
    let mut saver = SnapshotEncoder {
        writer: FrameWriter::new(),
        resources: HashMap::new(),
        frame: Vec::new(),
        objects: 0,
        damaged: DamageList::default(),
    };
    let header = json!({"revision": revision.to_string(), "taken": taken, "portolan": env!("CARGO_PKG_VERSION")});
    saver.writer.frame(FrameKind::Header, header.to_string().as_bytes());
    for cluster in &gone {
        saver.writer.frame(FrameKind::Gone, &cluster.get().to_be_bytes());
    }
    loop {
        let after = saver.page(&page);
        out.put(saver.writer.take()).await?;
        if !page.more {
            break;
        }
        // If neither the reads nor `out` ever wait, other tasks need a turn, and the caller must be able to cancel.
        tokio::task::yield_now().await;
        page = store.range(RangeRequest { at: Some(revision), after, ..slice.clone() }).await?;
    }
    if on_damage == OnDamage::Fail && !saver.damaged.is_empty() {
        return Err(SnapshotError::DamagedObjects(saver.damaged));
    }
    saver.end(gone.len());
    out.put(saver.writer.take()).await?;
    let bytes = saver.writer.bytes();
    let gone_clusters = gone.len() as u64;
    Ok(SnapshotSummary {
        revision: revision.get(),
        taken,
        objects: saver.objects,
        gone_clusters,
        bytes,
        damaged: saver.damaged,
    })
}

/// Sink that drops the bytes which exist already, after comparing them.
struct ResumingSink<'a> {
    out: &'a mut dyn SnapshotSink,
    begun: &'a PartialSnapshot,
    left: u64,
    hash: Sha256,
    is_other: bool,
}

impl SnapshotSink for ResumingSink<'_> {
    fn put(&mut self, mut piece: Bytes) -> BoxFuture<'_, io::Result<()>> {
        if self.left > 0 {
            let there = piece.split_to(piece.len().min(usize::try_from(self.left).unwrap_or(usize::MAX)));
            self.hash.update(&there);
            self.left -= there.len() as u64;
            self.is_other = self.left == 0 && hex(self.hash.clone()) != self.begun.sha256;
        }
        if self.is_other {
            return Box::pin(std::future::ready(Err(io::ErrorKind::InvalidData.into())));
        }
        if piece.is_empty() { Box::pin(std::future::ready(Ok(()))) } else { self.out.put(piece) }
    }
}

struct SnapshotEncoder {
    writer: FrameWriter,
    resources: HashMap<GroupResource, u32>,
    frame: Vec<u8>,
    objects: u64,
    damaged: DamageList,
}

impl SnapshotEncoder {
    /// Adds a page; returns the key of its last object.
    fn page(&mut self, page: &RangePage) -> Option<ObjectKey> {
        page.objects.iter().for_each(|object| self.object(object));
        page.damaged.iter().for_each(|found| self.damaged.add(found));
        self.damaged.count += page.unnamed as u64;
        page.last.clone()
    }

    fn object(&mut self, object: &StoredObject) {
        let resource = self.resource(&object.key.resource);
        let suffix = KeySuffix::new(object.key.cluster, resource, &object.key.scope, &object.key.name);
        let record = (*object.record).clone();
        let (value, _) = EncodedObject::new(record).seal(&suffix, object.revision, object.created);
        for part in [suffix.as_bytes(), &value] {
            let len = u32::try_from(part.len()).expect("objects are smaller than 4 GiB");
            self.frame.extend_from_slice(&len.to_le_bytes());
            self.frame.extend_from_slice(part);
        }
        self.objects += 1;
        if self.frame.len() >= FRAME {
            self.flush();
        }
    }

    /// Returns the number of a resource in this snapshot.
    fn resource(&mut self, resource: &GroupResource) -> u32 {
        if let Some(id) = self.resources.get(resource) {
            return *id;
        }
        // A reader must know a resource before its first object.
        self.flush();
        let id = u32::try_from(self.resources.len() + 1).expect("a store knows a bounded number of resources");
        self.writer.frame(FrameKind::Resource, &[&id.to_be_bytes()[..], &resources::encode(resource)].concat());
        self.resources.insert(resource.clone(), id);
        id
    }

    fn flush(&mut self) {
        if !self.frame.is_empty() {
            self.writer.frame(FrameKind::Objects, &std::mem::take(&mut self.frame));
        }
    }

    fn end(&mut self, gone: usize) {
        self.flush();
        let mut end = json!({"objects": self.objects, "goneClusters": gone, "sha256": self.writer.digest()});
        if !self.damaged.is_empty() {
            end["damaged"] = json!({"count": self.damaged.count, "first": self.damaged.first});
        }
        self.writer.frame(FrameKind::End, end.to_string().as_bytes());
    }
}
