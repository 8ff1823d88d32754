//! The one place where keys are encoded. Every key of one kind is prefix-free: no key is the beginning of another, and the
//! byte order of keys is the order of the tuples they stand for.
//!
//! - `o` cluster resource namespace name → the latest object
//! - `v` cluster resource namespace name until → a superseded object, as it stood before revision `until`
//! - `h` revision → what the write of this revision did, and to which object
//! - `x` cluster owner-uid resource namespace name → nothing: the owner index
//! - `p` placed-uid cluster resource namespace name → nothing: the placement index
//! - `m` one byte of kind, number → the store's own bookkeeping
//!
//! Numbers are big-endian, names end with a zero byte (no name has one), uids are escaped text.

use portolan_types::{LogicalClusterId, NamespaceName, ObjectName, Scope};

/// Longest uid that is indexed, in bytes: the bound of `Uid`.
const MAX_INDEXED_UID: usize = 253;

/// The address of an object with its resource as a number: what all keys of the object share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Suffix(Vec<u8>);

/// A suffix taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts<'a> {
    pub(crate) cluster: LogicalClusterId,
    pub(crate) resource: u32,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Suffix {
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

    /// The logical cluster of the object; `None` for bytes that are none.
    pub(crate) fn cluster(&self) -> Option<LogicalClusterId> {
        self.0.first_chunk().map(|cluster| LogicalClusterId::new(u64::from_be_bytes(*cluster)))
    }

    /// Key of the latest object.
    pub(crate) fn object(&self) -> Vec<u8> {
        joined(b'o', &[&self.0])
    }

    /// Key of the object as it stood before `until`.
    pub(crate) fn version(&self, until: u64) -> Vec<u8> {
        joined(b'v', &[&self.0, &until.to_be_bytes()])
    }

    /// Key in the owner index; `None` for a uid that is none.
    pub(crate) fn owner(&self, uid: &str) -> Option<Vec<u8>> {
        let (cluster, rest) = self.0.split_at(8);
        Some(joined(b'x', &[cluster, &escaped(uid)?, rest]))
    }

    /// Key in the placement index; `None` for a uid that is none.
    pub(crate) fn placed(&self, uid: &str) -> Option<Vec<u8>> {
        Some(joined(b'p', &[&escaped(uid)?, &self.0]))
    }
}

/// Takes the common part of an object's keys apart; `None` for bytes that are none.
pub(crate) fn parts(suffix: &[u8]) -> Option<Parts<'_>> {
    let (cluster, rest) = suffix.split_first_chunk::<8>()?;
    let (resource, rest) = rest.split_first_chunk::<4>()?;
    let end = rest.iter().position(|b| *b == 0)?;
    let name = rest[end + 1..].strip_suffix(&[0])?;
    Some(Parts {
        cluster: LogicalClusterId::new(u64::from_be_bytes(*cluster)),
        resource: u32::from_be_bytes(*resource),
        namespace: std::str::from_utf8(&rest[..end]).ok()?,
        name: std::str::from_utf8(name).ok()?,
    })
}

/// The logical cluster and the resource in the key of an object, superseded or not.
pub(crate) fn beginning(key: &[u8]) -> Option<(LogicalClusterId, u32)> {
    let (cluster, rest) = key.get(1..)?.split_first_chunk::<8>()?;
    let resource = rest.first_chunk::<4>()?;
    Some((LogicalClusterId::new(u64::from_be_bytes(*cluster)), u32::from_be_bytes(*resource)))
}

/// Takes the key of a superseded object apart: suffix and `until`.
pub(crate) fn version_parts(key: &[u8]) -> Option<(&[u8], u64)> {
    let (suffix, until) = key.get(1..)?.split_last_chunk::<8>()?;
    Some((suffix, u64::from_be_bytes(*until)))
}

/// Whether a key is one of an object, the latest or a superseded one.
pub(crate) fn is_of_object(key: &[u8]) -> bool {
    // The letter, two numbers, and at least one byte of name with the ends of both names.
    matches!(key, [b'o' | b'v', rest @ ..] if rest.len() > 14)
}

/// Whether a key is one of a write in the history.
pub(crate) fn is_of_history(key: &[u8]) -> bool {
    key.first() == Some(&b'h') && history_revision(key).is_some()
}

/// Key of a write in the history.
pub(crate) fn history(revision: u64) -> Vec<u8> {
    joined(b'h', &[&revision.to_be_bytes()])
}

/// The revision of a key in the history.
pub(crate) fn history_revision(key: &[u8]) -> Option<u64> {
    key.get(1..)?.try_into().ok().map(u64::from_be_bytes)
}

/// Beginning of the keys of a resource in a logical cluster, in all or in one namespace, without the letter in front.
pub(crate) fn resource_prefix(cluster: LogicalClusterId, resource: u32, namespace: Option<&NamespaceName>) -> Vec<u8> {
    let mut out = cluster.get().to_be_bytes().to_vec();
    out.extend_from_slice(&resource.to_be_bytes());
    if let Some(namespace) = namespace {
        push_name(&mut out, namespace);
    }
    out
}

/// Beginning of all keys of a logical cluster, without the letter in front.
pub(crate) fn cluster_prefix(cluster: LogicalClusterId) -> Vec<u8> {
    cluster.get().to_be_bytes().to_vec()
}

/// Beginning of the owner index of one owner; `None` for a uid that is none.
pub(crate) fn owner_prefix(cluster: LogicalClusterId, uid: &str) -> Option<Vec<u8>> {
    Some(joined(b'x', &[&cluster.get().to_be_bytes(), &escaped(uid)?]))
}

/// The suffix in a key of the owner index that begins with `prefix`.
pub(crate) fn owner_suffix(key: &[u8], prefix: &[u8]) -> Option<Suffix> {
    let (cluster, rest) = (key.get(1..9)?, key.get(prefix.len()..)?);
    Some(Suffix([cluster, rest].concat()))
}

/// Beginning of the placement index of one physical cluster; `None` for a uid that is none.
pub(crate) fn placed_prefix(uid: &str) -> Option<Vec<u8>> {
    Some(joined(b'p', &[&escaped(uid)?]))
}

/// The suffix in a key of the placement index that begins with `prefix`.
pub(crate) fn placed_suffix(key: &[u8], prefix: &[u8]) -> Option<Suffix> {
    key.get(prefix.len()..).map(Suffix::from_bytes)
}

/// Takes a key of an index apart: the uid that it begins with, and the object.
pub(crate) type PartsOf = fn(&[u8]) -> Option<(String, Suffix)>;

/// The uid and the object in a key of the owner index.
pub(crate) fn owner_parts(key: &[u8]) -> Option<(String, Suffix)> {
    let (uid, rest) = unescaped(key.get(9..)?)?;
    Some((uid, Suffix([key.get(1..9)?, rest].concat())))
}

/// The uid and the object in a key of the placement index.
pub(crate) fn placed_parts(key: &[u8]) -> Option<(String, Suffix)> {
    let (uid, rest) = unescaped(key.get(1..)?)?;
    Some((uid, Suffix::from_bytes(rest)))
}

/// The first key that does not begin with `prefix` and comes after those that do.
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

/// `letter` and `parts`, one after the other.
pub(crate) fn joined(letter: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    out.push(letter);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

/// Keys of the store's own bookkeeping: a letter of kind each, so that none is the beginning of another.
pub(crate) mod meta {
    use super::{LogicalClusterId, joined};

    /// Format version of the layout.
    pub(crate) const FORMAT: &[u8] = b"mf";
    /// Identity of this store, made with it.
    pub(crate) const IDENTITY: &[u8] = b"mi";
    /// The last revision handed out. Kept apart from the data, so that nothing that removes data can lower it.
    pub(crate) const LAST: &[u8] = b"ml";
    /// The compaction's floor: all events after it are kept.
    pub(crate) const FLOOR: &[u8] = b"mo";
    /// Written by the commit that makes the next start quick.
    pub(crate) const TIDY: &[u8] = b"mq";
    /// Beginning of the resource ids.
    pub(crate) const RESOURCES: &[u8] = b"mr";
    /// Beginning of the tombstones of logical clusters.
    pub(crate) const TOMBSTONES: &[u8] = b"mt";
    /// Beginning of the logical clusters whose keys are still to be removed.
    pub(crate) const SWEEPS: &[u8] = b"mw";

    /// The resource of an id.
    pub(crate) fn resource(id: u32) -> Vec<u8> {
        joined(b'm', &[b"r", &id.to_be_bytes()])
    }

    /// The tombstone of a logical cluster.
    pub(crate) fn tombstone(cluster: LogicalClusterId) -> Vec<u8> {
        joined(b'm', &[b"t", &cluster.get().to_be_bytes()])
    }

    /// The mark that keys of a deleted logical cluster are still to be removed.
    pub(crate) fn sweep(cluster: LogicalClusterId) -> Vec<u8> {
        joined(b'm', &[b"w", &cluster.get().to_be_bytes()])
    }

    /// The account of a logical cluster.
    pub(crate) fn account(cluster: LogicalClusterId) -> Vec<u8> {
        joined(b'm', &[b"u", &cluster.get().to_be_bytes()])
    }

    /// The number at the end of such a key.
    pub(crate) fn number<const N: usize>(key: &[u8]) -> Option<[u8; N]> {
        key.get(2..)?.try_into().ok()
    }
}

fn push_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

/// Any text so that order stays and no text is the beginning of another: zero becomes 00 FF, the end is 00 00.
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

/// The text that was [`escaped`], and what follows it.
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

    fn suffix((cluster, resource, namespace, name, _): &Tuple) -> Suffix {
        let scope = Scope::from(namespace.parse::<NamespaceName>().ok());
        Suffix::new(LogicalClusterId::new(*cluster), *resource, &scope, &name.parse().unwrap())
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
    fn what_is_no_uid_is_not_indexed() {
        let suffix = suffix(&(1, 1, String::new(), "a".into(), 1));
        assert_eq!((suffix.owner(""), suffix.placed(&"u".repeat(254))), (None, None));
    }
}
