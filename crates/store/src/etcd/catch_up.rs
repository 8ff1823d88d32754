//! History that a watch missed, read from etcd; and compaction, which removes it.

use std::{sync::Arc, time::Duration};

use portolan_types::{BoxFuture, ResourceVersion};

use super::{
    EtcdCore, READ_TIMEOUT,
    client::EtcdFault,
    decode::{DecodeError, TransactionCollector, TransactionView},
    discarded::may_belong_to_watch,
    feed::{EtcdWatch, WatchEnd},
    layout::range_of,
    proto::WatchResponse,
};
use crate::{
    api::{Event, StoreError, WatchScope},
    read::history::{CatchUpPage, belongs_to_watch},
    watch::{EventSource, Hub, PublishedEvent},
};

/// Most events of one read; the last transaction may exceed it.
const MAX_EVENTS: usize = 1024;
/// Most bytes of one read; the last answer may exceed it.
const MAX_BYTES: usize = 4 << 20;
/// Interval of progress requests.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(20);

impl EventSource for Arc<EtcdCore> {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn catch_up<'a>(&'a self, scope: &'a WatchScope, after: u64) -> BoxFuture<'a, Result<CatchUpPage, StoreError>> {
        Box::pin(async move {
            let read = tokio::time::timeout(READ_TIMEOUT, self.history(scope, after)).await;
            read.unwrap_or_else(|_| Err(StoreError::Unreachable { why: "etcd's history does not come".into() }))
        })
    }
}

impl EtcdCore {
    async fn history(&self, scope: &WatchScope, after: u64) -> Result<CatchUpPage, StoreError> {
        let upto = *self.reached.borrow();
        self.hub.marks().check_kept(after)?;
        if let Some(error) = self.losses.after(scope, after) {
            return Err(error);
        }
        let start = self.layout.numbering.whole_at(after) + 1;
        let (prefix, view) = match scope {
            WatchScope::Resource(resource, cluster) => {
                (self.layout.resource(resource, *cluster, None), TransactionView::Part)
            }
            WatchScope::PlacedOn(_) | WatchScope::All => (self.layout.under(b'o', &[]), TransactionView::Whole),
        };
        let opened = EtcdWatch::open(self, range_of(prefix), start).await;
        let mut watching = match opened {
            Ok(watching) => watching,
            Err(end) => return Err(self.end_error(end, start).await?),
        };
        watching.ask_progress();
        let mut found =
            HistoryReader { inner: self, scope, after, upto, view, events: Vec::new(), bytes: 0, at: start - 1 };
        let mut collector = TransactionCollector::default();
        while found.at < upto && found.events.len() < MAX_EVENTS && found.bytes < MAX_BYTES {
            match tokio::time::timeout(PROGRESS_INTERVAL, watching.next(self)).await {
                Err(_) => watching.ask_progress(),
                Ok(Ok(answer)) => found.take(&mut collector, answer).await?,
                Ok(Err(end)) => return Err(self.end_error(end, start).await?),
            }
        }
        let at = self.layout.numbering.boundary(found.at).max(after);
        Ok(CatchUpPage { events: found.events, upto: at })
    }

    async fn end_error(&self, end: WatchEnd, start: i64) -> Result<StoreError, StoreError> {
        match end {
            WatchEnd::Compacted(_) => self.compacted_error(start).await,
            WatchEnd::Failed(fault) => Ok(self.read_fault(fault)),
        }
    }

    /// Returns the etcd revision up to which history is compacted; 0 if none is. etcd tells it only to a watch of an
    /// older revision.
    pub(super) async fn compacted(&self) -> Result<i64, StoreError> {
        let nothing = range_of(self.layout.under(b'n', &[]));
        let probe = async {
            let mut watching = EtcdWatch::open(self, nothing, 1).await?;
            loop {
                watching.ask_progress();
                match tokio::time::timeout(PROGRESS_INTERVAL, watching.next(self)).await {
                    Ok(Ok(answer)) if !answer.created => return Ok(0),
                    Ok(Ok(_)) | Err(_) => {}
                    Ok(Err(end)) => return Err(end),
                }
            }
        };
        match tokio::time::timeout(READ_TIMEOUT, probe).await {
            Ok(Ok(none)) => Ok(none),
            Ok(Err(WatchEnd::Compacted(compacted))) => Ok(compacted),
            Ok(Err(WatchEnd::Failed(fault))) => Err(self.read_fault(fault)),
            Err(_) => Err(StoreError::Unreachable { why: "etcd does not tell what it keeps".into() }),
        }
    }

    /// Compacts history up to a revision, or up to the oldest hold of any server.
    pub(super) async fn compact(&self, upto: ResourceVersion) -> Result<(), StoreError> {
        self.check_open()?;
        self.wait_until_happened(upto).await?;
        let upto = self.held(self.holds.bound(upto.get())).await?;
        let at = self.layout.numbering.whole_at(upto);
        if at < 1 || self.layout.numbering.boundary(at) <= self.hub.marks().floor {
            return Ok(());
        }
        match self.client.compact(at, self.patience).await {
            Ok(()) => self.hub.raise_floor(self.layout.numbering.boundary(at)),
            // Another server was faster.
            Err(EtcdFault::Compacted) => self.hub.raise_floor(self.layout.numbering.boundary(self.compacted().await?)),
            Err(fault) => return Err(self.read_fault(fault)),
        }
        Ok(())
    }
}

/// Events of a history read so far.
struct HistoryReader<'a> {
    inner: &'a EtcdCore,
    scope: &'a WatchScope,
    after: u64,
    /// Transaction up to which the feed has read. Damage in later ones is not known yet.
    upto: i64,
    view: TransactionView,
    events: Vec<Arc<Event>>,
    bytes: usize,
    /// Transaction up to which everything has been read.
    at: i64,
}

impl HistoryReader<'_> {
    async fn take(&mut self, collector: &mut TransactionCollector, answer: WatchResponse) -> Result<(), StoreError> {
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
                Err(DecodeError::Compacted) => return Err(self.inner.compacted_error(at).await?),
                Err(DecodeError::Failed(error)) => return Err(error),
            };
            for PublishedEvent { event, lost, .. } in
                events.into_iter().filter(|one| one.event.revision.get() > self.after)
            {
                if let Some(why) = lost.filter(|_| may_belong_to_watch(self.scope, &event)) {
                    return Err(StoreError::Damaged { key: event.key.clone(), why });
                }
                if lost.is_none() && belongs_to_watch(self.scope, &event) {
                    self.bytes += event.record.body().len();
                    self.events.push(event);
                }
            }
            self.at = self.at.max(at);
        }
        Ok(())
    }
}
