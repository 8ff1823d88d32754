//! Encoded watch events, shared by all watchers of the same form and encoded once.
//!
//! Frames are cached up to 8 MiB; a watcher that is further behind encodes them again. The first frame of a table,
//! which has the columns, and objects of the initial state are not shared.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use parking_lot::Mutex;
use portolan_codec::{conversion, protobuf};
use portolan_types::{Clock, ObjectKey, Record, ResourceVersion, Status};
use prometheus::IntCounter;
use serde_json::{Value, json};

use crate::{
    encode::{MetadataShape, ObjectForm, ResponseFormat, ResponseShape},
    errors::damaged,
};

use super::filter::WatchedEvent;

/// Bytes of the cache.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// Estimated overhead of a cached frame.
const OVERHEAD: usize = 192;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FrameKey {
    revision: ResourceVersion,
    seen: WatchedEvent,
    form: u64,
    /// Second in which a table row was printed, because rows show ages. `None` for other forms.
    second: Option<i64>,
}

/// Cache of the latest frames, bounded by bytes.
pub(crate) struct FrameCache {
    kept: Mutex<CachedFrames>,
    /// Every watcher looks its frames up by the id of its form.
    forms: Arc<Mutex<FormRegistry>>,
    encoded: IntCounter,
}

/// Frame that one watcher encodes while the others wait.
type SharedFrame = Arc<OnceLock<Result<Bytes, Status>>>;

/// Ids of the forms that are being watched.
#[derive(Default)]
struct FormRegistry {
    known: HashMap<FormIdentity, RegisteredForm>,
    next: u64,
}

/// Identity of a form: the address of the kind's table, and the form of objects.
type FormIdentity = (usize, String);

struct RegisteredForm {
    number: u64,
    watches: usize,
}

/// Id of a form, released when its last watcher ends.
struct WatchedForm {
    forms: Arc<Mutex<FormRegistry>>,
    name: FormIdentity,
    number: u64,
}

impl WatchedForm {
    fn new(forms: &Arc<Mutex<FormRegistry>>, name: FormIdentity) -> Self {
        let mut all = forms.lock();
        let next = all.next;
        let known = all.known.entry(name.clone()).or_insert(RegisteredForm { number: next, watches: 0 });
        known.watches += 1;
        let number = known.number;
        // Ids are never reused: frames of forms without watchers may still be cached.
        all.next += u64::from(number == next);
        Self { forms: forms.clone(), name, number }
    }
}

impl Drop for WatchedForm {
    fn drop(&mut self) {
        let mut forms = self.forms.lock();
        if let Some(known) = forms.known.get_mut(&self.name) {
            known.watches -= 1;
            if known.watches == 0 {
                forms.known.remove(&self.name);
            }
        }
    }
}

#[derive(Default)]
struct CachedFrames {
    /// Frames with the bytes that they count for.
    frames: HashMap<FrameKey, (SharedFrame, usize)>,
    order: VecDeque<FrameKey>,
    bytes: usize,
}

impl CachedFrames {
    fn cell(&mut self, key: FrameKey) -> SharedFrame {
        if let Some((cell, _)) = self.frames.get(&key) {
            return cell.clone();
        }
        let cell = SharedFrame::default();
        self.frames.insert(key, (cell.clone(), OVERHEAD));
        self.order.push_back(key);
        self.bytes += OVERHEAD;
        cell
    }

    /// Counts an encoded frame unless it has been evicted.
    fn weigh(&mut self, key: &FrameKey, own: &SharedFrame, bytes: usize) {
        if let Some((cell, counted)) = self.frames.get_mut(key)
            && Arc::ptr_eq(cell, own)
        {
            *counted += bytes;
            self.bytes += bytes;
        }
        while self.bytes > MAX_KEPT {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.frames.remove(&oldest).map_or(0, |(_, counted)| counted);
        }
    }
}

impl FrameCache {
    /// Returns a cache; `encoded` counts the frames that had to be encoded.
    pub(crate) fn new(encoded: IntCounter) -> Self {
        Self { kept: Mutex::default(), forms: Arc::default(), encoded }
    }

    /// Returns the bytes of the cached frames.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// Returns a frame from the cache, or encodes it while other watchers wait for it.
    fn shared(&self, key: FrameKey, make: impl FnOnce() -> Result<Bytes, Status>) -> Result<Bytes, Status> {
        let cell = self.kept.lock().cell(key);
        let mut is_own = false;
        let frame = cell.get_or_init(|| {
            is_own = true;
            self.encoded.inc();
            make()
        });
        if is_own {
            self.kept.lock().weigh(&key, &cell, frame.as_ref().map_or(0, Bytes::len));
        }
        frame.clone()
    }
}

/// State of an object that a frame shows.
#[derive(Clone, Copy)]
pub(super) struct EncodedObject<'a> {
    pub(super) key: &'a ObjectKey,
    pub(super) record: &'a Record,
    pub(super) revision: ResourceVersion,
}

/// Encoder of events in one form.
pub(super) struct FrameEncoder {
    /// Dropped before the shape: the address of the table must not be reused while the form has an id.
    form: WatchedForm,
    shape: ResponseShape,
    clock: Arc<dyn Clock>,
    /// True once the columns of a table have been sent.
    columns_sent: bool,
}

impl FrameEncoder {
    pub(super) fn new(shape: ResponseShape, cache: &FrameCache, clock: Arc<dyn Clock>) -> Self {
        let shown = format!("{}|{:?}|{:?}|{}", shape.target.kind.gvk, shape.accepted, shape.include, shape.pretty);
        let form = WatchedForm::new(&cache.forms, (Arc::as_ptr(&shape.target.table).addr(), shown));
        Self { form, columns_sent: shape.accepted.form != ObjectForm::Table, shape, clock }
    }

    /// Updates the time of table rows, which show the current age. Returns the second if frames have rows.
    fn look_at_the_clock(&mut self) -> Option<i64> {
        let is_table = self.shape.accepted.form == ObjectForm::Table;
        is_table.then(|| {
            self.shape.now = self.clock.now();
            self.shape.now.as_second()
        })
    }

    /// Returns true for a form of lists, which single objects do not have.
    pub(super) fn is_of_lists(&self) -> bool {
        self.shape.accepted.form == ObjectForm::Metadata(MetadataShape::List)
    }

    /// Returns the frame of an event, encoded once for all watchers of the form.
    pub(super) fn frame(
        &mut self,
        cache: &FrameCache,
        seen: WatchedEvent,
        object: EncodedObject<'_>,
    ) -> Result<Bytes, Status> {
        if !self.columns_sent {
            cache.encoded.inc();
            return self.initial(seen, object);
        }
        let key =
            FrameKey { revision: object.revision, seen, form: self.form.number, second: self.look_at_the_clock() };
        cache.shared(key, || self.initial(seen, object))
    }

    /// Encodes the frame of an object of the initial state, or of an event that is not shared.
    pub(super) fn initial(&mut self, seen: WatchedEvent, object: EncodedObject<'_>) -> Result<Bytes, Status> {
        let EncodedObject { key, record, revision } = object;
        if self.shape.is_stored_form() {
            let mut out = Vec::with_capacity(record.body().len() + 96);
            out.extend_from_slice(b"{\"type\":\"");
            out.extend_from_slice(seen.word().as_bytes());
            out.extend_from_slice(b"\",\"object\":");
            record.write_json(revision, &mut out);
            out.extend_from_slice(b"}\n");
            return Ok(out.into());
        }
        let object = record.to_value(revision).map_err(|error| damaged(key, &error))?;
        let target = &self.shape.target;
        let object = if target.is_read_as_served() { object } else { conversion::from_storage(&target.kind, object) };
        self.object(seen.word(), object)
    }

    fn object(&mut self, word: &str, object: Value) -> Result<Bytes, Status> {
        let value = match self.shape.accepted.form {
            ObjectForm::Object => object,
            ObjectForm::Metadata(_) => self.shape.metadata_only(object),
            ObjectForm::Table => self.row(object),
        };
        self.framed(word, &value)
    }

    fn row(&mut self, object: Value) -> Value {
        self.look_at_the_clock();
        let version = portolan_types::object::meta_text(&object, "resourceVersion").to_owned();
        let with_columns = !std::mem::replace(&mut self.columns_sent, true);
        let metadata = json!({"resourceVersion": version});
        self.shape.table(vec![object], metadata, with_columns)
    }

    fn framed(&self, word: &str, value: &Value) -> Result<Bytes, Status> {
        if self.shape.accepted.media == ResponseFormat::Protobuf {
            let schema = self.shape.item_type()?;
            let enveloped = protobuf::encode(value, schema, &self.shape.target.table).map_err(Status::internal)?;
            return Ok(protobuf::watch_frame(word, &enveloped).into());
        }
        let mut out = format!("{{\"type\":\"{word}\",\"object\":").into_bytes();
        serde_json::to_writer(&mut out, value).map_err(Status::internal)?;
        out.extend_from_slice(b"}\n");
        Ok(out.into())
    }

    /// Encodes a bookmark: all events up to `revision` have been sent.
    pub(super) fn bookmark(&mut self, revision: ResourceVersion, ends_initial: bool) -> Result<Bytes, Status> {
        let kind = &self.shape.target.kind;
        let mut object = conversion::blank(&self.shape.target.table, kind);
        object["kind"] = (*kind.gvk.kind).into();
        object["apiVersion"] = kind.group_version().to_string().into();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        if ends_initial {
            object["metadata"]["annotations"]["k8s.io/initial-events-end"] = "true".into();
        }
        self.object("BOOKMARK", object)
    }

    /// Encodes the frame that states why the stream ends.
    pub(super) fn error(&self, failure: &Status) -> Bytes {
        let value = failure.to_value();
        if self.shape.accepted.media == ResponseFormat::Protobuf {
            let table = &self.shape.target.table;
            let schema = table.object_type("", "v1", "Status");
            let enveloped = schema.and_then(|schema| protobuf::encode(&value, schema, table).ok());
            return enveloped.map(|bytes| protobuf::watch_frame("ERROR", &bytes).into()).unwrap_or_default();
        }
        Bytes::from(format!("{{\"type\":\"ERROR\",\"object\":{value}}}\n"))
    }
}
