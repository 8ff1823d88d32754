//! Conversion of custom resources between the requested version and the storage version.
//!
//! Objects are converted when they are read from the store and before they are written, so no other code knows their
//! storage version: after the storage version of a definition changes, old objects stay as they are until they are
//! written. The objects of a page are converted by one call, each event once for all watchers of a version. Calls are
//! bounded in time, bytes and number.

mod event_cache;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, sync::Arc, time::Duration};

use portolan_codec::conversion;
use portolan_kinds::{
    Kind, KindTable,
    custom::{Conversion, ConversionWebhook},
};
use portolan_merge::apply::MissingConversion;
use portolan_store::{Event, StoredObject};
use portolan_strategy::webhook_conversion::{Answer, Review};
use portolan_types::{LogicalClusterId, Reason, Record, Status, object};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    errors::damaged,
    limits::RequestLimiter,
    request::ResourceTarget,
    storage::StorageContext,
    webhooks::{WebhookContext, WebhookEndpoint, WebhookRequestBody, WebhookResponse},
};

use event_cache::ConvertedEventKey;
pub(crate) use event_cache::ConvertedEvents;

/// Retry interval of a watch when all conversion permits are taken.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Context of conversions between versions.
pub(crate) struct ConversionContext {
    pub(crate) storage: Arc<StorageContext>,
    pub(crate) webhooks: Arc<WebhookContext>,
    pub(crate) limiter: Arc<RequestLimiter>,
    /// Time for a conversion webhook.
    pub(crate) timeout: Duration,
    pub(crate) events: ConvertedEvents,
}

/// Versions of one kind between which an object is converted.
#[derive(Clone, Copy)]
pub(crate) struct KindPair<'a> {
    pub(crate) from: &'a Kind,
    pub(crate) to: &'a Kind,
}

impl ConversionContext {
    /// Converts stored objects of one logical cluster to the version of the target.
    ///
    /// # Errors
    /// 500 when the conversion fails, 429 when too many objects are being converted.
    pub(crate) async fn in_version(
        &self,
        target: &ResourceTarget,
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

    /// Converts an object of the target's version to its stored form.
    ///
    /// # Errors
    /// As [`ConversionContext::in_version`].
    pub(crate) async fn stored_form(
        &self,
        cluster: LogicalClusterId,
        target: &ResourceTarget,
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

    /// Converts an object of one kind to another version of it.
    ///
    /// # Errors
    /// As [`ConversionContext::in_version`].
    pub(crate) async fn as_kind(
        &self,
        cluster: LogicalClusterId,
        table: &KindTable,
        kinds: KindPair<'_>,
        object: Value,
    ) -> Result<Value, Status> {
        let KindPair { from, to } = kinds;
        match table.conversion() {
            None => Ok(conversion::from_storage(to, conversion::to_storage(from, object))),
            Some(conversion) => self.converted(cluster, conversion, object, &to.group_version().to_string()).await,
        }
    }

    /// Converts an object to the version of a field manager. The inner error tells why that version is not possible.
    ///
    /// # Errors
    /// 429 when too many objects are being converted.
    pub(crate) async fn convert_for_manager(
        &self,
        cluster: LogicalClusterId,
        target: &ResourceTarget,
        wanted: &MissingConversion,
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
        // Stored objects contain no revision.
        let revision = object::metadata_mut(&mut object).remove("resourceVersion");
        let mut converted = self.convert(cluster, conversion, to, vec![object]).await?;
        let mut converted = converted.pop().ok_or_else(|| Status::internal("nothing was converted"))?;
        object::metadata_mut(&mut converted).extend(revision.map(|own| ("resourceVersion".to_owned(), own)));
        Ok(converted)
    }

    /// Converts objects of one definition to the desired version, in order. Objects of that version stay unchanged.
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
        let directory = &self.storage.directory;
        let tenant = directory.by_id(cluster).map_or(cluster, |own| directory.tenant(&own));
        let _permit = self.limiter.conversion(tenant, cluster)?;
        let asked = others.iter().map(|at| objects[*at].take()).collect();
        // Boxed, because few requests wait for a webhook.
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
        let review = Review::new(webhook, self.storage.seams.uid().to_string(), desired, objects)?;
        let text = vec![review.question().to_string().into()];
        let endpoint = WebhookEndpoint::of(&webhook.client_config);
        let call = WebhookRequestBody { timeout: self.timeout, review: text };
        let answer = endpoint.post(&self.webhooks, cluster, call).await;
        let WebhookResponse { status, is_json, body } = answer.map_err(|why| review.failed(&why))?;
        review.answered(&Answer { code: status.as_u16(), is_json, body: &body })
    }

    /// Converts an event to the version of the target. Its previous state is converted only `with_previous`.
    ///
    /// # Errors
    /// 500 when the conversion fails.
    pub(crate) async fn event_in_version(
        &self,
        target: &ResourceTarget,
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
        let key = ConvertedEventKey { revision: event.revision, version: desired, with_previous };
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
                    Err(busy) if busy.code() == 429 => tokio::time::sleep(RETRY_INTERVAL).await,
                    converted => break converted?.into_iter().map(|state| state.record),
                }
            };
            let record = converted.next().ok_or_else(|| Status::internal("nothing was converted"))?;
            Ok(Arc::new(Event { record, previous: converted.next(), ..Event::clone(event) }))
        };
        self.events.get(key, make).await
    }
}

/// Prunes a stored object and sets defaults in its stored version, as kube-apiserver does before it converts.
fn as_stored(target: &ResourceTarget, mut object: Value) -> Value {
    let stored = target.table.kinds().find(|kind| kind.group_version().to_string() == api_version(&object));
    stored.iter().for_each(|kind| conversion::complete_stored(kind, &mut object));
    object
}

/// Returns a 500 without a reason, as in kube-apiserver.
fn failure(why: String) -> Status {
    Status::new(Reason::Unknown, why)
}

fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

fn body(stored: &StoredObject) -> Result<Value, Status> {
    serde_json::from_slice(stored.record.body()).map_err(|e| damaged(&stored.key, &e))
}

/// Returns true if the bytes of a record are served unchanged, which also holds for most custom resources.
fn is_as_served(target: &ResourceTarget, record: &Record, desired: &str) -> bool {
    is_in(record, desired) && conversion::is_served_as_stored(&target.kind, record.body())
}

/// Returns true if a record has this version. Most are recognized by their first bytes.
pub(crate) fn is_in(record: &Record, api_version: &str) -> bool {
    #[derive(Deserialize)]
    struct RecordHead<'a> {
        #[serde(rename = "apiVersion", borrow, default)]
        api_version: Cow<'a, str>,
    }
    let body = record.body();
    match body.strip_prefix(b"{\"apiVersion\":\"") {
        Some(rest) => rest.strip_prefix(api_version.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'"')),
        None => serde_json::from_slice::<RecordHead<'_>>(body).is_ok_and(|head| head.api_version == api_version),
    }
}
