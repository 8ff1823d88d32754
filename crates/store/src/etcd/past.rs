//! What a watch missed, read from etcd's history; and compaction, which ends it.

use std::{sync::Arc, time::Duration};

use portolan_types::{BoxFuture, ResourceVersion};

use super::{
    Inner, READ_PATIENCE,
    client::Fault,
    decode::{Collector, Undecoded, View},
    feed::{End, Watching},
    layout::range_of,
    lost::may_concern,
    proto::WatchResponse,
};
use crate::{
    Event, StoreError, WatchScope,
    history::{CaughtUp, concerns},
    hub::{Hub, Past, Published},
};

/// Most events that one reading returns, give or take a transaction.
const MAX_EVENTS: usize = 1024;
/// Most bytes of objects that one reading returns, give or take an answer.
const MAX_BYTES: usize = 4 << 20;
/// How often etcd is asked whether all has come.
const ASK: Duration = Duration::from_millis(20);

impl Past for Arc<Inner> {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn catch_up<'a>(&'a self, scope: &'a WatchScope, after: u64) -> BoxFuture<'a, Result<CaughtUp, StoreError>> {
        Box::pin(async move {
            let read = tokio::time::timeout(READ_PATIENCE, self.history(scope, after)).await;
            read.unwrap_or_else(|_| Err(StoreError::Unreachable { why: "etcd's history does not come".into() }))
        })
    }
}

impl Inner {
    async fn history(&self, scope: &WatchScope, after: u64) -> Result<CaughtUp, StoreError> {
        let upto = *self.reached.borrow();
        self.hub.marks().check_kept(after)?;
        if let Some(error) = self.losses.after(scope, after) {
            return Err(error);
        }
        let start = self.layout.numbering.whole_at(after) + 1;
        let (prefix, view) = match scope {
            WatchScope::Resource(resource, cluster) => (self.layout.resource(resource, *cluster, None), View::Part),
            WatchScope::PlacedOn(_) => (self.layout.under(b'o', &[]), View::Whole),
        };
        let opened = Watching::open(self, range_of(prefix), start).await;
        let mut watching = match opened {
            Ok(watching) => watching,
            Err(end) => return Err(self.ended(end, start).await?),
        };
        watching.ask_progress();
        let mut found = Found { inner: self, scope, after, upto, view, events: Vec::new(), bytes: 0, at: start - 1 };
        let mut collector = Collector::default();
        while found.at < upto && found.events.len() < MAX_EVENTS && found.bytes < MAX_BYTES {
            match tokio::time::timeout(ASK, watching.next(self)).await {
                Err(_) => watching.ask_progress(),
                Ok(Ok(answer)) => found.take(&mut collector, answer).await?,
                Ok(Err(end)) => return Err(self.ended(end, start).await?),
            }
        }
        let at = self.layout.numbering.boundary(found.at).max(after);
        Ok(CaughtUp { events: found.events, upto: at })
    }

    async fn ended(&self, end: End, start: i64) -> Result<StoreError, StoreError> {
        match end {
            End::Compacted(_) => self.forgotten(start).await,
            End::Failed(fault) => Ok(self.read_fault(fault)),
        }
    }

    /// The revision of etcd's up to which history is forgotten; 0 when none is. Etcd tells it only to who asks for older.
    pub(super) async fn compacted(&self) -> Result<i64, StoreError> {
        let nothing = range_of(self.layout.under(b'n', &[]));
        let probe = async {
            let mut watching = Watching::open(self, nothing, 1).await?;
            loop {
                watching.ask_progress();
                match tokio::time::timeout(ASK, watching.next(self)).await {
                    Ok(Ok(answer)) if !answer.created => return Ok(0),
                    Ok(Ok(_)) | Err(_) => {}
                    Ok(Err(end)) => return Err(end),
                }
            }
        };
        match tokio::time::timeout(READ_PATIENCE, probe).await {
            Ok(Ok(none)) => Ok(none),
            Ok(Err(End::Compacted(compacted))) => Ok(compacted),
            Ok(Err(End::Failed(fault))) => Err(self.read_fault(fault)),
            Err(_) => Err(StoreError::Unreachable { why: "etcd does not tell what it keeps".into() }),
        }
    }

    /// Forgets history up to a revision, or up to what this server or another one holds.
    pub(super) async fn compact(&self, upto: ResourceVersion) -> Result<(), StoreError> {
        self.check_open()?;
        self.happened(upto).await?;
        let upto = self.held(self.holds.bound(upto.get())).await?;
        let at = self.layout.numbering.whole_at(upto);
        if at < 1 || self.layout.numbering.boundary(at) <= self.hub.marks().floor {
            return Ok(());
        }
        match self.client.compact(at, self.patience).await {
            Ok(()) => self.hub.raise_floor(self.layout.numbering.boundary(at)),
            // Another server was faster.
            Err(Fault::Compacted) => self.hub.raise_floor(self.layout.numbering.boundary(self.compacted().await?)),
            Err(fault) => return Err(self.read_fault(fault)),
        }
        Ok(())
    }
}

/// Events of the past, so far.
struct Found<'a> {
    inner: &'a Inner,
    scope: &'a WatchScope,
    after: u64,
    /// The feed has taken everything up to this transaction. Of what comes later nobody knows yet whether anything was lost.
    upto: i64,
    view: View,
    events: Vec<Arc<Event>>,
    bytes: usize,
    /// Everything up to this transaction is there.
    at: i64,
}

impl Found<'_> {
    async fn take(&mut self, collector: &mut Collector, answer: WatchResponse) -> Result<(), StoreError> {
        if answer.events.is_empty() && !answer.created && !answer.fragment {
            self.at = self.at.max(answer.header.as_ref().map_or(0, |header| header.revision).min(self.upto));
        }
        for (at, events) in collector.add(answer.events, answer.fragment) {
            if at > self.upto {
                self.at = self.at.max(self.upto);
                return Ok(());
            }
            let events = match self.inner.events(at, events, self.view).await {
                Ok(events) => events,
                Err(Undecoded::Forgotten) => return Err(self.inner.forgotten(at).await?),
                Err(Undecoded::Failed(error)) => return Err(error),
            };
            for Published { event, lost, .. } in events.into_iter().filter(|one| one.event.revision.get() > self.after)
            {
                if let Some(why) = lost.filter(|_| may_concern(self.scope, &event)) {
                    return Err(StoreError::Damaged { key: event.key.clone(), why });
                }
                if lost.is_none() && concerns(self.scope, &event) {
                    self.bytes += event.record.body().len();
                    self.events.push(event);
                }
            }
            self.at = self.at.max(at);
        }
        Ok(())
    }
}
