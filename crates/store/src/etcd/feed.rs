//! The one watch over everything under the prefix: what it brings fills the hub, whoever wrote it.

use std::{sync::Arc, time::Duration};

use futures::stream;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{
    Inner, Standing,
    accounts::change_of,
    client::{Fault, Member},
    decode::{Collector, Undecoded, View},
    layout::range_of,
    proto::{
        self, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, event::EventType,
        watch_request::RequestUnion,
    },
};
use crate::{StoreError, kv::failed, read::Marks};

/// Before the watch is opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long etcd may take to open a watch.
const OPENING: Duration = Duration::from_secs(5);

/// A watch of etcd's.
pub(super) struct Watching {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    member: Member,
}

/// Why a watch ended.
pub(super) enum End {
    /// What follows its start is compacted, up to this revision; 0 where that is not known.
    Compacted(i64),
    Failed(Fault),
}

impl Watching {
    /// Watches the keys from `from` to `to`, from a revision on.
    pub(super) async fn open(inner: &Inner, (from, to): (Vec<u8>, Vec<u8>), start: i64) -> Result<Self, End> {
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
        // It has room for this one.
        let _ = requests.try_send(create);
        let outgoing =
            stream::unfold(receiver, |mut requests| async { requests.recv().await.map(|next| (next, requests)) });
        let (answers, member) = inner.client.watch(outgoing, OPENING).await.map_err(End::Failed)?;
        Ok(Self { requests, answers, member })
    }

    /// Asks how far it has come; the answer is one without events.
    pub(super) fn ask_progress(&self) {
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        // A full channel has such a request in it.
        let _ = self.requests.try_send(WatchRequest { request_union: Some(progress) });
    }

    /// The next answer. Nothing is lost when the wait is dropped.
    pub(super) async fn next(&mut self, inner: &Inner) -> Result<WatchResponse, End> {
        let answer = match self.answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                inner.client.leave(self.member);
                return Err(End::Failed(Fault::Unreachable("etcd ended the watch".into())));
            }
            Err(status) => return Err(End::Failed(inner.client.failed(self.member, &status))),
        };
        match (answer.canceled, answer.compact_revision) {
            (false, _) => Ok(answer),
            (true, 0) => {
                inner.client.leave(self.member);
                Err(End::Failed(Fault::Unreachable(format!("etcd ended the watch: {}", answer.cancel_reason))))
            }
            (true, compacted) => Err(End::Compacted(compacted)),
        }
    }
}

/// Follows everything until the store is closed.
pub(super) async fn run(inner: Arc<Inner>) {
    while !inner.stopped.is_cancelled() {
        let Some(end) = inner.stopped.run_until_cancelled(follow(&inner)).await else { return };
        let why = match end {
            End::Compacted(_) => match inner.leap().await {
                Ok(()) => continue,
                Err(error) => error.to_string(),
            },
            End::Failed(fault) => fault.to_string(),
        };
        inner.silent(why);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow(inner: &Inner) -> End {
    let start = *inner.reached.borrow() + 1;
    let mut watching = match Watching::open(inner, range_of(inner.layout.prefix.clone()), start).await {
        Ok(watching) => watching,
        Err(end) => return end,
    };
    let mut collector = Collector::default();
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
            Ok(()) => inner.sound(|standing| matches!(standing, Standing::Silent(..))),
            Err(end) => return end,
        }
    }
}

impl Inner {
    /// Makes visible what an answer brings.
    async fn take(&self, collector: &mut Collector, answer: WatchResponse) -> Result<(), End> {
        let header = answer.header.as_ref().map_or(0, |header| header.revision);
        let is_progress = answer.events.is_empty() && !answer.created && !answer.fragment;
        let (mut published, mut upto, mut freed) = (Vec::new(), if is_progress { header } else { 0 }, false);
        let mut changes = Vec::new();
        for (at, events) in collector.add(answer.events, answer.fragment) {
            events.iter().for_each(|event| self.look_at(event));
            changes
                .extend(events.iter().filter_map(|event| change_of(self, event)).map(|(of, change)| (at, of, change)));
            freed |= events.iter().any(|event| event.kv.as_ref().is_some_and(|kv| self.layout.is_role(&kv.key)));
            let lost = self.lost_from_indexes(at, &events).map_err(|error| self.undecodable(&error))?;
            match self.events(at, events, View::Whole).await {
                Ok(mut events) => published.append(&mut events),
                Err(Undecoded::Forgotten) => return Err(End::Compacted(0)),
                Err(Undecoded::Failed(error)) => return Err(self.undecodable(&error)),
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
            self.hub.publish(published, Marks { last, floor }, || {});
            self.accounts.advance(changes, || {
                self.reached.send_replace(upto);
            });
        }
        if freed {
            self.freed.notify_waiters();
        }
        Ok(())
    }

    /// What was damaged has been deleted, by whichever server, or was written anew. A key that names no object is told of as
    /// long as it is there. Nothing is left of a logical cluster that was swept.
    fn look_at(&self, event: &proto::Event) {
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

    /// An event that cannot be read cannot be left out either.
    fn undecodable(&self, error: &StoreError) -> End {
        tracing::error!(%error, "what etcd holds is no object: no write is taken any more");
        self.stop(failed(error.to_string()));
        self.hub.close();
        self.stopped.cancel();
        End::Failed(Fault::Refused(error.to_string()))
    }

    /// Goes on at the present when what lies between is forgotten. Some of it may still be there, but not what was lost in it: no
    /// watch may go on from within.
    async fn leap(&self) -> Result<(), StoreError> {
        let now = self.fresh().await?;
        tracing::warn!(now, "history was compacted before it was read: watches of what lies before begin anew");
        let boundary = self.layout.numbering.boundary(now);
        self.hub.jump(Marks { last: boundary, floor: boundary });
        self.reached.send_replace(now);
        self.leaps.notify_one();
        Ok(())
    }
}
