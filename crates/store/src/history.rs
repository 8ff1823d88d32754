//! The history: for each revision what was done, and to which object. Bytes are not in it: they are the latest object's, or
//! the superseded one's that ended there.

use std::sync::Arc;

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, ResourceVersion, Scope};

use crate::{
    Change, Event, StoreError, WatchScope,
    keys::{self, Parts, Suffix},
    kv::{View, failed},
    read::{backend, damaged, marks},
    resources::Resources,
    value::{Damage, Version, decode},
};

/// Most events that one reading of the history returns, give or take a transaction.
const MAX_EVENTS: usize = 1024;
/// Most bytes of objects that one reading returns, give or take a transaction.
const MAX_BYTES: usize = 1 << 20;
/// Most entries that one reading looks at, give or take a transaction.
const MAX_ENTRIES: usize = 8192;

/// Set in an entry when the object was placed somewhere before or after the write.
const PLACED: u8 = 0x80;
/// Set in an entry that ends with its checksum: all but those that were written before format 3.
const CHECKED: u8 = 0x40;
/// The operation of an entry that says that a logical cluster is gone.
const CLUSTER_GONE: u8 = 4;

/// An entry of the history: `operation u8 | writes that follow in the same transaction u16 | suffix or cluster | CRC-32 u32`. The
/// checksum is over the revision, as its key has it, and all before it: an entry may say that something was deleted, and nothing else does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) what: What<'a>,
    /// How many more writes the transaction has; 0 marks its boundary.
    pub(crate) remaining: u16,
    pub(crate) placed: bool,
}

/// What a revision stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What<'a> {
    Object(Change, &'a [u8]),
    ClusterGone(LogicalClusterId),
}

impl<'a> Entry<'a> {
    /// The entry of a revision.
    pub(crate) fn encode(&self, revision: u64) -> Bytes {
        let (operation, rest) = match &self.what {
            What::Object(Change::Created, suffix) => (1, suffix.to_vec()),
            What::Object(Change::Updated, suffix) => (2, suffix.to_vec()),
            What::Object(Change::Deleted, suffix) => (3, suffix.to_vec()),
            What::ClusterGone(cluster) => (CLUSTER_GONE, cluster.get().to_be_bytes().to_vec()),
        };
        let mut out = Vec::with_capacity(7 + rest.len());
        out.push(operation | CHECKED | if self.placed { PLACED } else { 0 });
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&rest);
        out.extend_from_slice(&checksum(revision, &out).to_le_bytes());
        out.into()
    }

    /// # Errors
    /// For bytes that are no entry of this revision.
    pub(crate) fn decode(revision: u64, bytes: &'a [u8]) -> Result<Self, Damage> {
        let bytes = match is_checked(bytes) {
            true => checked(revision, bytes)?,
            false => bytes,
        };
        let (head, rest) = bytes.split_first_chunk::<3>().ok_or(Damage::Key)?;
        let what = match head[0] & !(PLACED | CHECKED) {
            1 => What::Object(Change::Created, rest),
            2 => What::Object(Change::Updated, rest),
            3 => What::Object(Change::Deleted, rest),
            CLUSTER_GONE => {
                let number = rest.try_into().map_err(|_| Damage::Key)?;
                What::ClusterGone(LogicalClusterId::new(u64::from_be_bytes(number)))
            }
            _ => return Err(Damage::Key),
        };
        Ok(Self { what, remaining: u16::from_le_bytes([head[1], head[2]]), placed: head[0] & PLACED != 0 })
    }
}

/// Whether an entry ends with its checksum.
pub(crate) fn is_checked(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|operation| operation & CHECKED != 0)
}

fn checksum(revision: u64, entry: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&revision.to_be_bytes());
    hasher.update(entry);
    hasher.finalize()
}

/// An entry without its checksum, which holds.
fn checked(revision: u64, bytes: &[u8]) -> Result<&[u8], Damage> {
    let (entry, sum) = bytes.split_last_chunk::<4>().ok_or(Damage::Key)?;
    if *sum == checksum(revision, entry).to_le_bytes() { Ok(entry) } else { Err(Damage::Checksum) }
}

/// Looks that no entry is missing between those that are read: a watch would go on without what it told.
struct Gapless {
    next: u64,
    /// How many more writes of its transaction follow on the next entry, where that is known.
    remaining: Option<u16>,
}

impl Gapless {
    fn after(revision: u64) -> Self {
        Self { next: revision.saturating_add(1), remaining: None }
    }

    fn take(&mut self, revision: u64, entry: &Entry<'_>) -> Result<(), Damage> {
        let fits = revision == self.next && self.remaining.is_none_or(|remaining| remaining == entry.remaining);
        (self.next, self.remaining) = (revision.saturating_add(1), entry.remaining.checked_sub(1));
        if fits { Ok(()) } else { Err(Damage::Missing) }
    }

    /// The last one was read.
    fn end(&self, last: u64) -> Result<(), Damage> {
        if self.next > last { Ok(()) } else { Err(Damage::Missing) }
    }
}

/// Events read from the history.
pub(crate) struct CaughtUp {
    pub(crate) events: Vec<Arc<Event>>,
    /// Everything up to here was read: a transaction's boundary.
    pub(crate) upto: u64,
}

/// Reads events of `scope` strictly after `after`, up to a bound or the present.
pub(crate) fn catch_up(
    view: &dyn View,
    resources: &Resources,
    scope: &WatchScope,
    after: u64,
) -> Result<CaughtUp, StoreError> {
    let marks = marks(view)?;
    marks.check_kept(after)?;
    let filter = Filter::new(view, resources, scope)?;
    let mut caught = CaughtUp { events: Vec::new(), upto: after };
    let (mut read, mut bytes, mut gapless) = (0, 0, Gapless::after(after));
    let (from, to) = (keys::history(after.saturating_add(1)), keys::history(marks.last.saturating_add(1)));
    let mut cursor = view.scan(&from, &to).map_err(backend)?;
    while let Some(key) = cursor.key() {
        let revision = keys::history_revision(key).ok_or(Damage::Key).map_err(damaged)?;
        let entry = Entry::decode(revision, cursor.value()).map_err(gap)?;
        gapless.take(revision, &entry).map_err(gap)?;
        if let Some(event) = filter.event(view, revision, &entry)? {
            bytes += event.record.body().len() + event.previous.as_ref().map_or(0, |p| p.body().len());
            caught.events.push(Arc::new(event));
        }
        read += 1;
        if entry.remaining == 0 {
            caught.upto = revision;
            if caught.events.len() >= MAX_EVENTS || bytes >= MAX_BYTES || read >= MAX_ENTRIES {
                return Ok(caught);
            }
        }
        cursor.advance().map_err(backend)?;
    }
    gapless.end(marks.last).map_err(gap)?;
    caught.upto = marks.last.max(after);
    Ok(caught)
}

/// What is wrong with an entry: nobody can tell whose it was, so that no watch goes on past it.
fn gap(why: Damage) -> StoreError {
    let what = match why {
        Damage::Missing => "an entry of the history is missing",
        _ => "an entry of the history is not what was written",
    };
    backend(failed(format!("the store is damaged: {what}")))
}

/// Which entries of the history a watch wants.
struct Filter<'a> {
    resources: &'a Resources,
    scope: &'a WatchScope,
    resource: Option<u32>,
}

impl<'a> Filter<'a> {
    fn new(view: &dyn View, resources: &'a Resources, scope: &'a WatchScope) -> Result<Self, StoreError> {
        let resource = match scope {
            WatchScope::Resource(resource, _) => resources.id_in(view, resource)?,
            WatchScope::PlacedOn(_) => None,
        };
        Ok(Self { resources, scope, resource })
    }

    fn event(&self, view: &dyn View, revision: u64, entry: &Entry<'_>) -> Result<Option<Event>, StoreError> {
        let What::Object(change, suffix) = entry.what else { return Ok(None) };
        let parts = keys::parts(suffix).ok_or(Damage::Key).map_err(damaged)?;
        let wanted = match self.scope {
            WatchScope::Resource(_, cluster) => {
                self.resource == Some(parts.resource) && cluster.is_none_or(|cluster| cluster == parts.cluster)
            }
            WatchScope::PlacedOn(_) => entry.placed,
        };
        if !wanted {
            return Ok(None);
        }
        let event = load(view, self.resources, revision, change, suffix, parts)?;
        Ok(concerns(self.scope, &event).then_some(event))
    }
}

/// Whether an event belongs to a watch.
pub(crate) fn concerns(scope: &WatchScope, event: &Event) -> bool {
    match scope {
        WatchScope::Resource(resource, cluster) => {
            event.key.resource == *resource && cluster.is_none_or(|cluster| cluster == event.key.cluster)
        }
        WatchScope::PlacedOn(uid) => placed_on(event).any(|placed| placed == uid),
    }
}

/// The physical clusters that an object was placed on before or after a write.
pub(crate) fn placed_on(event: &Event) -> impl Iterator<Item = &String> {
    let before = event.previous.iter().flat_map(|record| &record.header.placed_on);
    event.record.header.placed_on.iter().chain(before)
}

/// Puts an event of the past together again.
fn load(
    view: &dyn View,
    resources: &Resources,
    revision: u64,
    change: Change,
    suffix: &[u8],
    parts: Parts<'_>,
) -> Result<Event, StoreError> {
    let (suffix, key) = (Suffix::from_bytes(suffix), object_key(resources, parts)?);
    let decoded =
        |value: &Bytes| decode(suffix.as_bytes(), value).map_err(|why| StoreError::Damaged { key: key.clone(), why });
    let ended_here = || -> Result<Version, StoreError> {
        let value = view.get(&suffix.version(revision)).map_err(backend)?;
        decoded(&value.ok_or(Damage::Key).map_err(damaged)?)
    };
    let begun_here = || begun_at(view, &suffix, revision, decoded);
    let (record, previous) = match change {
        Change::Created => (begun_here()?.record, None),
        Change::Updated => (begun_here()?.record, Some(ended_here()?.record)),
        Change::Deleted => (ended_here()?.record, None),
    };
    let revision = ResourceVersion::new(revision).ok_or(Damage::Key).map_err(damaged)?;
    Ok(Event { revision, change, key, record, previous })
}

/// The object as a write left it: still the latest, or the first superseded one that ended later.
fn begun_at(
    view: &dyn View,
    suffix: &Suffix,
    revision: u64,
    decoded: impl Fn(&Bytes) -> Result<Version, StoreError>,
) -> Result<Version, StoreError> {
    if let Some(value) = view.get(&suffix.object()).map_err(backend)? {
        let latest = decoded(&value)?;
        if latest.revision.get() == revision {
            return Ok(latest);
        }
    }
    let cursor = view.scan(&suffix.version(revision + 1), &suffix.version(u64::MAX)).map_err(backend)?;
    let version = decoded(&cursor.value_bytes())?;
    match version.revision.get() == revision {
        true => Ok(version),
        false => Err(damaged(Damage::Key)),
    }
}

/// The address that a suffix stands for.
pub(crate) fn object_key(resources: &Resources, parts: Parts<'_>) -> Result<ObjectKey, StoreError> {
    let resource = resources.name(parts.resource);
    let scope = match parts.namespace {
        "" => Some(Scope::Cluster),
        namespace => namespace.parse().ok().map(Scope::Namespace),
    };
    match (resource, scope, parts.name.parse()) {
        (Some(resource), Some(scope), Ok(name)) => Ok(ObjectKey { cluster: parts.cluster, resource, scope, name }),
        _ => Err(damaged(Damage::Key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_as_it_went() {
        for what in [
            What::Object(Change::Created, b"abc"),
            What::Object(Change::Updated, b""),
            What::Object(Change::Deleted, b"\0\xff"),
            What::ClusterGone(LogicalClusterId::new(7)),
        ] {
            for (remaining, placed) in [(0, false), (256, true)] {
                let entry = Entry { what: what.clone(), remaining, placed };
                assert_eq!(Entry::decode(9, &entry.encode(9)), Ok(entry));
            }
        }
        for bytes in [&b""[..], b"\x01\0", b"\x09\0\0abc", b"\x04\0\0abc", b"\x41\0"] {
            assert_eq!(Entry::decode(9, bytes), Err(Damage::Key));
        }
        let before_format_3 = Entry { what: What::Object(Change::Deleted, b"abc"), remaining: 2, placed: true };
        assert_eq!(Entry::decode(9, b"\x83\x02\0abc"), Ok(before_format_3));
    }

    #[test]
    fn any_flipped_bit_of_an_entry_is_found_and_so_is_one_of_another_revision() {
        let suffix = b"\0\0\0\0\0\0\0\x01\0\0\0\x02default\0web\0";
        let entry = Entry { what: What::Object(Change::Updated, suffix), remaining: 0, placed: true }.encode(9);
        assert!(Entry::decode(8, &entry).is_err());
        for bit in 0..entry.len() * 8 {
            let mut bytes = entry.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = Entry::decode(9, &bytes);
            // Without its mark it looks like one of before, whose suffix would end with the checksum.
            let is_object = matches!(&found, Ok(Entry { what: What::Object(_, suffix), .. }) if keys::parts(suffix)
                .is_some_and(|parts| parts.name.parse::<portolan_types::ObjectName>().is_ok()));
            assert!(!is_object, "bit {bit}: {found:?}");
        }
    }

    #[test]
    fn an_entry_that_is_missing_is_noticed() {
        let entry = |remaining| Entry { what: What::ClusterGone(LogicalClusterId::new(1)), remaining, placed: false };
        for (case, entries, fits) in [
            ("none", vec![], false),
            ("all", vec![(5, 1), (6, 0), (7, 0)], true),
            ("not the first", vec![(6, 0), (7, 0)], false),
            ("not one within", vec![(5, 1), (7, 0)], false),
            ("not the last", vec![(5, 1), (6, 0)], false),
            ("another transaction's end", vec![(5, 1), (6, 4), (7, 0)], false),
        ] {
            let mut gapless = Gapless::after(4);
            let taken = entries.into_iter().try_for_each(|(revision, of)| gapless.take(revision, &entry(of)));
            assert_eq!(taken.and_then(|()| gapless.end(7)).is_ok(), fits, "{case}");
        }
        assert!(Gapless::after(7).end(7).is_ok(), "nothing has happened since");
    }
}
