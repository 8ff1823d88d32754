//! Deleting objects that cannot be read. What they were is lost: whoever watches them lists again.

use std::{cmp::Ordering, collections::BTreeMap, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, record::RecordHeader};
use serde_json::json;

use crate::{
    Change, Event, StoreError,
    keys::{self, Suffix},
    plan::{Place, Plan},
    read::{backend, revision},
    value::Damage,
};

/// A damaged object that is to go.
pub(crate) struct Lost {
    pub(crate) key: ObjectKey,
    pub(crate) suffix: Suffix,
    /// What there is of it. History keeps that, so that an older state is not taken for whole.
    pub(crate) value: Bytes,
    pub(crate) why: Damage,
}

/// An entry of an index.
pub(super) struct IndexEntry<'a> {
    pub(super) key: &'a [u8],
    /// The uid and the object that it names; `None` for a malformed one.
    pub(super) named: Option<(String, Suffix)>,
    pub(super) list: List,
}

/// Where a header has what an index shows.
#[derive(Clone, Copy)]
pub(super) enum List {
    Owners,
    PlacedOn,
}

impl List {
    pub(super) fn of(self, header: &RecordHeader) -> &Vec<String> {
        match self {
            Self::Owners => &header.owners,
            Self::PlacedOn => &header.placed_on,
        }
    }

    fn of_mut(self, header: &mut RecordHeader) -> &mut Vec<String> {
        match self {
            Self::Owners => &mut header.owners,
            Self::PlacedOn => &mut header.placed_on,
        }
    }
}

/// What the indexes say of damaged objects.
#[derive(Default)]
pub(super) struct Indexed {
    /// Of each what its own lists would say.
    headers: BTreeMap<Suffix, RecordHeader>,
    /// The entries that name any of them.
    entries: Vec<Vec<u8>>,
}

impl Plan<'_> {
    /// Deletes a damaged object, as the write at this place. `indexed` is what was read of the indexes before anything was planned.
    pub(super) fn lose(&mut self, lost: Lost, place: Place, indexed: &mut Indexed) -> Result<(), StoreError> {
        let Lost { key, suffix, value, why } = lost;
        std::mem::take(&mut indexed.entries).into_iter().for_each(|entry| self.remove(entry));
        self.remove(suffix.object());
        self.put(suffix.version(place.revision), value);
        let mut record = Record::of(&json!({}));
        record.header = indexed.headers.remove(&suffix).unwrap_or_default();
        let (revision, record) = (revision(place.revision)?, Arc::new(record));
        let event = Event { revision, change: Change::Deleted, key, record, previous: None };
        self.record(&suffix, place, event, Some(why));
        Ok(())
    }

    /// Whether an index names an object, of which there is nothing else.
    pub(super) fn is_indexed(&self, cluster: LogicalClusterId, suffix: &Suffix) -> Result<bool, StoreError> {
        let mut is_indexed = false;
        self.each_entry(cluster, |entry| {
            is_indexed = entry.named.is_some_and(|(_, of)| of == *suffix);
            if is_indexed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(is_indexed)
    }

    /// Reads what the indexes say of damaged objects of one logical cluster: their own lists cannot be read.
    pub(super) fn indexed<'s>(
        &self,
        cluster: LogicalClusterId,
        damaged: impl Iterator<Item = &'s Suffix>,
    ) -> Result<Indexed, StoreError> {
        let headers = damaged.map(|suffix| (suffix.clone(), RecordHeader::default())).collect();
        let mut indexed = Indexed { headers, entries: Vec::new() };
        if !indexed.headers.is_empty() {
            self.each_entry(cluster, |IndexEntry { key, named, list }| {
                if let Some((uid, suffix)) = named
                    && let Some(header) = indexed.headers.get_mut(&suffix)
                {
                    list.of_mut(header).push(uid);
                    indexed.entries.push(key.to_vec());
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(indexed)
    }

    /// Looks at each entry of the indexes that names an object of a logical cluster, until it is told to stop. Those of other ones that
    /// are on the same physical clusters are leapt over.
    pub(super) fn each_entry(
        &self,
        cluster: LogicalClusterId,
        mut look: impl FnMut(IndexEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let owned = keys::joined(b'x', &[&keys::cluster_prefix(cluster)]);
        let mut cursor = self.view.scan(&owned, &keys::end_of(&owned)).map_err(backend)?;
        while let Some(key) = cursor.key() {
            if look(IndexEntry { key, named: keys::owner_parts(key), list: List::Owners }).is_break() {
                return Ok(());
            }
            cursor.advance().map_err(backend)?;
        }
        drop(cursor);
        let mut next = Some(vec![b'p']);
        while let Some(from) = next {
            next = self.placed_entries(&from, cluster, &mut look)?;
        }
        Ok(())
    }

    /// As [`Plan::each_entry`], of the placement index up to where it is worth while to leap, which is returned; `None` at the end.
    fn placed_entries(
        &self,
        from: &[u8],
        cluster: LogicalClusterId,
        look: &mut impl FnMut(IndexEntry<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut cursor = self.view.scan(from, &keys::end_of(b"p")).map_err(backend)?;
        while let Some(key) = cursor.key() {
            let named = keys::placed_parts(key);
            let place = named.as_ref().and_then(|(uid, suffix)| Some((keys::placed_prefix(uid)?, suffix.cluster()?)));
            let is_over = match place.map(|(prefix, of)| (of.cmp(&cluster), prefix)) {
                Some((Ordering::Less, prefix)) => {
                    return Ok(Some([prefix, keys::cluster_prefix(cluster)].concat()));
                }
                Some((Ordering::Greater, prefix)) => return Ok(Some(keys::end_of(&prefix))),
                Some((Ordering::Equal, _)) => look(IndexEntry { key, named, list: List::PlacedOn }).is_break(),
                // A malformed key is nobody's.
                None => false,
            };
            if is_over {
                return Ok(None);
            }
            cursor.advance().map_err(backend)?;
        }
        Ok(None)
    }
}
