//! Objects in etcd that cannot be read: their index entries, and the events of their deletion.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use portolan_types::{LogicalClusterId, ObjectKey, Record};
use serde_json::json;

use super::{
    EtcdCore,
    layout::{after, range_of},
    proto::{self, event::EventType},
};
use crate::{
    api::{ChangeKind, Event, StoreError, WatchScope, damage::Damage},
    layout::keys::unescaped,
    read::{
        history::belongs_to_watch,
        state::{as_revision, revision},
    },
    watch::PublishedEvent,
};

/// Index keys that are read at once.
const PAGE: i64 = 10_000;
/// Most deletions of damaged objects that are remembered.
const REMEMBERED: usize = 10_000;

/// Recent deletions reported by [`EtcdCore::index_only_deletions`]. The history of objects lacks them, so a watch that
/// catches up gets them from here. Deletions before the start of this server are unknown: watchers of that time learn
/// of them with the next list.
#[derive(Default)]
pub(super) struct DiscardLog(Mutex<DiscardLogState>);

#[derive(Default)]
struct DiscardLogState {
    all: VecDeque<PublishedEvent>,
    /// Revision up to which some may be missing: a watch from before it must list again.
    forgotten: u64,
}

impl DiscardLog {
    pub(super) fn add(&self, lost: PublishedEvent, floor: u64) {
        let mut remembered = self.0.lock();
        let DiscardLogState { all, forgotten } = &mut *remembered;
        while all.pop_front_if(|lost| lost.boundary <= floor).is_some() {}
        if all.len() == REMEMBERED
            && let Some(oldest) = all.pop_front()
        {
            *forgotten = oldest.boundary.max(*forgotten);
        }
        all.push_back(lost);
    }

    /// Returns the error for a watch that has received all events up to `after`, if there is one.
    pub(super) fn after(&self, scope: &WatchScope, after: u64) -> Option<StoreError> {
        let remembered = self.0.lock();
        if after < remembered.forgotten {
            return Some(StoreError::Compacted {
                asked: as_revision(after),
                oldest: as_revision(remembered.forgotten),
            });
        }
        let mut new = remembered.all.iter().filter(|lost| lost.boundary > after);
        let PublishedEvent { event, lost, .. } = new.find(|lost| may_belong_to_watch(scope, &lost.event))?;
        lost.map(|why| StoreError::Damaged { key: event.key.clone(), why })
    }
}

/// Returns true if an event of an unreadable object belongs to a watch, or may do so.
pub(super) fn may_belong_to_watch(scope: &WatchScope, event: &Event) -> bool {
    matches!(scope, WatchScope::PlacedOn(_)) || belongs_to_watch(scope, event)
}

impl EtcdCore {
    /// Returns the index keys that name any of these objects of a logical cluster. The objects' own lists cannot be
    /// read, so the whole indexes are read.
    pub(super) async fn index_keys_of(
        &self,
        cluster: LogicalClusterId,
        objects: &[ObjectKey],
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut found = Vec::new();
        if objects.is_empty() {
            return Ok(found);
        }
        let addresses: Vec<Vec<u8>> = objects.iter().map(|key| self.layout.object(key)).collect();
        let addresses: HashSet<&[u8]> = addresses.iter().map(|key| self.layout.address_in(key)).collect();
        for prefix in [self.layout.owned_in(cluster), self.layout.under(b'p', &[])] {
            let start = prefix.len();
            let (mut from, to) = range_of(prefix);
            loop {
                let page = self.key_page(from, to.clone(), PAGE).await?;
                let keys = page.kvs.iter().map(|kv| kv.key.to_vec());
                let names = |key: &Vec<u8>| unescaped(&key[start..]).is_some_and(|(_, rest)| addresses.contains(rest));
                found.extend(keys.filter(names));
                match page.kvs.last().filter(|_| page.more) {
                    Some(last) => from = after(last.key.to_vec()),
                    None => break,
                }
            }
        }
        Ok(found)
    }

    /// Builds events for deleted objects that were missing and only named in indexes: etcd has no event of such an
    /// object itself.
    pub(super) fn index_only_deletions(
        &self,
        at: i64,
        all: &[proto::Event],
    ) -> Result<Vec<PublishedEvent>, StoreError> {
        let kvs = |of| all.iter().filter(move |event| of == event.r#type()).filter_map(|event| event.kv.as_ref());
        let entries = kvs(EventType::Delete).filter_map(|kv| self.layout.address_indexed(&kv.key));
        let mut gone: BTreeSet<&[u8]> = entries.collect();
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        for kv in kvs(EventType::Delete).chain(kvs(EventType::Put)).filter(|kv| self.layout.is_object(&kv.key)) {
            gone.remove(self.layout.address_in(&kv.key));
        }
        let keys = gone.into_iter().filter_map(|address| self.layout.parse(&self.layout.under(b'o', &[address])));
        keys.map(|key| self.unreadable_event((at, 0), all, key, Damage::Missing)).collect()
    }

    /// Builds the event of a write whose object cannot be read. Index entries deleted with it tell its placement.
    pub(super) fn unreadable_event(
        &self,
        (at, remaining): (i64, u64),
        all: &[proto::Event],
        key: ObjectKey,
        why: Damage,
    ) -> Result<PublishedEvent, StoreError> {
        let (object, prefix) = (self.layout.object(&key), self.layout.under(b'p', &[]));
        let placed = all.iter().filter_map(|event| {
            let (uid, rest) = unescaped(event.kv.as_ref()?.key.strip_prefix(&*prefix)?)?;
            (rest == self.layout.address_in(&object)).then_some(uid)
        });
        let mut record = Record::of(&json!({}));
        record.header.placed_on = placed.collect();
        let revision = revision(self.layout.numbering.number(at, remaining))?;
        let event = Event { revision, change: ChangeKind::Deleted, key, record: Arc::new(record), previous: None };
        Ok(PublishedEvent { event: Arc::new(event), boundary: self.layout.numbering.boundary(at), lost: Some(why) })
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, ResourceVersion};

    use super::*;

    fn discarded_event(number: u64) -> PublishedEvent {
        let pods = GroupResource::new("", "pods");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, pods, format!("n{number}").parse().unwrap());
        let (revision, record) = (ResourceVersion::new(number).unwrap(), Arc::new(Record::of(&json!({}))));
        let event = Arc::new(Event { revision, change: ChangeKind::Deleted, key, record, previous: None });
        PublishedEvent { event, boundary: number, lost: Some(Damage::Missing) }
    }

    #[test]
    fn a_watch_from_before_the_remembered_losses_starts_over() {
        let (losses, scope) = (DiscardLog::default(), WatchScope::Resource(GroupResource::new("", "pods"), None));
        let last = REMEMBERED as u64 + 2;
        (1..=last).for_each(|number| losses.add(discarded_event(number), 0));
        for (after, is_remembered) in [(1, false), (2, true), (last - 1, true)] {
            let told = losses.after(&scope, after);
            assert_eq!(matches!(told, Some(StoreError::Damaged { .. })), is_remembered, "after {after}: {told:?}");
            assert_eq!(matches!(told, Some(StoreError::Compacted { .. })), !is_remembered, "after {after}: {told:?}");
        }
        assert!(losses.after(&scope, last).is_none());
        losses.add(discarded_event(last + 1), last);
        assert_eq!(losses.0.lock().all.len(), 1, "what history has no more is not remembered");
    }
}
