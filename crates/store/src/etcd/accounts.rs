//! Usage of logical clusters, counted by every server for itself: once from all objects there are, and from then on from the
//! events of whoever writes.
//!
//! Until the first count is done nothing is limited. A server holds its own writes to the limits exactly; what other servers on the same
//! etcd write at the same moment it learns a moment later, so that a limit may be exceeded by what they have under way.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use portolan_types::LogicalClusterId;
use tokio::sync::watch;

use super::{
    Inner, READ_PATIENCE,
    client::Fault,
    layout::range_of,
    proto::{self, RangeRequest, event::EventType},
};
use crate::{Account, StoreError, Usage};

/// Bytes of values that a page of the count has, about, and most keys.
const PAGE: (usize, i64) = (1 << 20, 1000);
/// Before a count that failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Most levels of logical clusters that a change is added to.
const MAX_LEVELS: usize = 4096;

/// A number of objects and bytes that may be below zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) objects: i64,
    pub(super) bytes: i64,
}

impl Change {
    /// Of one object, by the bytes of its value before and after.
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

    /// The growth in it, of objects and of bytes.
    fn growth(self) -> Self {
        Self { objects: self.objects.max(0), bytes: self.bytes.max(0) }
    }

    fn usage(self) -> Usage {
        Usage { objects: self.objects.max(0).cast_unsigned(), bytes: self.bytes.max(0).cast_unsigned() }
    }
}

/// The count of a logical cluster with all below it.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    stored: Change,
    /// Growth by writes that are under way.
    pending: Change,
    parent: Option<LogicalClusterId>,
}

#[derive(Default)]
struct Counts {
    by: HashMap<LogicalClusterId, Count>,
    /// The revision of etcd's that the count from all objects is of: events up to it are in that.
    from: i64,
}

impl Counts {
    fn each(&mut self, cluster: LogicalClusterId, mut change: impl FnMut(&mut Count)) {
        let mut next = Some(cluster);
        for _ in 0..MAX_LEVELS {
            let Some(at) = next else { return };
            let count = self.by.entry(at).or_default();
            change(count);
            next = count.parent;
        }
    }

    /// Usage of a logical cluster with the growth that is under way.
    fn usage(&self, cluster: LogicalClusterId) -> Usage {
        let Count { mut stored, pending, .. } = self.by.get(&cluster).copied().unwrap_or_default();
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

/// The counts of a server.
pub(super) struct Accounts {
    counts: Mutex<Counts>,
    is_counted: watch::Sender<bool>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self { counts: Mutex::default(), is_counted: watch::Sender::new(false) }
    }
}

/// Growth that is counted until the write is seen, or has failed.
pub(super) struct Pending<'a> {
    accounts: &'a Accounts,
    growth: Vec<(LogicalClusterId, Change)>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut counts = self.accounts.counts.lock();
        for (cluster, growth) in self.growth.drain(..) {
            counts.each(cluster, |count| count.pending.add(growth.negated()));
        }
    }
}

impl Accounts {
    /// Notes what a logical cluster is below.
    pub(super) fn know_parent(&self, cluster: LogicalClusterId, parent: LogicalClusterId) {
        self.counts.lock().link(cluster, parent);
    }

    /// Counts the growth of a write that is about to be sent.
    ///
    /// # Errors
    /// `OverLimit` when an account would grow beyond its limit.
    pub(super) fn charge(
        &self,
        accounts: &[Account],
        changes: impl Iterator<Item = (LogicalClusterId, Change)>,
    ) -> Result<Pending<'_>, StoreError> {
        let mut counts = self.counts.lock();
        for Account { cluster, parent, .. } in accounts {
            if let Some(parent) = parent {
                counts.link(*cluster, *parent);
            }
        }
        let mut by_cluster: HashMap<LogicalClusterId, Change> = HashMap::new();
        changes.for_each(|(cluster, change)| by_cluster.entry(cluster).or_default().add(change));
        let growth: Vec<_> = by_cluster.into_iter().map(|(cluster, change)| (cluster, change.growth())).collect();
        let held: Vec<Usage> = accounts.iter().map(|account| counts.usage(account.cluster)).collect();
        for (cluster, growth) in &growth {
            counts.each(*cluster, |count| count.pending.add(*growth));
        }
        let pending = Pending { accounts: self, growth };
        let is_counted = *self.is_counted.borrow();
        let mut checks = accounts.iter().zip(held).filter(|_| is_counted);
        let checked = checks.try_for_each(|(account, held)| account.check(held, counts.usage(account.cluster)));
        // The growth is taken back under the same lock.
        drop(counts);
        checked.map(|()| pending)
    }

    /// Takes in what events say, and lets `reached` tell how far all has come, as one step for whoever begins to count.
    pub(super) fn advance(&self, changes: Vec<(i64, LogicalClusterId, Change)>, reached: impl FnOnce()) {
        let mut counts = self.counts.lock();
        for (at, cluster, change) in changes {
            if at > counts.from {
                counts.each(cluster, |count| count.stored.add(change));
            }
        }
        reached();
    }

    /// Begins to count anew, from a revision that `reached` tells.
    fn begin(&self, reached: impl FnOnce() -> i64) -> i64 {
        let mut counts = self.counts.lock();
        self.is_counted.send_replace(false);
        counts.by.values_mut().for_each(|count| count.stored = Change::default());
        counts.from = reached();
        counts.from
    }

    /// Waits until all has been counted.
    pub(super) async fn usage(&self, cluster: LogicalClusterId) -> Option<Usage> {
        self.is_counted.subscribe().wait_for(|is_counted| *is_counted).await.ok()?;
        self.counts.lock().by.get(&cluster).map(|count| count.stored.usage())
    }
}

/// Returns the change by an event of an object; `None` for events of other keys.
pub(super) fn change_of(inner: &Inner, event: &proto::Event) -> Option<(LogicalClusterId, Change)> {
    let kv = event.kv.as_ref()?;
    let cluster = inner.layout.parse(&kv.key).filter(|key| key.cluster != LogicalClusterId::SYSTEM)?.cluster;
    let before = event.prev_kv.as_ref().map(|kv| kv.value.len());
    Some((
        cluster,
        match event.r#type() {
            // Of a state that is compacted no more is known than that it was there.
            EventType::Put => {
                let was_there = kv.create_revision != kv.mod_revision;
                Change::of(before.or_else(|| was_there.then_some(kv.value.len())), Some(kv.value.len()))
            }
            EventType::Delete => Change::of(before.or(Some(0)), None),
        },
    ))
}

/// Counts all objects, now and whenever events were missed, until the store is closed.
pub(super) async fn run(inner: Weak<Inner>) {
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

async fn count(inner: &Inner) {
    loop {
        let at = inner.accounts.begin(|| *inner.reached.borrow());
        match count_at(inner, at).await {
            Ok(()) => {
                inner.accounts.is_counted.send_replace(true);
                return;
            }
            Err(Fault::Compacted) => {}
            Err(fault) => {
                tracing::warn!(error = %fault, "what logical clusters store cannot be counted now");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn count_at(inner: &Inner, at: i64) -> Result<(), Fault> {
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
        let page = match inner.client.range(request, READ_PATIENCE).await {
            Err(Fault::LargeAnswer) if limit > 1 => {
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
                    let found = Change::of(None, Some(kv.value.len()));
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

/// The counts, shared with what runs in the background.
pub(super) type Leaps = Arc<tokio::sync::Notify>;

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(number: u64) -> LogicalClusterId {
        LogicalClusterId::new(number)
    }

    fn account(number: u64, parent: u64, objects: u64) -> Account {
        let most = Usage { objects, bytes: u64::MAX };
        Account { cluster: cluster(number), parent: Some(cluster(parent)), most }
    }

    fn one(number: u64) -> std::iter::Once<(LogicalClusterId, Change)> {
        std::iter::once((cluster(number), Change::of(None, Some(10))))
    }

    #[test]
    fn what_is_under_way_counts_until_it_is_seen_or_fails() {
        let accounts = Accounts::default();
        accounts.is_counted.send_replace(true);
        let limit = [account(3, 2, 9), account(2, 1, 2)];
        let first = accounts.charge(&limit, one(3)).unwrap();
        let second = accounts.charge(&limit, one(3)).unwrap();
        assert!(matches!(
            accounts.charge(&limit, one(3)).map(drop),
            Err(StoreError::OverLimit { cluster: of, .. }) if of == cluster(2)
        ));
        accounts.advance(vec![(5, cluster(3), Change::of(None, Some(10)))], || {});
        drop(first);
        drop(second);
        let third = accounts.charge(&limit[1..], one(2)).unwrap();
        accounts.advance(vec![(6, cluster(2), Change::of(None, Some(10)))], || {});
        drop(third);
        assert!(accounts.charge(&limit, one(3)).is_err());
        accounts.advance(vec![(7, cluster(3), Change::of(Some(10), None))], || {});
        assert!(accounts.charge(&limit, one(3)).is_ok());
    }

    #[test]
    fn events_up_to_the_count_are_in_it() {
        let accounts = Accounts::default();
        let event = |at| vec![(at, cluster(2), Change::of(None, Some(10)))];
        accounts.advance(event(4), || {});
        assert_eq!(accounts.begin(|| 4), 4);
        accounts.advance(event(4), || {});
        accounts.advance(event(5), || {});
        let counts = accounts.counts.lock();
        assert_eq!(counts.by[&cluster(2)].stored, Change { objects: 1, bytes: 10 });
    }
}
