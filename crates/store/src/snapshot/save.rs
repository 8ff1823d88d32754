//! Taking a snapshot of any store, while it is in use.

use std::{collections::HashMap, io};

use bytes::Bytes;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, Seams};
use serde_json::json;

use super::{
    Snapshot, SnapshotError,
    frame::{Kind, Writer},
};
use crate::{RangePage, RangeRequest, RangeScope, Store, StoredObject, keys::Suffix, resources, value::Prepared};

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

/// Writes the present state of a store to `out`. Writes go on meanwhile, and are not in it.
///
/// # Errors
/// `Io` of `out`; `Store` when the store fails.
pub async fn save(store: &dyn Store, seams: &Seams, out: &mut dyn Out) -> Result<Snapshot, SnapshotError> {
    let _held = store.hold();
    let slice = RangeRequest { limit: Some(PAGE.0), bytes: Some(PAGE.1), ..RangeRequest::all(RangeScope::All) };
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
    let mut saver = Saver { writer: Writer::new(), resources: HashMap::new(), frame: Vec::new(), objects: 0 };
    let taken = seams.now_text();
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
        page = store.range(RangeRequest { at: Some(revision), after, ..slice.clone() }).await?;
    }
    saver.end(gone.len());
    out.put(saver.writer.take()).await?;
    let bytes = saver.writer.bytes();
    let gone_clusters = gone.len() as u64;
    Ok(Snapshot { revision: revision.get(), taken, objects: saver.objects, gone_clusters, bytes })
}

struct Saver {
    writer: Writer,
    resources: HashMap<GroupResource, u32>,
    frame: Vec<u8>,
    objects: u64,
}

impl Saver {
    /// Returns the key of the last object.
    fn page(&mut self, page: &RangePage) -> Option<ObjectKey> {
        page.objects.iter().for_each(|object| self.object(object));
        page.objects.last().map(|object| object.key.clone())
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
        let end = json!({"objects": self.objects, "goneClusters": gone, "sha256": self.writer.digest()});
        self.writer.frame(Kind::End, end.to_string().as_bytes());
    }
}
