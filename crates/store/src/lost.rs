//! Deleting objects that cannot be read. What they were is lost: whoever watches them lists again.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, Record, record::RecordHeader};
use serde_json::json;

use crate::{
    Change, Event, StoreError,
    keys::{self, PartsOf, Suffix},
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

/// Where a header has what an index shows.
type ListOf = fn(&mut RecordHeader) -> &mut Vec<String>;

impl Plan<'_> {
    /// Deletes damaged objects of one logical cluster, as the writes at these places.
    pub(crate) fn lose(&mut self, lost: Vec<(Lost, Place)>) -> Result<(), StoreError> {
        let Some(cluster) = lost.first().map(|(lost, _)| lost.key.cluster) else { return Ok(()) };
        let mut headers = lost.iter().map(|(lost, _)| (lost.suffix.clone(), RecordHeader::default())).collect();
        self.unindex(cluster, &mut headers)?;
        for (Lost { key, suffix, value, why }, place) in lost {
            self.remove(suffix.object());
            self.put(suffix.version(place.revision), value);
            let mut record = Record::of(&json!({}));
            record.header = headers.remove(&suffix).unwrap_or_default();
            let (revision, record) = (revision(place.revision)?, Arc::new(record));
            let event = Event { revision, change: Change::Deleted, key, record, previous: None };
            self.record(&suffix, place, event, Some(why));
        }
        Ok(())
    }

    /// Whether an index names an object, of which there is nothing else.
    pub(super) fn is_indexed(&self, cluster: LogicalClusterId, suffix: &Suffix) -> Result<bool, StoreError> {
        let mut headers = BTreeMap::from([(suffix.clone(), RecordHeader::default())]);
        Ok(!self.entries_of(cluster, &mut headers)?.is_empty())
    }

    /// Takes objects out of the indexes.
    fn unindex(
        &mut self,
        cluster: LogicalClusterId,
        headers: &mut BTreeMap<Suffix, RecordHeader>,
    ) -> Result<(), StoreError> {
        let entries = self.entries_of(cluster, headers)?;
        entries.into_iter().for_each(|key| self.remove(key));
        Ok(())
    }

    /// The entries of the indexes that name objects. Their own lists cannot be read, so that the owner index of their logical
    /// cluster and the placement index are read as a whole, and tell what was in them.
    fn entries_of(
        &self,
        cluster: LogicalClusterId,
        headers: &mut BTreeMap<Suffix, RecordHeader>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut found = Vec::new();
        let owned = keys::joined(b'x', &[&keys::cluster_prefix(cluster)]);
        let indexes: [(Vec<u8>, PartsOf, ListOf); 2] = [
            (owned, keys::owner_parts, |header| &mut header.owners),
            (vec![b'p'], keys::placed_parts, |header| &mut header.placed_on),
        ];
        for (prefix, parts, list) in indexes {
            let mut cursor = self.view.scan(&prefix, &keys::end_of(&prefix)).map_err(backend)?;
            while let Some(key) = cursor.key() {
                if let Some((uid, suffix)) = parts(key)
                    && let Some(header) = headers.get_mut(&suffix)
                {
                    list(header).push(uid);
                    found.push(key.to_vec());
                }
                cursor.advance().map_err(backend)?;
            }
        }
        Ok(found)
    }
}
