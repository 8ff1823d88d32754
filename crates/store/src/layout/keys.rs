//! Encoding of keys, in this one place. Keys of one kind are prefix-free: no key is a prefix of another. The byte order
//! of keys is the order of the tuples that they encode.
//!
//! - `o` cluster resource namespace name → the latest object
//! - `v` cluster resource namespace name until → a superseded object, in its state before revision `until`
//! - `h` revision → what the write of this revision did, and to which object
//! - `x` cluster owner-uid resource namespace name → nothing: the owner index
//! - `p` placed-uid cluster resource namespace name → nothing: the placement index
//! - `m` one byte of kind, number → the store's own bookkeeping
//!
//! Numbers are big-endian, names end with a zero byte (no name has one), uids are escaped text.

use portolan_types::{LogicalClusterId, NamespaceName, ObjectName, Scope};

/// Longest UID that is indexed, in bytes: the limit of `Uid`.
const MAX_INDEXED_UID: usize = 253;

/// Address of an object with its resource as a number: the common part of all its keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeySuffix(Vec<u8>);

/// Parsed suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyParts<'a> {
    pub(crate) cluster: LogicalClusterId,
    pub(crate) resource: u32,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl KeySuffix {
    pub(crate) fn new(cluster: LogicalClusterId, resource: u32, scope: &Scope, name: &ObjectName) -> Self {
        let namespace = scope.namespace().map_or("", NamespaceName::as_str);
        let mut out = Vec::with_capacity(14 + namespace.len() + name.len());
        out.extend_from_slice(&cluster.get().to_be_bytes());
        out.extend_from_slice(&resource.to_be_bytes());
        push_name(&mut out, namespace);
        push_name(&mut out, name);
        Self(out)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the logical cluster of the object; `None` if malformed.
    pub(crate) fn cluster(&self) -> Option<LogicalClusterId> {
        self.0.first_chunk().map(|cluster| LogicalClusterId::new(u64::from_be_bytes(*cluster)))
    }

    /// Returns the key of the latest object.
    pub(crate) fn object(&self) -> Vec<u8> {
        joined(b'o', &[&self.0])
    }

    /// Returns the key of the object's state before `until`.
    pub(crate) fn version(&self, until: u64) -> Vec<u8> {
        joined(b'v', &[&self.0, &until.to_be_bytes()])
    }

    /// Returns the key in the owner index; `None` for an invalid UID.
    pub(crate) fn owner(&self, uid: &str) -> Option<Vec<u8>> {
        let (cluster, rest) = self.0.split_at(8);
        Some(joined(b'x', &[cluster, &escaped(uid)?, rest]))
    }

    /// Returns the key in the placement index; `None` for an invalid UID.
    pub(crate) fn placed(&self, uid: &str) -> Option<Vec<u8>> {
        Some(joined(b'p', &[&escaped(uid)?, &self.0]))
    }
}

/// Parses the common part of an object's keys; `None` if malformed.
pub(crate) fn parts(suffix: &[u8]) -> Option<KeyParts<'_>> {
    let (cluster, rest) = suffix.split_first_chunk::<8>()?;
    let (resource, rest) = rest.split_first_chunk::<4>()?;
    let end = rest.iter().position(|b| *b == 0)?;
    let name = rest[end + 1..].strip_suffix(&[0])?;
    Some(KeyParts {
        cluster: LogicalClusterId::new(u64::from_be_bytes(*cluster)),
        resource: u32::from_be_bytes(*resource),
        namespace: std::str::from_utf8(&rest[..end]).ok()?,
        name: std::str::from_utf8(name).ok()?,
    })
}

/// Returns the logical cluster and the resource in the key of a latest or superseded object.
pub(crate) fn beginning(key: &[u8]) -> Option<(LogicalClusterId, u32)> {
    let (cluster, rest) = key.get(1..)?.split_first_chunk::<8>()?;
    let resource = rest.first_chunk::<4>()?;
    Some((LogicalClusterId::new(u64::from_be_bytes(*cluster)), u32::from_be_bytes(*resource)))
}

/// Parses the key of a superseded object: suffix and `until`.
pub(crate) fn version_parts(key: &[u8]) -> Option<(&[u8], u64)> {
    let (suffix, until) = key.get(1..)?.split_last_chunk::<8>()?;
    Some((suffix, u64::from_be_bytes(*until)))
}

/// Returns true for the key of a latest or superseded object.
pub(crate) fn is_of_object(key: &[u8]) -> bool {
    // Letter, two numbers, and at least one byte of name with the terminators of both names.
    matches!(key, [b'o' | b'v', rest @ ..] if rest.len() > 14)
}

/// Returns true for the key of a history entry.
pub(crate) fn is_of_history(key: &[u8]) -> bool {
    key.first() == Some(&b'h') && history_revision(key).is_some()
}

/// Returns the key of a history entry.
pub(crate) fn history(revision: u64) -> Vec<u8> {
    joined(b'h', &[&revision.to_be_bytes()])
}

/// Returns the revision in the key of a history entry.
pub(crate) fn history_revision(key: &[u8]) -> Option<u64> {
    key.get(1..)?.try_into().ok().map(u64::from_be_bytes)
}

/// Returns the prefix of a resource in a logical cluster, in all namespaces or one, without the letter.
pub(crate) fn resource_prefix(cluster: LogicalClusterId, resource: u32, namespace: Option<&NamespaceName>) -> Vec<u8> {
    let mut out = cluster.get().to_be_bytes().to_vec();
    out.extend_from_slice(&resource.to_be_bytes());
    if let Some(namespace) = namespace {
        push_name(&mut out, namespace);
    }
    out
}

/// Returns the prefix of all keys of a logical cluster, without the letter.
pub(crate) fn cluster_prefix(cluster: LogicalClusterId) -> Vec<u8> {
    cluster.get().to_be_bytes().to_vec()
}

/// Returns the prefix of one owner in the owner index; `None` for an invalid UID.
pub(crate) fn owner_prefix(cluster: LogicalClusterId, uid: &str) -> Option<Vec<u8>> {
    Some(joined(b'x', &[&cluster.get().to_be_bytes(), &escaped(uid)?]))
}

/// Returns the suffix in a key of the owner index that begins with `prefix`.
pub(crate) fn owner_suffix(key: &[u8], prefix: &[u8]) -> Option<KeySuffix> {
    let (cluster, rest) = (key.get(1..9)?, key.get(prefix.len()..)?);
    Some(KeySuffix([cluster, rest].concat()))
}

/// Returns the prefix of one physical cluster in the placement index; `None` for an invalid UID.
pub(crate) fn placed_prefix(uid: &str) -> Option<Vec<u8>> {
    Some(joined(b'p', &[&escaped(uid)?]))
}

/// Returns the suffix in a key of the placement index that begins with `prefix`.
pub(crate) fn placed_suffix(key: &[u8], prefix: &[u8]) -> Option<KeySuffix> {
    key.get(prefix.len()..).map(KeySuffix::from_bytes)
}

/// Parser of an index key: the UID in front, and the object.
pub(crate) type IndexKeyParser = fn(&[u8]) -> Option<(String, KeySuffix)>;

/// Parses a key of the owner index: UID and object.
pub(crate) fn owner_parts(key: &[u8]) -> Option<(String, KeySuffix)> {
    let (uid, rest) = unescaped(key.get(9..)?)?;
    Some((uid, KeySuffix([key.get(1..9)?, rest].concat())))
}

/// Parses a key of the placement index: UID and object.
pub(crate) fn placed_parts(key: &[u8]) -> Option<(String, KeySuffix)> {
    let (uid, rest) = unescaped(key.get(1..)?)?;
    Some((uid, KeySuffix::from_bytes(rest)))
}

/// Returns the first key after all keys with a prefix.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![u8::MAX; 32]
}

/// Concatenates `letter` and `parts`.
pub(crate) fn joined(letter: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    out.push(letter);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

/// Keys of the store's bookkeeping: each kind has its own letter, so that no key is a prefix of another.
pub(crate) mod meta {
    use super::{LogicalClusterId, joined};

    /// Version of the layout.
    pub(crate) const FORMAT: &[u8] = b"mf";
    /// Identity of this store, assigned at its creation.
    pub(crate) const IDENTITY: &[u8] = b"mi";
    /// Last assigned revision. Stored separately from the data, so that removing data cannot lower it.
    pub(crate) const LAST: &[u8] = b"ml";
    /// Floor of the compaction: all events after it are kept.
    pub(crate) const FLOOR: &[u8] = b"mo";
    /// Bytes of all superseded objects in the history; absent until there is one.
    pub(crate) const SUPERSEDED: &[u8] = b"mv";
    /// Entry that the quick-start commit writes.
    pub(crate) const TIDY: &[u8] = b"mq";
    /// Prefix of the accounts of logical clusters.
    pub(crate) const ACCOUNTS: &[u8] = b"mu";
    /// Prefix of the resource numbers.
    pub(crate) const RESOURCES: &[u8] = b"mr";
    /// Prefix of the tombstones of logical clusters.
    pub(crate) const TOMBSTONES: &[u8] = b"mt";
    /// Prefix of the unfinished deletions of logical clusters.
    pub(crate) const SWEEPS: &[u8] = b"mw";

    /// Returns the key of a resource number.
    pub(crate) fn resource(id: u32) -> Vec<u8> {
        joined(b'm', &[b"r", &id.to_be_bytes()])
    }

    /// Returns the key of a tombstone.
    pub(crate) fn tombstone(cluster: LogicalClusterId) -> Vec<u8> {
        joined(b'm', &[b"t", &cluster.get().to_be_bytes()])
    }

    /// Returns the key of an unfinished deletion of a logical cluster.
    pub(crate) fn sweep(cluster: LogicalClusterId) -> Vec<u8> {
        joined(b'm', &[b"w", &cluster.get().to_be_bytes()])
    }

    /// Returns the key of an account.
    pub(crate) fn account(cluster: LogicalClusterId) -> Vec<u8> {
        joined(b'm', &[b"u", &cluster.get().to_be_bytes()])
    }

    /// Returns the number at the end of such a key.
    pub(crate) fn number<const N: usize>(key: &[u8]) -> Option<[u8; N]> {
        key.get(2..)?.try_into().ok()
    }
}

fn push_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

/// Escapes text so that its order is kept and no text is a prefix of another: zero becomes 00 FF, the end is 00 00.
pub(crate) fn escaped(uid: &str) -> Option<Vec<u8>> {
    if uid.is_empty() || uid.len() > MAX_INDEXED_UID {
        return None;
    }
    let mut out = Vec::with_capacity(uid.len() + 2);
    for byte in uid.bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(u8::MAX);
        }
    }
    out.extend_from_slice(&[0, 0]);
    Some(out)
}

/// Parses [`escaped`] text; returns it and the bytes after it.
pub(crate) fn unescaped(mut bytes: &[u8]) -> Option<(String, &[u8])> {
    let mut text = Vec::new();
    loop {
        bytes = match bytes {
            [0, 0, rest @ ..] => return Some((String::from_utf8(text).ok()?, rest)),
            [0, u8::MAX, rest @ ..] => {
                text.push(0);
                rest
            }
            [0, ..] | [] => return None,
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Tuple = (u64, u32, String, String, u64);

    fn tuple() -> impl Strategy<Value = Tuple> {
        let number = prop_oneof![0..3u64, Just(u64::MAX), any::<u64>()];
        let resource = prop_oneof![0..3u32, any::<u32>()];
        let namespace = prop_oneof![Just(String::new()), "[a-c]{1,3}", "[a-z]([a-z0-9-]{0,6}[a-z0-9])?"];
        (number.clone(), resource, namespace, "[a-c:~ü][a-c:.~ü]{0,3}", number)
    }

    fn suffix((cluster, resource, namespace, name, _): &Tuple) -> KeySuffix {
        let scope = Scope::from(namespace.parse::<NamespaceName>().ok());
        KeySuffix::new(LogicalClusterId::new(*cluster), *resource, &scope, &name.parse().unwrap())
    }

    fn all_keys(tuple: &Tuple) -> Vec<Vec<u8>> {
        let (suffix, uid) = (suffix(tuple), &tuple.3);
        let cluster = LogicalClusterId::new(tuple.0);
        let marks = [meta::FORMAT, meta::IDENTITY, meta::LAST, meta::FLOOR, meta::TIDY].map(<[u8]>::to_vec);
        let indexes = [suffix.owner(uid).unwrap(), suffix.placed(uid).unwrap()];
        let numbered =
            [meta::resource(tuple.1), meta::tombstone(cluster), meta::sweep(cluster), meta::account(cluster)];
        let objects = [suffix.object(), suffix.version(tuple.4), history(tuple.4)];
        objects.into_iter().chain(indexes).chain(numbered).chain(marks).collect()
    }

    proptest! {
        #[test]
        fn key_order_is_tuple_order(a in tuple(), b in tuple()) {
            let key = |t: &Tuple| (t.0, t.1, t.2.clone(), t.3.clone());
            prop_assert_eq!(suffix(&a).object().cmp(&suffix(&b).object()), key(&a).cmp(&key(&b)));
            let versions = suffix(&a).version(a.4).cmp(&suffix(&b).version(b.4));
            prop_assert_eq!(versions, (key(&a), a.4).cmp(&(key(&b), b.4)));
            prop_assert_eq!(history(a.4).cmp(&history(b.4)), a.4.cmp(&b.4));
        }

        #[test]
        fn no_key_is_the_beginning_of_another(a in tuple(), b in tuple()) {
            for left in all_keys(&a) {
                for right in all_keys(&b) {
                    prop_assert!(left == right || !right.starts_with(&left), "{:?} begins {:?}", left, right);
                }
            }
        }

        #[test]
        fn a_key_is_taken_apart_as_it_was_put_together(t in tuple()) {
            let suffix = suffix(&t);
            let object = suffix.object();
            let parts = parts(&object[1..]).unwrap();
            prop_assert_eq!((parts.cluster.get(), parts.resource, parts.namespace, parts.name), (t.0, t.1, &*t.2, &*t.3));
            prop_assert_eq!(suffix.cluster(), Some(parts.cluster));
            let version = suffix.version(t.4);
            prop_assert_eq!(version_parts(&version), Some((suffix.as_bytes(), t.4)));
            prop_assert_eq!(history_revision(&history(t.4)), Some(t.4));
            let owners = owner_prefix(LogicalClusterId::new(t.0), "own\0er").unwrap();
            let owner = suffix.owner("own\0er").unwrap();
            prop_assert!(owner.starts_with(&owners));
            prop_assert_eq!(owner_suffix(&owner, &owners), Some(suffix.clone()));
            prop_assert_eq!(owner_parts(&owner), Some(("own\0er".to_owned(), suffix.clone())));
            let placed = suffix.placed("east").unwrap();
            prop_assert_eq!(placed_suffix(&placed, &placed_prefix("east").unwrap()), Some(suffix.clone()));
            prop_assert_eq!(placed_parts(&placed), Some(("east".to_owned(), suffix)));
        }

        #[test]
        fn a_logical_cluster_has_a_range_of_its_own(a in tuple(), b in tuple()) {
            let prefix = joined(b'o', &[&cluster_prefix(LogicalClusterId::new(a.0))]);
            let key = suffix(&b).object();
            prop_assert_eq!(key >= prefix && key < end_of(&prefix), a.0 == b.0);
        }
    }

    #[test]
    fn an_invalid_uid_is_not_indexed() {
        let suffix = suffix(&(1, 1, String::new(), "a".into(), 1));
        assert_eq!((suffix.owner(""), suffix.placed(&"u".repeat(254))), (None, None));
    }
}
