//! History: the effect of each revision and the object that it changed. It does not contain values: they are in the
//! latest object, or in the superseded one that ended there.

use std::sync::Arc;

use bytes::Bytes;
use portolan_types::{ObjectKey, ResourceVersion, Scope};

use crate::{
    api::{ChangeKind, Event, StoreError, WatchScope, damage::Damage},
    engine::{KvView, failed},
    layout::{
        history_entry::{HistoryChange, HistoryEntry},
        keys::{self, KeyParts, KeySuffix},
        record::{ObjectVersion, decode},
    },
    read::{
        resources::ResourceRegistry,
        state::{backend, damaged, marks},
    },
};

/// Most events of one read; the last transaction may exceed it.
const MAX_EVENTS: usize = 1024;
/// Most bytes of objects of one read; the last transaction may exceed it.
const MAX_BYTES: usize = 1 << 20;
/// Most entries of one read; the last transaction may exceed it.
const MAX_ENTRIES: usize = 8192;

/// Check that no entry is missing between those that are read: a watch would silently skip its event.
struct GapCheck {
    next: u64,
    /// Number of writes that follow the next entry in its transaction, if known.
    remaining: Option<u16>,
}

impl GapCheck {
    fn after(revision: u64) -> Self {
        Self { next: revision.saturating_add(1), remaining: None }
    }

    fn take(&mut self, revision: u64, entry: &HistoryEntry<'_>) -> Result<(), Damage> {
        let fits = revision == self.next && self.remaining.is_none_or(|remaining| remaining == entry.remaining);
        (self.next, self.remaining) = (revision.saturating_add(1), entry.remaining.checked_sub(1));
        if fits { Ok(()) } else { Err(Damage::Missing) }
    }

    /// Checks that the last entry was read.
    fn end(&self, last: u64) -> Result<(), Damage> {
        if self.next > last { Ok(()) } else { Err(Damage::Missing) }
    }
}

/// Events read from the history.
pub(crate) struct CatchUpPage {
    pub(crate) events: Vec<Arc<Event>>,
    /// Revision up to which everything was read: a transaction's boundary.
    pub(crate) upto: u64,
}

/// Reads events of `scope` strictly after `after`, up to a limit or the latest one.
pub(crate) fn catch_up(
    view: &dyn KvView,
    resources: &ResourceRegistry,
    scope: &WatchScope,
    after: u64,
) -> Result<CatchUpPage, StoreError> {
    let marks = marks(view)?;
    marks.check_kept(after)?;
    let filter = WatchFilter::new(view, resources, scope)?;
    let mut caught = CatchUpPage { events: Vec::new(), upto: after };
    let (mut read, mut bytes, mut gapless) = (0, 0, GapCheck::after(after));
    let (from, to) = (keys::history(after.saturating_add(1)), keys::history(marks.last.saturating_add(1)));
    let mut cursor = view.scan(&from, &to).map_err(backend)?;
    while let Some(key) = cursor.key() {
        let revision = keys::history_revision(key).ok_or(Damage::Key).map_err(damaged)?;
        let entry = HistoryEntry::decode(revision, cursor.value()).map_err(damaged_entry_error)?;
        gapless.take(revision, &entry).map_err(damaged_entry_error)?;
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
    gapless.end(marks.last).map_err(damaged_entry_error)?;
    caught.upto = marks.last.max(after);
    Ok(caught)
}

/// Builds the error for a damaged entry: its object is unknown, so no watch can continue past it.
fn damaged_entry_error(why: Damage) -> StoreError {
    let what = match why {
        Damage::Missing => "an entry of the history is missing",
        _ => "an entry of the history is not what was written",
    };
    backend(failed(format!("the store is damaged: {what}")))
}

/// Filter of the history entries that a watch wants.
struct WatchFilter<'a> {
    resources: &'a ResourceRegistry,
    scope: &'a WatchScope,
    resource: Option<u32>,
}

impl<'a> WatchFilter<'a> {
    fn new(view: &dyn KvView, resources: &'a ResourceRegistry, scope: &'a WatchScope) -> Result<Self, StoreError> {
        let resource = match scope {
            WatchScope::Resource(resource, _) => resources.id_in(view, resource)?,
            WatchScope::PlacedOn(_) | WatchScope::All => None,
        };
        Ok(Self { resources, scope, resource })
    }

    fn event(&self, view: &dyn KvView, revision: u64, entry: &HistoryEntry<'_>) -> Result<Option<Event>, StoreError> {
        let HistoryChange::Object(change, suffix) = entry.what else { return Ok(None) };
        let parts = keys::parts(suffix).ok_or(Damage::Key).map_err(damaged)?;
        let wanted = match self.scope {
            WatchScope::Resource(_, cluster) => {
                self.resource == Some(parts.resource) && cluster.is_none_or(|cluster| cluster == parts.cluster)
            }
            WatchScope::PlacedOn(_) => entry.placed,
            WatchScope::All => true,
        };
        if !wanted {
            return Ok(None);
        }
        let event = load(view, self.resources, revision, change, suffix, parts)?;
        Ok(belongs_to_watch(self.scope, &event).then_some(event))
    }
}

/// Returns true if an event belongs to a watch.
pub(crate) fn belongs_to_watch(scope: &WatchScope, event: &Event) -> bool {
    match scope {
        WatchScope::Resource(resource, cluster) => {
            event.key.resource == *resource && cluster.is_none_or(|cluster| cluster == event.key.cluster)
        }
        WatchScope::PlacedOn(uid) => placed_on(event).any(|placed| placed == uid),
        WatchScope::All => true,
    }
}

/// Returns the physical clusters of an object before and after a write.
pub(crate) fn placed_on(event: &Event) -> impl Iterator<Item = &String> {
    let before = event.previous.iter().flat_map(|record| &record.header.placed_on);
    event.record.header.placed_on.iter().chain(before)
}

/// Builds the event of a history entry.
fn load(
    view: &dyn KvView,
    resources: &ResourceRegistry,
    revision: u64,
    change: ChangeKind,
    suffix: &[u8],
    parts: KeyParts<'_>,
) -> Result<Event, StoreError> {
    let (suffix, key) = (KeySuffix::from_bytes(suffix), object_key(resources, parts)?);
    let decoded =
        |value: &Bytes| decode(suffix.as_bytes(), value).map_err(|why| StoreError::Damaged { key: key.clone(), why });
    let ended_here = || -> Result<ObjectVersion, StoreError> {
        let value = view.get(&suffix.version(revision)).map_err(backend)?;
        decoded(&value.ok_or(Damage::Key).map_err(damaged)?)
    };
    let begun_here = || begun_at(view, &suffix, revision, decoded);
    let (record, previous) = match change {
        ChangeKind::Created => (begun_here()?.record, None),
        ChangeKind::Updated => (begun_here()?.record, Some(ended_here()?.record)),
        ChangeKind::Deleted => (ended_here()?.record, None),
    };
    let revision = ResourceVersion::new(revision).ok_or(Damage::Key).map_err(damaged)?;
    Ok(Event { revision, change, key, record, previous })
}

/// Reads the object as a write left it: the latest one, or the first superseded one that ended later.
fn begun_at(
    view: &dyn KvView,
    suffix: &KeySuffix,
    revision: u64,
    decoded: impl Fn(&Bytes) -> Result<ObjectVersion, StoreError>,
) -> Result<ObjectVersion, StoreError> {
    if let Some(value) = view.get(&suffix.object()).map_err(backend)? {
        let latest = decoded(&value)?;
        if latest.revision.get() == revision {
            return Ok(latest);
        }
    }
    let cursor = view.scan(&suffix.version(revision + 1), &suffix.version(u64::MAX)).map_err(backend)?;
    let version = decoded(&cursor.value_bytes())?;
    if version.revision.get() == revision { Ok(version) } else { Err(damaged(Damage::Key)) }
}

/// Returns the address of a key suffix.
pub(crate) fn object_key(resources: &ResourceRegistry, parts: KeyParts<'_>) -> Result<ObjectKey, StoreError> {
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
    use portolan_types::LogicalClusterId;

    use super::*;

    #[test]
    fn an_entry_that_is_missing_is_noticed() {
        let entry = |remaining| HistoryEntry {
            what: HistoryChange::ClusterGone(LogicalClusterId::new(1)),
            remaining,
            placed: false,
        };
        for (case, entries, fits) in [
            ("none", vec![], false),
            ("all", vec![(5, 1), (6, 0), (7, 0)], true),
            ("not the first", vec![(6, 0), (7, 0)], false),
            ("not one within", vec![(5, 1), (7, 0)], false),
            ("not the last", vec![(5, 1), (6, 0)], false),
            ("another transaction's end", vec![(5, 1), (6, 4), (7, 0)], false),
        ] {
            let mut gapless = GapCheck::after(4);
            let taken = entries.into_iter().try_for_each(|(revision, of)| gapless.take(revision, &entry(of)));
            assert_eq!(taken.and_then(|()| gapless.end(7)).is_ok(), fits, "{case}");
        }
        assert!(GapCheck::after(7).end(7).is_ok(), "nothing has happened since");
    }
}
