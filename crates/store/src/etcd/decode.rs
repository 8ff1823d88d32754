//! Decoder from etcd's events to the store's.

use std::sync::Arc;

use super::{
    EtcdCore,
    commit::decode_places,
    proto::{self, event::EventType},
};
use crate::{
    api::{ChangeKind, Event, StoreError, damage::Damage},
    read::state::{damaged, revision},
    watch::PublishedEvent,
};

/// Failure of decoding events.
pub(super) enum DecodeError {
    /// The previous value is compacted already.
    Compacted,
    Failed(StoreError),
}

impl From<StoreError> for DecodeError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// Collector that assembles the events of answers into transactions. A large answer comes in fragments, which may be
/// cut within a transaction. etcd sends a thousand transactions in one answer to a slow watch, so no more than one is
/// kept until the next fragment.
#[derive(Default)]
pub(super) struct TransactionCollector(Vec<proto::Event>);

impl TransactionCollector {
    /// Adds events, and returns those of all complete transactions, by transaction.
    pub(super) fn add(&mut self, events: Vec<proto::Event>, is_fragment: bool) -> Vec<(i64, Vec<proto::Event>)> {
        let mut whole: Vec<(i64, Vec<proto::Event>)> = Vec::new();
        for event in self.0.drain(..).chain(events) {
            let at = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            match whole.last_mut() {
                Some((last, events)) if *last == at => events.push(event),
                _ => whole.push((at, vec![event])),
            }
        }
        if is_fragment {
            self.0 = whole.pop().map_or_else(Vec::new, |(_, events)| events);
        }
        whole
    }
}

/// Source of the positions of deletions in a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionView {
    /// All writes of the transaction are known: their order gives the positions.
    Whole,
    /// Some writes may be missing: the positions are read from etcd.
    Part,
}

impl EtcdCore {
    /// Decodes the object events of one etcd transaction.
    pub(super) async fn events(
        &self,
        at: i64,
        events: Vec<proto::Event>,
        view: TransactionView,
    ) -> Result<Vec<PublishedEvent>, DecodeError> {
        let is_object = |event: &proto::Event| event.kv.as_ref().is_some_and(|kv| self.layout.is_object(&kv.key));
        let objects: Vec<&proto::Event> = events.iter().filter(|event| is_object(event)).collect();
        let mut published = Vec::with_capacity(objects.len());
        let mut places = None;
        for (event, following) in objects.iter().zip((0..objects.len() as u64).rev()) {
            let (Some(kv), is_deletion) = (&event.kv, event.r#type() == EventType::Delete) else { continue };
            let remaining = match (is_deletion, view) {
                (false, _) => 0,
                (true, TransactionView::Whole) => following,
                (true, TransactionView::Part) => {
                    if places.is_none() {
                        places = Some(self.places(at).await?);
                    }
                    remaining_of(places.as_deref().unwrap_or_default(), &kv.key)?
                }
            };
            match self.event(event, at, is_deletion.then_some(remaining)) {
                Ok(event) => {
                    let boundary = self.layout.numbering.boundary(at);
                    published.push(PublishedEvent { event: Arc::new(event), boundary, lost: None });
                }
                // No reader can have seen an object at a malformed key.
                Err(DecodeError::Failed(StoreError::Damaged { why: Damage::Key, .. })) => {}
                Err(DecodeError::Failed(StoreError::Damaged { key, why })) => {
                    let place = if is_deletion { remaining } else { following };
                    published.push(self.unreadable_event((at, place), &events, key, why)?);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(published)
    }

    /// Reads the recorded positions of a transaction's deletions; empty for a single deletion.
    async fn places(&self, at: i64) -> Result<Vec<u8>, StoreError> {
        let noted = self.at(self.layout.deletions(), at).await?;
        Ok(noted.filter(|kv| kv.mod_revision == at).map_or_else(Vec::new, |kv| kv.value.to_vec()))
    }

    fn event(&self, event: &proto::Event, at: i64, deleted: Option<u64>) -> Result<Event, DecodeError> {
        let kv = event.kv.as_ref().ok_or(Damage::Key).map_err(damaged)?;
        let before = event.prev_kv.as_ref().map(|before| self.layout.stored(before)).transpose()?;
        if let Some(remaining) = deleted {
            let before = before.ok_or(DecodeError::Compacted)?;
            let revision = revision(self.layout.numbering.number(at, remaining))?;
            return Ok(Event {
                revision,
                change: ChangeKind::Deleted,
                key: before.key,
                record: before.record,
                previous: None,
            });
        }
        let now = self.layout.stored(kv)?;
        let (change, previous) = if kv.create_revision == kv.mod_revision {
            (ChangeKind::Created, None)
        } else {
            (ChangeKind::Updated, Some(before.ok_or(DecodeError::Compacted)?.record))
        };
        Ok(Event { revision: now.revision, change, key: now.key, record: now.record, previous })
    }
}

/// Returns the number of writes that follow a deletion.
fn remaining_of(places: &[u8], key: &[u8]) -> Result<u64, StoreError> {
    let places = decode_places(places).ok_or(Damage::Key).map_err(damaged)?;
    let found = places.iter().find(|(_, of)| *of == key);
    match (found, places.is_empty()) {
        (Some((remaining, _)), _) => Ok(*remaining),
        (None, true) => Ok(0),
        (None, false) => Err(damaged(Damage::Key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: i64) -> proto::Event {
        let kv = proto::KeyValue { mod_revision: at, ..proto::KeyValue::default() };
        proto::Event { kv: Some(kv), ..proto::Event::default() }
    }

    #[test]
    fn transactions_are_delivered_complete_and_one_at_a_time() {
        let mut collector = TransactionCollector::default();
        for (events, is_fragment, whole, kept) in [
            (vec![3, 3, 4], true, vec![(3, 2)], 1),
            (vec![4], true, vec![], 2),
            (vec![], true, vec![], 2),
            (vec![4, 6], false, vec![(4, 3), (6, 1)], 0),
            (vec![], false, vec![], 0),
            (vec![7], true, vec![], 1),
            (vec![], false, vec![(7, 1)], 0),
        ] {
            let case = format!("{events:?}, {is_fragment}");
            let told = collector.add(events.into_iter().map(event).collect(), is_fragment);
            assert_eq!(told.iter().map(|(at, events)| (*at, events.len())).collect::<Vec<_>>(), whole, "{case}");
            assert_eq!(collector.0.len(), kept, "{case}");
        }
    }

    #[test]
    fn a_single_deletion_is_the_last_write_of_its_transaction() {
        let places = super::super::commit::encode_places([(4, &b"a"[..]), (0, b"b")].into_iter());
        assert_eq!(remaining_of(&places, b"a").unwrap(), 4);
        assert_eq!(remaining_of(&[], b"a").unwrap(), 0);
        assert!(remaining_of(&places, b"c").is_err());
    }
}
