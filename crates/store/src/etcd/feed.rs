//! Feed: the one watch of the whole prefix. It fills the hub with the writes of all servers.

use std::{sync::Arc, time::Duration};

use futures::stream;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{
    EtcdCore, EtcdHealth,
    accounts::change_of,
    client::{EtcdFault, MemberIndex},
    decode::{DecodeError, TransactionCollector, TransactionView},
    layout::range_of,
    proto::{
        self, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, event::EventType,
        watch_request::RequestUnion,
    },
};
use crate::{api::StoreError, engine::failed, read::state::StoreMarks};

/// Pause before the watch is reopened.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);
/// Time limit for opening a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Open watch of etcd.
pub(super) struct EtcdWatch {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    member: MemberIndex,
}

/// End of a watch.
pub(super) enum WatchEnd {
    /// History after the start was compacted, up to this revision; 0 if it is unknown.
    Compacted(i64),
    Failed(EtcdFault),
}

impl EtcdWatch {
    /// Opens a watch of a range of keys, from an etcd revision on.
    pub(super) async fn open(inner: &EtcdCore, (from, to): (Vec<u8>, Vec<u8>), start: i64) -> Result<Self, WatchEnd> {
        let create = WatchCreateRequest {
            key: from.into(),
            range_end: to.into(),
            start_revision: start,
            progress_notify: true,
            prev_kv: true,
            watch_id: 0,
            fragment: true,
        };
        let (requests, receiver) = mpsc::channel(4);
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The new channel has capacity for this request.
        let _ = requests.try_send(create);
        let outgoing =
            stream::unfold(receiver, |mut requests| async { requests.recv().await.map(|next| (next, requests)) });
        let (answers, member) = inner.client.watch(outgoing, OPEN_TIMEOUT).await.map_err(WatchEnd::Failed)?;
        Ok(Self { requests, answers, member })
    }

    /// Requests a progress notification: an answer without events.
    pub(super) fn ask_progress(&self) {
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        // A full channel already has such a request.
        let _ = self.requests.try_send(WatchRequest { request_union: Some(progress) });
    }

    /// Waits for the next answer. Cancel safe: no answer is lost.
    pub(super) async fn next(&mut self, inner: &EtcdCore) -> Result<WatchResponse, WatchEnd> {
        let answer = match self.answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                inner.client.switch_member(self.member);
                return Err(WatchEnd::Failed(EtcdFault::Unreachable("etcd ended the watch".into())));
            }
            Err(status) => return Err(WatchEnd::Failed(inner.client.failed(self.member, &status))),
        };
        match (answer.canceled, answer.compact_revision) {
            (false, _) => Ok(answer),
            (true, 0) => {
                inner.client.switch_member(self.member);
                Err(WatchEnd::Failed(EtcdFault::Unreachable(format!("etcd ended the watch: {}", answer.cancel_reason))))
            }
            (true, compacted) => Err(WatchEnd::Compacted(compacted)),
        }
    }
}

/// Follows all writes until the store is closed.
pub(super) async fn run(inner: Arc<EtcdCore>) {
    while !inner.stopped.is_cancelled() {
        let Some(end) = inner.stopped.run_until_cancelled(follow(&inner)).await else { return };
        let why = match end {
            WatchEnd::Compacted(_) => match inner.skip_to_latest().await {
                Ok(()) => continue,
                Err(error) => error.to_string(),
            },
            WatchEnd::Failed(fault) => fault.to_string(),
        };
        inner.mark_silent(why);
        tokio::time::sleep(REOPEN_PAUSE).await;
    }
}

async fn follow(inner: &EtcdCore) -> WatchEnd {
    let start = *inner.reached.borrow() + 1;
    let mut watching = match EtcdWatch::open(inner, range_of(inner.layout.prefix.clone()), start).await {
        Ok(watching) => watching,
        Err(end) => return end,
    };
    let mut collector = TransactionCollector::default();
    loop {
        let answer = tokio::select! {
            answer = watching.next(inner) => answer,
            () = inner.nudge.notified() => {
                watching.ask_progress();
                continue;
            }
        };
        let taken = match answer {
            Ok(answer) => inner.take(&mut collector, answer).await,
            Err(end) => return end,
        };
        match taken {
            Ok(()) => inner.mark_healthy(|standing| matches!(standing, EtcdHealth::Silent(..))),
            Err(end) => return end,
        }
    }
}

impl EtcdCore {
    /// Publishes the events of an answer.
    async fn take(&self, collector: &mut TransactionCollector, answer: WatchResponse) -> Result<(), WatchEnd> {
        let header = answer.header.as_ref().map_or(0, |header| header.revision);
        let is_progress = answer.events.is_empty() && !answer.created && !answer.fragment;
        let (mut published, mut upto, mut freed) = (Vec::new(), if is_progress { header } else { 0 }, false);
        let mut changes = Vec::new();
        for (at, events) in collector.add(answer.events, answer.fragment) {
            events.iter().for_each(|event| self.update_damage(event));
            changes.extend(events.iter().filter_map(|event| change_of(&self.layout, event)).map(|change| (at, change)));
            freed |= events.iter().any(|event| event.kv.as_ref().is_some_and(|kv| self.layout.is_role(&kv.key)));
            let lost = self.index_only_deletions(at, &events).map_err(|error| self.stop_on_undecodable(&error))?;
            match self.events(at, events, TransactionView::Whole).await {
                Ok(mut events) => published.append(&mut events),
                Err(DecodeError::Compacted) => return Err(WatchEnd::Compacted(0)),
                Err(DecodeError::Failed(error)) => return Err(self.stop_on_undecodable(&error)),
            }
            for lost in lost {
                self.damage.remove(&lost.event.key);
                self.losses.add(lost.clone(), self.hub.marks().floor);
                published.push(lost);
            }
            upto = upto.max(at);
        }
        if upto > *self.reached.borrow() {
            let (last, floor) = (self.layout.numbering.boundary(upto), self.hub.marks().floor);
            self.hub.publish(published, StoreMarks { last, floor }, || {});
            self.accounts.advance(changes, || {
                self.reached.send_replace(upto);
            });
        }
        if freed {
            self.freed.notify_waiters();
        }
        Ok(())
    }

    /// Updates the known damage by an event. An object is removed from it once any server has deleted or rewritten the
    /// object, a malformed key once it is deleted, and all damage of a logical cluster once the cluster is swept.
    fn update_damage(&self, event: &proto::Event) {
        let Some(kv) = event.kv.as_ref() else { return };
        if let (Some(cluster), EventType::Delete) = (self.layout.swept(&kv.key), event.r#type()) {
            self.damage.remove_cluster(cluster);
        }
        if !self.layout.is_object(&kv.key) {
            return;
        }
        match (self.layout.parse(&kv.key), event.r#type()) {
            (Some(key), _) => self.damage.remove(&key),
            (None, EventType::Delete) => self.damage.remove(&self.layout.stand_in(&kv.key)),
            (None, EventType::Put) => self.note_key(&kv.key),
        }
    }

    /// Stops the store: an event that cannot be decoded cannot be skipped either.
    fn stop_on_undecodable(&self, error: &StoreError) -> WatchEnd {
        tracing::error!(%error, "an event from etcd cannot be decoded: the store stops taking writes");
        self.stop(failed(error.to_string()));
        self.hub.close();
        self.stopped.cancel();
        WatchEnd::Failed(EtcdFault::Refused(error.to_string()))
    }

    /// Continues at the latest revision after the history in between was compacted. Part of it may still exist, but its
    /// damage events do not: no watch may resume within it.
    async fn skip_to_latest(&self) -> Result<(), StoreError> {
        let now = self.current_revision().await?;
        tracing::warn!(now, "history was compacted before it was read, older watches must list again");
        let boundary = self.layout.numbering.boundary(now);
        self.hub.jump(StoreMarks { last: boundary, floor: boundary });
        self.reached.send_replace(now);
        self.leaps.notify_one();
        Ok(())
    }
}
