//! Usage of logical clusters, counted by each server: once from all objects, and then from the events of all writers.
//!
//! The counted revision is held, so that no server compacts it meanwhile; a failed count is retried after a pause. The
//! count of a logical cluster is dropped when its last object has been removed.
//!
//! Nothing is limited before the first count is done. A server applies the limits to its own writes exactly. It learns
//! of the writes of other servers a moment later, so that a limit may be exceeded by their writes in flight.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use portolan_types::{BoxFuture, LogicalClusterId};
use tokio::sync::watch;

use super::{
    EtcdCore, READ_TIMEOUT,
    client::EtcdFault,
    layout::{EtcdLayout, range_of},
    proto::{self, RangeRequest, event::EventType},
};
use crate::api::{AccountLimit, StoreError, StoredUsage};

/// Approximate bytes of values in a page of the count, and most keys of a page.
const PAGE: (usize, i64) = (1 << 20, 1000);
/// Pause after a failed count.
const PAUSE: Duration = Duration::from_secs(1);
/// Most ancestors that a change is added to.
const MAX_ANCESTORS: usize = 4096;

/// Number of objects and bytes that may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountDelta {
    pub(super) objects: i64,
    pub(super) bytes: i64,
}

impl CountDelta {
    /// Returns the change by one object, from the bytes of its value before and after.
    pub(super) fn of(before: Option<usize>, after: Option<usize>) -> Self {
        let signed = |bytes: Option<usize>| i64::try_from(bytes.unwrap_or(0)).unwrap_or(i64::MAX);
        Self {
            objects: i64::from(after.is_some()) - i64::from(before.is_some()),
            bytes: signed(after) - signed(before),
        }
    }

    fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }

    fn negated(self) -> Self {
        Self { objects: -self.objects, bytes: -self.bytes }
    }

    /// Returns its positive part.
    fn growth(self) -> Self {
        Self { objects: self.objects.max(0), bytes: self.bytes.max(0) }
    }

    fn usage(self) -> StoredUsage {
        StoredUsage { objects: self.objects.max(0).cast_unsigned(), bytes: self.bytes.max(0).cast_unsigned() }
    }
}

/// Count of a logical cluster and its descendants.
#[derive(Clone, Copy, Debug, Default)]
struct AccountCount {
    stored: CountDelta,
    /// Growth by writes in flight.
    pending: CountDelta,
    parent: Option<LogicalClusterId>,
}

#[derive(Default)]
struct AccountCounts {
    by: HashMap<LogicalClusterId, AccountCount>,
    /// etcd revision of the count from all objects, which includes all events up to it.
    from: i64,
}

impl AccountCounts {
    fn each(&mut self, cluster: LogicalClusterId, mut change: impl FnMut(&mut AccountCount)) {
        let mut next = Some(cluster);
        for _ in 0..MAX_ANCESTORS {
            let Some(at) = next else { return };
            let count = self.by.entry(at).or_default();
            change(count);
            next = count.parent;
        }
    }

    /// Drops the count of a deleted logical cluster, and its remainder in the counts of its ancestors.
    fn remove(&mut self, cluster: LogicalClusterId) {
        let Some(count) = self.by.remove(&cluster) else { return };
        if let Some(parent) = count.parent {
            self.each(parent, |ancestor| {
                ancestor.stored.add(count.stored.negated());
                ancestor.pending.add(count.pending.negated());
            });
        }
    }

    /// Returns the usage of a logical cluster, including growth by writes in flight.
    fn usage(&self, cluster: LogicalClusterId) -> StoredUsage {
        let AccountCount { mut stored, pending, .. } = self.by.get(&cluster).copied().unwrap_or_default();
        stored.add(pending);
        stored.usage()
    }

    fn link(&mut self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        let count = self.by.entry(cluster).or_default();
        if count.parent.is_some() {
            return;
        }
        count.parent = Some(parent);
        let (stored, pending) = (count.stored, count.pending);
        self.each(parent, |above| {
            above.stored.add(stored);
            above.pending.add(pending);
        });
    }
}

/// Usage counts of a server.
pub(super) struct UsageCounter {
    counts: Mutex<AccountCounts>,
    is_counted: watch::Sender<bool>,
}

impl Default for UsageCounter {
    fn default() -> Self {
        Self { counts: Mutex::default(), is_counted: watch::Sender::new(false) }
    }
}

/// Growth by a write in flight, counted until the write is seen or has failed.
pub(super) struct PendingGrowth<'a> {
    accounts: &'a UsageCounter,
    growth: Vec<(LogicalClusterId, CountDelta)>,
}

impl Drop for PendingGrowth<'_> {
    fn drop(&mut self) {
        let mut counts = self.accounts.counts.lock();
        for (cluster, growth) in self.growth.drain(..) {
            // The growth of a deleted logical cluster was dropped with its count.
            if counts.by.contains_key(&cluster) {
                counts.each(cluster, |count| count.pending.add(growth.negated()));
            }
        }
    }
}

impl UsageCounter {
    /// Records the parent of a logical cluster.
    pub(super) fn record_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        self.counts.lock().link(cluster, parent);
    }

    /// Counts the growth by a write before it is sent.
    ///
    /// # Errors
    /// `OverLimit` if an account would grow beyond its limit.
    pub(super) fn charge(
        &self,
        accounts: &[AccountLimit],
        changes: impl Iterator<Item = (LogicalClusterId, CountDelta)>,
    ) -> Result<PendingGrowth<'_>, StoreError> {
        let mut counts = self.counts.lock();
        for AccountLimit { cluster, parent, .. } in accounts {
            if let Some(parent) = parent {
                counts.link(*cluster, *parent);
            }
        }
        let mut by_cluster: HashMap<LogicalClusterId, CountDelta> = HashMap::new();
        changes.for_each(|(cluster, change)| by_cluster.entry(cluster).or_default().add(change));
        let growth: Vec<_> = by_cluster.into_iter().map(|(cluster, change)| (cluster, change.growth())).collect();
        let held: Vec<StoredUsage> = accounts.iter().map(|account| counts.usage(account.cluster)).collect();
        for (cluster, growth) in &growth {
            counts.each(*cluster, |count| count.pending.add(*growth));
        }
        let pending = PendingGrowth { accounts: self, growth };
        let is_counted = *self.is_counted.borrow();
        let mut checks = accounts.iter().zip(held).filter(|_| is_counted);
        let checked = checks.try_for_each(|(account, held)| account.check(held, counts.usage(account.cluster)));
        // Dropping the growth takes the same lock.
        drop(counts);
        checked.map(|()| pending)
    }

    /// Applies events and calls `reached`, which publishes their revision, as one step for a count that begins.
    pub(super) fn advance(&self, changes: Vec<(i64, UsageChange)>, reached: impl FnOnce()) {
        let mut counts = self.counts.lock();
        for (at, change) in changes {
            match change {
                UsageChange::Object(cluster, change) if at > counts.from => {
                    counts.each(cluster, |count| count.stored.add(change));
                }
                UsageChange::Object(..) => {}
                UsageChange::Gone(cluster) => counts.remove(cluster),
            }
        }
        reached();
    }

    /// Drops the counts of deleted logical clusters.
    pub(super) fn remove(&self, gone: &[LogicalClusterId]) {
        let mut counts = self.counts.lock();
        gone.iter().for_each(|cluster| counts.remove(*cluster));
    }

    /// Begins a count at the revision that `reached` returns.
    fn begin(&self, reached: impl FnOnce() -> i64) -> i64 {
        let mut counts = self.counts.lock();
        self.is_counted.send_replace(false);
        counts.by.values_mut().for_each(|count| count.stored = CountDelta::default());
        counts.from = reached();
        counts.from
    }

    /// Returns the usage of a logical cluster. Waits for the first count.
    pub(super) async fn usage(&self, cluster: LogicalClusterId) -> Option<StoredUsage> {
        self.is_counted.subscribe().wait_for(|is_counted| *is_counted).await.ok()?;
        self.counts.lock().by.get(&cluster).map(|count| count.stored.usage())
    }
}

/// Change of usage by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageChange {
    /// An object of a logical cluster was written.
    Object(LogicalClusterId, CountDelta),
    /// All objects of a deleted logical cluster have been removed.
    Gone(LogicalClusterId),
}

/// Returns the change by an event; `None` for events that change no usage.
pub(super) fn change_of(layout: &EtcdLayout, event: &proto::Event) -> Option<UsageChange> {
    let kv = event.kv.as_ref()?;
    if let (Some(cluster), EventType::Delete) = (layout.swept(&kv.key), event.r#type()) {
        return Some(UsageChange::Gone(cluster));
    }
    let cluster = layout.parse(&kv.key).filter(|key| key.cluster != LogicalClusterId::SYSTEM)?.cluster;
    let before = event.prev_kv.as_ref().map(|kv| kv.value.len());
    let change = match event.r#type() {
        // Of a compacted state, only its existence is known.
        EventType::Put => {
            let was_there = kv.create_revision != kv.mod_revision;
            CountDelta::of(before.or_else(|| was_there.then_some(kv.value.len())), Some(kv.value.len()))
        }
        EventType::Delete => CountDelta::of(before.or(Some(0)), None),
    };
    Some(UsageChange::Object(cluster, change))
}

/// Counts all objects, at first and after missed events, until the store is closed.
pub(super) async fn run(inner: Weak<EtcdCore>) {
    while let Some(inner) = inner.upgrade() {
        let Some(()) = inner.stopped.clone().run_until_cancelled(count(&inner)).await else { return };
        let stopped = inner.stopped.clone();
        let leaps = inner.leaps.clone();
        drop(inner);
        if stopped.run_until_cancelled(leaps.notified()).await.is_none() {
            return;
        }
    }
}

async fn count(inner: &Arc<EtcdCore>) {
    until_counted(|failures| Box::pin(count_once(inner, failures > 0))).await;
    inner.accounts.is_counted.send_replace(true);
}

/// Counts all objects at one revision, which is held: by this server, and if `tells_others` by all servers. That takes
/// writes to etcd, so only a count that failed before asks for it.
async fn count_once(inner: &Arc<EtcdCore>, tells_others: bool) -> Result<(), EtcdFault> {
    // The counted revision is the held one, or a later one.
    let hold = inner.holds.hold(|| inner.hub.marks().last);
    let _told = if tells_others { Some(inner.announce_hold(hold.revision()).await) } else { None };
    let at = inner.accounts.begin(|| *inner.reached.borrow());
    count_at(inner, at).await?;
    let gone = inner.deleted_clusters().await.map_err(|error| EtcdFault::Refused(error.to_string()))?;
    inner.accounts.remove(&gone);
    Ok(())
}

/// Retries a count until it succeeds, with a pause after each failure.
async fn until_counted<'a>(mut attempt: impl FnMut(u32) -> BoxFuture<'a, Result<(), EtcdFault>>) {
    let mut failures = 0;
    while let Err(fault) = attempt(failures).await {
        failures = failures.saturating_add(1);
        match fault {
            EtcdFault::Compacted => tracing::debug!("the counted revision was compacted"),
            fault => tracing::warn!(error = %fault, "counting the objects of logical clusters failed; retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn count_at(inner: &EtcdCore, at: i64) -> Result<(), EtcdFault> {
    let (mut from, to) = range_of(inner.layout.under(b'o', &[]));
    let mut limit = 64;
    loop {
        let request = RangeRequest {
            key: from.clone().into(),
            range_end: to.clone().into(),
            limit,
            revision: at,
            ..RangeRequest::default()
        };
        let page = match inner.client.range(request, READ_TIMEOUT).await {
            Err(EtcdFault::LargeAnswer) if limit > 1 => {
                limit /= 2;
                continue;
            }
            page => page?,
        };
        let mut bytes = 0;
        {
            let mut counts = inner.accounts.counts.lock();
            for kv in &page.kvs {
                bytes += kv.value.len();
                if let Some(key) = inner.layout.parse(&kv.key).filter(|key| key.cluster != LogicalClusterId::SYSTEM) {
                    let found = CountDelta::of(None, Some(kv.value.len()));
                    counts.each(key.cluster, |count| count.stored.add(found));
                }
            }
        }
        let (Some(last), true) = (page.kvs.last(), page.more) else { return Ok(()) };
        from = super::layout::after(last.key.to_vec());
        let each = (bytes / page.kvs.len()).max(1);
        limit = i64::try_from(PAGE.0 / each).unwrap_or(PAGE.1).clamp(1, PAGE.1);
    }
}

/// Signal that events were missed, so that all objects must be counted again.
pub(super) type MissedEvents = Arc<tokio::sync::Notify>;

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(number: u64) -> LogicalClusterId {
        LogicalClusterId::new(number)
    }

    fn account(number: u64, parent: u64, objects: u64) -> AccountLimit {
        let most = StoredUsage { objects, bytes: u64::MAX };
        AccountLimit { cluster: cluster(number), parent: Some(cluster(parent)), most }
    }

    fn one(number: u64) -> std::iter::Once<(LogicalClusterId, CountDelta)> {
        std::iter::once((cluster(number), CountDelta::of(None, Some(10))))
    }

    fn grown(number: u64) -> UsageChange {
        UsageChange::Object(cluster(number), CountDelta::of(None, Some(10)))
    }

    #[test]
    fn writes_in_flight_count_until_they_are_seen_or_fail() {
        let accounts = UsageCounter::default();
        accounts.is_counted.send_replace(true);
        let limit = [account(3, 2, 9), account(2, 1, 2)];
        let first = accounts.charge(&limit, one(3)).unwrap();
        let second = accounts.charge(&limit, one(3)).unwrap();
        assert!(matches!(
            accounts.charge(&limit, one(3)).map(drop),
            Err(StoreError::OverLimit { cluster: of, .. }) if of == cluster(2)
        ));
        accounts.advance(vec![(5, grown(3))], || {});
        drop(first);
        drop(second);
        let third = accounts.charge(&limit[1..], one(2)).unwrap();
        accounts.advance(vec![(6, grown(2))], || {});
        drop(third);
        assert!(accounts.charge(&limit, one(3)).is_err());
        accounts.advance(vec![(7, UsageChange::Object(cluster(3), CountDelta::of(Some(10), None)))], || {});
        assert!(accounts.charge(&limit, one(3)).is_ok());
    }

    #[test]
    fn events_up_to_the_count_are_in_it() {
        let accounts = UsageCounter::default();
        let event = |at| vec![(at, grown(2))];
        accounts.advance(event(4), || {});
        assert_eq!(accounts.begin(|| 4), 4);
        accounts.advance(event(4), || {});
        accounts.advance(event(5), || {});
        let counts = accounts.counts.lock();
        assert_eq!(counts.by[&cluster(2)].stored, CountDelta { objects: 1, bytes: 10 });
    }

    #[test]
    fn the_count_of_a_deleted_logical_cluster_goes_with_it() {
        let accounts = UsageCounter::default();
        accounts.record_parent(cluster(3), cluster(2));
        accounts.advance(vec![(5, grown(3)), (6, grown(3)), (7, grown(2))], || {});
        let under_way = accounts.charge(&[], one(3)).unwrap();
        // One object was removed in its sight, and the other one while it was not counting.
        let removed = UsageChange::Object(cluster(3), CountDelta::of(Some(10), None));
        accounts.advance(vec![(8, removed), (9, UsageChange::Gone(cluster(3)))], || {});
        drop(under_way);
        let counts = accounts.counts.lock();
        assert!(!counts.by.contains_key(&cluster(3)), "nothing is kept of it");
        let left = counts.by[&cluster(2)];
        assert_eq!((left.stored, left.pending), (CountDelta { objects: 1, bytes: 10 }, CountDelta::default()));
    }

    #[test]
    fn the_end_of_a_sweep_is_the_end_of_a_logical_cluster() {
        let layout =
            EtcdLayout { prefix: b"/p/".to_vec(), numbering: crate::etcd::layout::RevisionMapping { base: 0 } };
        let event = |key: Vec<u8>, kind: EventType| proto::Event {
            r#type: kind.into(),
            kv: Some(proto::KeyValue { key: key.into(), ..proto::KeyValue::default() }),
            prev_kv: None,
        };
        let of = |event| change_of(&layout, &event);
        assert_eq!(of(event(layout.sweep(cluster(3)), EventType::Delete)), Some(UsageChange::Gone(cluster(3))));
        assert_eq!(of(event(layout.sweep(cluster(3)), EventType::Put)), None, "its objects are still there");
        assert_eq!(of(event(layout.tombstone(cluster(3)), EventType::Put)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_fails_is_tried_again_after_a_pause() {
        for fault in [|| EtcdFault::Compacted, || EtcdFault::Unknown("no answer".into())] {
            let (began, mut attempts) = (tokio::time::Instant::now(), 0);
            until_counted(|failures| {
                assert_eq!(failures, attempts);
                attempts += 1;
                Box::pin(std::future::ready(if attempts < 4 { Err(fault()) } else { Ok(()) }))
            })
            .await;
            assert_eq!((attempts, began.elapsed()), (4, 3 * PAUSE));
        }
    }
}
