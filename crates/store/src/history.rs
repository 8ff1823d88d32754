//! The history: for each revision what was done, and to which object. Bytes are not in it: they are the latest object's, or
//! the superseded one's that ended there.

use std::sync::Arc;

use bytes::Bytes;
use portolan_types::{LogicalClusterId, ObjectKey, ResourceVersion, Scope};

use crate::{
    Change, Event, StoreError, WatchScope,
    keys::{self, Parts, Suffix},
    kv::View,
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
/// The operation of an entry that says that a logical cluster is gone.
const CLUSTER_GONE: u8 = 4;

/// An entry of the history: `operation u8 | writes that follow in the same transaction u16 | suffix or cluster`.
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
    pub(crate) fn encode(&self) -> Bytes {
        let (operation, rest) = match &self.what {
            What::Object(Change::Created, suffix) => (1, suffix.to_vec()),
            What::Object(Change::Updated, suffix) => (2, suffix.to_vec()),
            What::Object(Change::Deleted, suffix) => (3, suffix.to_vec()),
            What::ClusterGone(cluster) => (CLUSTER_GONE, cluster.get().to_be_bytes().to_vec()),
        };
        let mut out = Vec::with_capacity(3 + rest.len());
        out.push(operation | if self.placed { PLACED } else { 0 });
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&rest);
        out.into()
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, Damage> {
        let (head, rest) = bytes.split_first_chunk::<3>().ok_or(Damage::Key)?;
        let what = match head[0] & !PLACED {
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
    let (mut read, mut bytes) = (0, 0);
    let mut cursor = view.scan(&keys::history(after + 1), &keys::history(marks.last + 1)).map_err(backend)?;
    while let Some(key) = cursor.key() {
        let revision = keys::history_revision(key).ok_or(Damage::Key).map_err(damaged)?;
        let entry = Entry::decode(cursor.value()).map_err(damaged)?;
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
    caught.upto = marks.last.max(after);
    Ok(caught)
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
                assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
            }
        }
        for bytes in [&b""[..], b"\x01\0", b"\x09\0\0abc", b"\x04\0\0abc"] {
            assert_eq!(Entry::decode(bytes), Err(Damage::Key));
        }
    }
}
