//! Frames of watches: each made once per event and form, and shared by all who watch in that form.
//!
//! Once as long as it is kept: whoever comes to an event after 8 MiB of later frames were made makes it again. The first frame of
//! a table names the columns, and objects of a first state are of a moment of their own: each watcher makes these for itself.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use parking_lot::Mutex;
use portolan_machinery::{conversion, protobuf};
use portolan_types::{Clock, ObjectKey, Record, ResourceVersion, Status};
use prometheus::IntCounter;
use serde_json::{Value, json};

use crate::{
    encode::{Form, Many, Media, Shape},
    errors::damaged,
};

use super::filter::Seen;

/// Bytes of frames that are kept.
const MAX_KEPT: usize = 8 * 1024 * 1024;
/// What a frame takes beside its bytes, about.
const OVERHEAD: usize = 192;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FrameKey {
    revision: ResourceVersion,
    seen: Seen,
    form: u64,
    /// The second of a row, which tells ages. Others are the same at all times.
    second: Option<i64>,
}

/// The latest frames, bounded by bytes.
pub(crate) struct FrameCache {
    kept: Mutex<Kept>,
    /// Every watcher looks its frames up by the number of its form.
    forms: Arc<Mutex<Forms>>,
    encoded: IntCounter,
}

/// A frame that somebody makes: others wait for it.
type Cell = Arc<OnceLock<Result<Bytes, Status>>>;

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
    /// Each with the bytes that it is counted with.
    frames: HashMap<FrameKey, (Cell, usize)>,
    order: VecDeque<FrameKey>,
    bytes: usize,
}

impl Kept {
    fn cell(&mut self, key: FrameKey) -> Cell {
        if let Some((cell, _)) = self.frames.get(&key) {
            return cell.clone();
        }
        let cell = Cell::default();
        self.frames.insert(key, (cell.clone(), OVERHEAD));
        self.order.push_back(key);
        self.bytes += OVERHEAD;
        cell
    }

    /// Counts a frame that has been made, unless it has had to go already.
    fn weigh(&mut self, key: &FrameKey, own: &Cell, bytes: usize) {
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
    /// `encoded` counts the frames of events that had to be made.
    pub(crate) fn new(encoded: IntCounter) -> Self {
        Self { kept: Mutex::default(), forms: Arc::default(), encoded }
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }

    /// A frame that others may have made, or are making now.
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

/// Turns writes into frames of one form.
pub(super) struct Encoder {
    /// Dropped before the shape: as long as the form is known, nothing else may come to lie where its table does.
    form: Watched,
    shape: Shape,
    clock: Arc<dyn Clock>,
    /// Tables name their columns once, in the first frame.
    columns_sent: bool,
}

impl Encoder {
    pub(super) fn new(shape: Shape, cache: &FrameCache, clock: Arc<dyn Clock>) -> Self {
        let shown = format!("{}|{:?}|{:?}|{}", shape.target.kind.gvk, shape.accepted, shape.include, shape.pretty);
        let form = Watched::new(&cache.forms, (Arc::as_ptr(&shape.target.table).addr(), shown));
        Self { form, columns_sent: shape.accepted.form != Form::Table, shape, clock }
    }

    /// Rows are of now, not of when the watch began. The second, where frames have rows.
    fn look_at_the_clock(&mut self) -> Option<i64> {
        let is_table = self.shape.accepted.form == Form::Table;
        is_table.then(|| {
            self.shape.now = self.clock.now();
            self.shape.now.as_second()
        })
    }

    /// Whether the form is one of lists, of which no object is one.
    pub(super) fn is_of_lists(&self) -> bool {
        self.shape.accepted.form == Form::Metadata(Many::List)
    }

    /// The frame of an event, made once for all who watch in the form.
    pub(super) fn frame(
        &mut self,
        cache: &FrameCache,
        seen: Seen,
        (of, record): (&ObjectKey, &Record),
        revision: ResourceVersion,
    ) -> Result<Bytes, Status> {
        if !self.columns_sent {
            cache.encoded.inc();
            return self.initial(seen, (of, record), revision);
        }
        let key = FrameKey { revision, seen, form: self.form.number, second: self.look_at_the_clock() };
        cache.shared(key, || self.initial(seen, (of, record), revision))
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
        self.look_at_the_clock();
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

    fn cache() -> FrameCache {
        FrameCache::new(IntCounter::new("encoded", "Frames that were made.").unwrap())
    }

    #[test]
    fn forms_are_known_while_somebody_watches_in_them_and_are_those_of_one_table() {
        let cache = cache();
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

    fn key(n: u64) -> FrameKey {
        FrameKey { revision: ResourceVersion::new(n).unwrap(), seen: Seen::Added, form: 0, second: None }
    }

    #[test]
    fn the_cache_keeps_the_latest_frames_within_its_bound() {
        let cache = cache();
        let frame = Bytes::from(vec![0; 1024 * 1024]);
        let ask = |n: u64| cache.shared(key(n), || Ok(frame.clone())).unwrap();
        (1..=20).for_each(|n| drop(ask(n)));
        assert_eq!(cache.encoded.get(), 20);
        assert!((MAX_KEPT - 2 * frame.len()..=MAX_KEPT).contains(&cache.bytes()));
        (0..20).for_each(|_| drop(ask(20)));
        assert_eq!(cache.encoded.get(), 20, "the latest one is kept");
        ask(1);
        assert_eq!(cache.encoded.get(), 21, "the first one is not");
        (100..200_000).for_each(|n| drop(cache.shared(key(n), || Err(Status::internal("no")))));
        assert!(cache.bytes() <= MAX_KEPT && cache.kept.lock().frames.len() <= MAX_KEPT / OVERHEAD);
    }

    #[test]
    fn of_many_who_ask_at_once_one_makes_a_frame_and_all_have_the_same() {
        let (cache, start) = (cache(), std::sync::Barrier::new(100));
        let frames: Vec<Vec<Bytes>> = std::thread::scope(|scope| {
            let watch = || {
                start.wait();
                let make = |n: u64| move || Ok(Bytes::from(n.to_string().repeat(10_000)));
                (1..=20).map(|n| cache.shared(key(n), make(n)).unwrap()).collect()
            };
            let watchers: Vec<_> = (0..100).map(|_| scope.spawn(watch)).collect();
            watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect()
        });
        assert_eq!(cache.encoded.get(), 20);
        let place = |frame: &Bytes| frame.as_ptr();
        assert!(frames.iter().all(|own| own.iter().map(place).eq(frames[0].iter().map(place))));
    }
}
