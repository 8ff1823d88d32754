//! Frames of watches: each made once per event and form, and shared by all who watch in that form.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use portolan_machinery::{conversion, protobuf};
use portolan_types::{ObjectKey, Record, ResourceVersion, Status};
use serde_json::{Value, json};

use crate::{
    encode::{Form, Media, Shape},
    errors::damaged,
};

use super::filter::Seen;

/// Bytes of frames that are kept.
const MAX_KEPT: usize = 8 * 1024 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FrameKey {
    revision: ResourceVersion,
    seen: Seen,
    form: u64,
}

/// The latest frames, bounded by bytes.
pub(crate) struct FrameCache {
    kept: Mutex<Kept>,
    /// Every watcher looks its frames up by the number of its form.
    forms: Arc<Mutex<Forms>>,
}

/// The forms that somebody watches in.
#[derive(Default)]
struct Forms {
    known: HashMap<FormName, Known>,
    next: u64,
}

/// The table of the kind, by its address, and how objects are shown.
type FormName = (usize, String);

struct Known {
    number: u64,
    watches: usize,
}

/// A form, known for as long as somebody watches in it.
struct Watched {
    forms: Arc<Mutex<Forms>>,
    name: FormName,
    number: u64,
}

impl Watched {
    fn new(forms: &Arc<Mutex<Forms>>, name: FormName) -> Self {
        let mut all = forms.lock();
        let next = all.next;
        let known = all.known.entry(name.clone()).or_insert(Known { number: next, watches: 0 });
        known.watches += 1;
        let number = known.number;
        // Numbers do not come back: frames of forms that nobody watches in any more are still kept.
        all.next += u64::from(number == next);
        Self { forms: forms.clone(), name, number }
    }
}

impl Drop for Watched {
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
struct Kept {
    frames: HashMap<FrameKey, Bytes>,
    order: VecDeque<FrameKey>,
    bytes: usize,
}

impl FrameCache {
    pub(crate) fn new() -> Self {
        Self { kept: Mutex::default(), forms: Arc::default() }
    }

    fn get(&self, key: &FrameKey) -> Option<Bytes> {
        self.kept.lock().frames.get(key).cloned()
    }

    fn put(&self, key: FrameKey, frame: Bytes) {
        let mut kept = self.kept.lock();
        kept.bytes += frame.len();
        match kept.frames.insert(key, frame) {
            None => kept.order.push_back(key),
            // Two watchers made it at once.
            Some(same) => kept.bytes -= same.len(),
        }
        while kept.bytes > MAX_KEPT {
            let Some(oldest) = kept.order.pop_front() else { return };
            let gone = kept.frames.remove(&oldest).map_or(0, |frame| frame.len());
            kept.bytes -= gone.min(kept.bytes);
        }
    }
}

/// Turns writes into frames of one form.
pub(super) struct Encoder {
    /// Dropped before the shape: as long as the form is known, nothing else may come to lie where its table does.
    form: Watched,
    shape: Shape,
    /// Tables name their columns once, in the first frame.
    columns_sent: bool,
}

impl Encoder {
    pub(super) fn new(shape: Shape, cache: &FrameCache) -> Self {
        let shown = format!("{}|{:?}|{:?}|{}", shape.target.kind.gvk, shape.accepted, shape.include, shape.pretty);
        let form = Watched::new(&cache.forms, (Arc::as_ptr(&shape.target.table).addr(), shown));
        Self { form, columns_sent: shape.accepted.form != Form::Table, shape }
    }

    /// The frame of a write, from the cache where others have made it.
    pub(super) fn frame(
        &mut self,
        cache: &FrameCache,
        seen: Seen,
        (of, record): (&ObjectKey, &Record),
        revision: ResourceVersion,
    ) -> Result<Bytes, Status> {
        let key = FrameKey { revision, seen, form: self.form.number };
        let shareable = self.columns_sent;
        if shareable && let Some(frame) = cache.get(&key) {
            return Ok(frame);
        }
        let frame = self.initial(seen, (of, record), revision)?;
        if shareable {
            cache.put(key, frame.clone());
        }
        Ok(frame)
    }

    /// The frame of an object of the initial state, or of an event that nobody else has asked for.
    pub(super) fn initial(
        &mut self,
        seen: Seen,
        (of, record): (&ObjectKey, &Record),
        revision: ResourceVersion,
    ) -> Result<Bytes, Status> {
        if self.shape.is_stored_form() {
            let mut out = Vec::with_capacity(record.body().len() + 96);
            out.extend_from_slice(b"{\"type\":\"");
            out.extend_from_slice(seen.word().as_bytes());
            out.extend_from_slice(b"\",\"object\":");
            record.write_json(revision, &mut out);
            out.extend_from_slice(b"}\n");
            return Ok(out.into());
        }
        let object = record.to_value(revision).map_err(|error| damaged(of, &error))?;
        let target = &self.shape.target;
        let object = if target.is_read_as_served() { object } else { conversion::from_storage(&target.kind, object) };
        self.object(seen.word(), object)
    }

    fn object(&mut self, word: &str, object: Value) -> Result<Bytes, Status> {
        let value = match self.shape.accepted.form {
            Form::Object => object,
            Form::Metadata(_) => self.shape.metadata_only(object),
            Form::Table => self.row(object),
        };
        self.framed(word, &value)
    }

    fn row(&mut self, object: Value) -> Value {
        let version = portolan_types::object::meta_text(&object, "resourceVersion").to_owned();
        let with_columns = !std::mem::replace(&mut self.columns_sent, true);
        let metadata = json!({"resourceVersion": version});
        self.shape.table(vec![object], metadata, with_columns)
    }

    fn framed(&self, word: &str, value: &Value) -> Result<Bytes, Status> {
        if self.shape.accepted.media == Media::Protobuf {
            let schema = self.shape.item_type()?;
            let enveloped = protobuf::encode(value, schema, &self.shape.target.table).map_err(Status::internal)?;
            return Ok(protobuf::watch_frame(word, &enveloped).into());
        }
        let mut out = format!("{{\"type\":\"{word}\",\"object\":").into_bytes();
        serde_json::to_writer(&mut out, value).map_err(Status::internal)?;
        out.extend_from_slice(b"}\n");
        Ok(out.into())
    }

    /// A bookmark: everything up to `revision` has been sent.
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

    /// The frame that says why the stream ends.
    pub(super) fn error(&self, failure: &Status) -> Bytes {
        let value = failure.to_value();
        if self.shape.accepted.media == Media::Protobuf {
            let table = &self.shape.target.table;
            let schema = table.object_type("", "v1", "Status");
            let enveloped = schema.and_then(|schema| protobuf::encode(&value, schema, table).ok());
            return enveloped.map(|bytes| protobuf::watch_frame("ERROR", &bytes).into()).unwrap_or_default();
        }
        Bytes::from(format!("{{\"type\":\"ERROR\",\"object\":{value}}}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_known_while_somebody_watches_in_them_and_are_those_of_one_table() {
        let cache = FrameCache::new();
        let watch = |table: usize, shown: &str| Watched::new(&cache.forms, (table, shown.to_owned()));
        let (one, same, redefined) = (watch(1, "a"), watch(1, "a"), watch(2, "a"));
        assert_eq!(one.number, same.number);
        assert_ne!(one.number, redefined.number);
        drop(one);
        assert_eq!(watch(1, "a").number, same.number, "one is left");
        let was = same.number;
        drop((same, redefined));
        assert!(cache.forms.lock().known.is_empty());
        assert_ne!(watch(1, "a").number, was, "its frames may still be kept");
    }

    #[test]
    fn the_cache_keeps_the_latest_frames_within_its_bound() {
        let cache = FrameCache::new();
        let key = |n: u64| FrameKey { revision: ResourceVersion::new(n).unwrap(), seen: Seen::Added, form: 0 };
        let frame = Bytes::from(vec![0; 1024 * 1024]);
        (1..=20).for_each(|n| cache.put(key(n), frame.clone()));
        assert!(cache.get(&key(20)).is_some() && cache.get(&key(1)).is_none());
        assert!(cache.kept.lock().bytes <= MAX_KEPT);
        (0..20).for_each(|_| cache.put(key(20), frame.clone()));
        assert!(cache.get(&key(19)).is_some(), "a frame that is put twice counts once");
    }
}
