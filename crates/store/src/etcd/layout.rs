//! Key layout in etcd, and the mapping of etcd's revisions to the store's.
//!
//! All keys begin with the configured prefix, then a letter:
//! - `o` group 0 resource 0 cluster namespace 0 name 0 → the object: `crate::layout::record`'s bytes, see
//!   [`RevisionMapping::sealed`]
//! - `x` cluster owner-uid rest of `o` → nothing: the owner index; `p` placed-uid rest of `o` → nothing: the placement
//!   index
//! - `t` cluster → the number of objects deleted with it; `w` cluster → its objects are still being removed
//! - `d` → the places of the deletions in the last transaction that had other writes too
//! - `e` role → which server has it, as long as that one lives; `m` → format, identity and base
//! - `h` hold → the revision after which a server still needs history, as long as that one lives
//!
//! A resource has no number here, since servers share nothing but etcd. Its name comes first, so that all its objects
//! are one range.

use std::collections::BTreeSet;

use bytes::Bytes;
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, ResourceVersion, Scope, record::RecordHeader,
};

use super::proto::KeyValue;
use crate::{
    api::{
        RangeScope, StoreError, StoredObject,
        damage::{Damage, stand_in_name},
    },
    layout::{
        keys::{KeySuffix, end_of, escaped, unescaped},
        record::{EncodedObject, decode},
    },
    read::state::revision,
};

/// Revisions of the store per etcd transaction: more than [`crate::api::MAX_TRANSACTION_OBJECTS`].
pub(crate) const REVISIONS_PER_TRANSACTION: u64 = 128;

/// Placeholder for "this write" in an object's creation revision: no revision on etcd is so low.
const THIS_WRITE: ResourceVersion = ResourceVersion::FIRST;

/// Mapping of revisions: `(base + etcd's) × 128 + position`. The last write of a transaction always has the last
/// position, so that the boundary of a transaction follows from its etcd revision alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RevisionMapping {
    /// Base that a restore raises, so that earlier revisions are never assigned again.
    pub(crate) base: u64,
}

impl RevisionMapping {
    /// Returns the revision of a write that `remaining` more follow in its transaction.
    pub(crate) fn number(self, at: i64, remaining: u64) -> u64 {
        self.boundary(at).saturating_sub(remaining)
    }

    /// Returns the last revision of a transaction.
    pub(crate) fn boundary(self, at: i64) -> u64 {
        (self.base + u64::try_from(at).unwrap_or(0)) * REVISIONS_PER_TRANSACTION + (REVISIONS_PER_TRANSACTION - 1)
    }

    /// Returns the transaction of a revision; less than 1 for one before the last restore.
    pub(crate) fn transaction(self, number: u64) -> i64 {
        let (of_base, base) = (i64::try_from(number / REVISIONS_PER_TRANSACTION), i64::try_from(self.base));
        of_base.unwrap_or(i64::MAX).saturating_sub(base.unwrap_or(i64::MAX))
    }

    /// Returns the last transaction that is complete at a revision.
    pub(crate) fn whole_at(self, number: u64) -> i64 {
        self.transaction(number + 1) - 1
    }

    /// Encodes an object whose write `remaining` more follow. Its revision is known only after the write, so its
    /// position in the transaction stands for it, counted from 1.
    pub(crate) fn sealed(
        key: &ObjectKey,
        record: EncodedObject,
        remaining: u64,
        created: Option<ResourceVersion>,
    ) -> Bytes {
        let place =
            ResourceVersion::FIRST.plus(REVISIONS_PER_TRANSACTION - 1 - remaining.min(REVISIONS_PER_TRANSACTION - 1));
        record.seal(&KeySuffix::from_bytes(&address(key)), place, created.unwrap_or(THIS_WRITE)).0
    }
}

/// Encoder and parser of the store's keys in etcd.
pub(crate) struct EtcdLayout {
    pub(crate) prefix: Vec<u8>,
    pub(crate) numbering: RevisionMapping,
}

impl EtcdLayout {
    /// Builds a key under the prefix.
    pub(crate) fn under(&self, letter: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + 1 + parts.iter().map(|part| part.len()).sum::<usize>());
        key.extend_from_slice(&self.prefix);
        key.push(letter);
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    pub(crate) fn meta(&self) -> Vec<u8> {
        self.under(b'm', &[])
    }

    pub(crate) fn deletions(&self) -> Vec<u8> {
        self.under(b'd', &[])
    }

    pub(crate) fn tombstone(&self, cluster: LogicalClusterId) -> Vec<u8> {
        self.under(b't', &[&cluster.get().to_be_bytes()])
    }

    pub(crate) fn sweep(&self, cluster: LogicalClusterId) -> Vec<u8> {
        self.under(b'w', &[&cluster.get().to_be_bytes()])
    }

    pub(crate) fn role(&self, role: &str) -> Vec<u8> {
        self.under(b'e', &[role.as_bytes()])
    }

    /// Builds the key of a hold; an empty name gives the prefix of all holds.
    pub(crate) fn hold(&self, name: &str) -> Vec<u8> {
        self.under(b'h', &[name.as_bytes()])
    }

    /// Returns the logical cluster at the end of a `t` or `w` key.
    pub(crate) fn cluster_of(&self, key: &[u8]) -> Option<LogicalClusterId> {
        let number = key.get(self.prefix.len() + 1..)?.try_into().ok()?;
        Some(LogicalClusterId::new(u64::from_be_bytes(number)))
    }

    /// Returns the logical cluster whose objects are being removed, from a `w` key; `None` for any other key.
    pub(crate) fn swept(&self, key: &[u8]) -> Option<LogicalClusterId> {
        (key.get(self.prefix.len()) == Some(&b'w')).then(|| self.cluster_of(key))?
    }

    /// Returns true for the key of an object.
    pub(crate) fn is_object(&self, key: &[u8]) -> bool {
        key.get(self.prefix.len()) == Some(&b'o')
    }

    /// Returns true for the key of a leader election.
    pub(crate) fn is_role(&self, key: &[u8]) -> bool {
        key.get(self.prefix.len()) == Some(&b'e')
    }

    pub(crate) fn object(&self, key: &ObjectKey) -> Vec<u8> {
        self.under(b'o', &[&address(key)])
    }

    /// Returns the prefix of a resource's objects: all, those of one logical cluster, or those of one namespace.
    pub(crate) fn resource(
        &self,
        resource: &GroupResource,
        cluster: Option<LogicalClusterId>,
        namespace: Option<&NamespaceName>,
    ) -> Vec<u8> {
        let mut key = self.under(b'o', &[&resource_prefix(resource)]);
        key.extend(cluster.iter().flat_map(|cluster| cluster.get().to_be_bytes()));
        if let Some(namespace) = namespace {
            key.extend_from_slice(namespace.as_str().as_bytes());
            key.push(0);
        }
        key
    }

    /// Returns the index keys of an object, by the UIDs of its owners and of its physical clusters.
    pub(crate) fn indexes(&self, key: &ObjectKey, header: &RecordHeader) -> Vec<Vec<u8>> {
        let (address, cluster) = (address(key), key.cluster.get().to_be_bytes());
        let (owners, placed) = (&header.owners, &header.placed_on);
        let owners = owners.iter().filter_map(|uid| Some(self.under(b'x', &[&cluster, &escaped(uid)?, &address])));
        let placed = placed.iter().filter_map(|uid| Some(self.under(b'p', &[&escaped(uid)?, &address])));
        // etcd accepts a key once per transaction, and a UID may be listed twice.
        owners.chain(placed).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the prefix of the owner index of a logical cluster.
    pub(crate) fn owned_in(&self, cluster: LogicalClusterId) -> Vec<u8> {
        self.under(b'x', &[&cluster.get().to_be_bytes()])
    }

    /// Returns the prefix of the owner index of one owner.
    pub(crate) fn owned_by(&self, cluster: LogicalClusterId, uid: &str) -> Option<Vec<u8>> {
        Some(self.under(b'x', &[&cluster.get().to_be_bytes(), &escaped(uid)?]))
    }

    /// Returns the prefix of the placement index of one physical cluster.
    pub(crate) fn placed_on(&self, uid: &str) -> Option<Vec<u8>> {
        Some(self.under(b'p', &[&escaped(uid)?]))
    }

    /// Returns the index key of an object in the index that a scope reads, if it reads one.
    pub(crate) fn entry(&self, key: &ObjectKey, scope: &RangeScope) -> Option<Vec<u8>> {
        let prefix = match scope {
            RangeScope::PlacedOn(uid) => self.placed_on(uid)?,
            RangeScope::OwnedBy(cluster, uid) => self.owned_by(*cluster, uid)?,
            _ => return None,
        };
        Some([prefix, address(key)].concat())
    }

    /// Returns the address of the object that an index key names; `None` for any other key.
    pub(crate) fn address_indexed<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        let entry = match key.get(self.prefix.len()..)?.split_first()? {
            (b'x', entry) => entry.get(size_of::<u64>()..)?,
            (b'p', entry) => entry,
            _ => return None,
        };
        unescaped(entry).map(|(_, address)| address)
    }

    /// Returns the object key that an index key with this prefix names.
    pub(crate) fn indexed(&self, key: &[u8], prefix: &[u8]) -> Option<Vec<u8>> {
        Some(self.under(b'o', &[key.get(prefix.len()..)?]))
    }

    /// Parses an object's key; `None` for any other key.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<ObjectKey> {
        let mut rest = self.is_object(key).then(|| self.address_in(key))?;
        let (resource, cluster) = place(&mut rest)?;
        let scope = match name(&mut rest)? {
            "" => Scope::Cluster,
            namespace => Scope::Namespace(namespace.parse().ok()?),
        };
        let name: ObjectName = name(&mut rest)?.parse().ok()?;
        rest.is_empty().then_some(ObjectKey { cluster, resource, scope, name })
    }

    /// Returns a stand-in for a malformed object key: its bytes, with resource and logical cluster as far as they can
    /// be parsed.
    pub(crate) fn stand_in(&self, key: &[u8]) -> ObjectKey {
        let mut rest = self.address_in(key);
        let name = stand_in_name(rest);
        let place = place(&mut rest);
        let (resource, cluster) = place.unwrap_or_else(|| (GroupResource::new("", "unknown"), LogicalClusterId::ROOT));
        ObjectKey::cluster_scoped(cluster, resource, name)
    }

    /// Returns the address in an object's key. The object's checksum covers it too.
    pub(crate) fn address_in<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.get(self.prefix.len() + 1..).unwrap_or_default()
    }

    /// Decodes an object.
    ///
    /// # Errors
    /// Fails if the bytes were changed or the key is malformed.
    pub(crate) fn stored(&self, kv: &KeyValue) -> Result<StoredObject, StoreError> {
        let Some(key) = self.parse(&kv.key) else {
            return Err(StoreError::Damaged { key: self.stand_in(&kv.key), why: Damage::Key });
        };
        let version = match decode(self.address_in(&kv.key), &kv.value) {
            Ok(version) if version.revision.get() <= REVISIONS_PER_TRANSACTION => version,
            Ok(_) => return Err(StoreError::Damaged { key, why: Damage::CutOff }),
            Err(why) => return Err(StoreError::Damaged { key, why }),
        };
        let place = version.revision.get();
        let revision = revision(self.numbering.number(kv.mod_revision, REVISIONS_PER_TRANSACTION - place))?;
        let created = if version.created == THIS_WRITE { revision } else { version.created };
        Ok(StoredObject { key, revision, created, record: version.record })
    }
}

fn resource_prefix(resource: &GroupResource) -> Vec<u8> {
    [resource.group.as_bytes(), &[0], resource.resource.as_bytes(), &[0]].concat()
}

fn address(key: &ObjectKey) -> Vec<u8> {
    let namespace = key.namespace().map_or("", NamespaceName::as_str);
    let mut out = resource_prefix(&key.resource);
    out.extend_from_slice(&key.cluster.get().to_be_bytes());
    for name in [namespace, &*key.name] {
        out.extend_from_slice(name.as_bytes());
        out.push(0);
    }
    out
}

/// Splits the resource and the logical cluster off an address.
fn place(rest: &mut &[u8]) -> Option<(GroupResource, LogicalClusterId)> {
    let (group, resource) = (name(rest)?, name(rest)?);
    let (cluster, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    Some((GroupResource::new(group, resource), LogicalClusterId::new(u64::from_be_bytes(*cluster))))
}

/// Splits a zero-terminated name off an address.
fn name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let end = rest.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&rest[..end]).ok()?;
    *rest = &rest[end + 1..];
    Some(name)
}

/// Returns the range of keys with a prefix: start and end.
pub(crate) fn range_of(prefix: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let end = end_of(&prefix);
    (prefix, end)
}

/// Returns the key right after `key`.
pub(crate) fn after(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

#[cfg(test)]
mod tests {
    use portolan_types::Record;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn layout(base: u64) -> EtcdLayout {
        EtcdLayout { prefix: b"/p/".to_vec(), numbering: RevisionMapping { base } }
    }

    fn key() -> impl Strategy<Value = ObjectKey> {
        let resource = prop_oneof![Just(("", "pods")), Just(("apps", "pods")), Just(("ap", "psx"))];
        let namespace = prop_oneof![Just(String::new()), "[a-c]{1,3}"];
        (0..3u64, resource, namespace, "[a-c:.]{0,3}[a-c]").prop_map(|(cluster, (group, resource), namespace, name)| {
            ObjectKey {
                cluster: LogicalClusterId::new(cluster),
                resource: GroupResource::new(group, resource),
                scope: Scope::from(namespace.parse::<NamespaceName>().ok()),
                name: name.parse().unwrap(),
            }
        })
    }

    proptest! {
        #[test]
        fn a_key_is_taken_apart_as_it_was_put_together(key in key()) {
            let layout = layout(0);
            prop_assert_eq!(layout.parse(&layout.object(&key)), Some(key.clone()));
            let placement = json!({"clusters": [{"name": "e", "uid": "e-1", "phase": "Active", "epoch": 1}]}).to_string();
            let record = Record::of(&json!({"metadata": {"ownerReferences": [{"uid": "own\u{0}er"}],
                "annotations": {"portolan.dev/placement": placement}}}));
            let mut indexes = layout.indexes(&key, &record.header);
            prop_assert_eq!(indexes.len(), 2);
            let object = layout.object(&key);
            for index in &indexes {
                prop_assert_eq!(layout.address_indexed(index), Some(layout.address_in(&object)));
            }
            prop_assert_eq!(layout.address_indexed(&object), None);
            prop_assert_eq!(layout.swept(&layout.sweep(key.cluster)), Some(key.cluster));
            prop_assert_eq!(layout.swept(&layout.tombstone(key.cluster)), None);
            let index = indexes.remove(1);
            let prefix = layout.owned_by(key.cluster, "own\u{0}er").unwrap();
            prop_assert!(index.starts_with(&prefix));
            prop_assert_eq!(layout.indexed(&index, &prefix), Some(layout.object(&key)));
        }

        #[test]
        fn within_a_resource_keys_are_in_the_order_of_addresses(a in key(), b in key()) {
            let layout = layout(0);
            if a.resource == b.resource {
                prop_assert_eq!(layout.object(&a).cmp(&layout.object(&b)), a.cmp(&b));
            }
            let (from, to) = range_of(layout.resource(&a.resource, Some(a.cluster), a.namespace()));
            let inside = a.resource == b.resource && a.cluster == b.cluster && (a.namespace().is_none() || a.scope == b.scope);
            let key = layout.object(&b);
            prop_assert_eq!(key >= from && key < to, inside);
        }

        #[test]
        fn a_number_names_its_transaction_and_place(base in 0..1u64 << 40, at in 1..1i64 << 40, remaining in 0..REVISIONS_PER_TRANSACTION) {
            let numbering = RevisionMapping { base };
            let number = numbering.number(at, remaining);
            prop_assert_eq!(numbering.transaction(number), at);
            prop_assert_eq!(numbering.whole_at(number), if remaining == 0 { at } else { at - 1 });
            prop_assert!(numbering.number(at + 1, REVISIONS_PER_TRANSACTION - 1) > number);
            let restored = RevisionMapping { base: base + 1 };
            prop_assert!(restored.number(at, remaining) > numbering.boundary(at));
        }
    }

    #[test]
    fn an_object_comes_back_with_its_revisions() {
        let layout = layout(3);
        let key =
            ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "pods"), "a".parse().unwrap());
        let record = Record::of(&json!({"metadata": {"name": "a"}}));
        for (remaining, created, expected) in [(0, None, 1535), (2, None, 1533), (1, ResourceVersion::new(700), 1534)] {
            let value = RevisionMapping::sealed(&key, EncodedObject::new(record.clone()), remaining, created);
            let kv = KeyValue { key: layout.object(&key).into(), mod_revision: 8, value, ..KeyValue::default() };
            let stored = layout.stored(&kv).unwrap();
            assert_eq!(stored.revision.get(), expected);
            assert_eq!(stored.created.get(), created.map_or(expected, ResourceVersion::get));
            assert_eq!(*stored.record, record);
        }
        assert!(layout.stored(&KeyValue { key: layout.object(&key).into(), ..KeyValue::default() }).is_err());
    }

    #[test]
    fn a_foreign_etcd_key_is_reported_by_its_printable_part() {
        let layout = layout(0);
        let (pods, seven) = (GroupResource::new("", "pods"), LogicalClusterId::new(7));
        let object = layout.object(&ObjectKey::cluster_scoped(seven, pods.clone(), "a".parse().unwrap()));
        let unknown = (GroupResource::new("", "unknown"), LogicalClusterId::ROOT);
        for (case, key, place) in [
            ("another program's", b"/p/other".to_vec(), unknown.clone()),
            ("one letter", b"/p/o".to_vec(), unknown.clone()),
            ("a long one", [b"/p/o", &[b'x'; 4000][..]].concat(), unknown),
            ("something behind an object's", [&object[..], b"b"].concat(), (pods.clone(), seven)),
            ("an object's, cut off", object[..object.len() - 1].to_vec(), (pods, seven)),
        ] {
            assert_eq!(layout.parse(&key), None, "{case}");
            let told = layout.stand_in(&key);
            assert_eq!((told.resource, told.cluster), place, "{case}");
        }
        let meta = layout.under(b'm', &[layout.address_in(&object)]);
        assert!(layout.parse(&object).is_some() && layout.parse(&meta).is_none(), "only under their own letter");
    }
}
