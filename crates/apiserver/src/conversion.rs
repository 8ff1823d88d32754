//! Custom resources in the version that is asked for, and in the one that they are stored in.
//!
//! Objects are converted where they come from the store and where they go to it, so that in between nobody has to know in which
//! version they lie there: after the storage version of a definition has changed, old objects stay as they are until they
//! are written. Those of one page are converted by one call, each event once for all who watch in a version. Calls are bounded
//! in time, bytes and number.

use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portolan_machinery::{
    apply::Wanted,
    conversion,
    custom::{Answer, Conversion, ConversionWebhook, Review},
    kinds::{Kind, KindTable},
};
use portolan_store::{Event, StoredObject};
use portolan_types::{LogicalClusterId, Reason, Record, ResourceVersion, Status, object};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::{
    ApiServer,
    call::Target,
    errors::damaged,
    webhooks::{Answered, Endpoint},
};

/// Events that are kept converted, and their bytes.
const MAX_EVENTS: usize = 256;
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// How soon a watch asks again when all places for calls are taken.
const AGAIN: Duration = Duration::from_millis(200);

impl ApiServer {
    /// Stored objects of one logical cluster as the version of the target serves them.
    ///
    /// # Errors
    /// 500 when they cannot be converted, 429 when too many are being converted.
    pub(crate) async fn in_version(
        &self,
        target: &Target,
        mut stored: Vec<StoredObject>,
    ) -> Result<Vec<StoredObject>, Status> {
        let Some(conversion) = target.table.conversion() else { return Ok(stored) };
        let desired = target.kind.group_version().to_string();
        let is_as_served = |own: &StoredObject| is_as_served(target, &own.record, &desired);
        let (mut places, mut objects, mut cluster) = (Vec::new(), Vec::new(), LogicalClusterId::ROOT);
        for (at, own) in stored.iter().enumerate().filter(|(_, own)| !is_as_served(own)) {
            let object = as_stored(target, body(own)?);
            places.push((at, api_version(&object) == desired));
            objects.push(object);
            cluster = own.key.cluster;
        }
        let converted = self.convert(cluster, conversion, &desired, objects).await?;
        for ((at, is_complete), object) in places.into_iter().zip(converted) {
            let object = if is_complete { object } else { conversion::from_other_version(&target.kind, object) };
            stored[at].record = Arc::new(Record::of(&object));
        }
        Ok(stored)
    }

    /// An object of the target's version as it is to be stored.
    ///
    /// # Errors
    /// As [`ApiServer::in_version`].
    pub(crate) async fn stored_form(
        &self,
        cluster: LogicalClusterId,
        target: &Target,
        object: &Value,
    ) -> Result<Record, Status> {
        if !conversion::is_needed(&target.kind) {
            return Ok(Record::of(object));
        }
        let to = &target.kind.storage;
        let to = format!("{}/{}", to.group, to.version);
        let converted = match target.table.conversion() {
            Some(conversion) => self.converted(cluster, conversion, object.clone(), &to).await?,
            None => object.clone(),
        };
        Ok(Record::of(&conversion::to_storage(&target.kind, converted)))
    }

    /// An object of one kind as another version of it shows it.
    ///
    /// # Errors
    /// As [`ApiServer::in_version`].
    pub(crate) async fn as_kind(
        &self,
        cluster: LogicalClusterId,
        table: &KindTable,
        (from, to): (&Kind, &Kind),
        object: Value,
    ) -> Result<Value, Status> {
        match table.conversion() {
            None => Ok(conversion::from_storage(to, conversion::to_storage(from, object))),
            Some(conversion) => self.converted(cluster, conversion, object, &to.group_version().to_string()).await,
        }
    }

    /// An object of the target's resource in the version of one who owns fields of it, or why it cannot be converted.
    ///
    /// # Errors
    /// 429 when too many are being converted.
    pub(crate) async fn asked_for(
        &self,
        cluster: LogicalClusterId,
        target: &Target,
        wanted: &Wanted,
    ) -> Result<Result<Value, String>, Status> {
        let Some(conversion) = target.table.conversion() else { return Ok(Ok(wanted.object.clone())) };
        match self.convert(cluster, conversion, &wanted.to, vec![wanted.object.clone()]).await {
            Ok(mut converted) => Ok(converted.pop().ok_or_else(|| "nothing was converted".to_owned())),
            Err(busy) if busy.code() == 429 => Err(busy),
            Err(failed) => Ok(Err(failed.message().to_owned())),
        }
    }

    async fn converted(
        &self,
        cluster: LogicalClusterId,
        conversion: &Conversion,
        mut object: Value,
        to: &str,
    ) -> Result<Value, Status> {
        // Of what is stored nothing tells its revision.
        let revision = object::metadata_mut(&mut object).remove("resourceVersion");
        let mut converted = self.convert(cluster, conversion, to, vec![object]).await?;
        let mut converted = converted.pop().ok_or_else(|| Status::internal("nothing was converted"))?;
        object::metadata_mut(&mut converted).extend(revision.map(|own| ("resourceVersion".to_owned(), own)));
        Ok(converted)
    }

    /// Objects of one definition in the desired version, in their order. Those that are in it are as they were.
    async fn convert(
        &self,
        cluster: LogicalClusterId,
        conversion: &Conversion,
        desired: &str,
        mut objects: Vec<Value>,
    ) -> Result<Vec<Value>, Status> {
        let others: Vec<usize> = (0..objects.len()).filter(|at| api_version(&objects[*at]) != desired).collect();
        for at in &others {
            conversion.check(api_version(&objects[*at]), desired).map_err(failure)?;
        }
        let Some(webhook) = conversion.webhook().filter(|_| !others.is_empty()) else {
            others.iter().for_each(|at| objects[*at]["apiVersion"] = desired.into());
            return Ok(objects);
        };
        let tenant = self.directory.by_id(cluster).map_or(cluster, |own| self.directory.tenant(&own));
        let _place = self.admittance.conversion(tenant, cluster)?;
        let asked = others.iter().map(|at| objects[*at].take()).collect();
        // Few requests wait for a webhook, and all would have to have room for it.
        let converted = Box::pin(self.call(cluster, webhook, desired, asked)).await.map_err(failure)?;
        for (at, object) in others.into_iter().zip(converted) {
            objects[at] = object;
        }
        Ok(objects)
    }

    async fn call(
        &self,
        cluster: LogicalClusterId,
        webhook: &ConversionWebhook,
        desired: &str,
        objects: Vec<Value>,
    ) -> Result<Vec<Value>, String> {
        let review = Review::new(webhook, self.seams.uid().to_string(), desired, objects)?;
        let question = vec![review.question().to_string().into()];
        let endpoint = Endpoint::of(&webhook.client_config);
        let answer = endpoint.asked(self, cluster, self.config.limits.conversion, question).await;
        let Answered { status, is_json, body } = answer.map_err(|why| review.failed(&why))?;
        review.answered(&Answer { code: status.as_u16(), is_json, body: &body })
    }

    /// An event in the version of the target. What was there before it is converted only `with_previous`.
    ///
    /// # Errors
    /// 500 when it cannot be converted.
    pub(crate) async fn event_in_version(
        &self,
        target: &Target,
        event: &Arc<Event>,
        with_previous: bool,
    ) -> Result<Arc<Event>, Status> {
        if target.table.conversion().is_none() {
            return Ok(event.clone());
        }
        let desired = target.kind.group_version().to_string();
        let previous = event.previous.as_ref().filter(|_| with_previous);
        let is_as_served = |record: &Record| is_as_served(target, record, &desired);
        if is_as_served(&event.record) && previous.is_none_or(|previous| is_as_served(previous)) {
            return Ok(event.clone());
        }
        let key = EventKey { revision: event.revision, version: desired, with_previous };
        let make = || async {
            let state = |record: &Arc<Record>| StoredObject {
                key: event.key.clone(),
                revision: event.revision,
                created: event.revision,
                record: record.clone(),
            };
            let states: Vec<StoredObject> = [Some(&event.record), previous].into_iter().flatten().map(state).collect();
            let mut converted = loop {
                match self.in_version(target, states.clone()).await {
                    Err(busy) if busy.code() == 429 => tokio::time::sleep(AGAIN).await,
                    converted => break converted?.into_iter().map(|state| state.record),
                }
            };
            let record = converted.next().ok_or_else(|| Status::internal("nothing was converted"))?;
            Ok(Arc::new(Event { record, previous: converted.next(), ..Event::clone(event) }))
        };
        self.conversions.get(key, make).await
    }
}

/// A stored object as the version that it is stored in has it: pruned and with defaults, as upstream has it before it converts.
fn as_stored(target: &Target, mut object: Value) -> Value {
    let stored = target.table.kinds().find(|kind| kind.group_version().to_string() == api_version(&object));
    stored.iter().for_each(|kind| conversion::complete_stored(kind, &mut object));
    object
}

/// As upstream: an error of the server without a reason.
fn failure(why: String) -> Status {
    Status::new(Reason::Unknown, why)
}

fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

fn body(stored: &StoredObject) -> Result<Value, Status> {
    serde_json::from_slice(stored.record.body()).map_err(|e| damaged(&stored.key, &e))
}

/// Whether the bytes of a record are what the version of the target serves: also of custom resources mostly, which would only have
/// to change after their definition has.
fn is_as_served(target: &Target, record: &Record, desired: &str) -> bool {
    is_in(record, desired) && conversion::is_served_as_stored(&target.kind, record.body())
}

/// Whether a record is in a version, which is told without reading all of it where it begins with it.
pub(crate) fn is_in(record: &Record, api_version: &str) -> bool {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(rename = "apiVersion", borrow, default)]
        api_version: Cow<'a, str>,
    }
    let body = record.body();
    match body.strip_prefix(b"{\"apiVersion\":\"") {
        Some(rest) => rest.strip_prefix(api_version.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'"')),
        None => serde_json::from_slice::<Head<'_>>(body).is_ok_and(|head| head.api_version == api_version),
    }
}

#[derive(Clone, PartialEq, Eq)]
struct EventKey {
    revision: ResourceVersion,
    version: String,
    with_previous: bool,
}

type Cell = Arc<OnceCell<Arc<Event>>>;

/// The latest events that were converted, the oldest first: of all who watch in a version one converts.
#[derive(Default)]
pub(crate) struct ConvertedEvents(Mutex<VecDeque<(EventKey, Cell)>>);

impl ConvertedEvents {
    async fn get<F>(&self, key: EventKey, make: impl FnOnce() -> F) -> Result<Arc<Event>, Status>
    where
        F: Future<Output = Result<Arc<Event>, Status>>,
    {
        let turn = Turn { events: self, cell: self.cell(key) };
        let event = turn.cell.get_or_try_init(make).await?.clone();
        self.trim();
        Ok(event)
    }

    fn cell(&self, key: EventKey) -> Cell {
        let mut kept = self.0.lock();
        if let Some((_, cell)) = kept.iter().rev().find(|(own, _)| *own == key) {
            return cell.clone();
        }
        // Those that wait for a webhook count, too.
        while kept.len() >= MAX_EVENTS {
            kept.pop_front();
        }
        let cell = Cell::default();
        kept.push_back((key, cell.clone()));
        cell
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().iter().map(|(_, cell)| size(cell)).sum()
    }

    fn trim(&self) {
        let mut kept = self.0.lock();
        let mut total: usize = kept.iter().map(|(_, cell)| size(cell)).sum();
        while total > MAX_BYTES {
            let Some((_, oldest)) = kept.pop_front() else { return };
            total -= size(&oldest).min(total);
        }
    }
}

/// Somebody who waits for a converted event. Of one that all have given up, or that failed for all, nothing is kept.
struct Turn<'a> {
    events: &'a ConvertedEvents,
    cell: Cell,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.cell.initialized() {
            return;
        }
        let mut kept = self.events.0.lock();
        // Given back before the lock is, so that of two who leave at once one is the last.
        let own = std::mem::take(&mut self.cell);
        if Arc::strong_count(&own) == 2 {
            kept.retain(|(_, other)| !Arc::ptr_eq(other, &own));
        }
    }
}

fn size(cell: &Cell) -> usize {
    cell.get().map_or(0, |event| bytes(event))
}

fn bytes(event: &Event) -> usize {
    event.record.body().len() + event.previous.as_ref().map_or(0, |previous| previous.body().len())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    fn key(revision: u64) -> EventKey {
        let revision = ResourceVersion::new(revision).unwrap();
        EventKey { revision, version: "example.dev/v1".into(), with_previous: false }
    }

    #[tokio::test]
    async fn of_events_that_are_not_converted_nothing_is_kept() {
        let events = ConvertedEvents::default();
        let failed = || async { Err(Status::internal("no")) };
        events.get(key(1), failed).await.unwrap_err();
        assert!(events.0.lock().is_empty(), "one that fails");
        let mut first = Box::pin(events.get(key(1), std::future::pending));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(events.get(key(1), failed));
        assert!(second.as_mut().now_or_never().is_none(), "it waits for the first one");
        drop(first);
        assert_eq!(events.0.lock().len(), 1, "the other one still waits");
        second.await.unwrap_err();
        assert!(events.0.lock().is_empty(), "all have left");
        let waiting = (1..=2 * MAX_EVENTS as u64).map(|n| {
            let mut own = Box::pin(events.get(key(n), std::future::pending));
            assert!(own.as_mut().now_or_never().is_none());
            own
        });
        let waiting: Vec<_> = waiting.collect();
        assert_eq!(events.0.lock().len(), MAX_EVENTS, "however many wait");
        drop(waiting);
        assert!(events.0.lock().is_empty());
    }

    #[test]
    fn versions_are_told_from_bytes() {
        for (case, object, expected) in [
            ("the version", json!({"apiVersion": "example.dev/v1", "kind": "Widget"}), true),
            ("one that begins like it", json!({"apiVersion": "example.dev/v1beta1"}), false),
            ("another field is first", json!({"aa": 1, "apiVersion": "example.dev/v1"}), true),
            ("there is none", json!({"kind": "Widget"}), false),
        ] {
            assert_eq!(is_in(&Record::of(&object), "example.dev/v1"), expected, "{case}");
        }
    }
}
