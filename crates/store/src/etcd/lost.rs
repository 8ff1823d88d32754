//! Objects that cannot be read, where etcd has them: what the indexes say of them, and what watchers are told.

use std::{collections::HashSet, sync::Arc};

use portolan_types::{LogicalClusterId, ObjectKey, Record};
use serde_json::json;

use super::{
    Inner,
    layout::{after, range_of},
    proto,
};
use crate::{Change, Event, StoreError, hub::Published, keys::unescaped, read::revision, value::Damage};

/// Keys of an index that are read at once.
const PAGE: i64 = 10_000;

impl Inner {
    /// The keys of the indexes that name any of these objects of a logical cluster. Their own lists cannot be read, so that the
    /// indexes are read as a whole.
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
        for prefix in [self.layout.under(b'x', &[&cluster.get().to_be_bytes()]), self.layout.under(b'p', &[])] {
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

    /// What is told of a write whose object cannot be read. The index entries that go with a deletion say where it was placed.
    pub(super) fn lost(
        &self,
        (at, remaining): (i64, u64),
        all: &[proto::Event],
        key: ObjectKey,
        why: Damage,
    ) -> Result<Published, StoreError> {
        let (object, prefix) = (self.layout.object(&key), self.layout.under(b'p', &[]));
        let placed = all.iter().filter_map(|event| {
            let (uid, rest) = unescaped(event.kv.as_ref()?.key.strip_prefix(&*prefix)?)?;
            (rest == self.layout.address_in(&object)).then_some(uid)
        });
        let mut record = Record::of(&json!({}));
        record.header.placed_on = placed.collect();
        let revision = revision(self.layout.numbering.number(at, remaining))?;
        let event = Event { revision, change: Change::Deleted, key, record: Arc::new(record), previous: None };
        Ok(Published { event: Arc::new(event), boundary: self.layout.numbering.boundary(at), lost: Some(why) })
    }
}
