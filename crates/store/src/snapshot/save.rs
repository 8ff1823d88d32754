//! Taking a snapshot of any store, while it is in use.

use std::{collections::HashMap, io};

use bytes::Bytes;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, ResourceVersion, Seams};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    Begun, Snapshot, SnapshotError, damaged,
    frame::{Kind, Writer, hex},
};
use crate::{
    DamageList, OnDamage, RangePage, RangeRequest, RangeScope, Store, StoredObject, keys::Suffix, resources,
    value::Prepared,
};

/// Objects and bytes that are read at once.
const PAGE: (usize, usize) = (500, 1 << 20);
/// Bytes of objects in a frame, give or take an object.
const FRAME: usize = 256 << 10;

/// Where a snapshot goes, piece by piece.
pub trait Out: Send {
    /// Takes a piece of any length. Waits as long as the other side is slower.
    fn put(&mut self, piece: Bytes) -> BoxFuture<'_, io::Result<()>>;
}

impl<W: io::Write + Send> Out for W {
    fn put(&mut self, piece: Bytes) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(self.write_all(&piece)))
    }
}

/// Writes the present state of a store to `out`. Writes go on meanwhile, and are not in it. Damaged objects are left out, and
/// named at its end, or keep it from having an end.
///
/// # Errors
/// `Io` of `out`; `Store` when the store fails; `DamagedObjects`, of all that there are, unless they are to be skipped.
pub async fn save(
    store: &dyn Store,
    seams: &Seams,
    on_damage: OnDamage,
    out: &mut dyn Out,
) -> Result<Snapshot, SnapshotError> {
    save_at(store, (None, seams.now_text()), on_damage, out).await
}

/// Writes what a snapshot lacks that was begun: what follows its whole frames. They are made once more, and compared.
///
/// # Errors
/// As for [`save`]; `Other` when it would begin in another way now, as when a logical cluster was deleted since; a `Store`
/// error when its revision is not kept any more, or not of this store. Nothing was written then.
pub async fn go_on(
    store: &dyn Store,
    begun: &Begun,
    on_damage: OnDamage,
    out: &mut dyn Out,
) -> Result<Snapshot, SnapshotError> {
    let at = ResourceVersion::new(begun.revision).ok_or_else(|| damaged("it has no revision"))?;
    let mut rest = Rest { out, begun, left: begun.bytes, hash: Sha256::new(), is_other: false };
    let saved = save_at(store, (Some(at), begun.taken.clone()), on_damage, &mut rest).await;
    match rest.is_other || rest.left > 0 && saved.is_ok() {
        true => Err(SnapshotError::Other(begun.revision)),
        false => saved,
    }
}

async fn save_at(
    store: &dyn Store,
    (at, taken): (Option<ResourceVersion>, String),
    on_damage: OnDamage,
    out: &mut dyn Out,
) -> Result<Snapshot, SnapshotError> {
    let _held = store.hold(at).await;
    let slice = RangeRequest {
        at,
        limit: Some(PAGE.0),
        bytes: Some(PAGE.1),
        ..RangeRequest::all(RangeScope::All).past_damage()
    };
    let mut gone = store.gone_clusters().await?;
    let mut page = loop {
        let page = store.range(slice.clone()).await?;
        // A logical cluster that is deleted in between would be in neither, and its last objects in the snapshot for ever.
        let now = store.gone_clusters().await?;
        if now == gone {
            break page;
        }
        gone = now;
    };
    let revision = page.revision;
    let mut saver = Saver {
        writer: Writer::new(),
        resources: HashMap::new(),
        frame: Vec::new(),
        objects: 0,
        damaged: DamageList::default(),
    };
    let header = json!({"revision": revision.to_string(), "taken": taken, "portolan": env!("CARGO_PKG_VERSION")});
    saver.writer.frame(Kind::Header, header.to_string().as_bytes());
    for cluster in &gone {
        saver.writer.frame(Kind::Gone, &cluster.get().to_be_bytes());
    }
    loop {
        let after = saver.page(&page);
        out.put(saver.writer.take()).await?;
        if !page.more {
            break;
        }
        // Where neither reading nor `out` ever waits, others have their turn, and whoever waits for this may give it up.
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
    Ok(Snapshot {
        revision: revision.get(),
        taken,
        objects: saver.objects,
        gone_clusters,
        bytes,
        damaged: saver.damaged,
    })
}

/// Lets through what follows the bytes that are there already, when they are the same.
struct Rest<'a> {
    out: &'a mut dyn Out,
    begun: &'a Begun,
    left: u64,
    hash: Sha256,
    is_other: bool,
}

impl Out for Rest<'_> {
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
        match piece.is_empty() {
            true => Box::pin(std::future::ready(Ok(()))),
            false => self.out.put(piece),
        }
    }
}

struct Saver {
    writer: Writer,
    resources: HashMap<GroupResource, u32>,
    frame: Vec<u8>,
    objects: u64,
    damaged: DamageList,
}

impl Saver {
    /// Returns the key of the last object.
    fn page(&mut self, page: &RangePage) -> Option<ObjectKey> {
        page.objects.iter().for_each(|object| self.object(object));
        page.damaged.iter().for_each(|found| self.damaged.add(found));
        self.damaged.count += page.unnamed as u64;
        page.last.clone()
    }

    fn object(&mut self, object: &StoredObject) {
        let resource = self.resource(&object.key.resource);
        let suffix = Suffix::new(object.key.cluster, resource, &object.key.scope, &object.key.name);
        let record = (*object.record).clone();
        let (value, _) = Prepared::new(record).seal(&suffix, object.revision, object.created);
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

    /// The number of a resource in this snapshot.
    fn resource(&mut self, resource: &GroupResource) -> u32 {
        if let Some(id) = self.resources.get(resource) {
            return *id;
        }
        // Whoever reads knows a resource before its first object.
        self.flush();
        let id = u32::try_from(self.resources.len() + 1).expect("a store knows a bounded number of resources");
        self.writer.frame(Kind::Resource, &[&id.to_be_bytes()[..], &resources::encode(resource)].concat());
        self.resources.insert(resource.clone(), id);
        id
    }

    fn flush(&mut self) {
        if !self.frame.is_empty() {
            self.writer.frame(Kind::Objects, &std::mem::take(&mut self.frame));
        }
    }

    fn end(&mut self, gone: usize) {
        self.flush();
        let mut end = json!({"objects": self.objects, "goneClusters": gone, "sha256": self.writer.digest()});
        if !self.damaged.is_empty() {
            end["damaged"] = json!({"count": self.damaged.count, "first": self.damaged.first});
        }
        self.writer.frame(Kind::End, end.to_string().as_bytes());
    }
}
