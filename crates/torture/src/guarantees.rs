//! Two guarantees that need more than one watch to check: a selector neither drops nor adds events, and a transaction
//! is never visible in part.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::births::BORN;
use super::history::{ObservedWrite, WatchEventKind, WatchItem};
use super::linear::Value;
use super::watched::WatchSelection;

/// Changes that watches of all objects received, by version.
pub(crate) type Truth = BTreeMap<u64, ObservedWrite>;

/// Version of a list, and its keys.
pub(crate) type ListedState = (u64, Vec<String>);

/// Returns the event that a watch with a selector must send for a change: ADDED for an object that starts to match,
/// DELETED with the last matching state for one that stops.
fn chosen(watched: WatchSelection, from: Option<Value>, to: Option<Value>) -> Option<(WatchEventKind, Value)> {
    let is_among = |value: &Value| watched.has(*value);
    match (from.filter(is_among), to.filter(is_among)) {
        (None, None) => None,
        (None, Some(value)) => Some((WatchEventKind::Added, value)),
        (Some(_), Some(value)) => Some((WatchEventKind::Modified, value)),
        (Some(value), None) => Some((WatchEventKind::Deleted, value)),
    }
}

/// Compares the events of a watch with a selector since `start` with those of watches of all objects. `is_whole` is
/// true if those received everything; otherwise the events that a list replaced are unknown.
///
/// # Errors
/// Fails if an event does not match the selector, is missing, superfluous, or of another type.
pub(crate) fn check_filtered(
    watched: WatchSelection,
    truth: &Truth,
    is_whole: bool,
    start: u64,
    seen: &[WatchItem],
) -> Result<()> {
    let mut last = start;
    let missed = |after: u64, before: u64| {
        let mut between = truth.range(after + 1..before);
        between.find(|(_, (_, from, to))| chosen(watched, *from, *to).is_some())
    };
    for seen in seen {
        let version = match seen {
            WatchItem::List { version, objects } => {
                let other = objects.iter().find(|(_, value)| !watched.has(*value));
                ensure!(other.is_none(), "filter: the list at {version} has {other:?}");
                // The list replaces the compacted events.
                last = *version;
                continue;
            }
            WatchItem::Bookmark(version) => {
                // The change at the bookmark itself must have arrived before it.
                let missed = missed(last, version + 1);
                ensure!(missed.is_none(), "filter: the bookmark at {version} comes without {missed:?}");
                *version
            }
            WatchItem::Change { key, value, version, kind } => {
                let missed = missed(last, *version);
                ensure!(missed.is_none(), "filter: {kind:?} of {key} at {version} comes without {missed:?}");
                let expected = truth.get(version).map(|(of, from, to)| (of, chosen(watched, *from, *to)));
                let fits = expected.map_or(!is_whole, |expected| expected == (key, Some((*kind, *value))));
                ensure!(fits, "filter: {kind:?} of {key} to {value} at {version}, but {expected:?} happened");
                *version
            }
        };
        last = last.max(version);
    }
    Ok(())
}

/// Checks that the first namespaces of each logical cluster, which one transaction creates, arrive consecutively, also
/// after a resume, and that no list contains only some of them. Returns the number of logical clusters that were
/// created.
///
/// # Errors
/// Fails if a transaction is visible in part.
pub(crate) fn check_atomic(seen: &[WatchItem], lists: &[ListedState]) -> Result<usize> {
    let mut births: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    // First version and events of the logical cluster under construction.
    let mut open: Option<(String, u64, BTreeSet<String>)> = None;
    for seen in seen {
        match seen {
            WatchItem::Change { key, version, kind: WatchEventKind::Added, .. } => {
                let (cluster, name) = key.split_once('/').unwrap_or((key, ""));
                let (of, first, mut names) =
                    open.take().unwrap_or_else(|| (cluster.to_owned(), *version, BTreeSet::new()));
                let next = first + names.len() as u64;
                ensure!(of == cluster, "atomic: {key} comes while only {names:?} of {of} have come");
                ensure!(*version == next, "atomic: {key} comes at {version}, after {names:?} from {first} on");
                ensure!(names.insert(name.to_owned()), "atomic: {key} comes twice");
                if names.len() == BORN.len() {
                    let before = births.insert(of, (first, *version));
                    ensure!(before.is_none(), "atomic: {cluster} is born twice");
                } else {
                    open = Some((of, first, names));
                }
            }
            WatchItem::List { version, objects } => {
                ensure!(open.is_none(), "atomic: a list at {version} comes within {open:?}");
                check_list(*version, objects.iter().map(|(key, _)| key), &births)?;
            }
            other => ensure!(open.is_none(), "atomic: {other:?} comes within {open:?}"),
        }
    }
    ensure!(open.is_none(), "atomic: the rest of {open:?} never comes");
    for (version, keys) in lists {
        check_list(*version, keys.iter(), &births)?;
    }
    Ok(births.len())
}

fn check_list<'a>(
    version: u64,
    keys: impl Iterator<Item = &'a String>,
    births: &BTreeMap<String, (u64, u64)>,
) -> Result<()> {
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for key in keys {
        *listed.entry(key.split_once('/').map_or(key.as_str(), |(cluster, _)| cluster)).or_default() += 1;
    }
    let part = listed.iter().find(|(_, count)| **count != BORN.len());
    ensure!(part.is_none(), "atomic: the list at {version} has a part of {part:?}");
    for (cluster, (first, last)) in births {
        ensure!(version < *first || version >= *last, "atomic: the list at {version} lies within {first}…{last}");
        let is_listed = listed.contains_key(cluster.as_str());
        ensure!(
            is_listed == (version >= *last),
            "atomic: {cluster}, born at {last}, in the list at {version}: {is_listed}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, kind: WatchEventKind, value: Value, version: u64) -> WatchItem {
        WatchItem::Change { key: key.into(), value, version, kind }
    }

    #[test]
    fn events_that_a_watch_with_a_selector_must_deliver() {
        use WatchEventKind::{Added, Deleted, Modified};
        let write = |from, to| ("k".to_owned(), from, to);
        // Even, odd, odd, even, deleted, and odd again.
        let truth = Truth::from([
            (10, write(None, Some(2))),
            (11, write(Some(2), Some(3))),
            (12, write(Some(3), Some(5))),
            (14, write(Some(5), Some(6))),
            (15, write(Some(6), None)),
            (17, write(None, Some(7))),
        ]);
        let (added, modified) = (change("k", Added, 3, 11), change("k", Modified, 5, 12));
        let (deleted, again) = (change("k", Deleted, 5, 14), change("k", Added, 7, 17));
        let all = vec![added.clone(), modified.clone(), deleted.clone(), again.clone()];
        let but = |at: usize, other: Option<WatchItem>| {
            let mut seen = all.clone();
            seen.splice(at..=at, other);
            seen
        };
        let with = |at: usize, more: WatchItem| {
            let mut seen = all.clone();
            seen.insert(at, more);
            seen
        };
        for (case, seen, fine) in [
            ("all of it", all.clone(), true),
            ("a bookmark where it has come", with(3, WatchItem::Bookmark(16)), true),
            ("a bookmark before what it stands for", with(2, WatchItem::Bookmark(14)), false),
            ("no beginning", but(0, None), false),
            ("no change", but(1, None), false),
            ("no end, although it is chosen no more", but(2, None), false),
            ("a change instead of the beginning", but(0, Some(change("k", Modified, 3, 11))), false),
            ("a change instead of the end", but(2, Some(change("k", Modified, 6, 14))), false),
            ("an end that shows what was not chosen", but(2, Some(change("k", Deleted, 6, 14))), false),
            ("what was never chosen", with(3, change("k", Deleted, 6, 15)), false),
            ("what never happened", with(3, change("k", Added, 9, 16)), false),
            ("another object's", but(0, Some(change("l", Added, 3, 11))), false),
            (
                "a list in place of the first",
                [vec![WatchItem::List { version: 12, objects: vec![("k".into(), 5)] }], all[2..].to_vec()].concat(),
                true,
            ),
            (
                "a list of what is not chosen",
                [vec![WatchItem::List { version: 12, objects: vec![("k".into(), 6)] }], all[2..].to_vec()].concat(),
                false,
            ),
        ] {
            let checked = check_filtered(WatchSelection::Odd, &truth, true, 9, &seen);
            assert_eq!(checked.is_ok(), fine, "{case}: {checked:?}");
        }
        let unknown = Truth::from([(17, write(None, Some(7)))]);
        assert!(check_filtered(WatchSelection::Odd, &unknown, false, 9, &all).is_ok(), "what others had to list again");
    }

    #[test]
    fn a_transaction_that_is_seen_in_parts_is_found() {
        let born = |cluster: &str, from: u64| -> Vec<WatchItem> {
            let one = |(at, name): (usize, &&str)| {
                change(&format!("{cluster}/{name}"), WatchEventKind::Added, 0, from + at as u64)
            };
            BORN.iter().enumerate().map(one).collect()
        };
        let keys = |names: &[&str]| names.iter().map(|name| format!("a/{name}")).collect::<Vec<_>>();
        let all = [born("a", 10), born("b", 20)].concat();
        let with = |at: usize, more: WatchItem| {
            let mut seen = all.clone();
            seen.insert(at, more);
            seen
        };
        let but = |at: usize| {
            let mut seen = all.clone();
            seen.remove(at);
            seen
        };
        let mut mixed = all.clone();
        mixed.swap(3, 4);
        for (case, seen, lists, fine) in [
            ("two of them", all.clone(), vec![], true),
            ("a bookmark between", with(4, WatchItem::Bookmark(15)), vec![], true),
            ("a bookmark within", with(2, WatchItem::Bookmark(11)), vec![], false),
            ("a change within", with(2, change("a/default", WatchEventKind::Modified, 0, 12)), vec![], false),
            ("a list within", with(2, WatchItem::List { version: 12, objects: vec![] }), vec![], false),
            ("the first is missing", but(0), vec![], false),
            ("one is missing within", but(2), vec![], false),
            ("the last is missing", but(7), vec![], false),
            ("one came to another time", mixed, vec![], false),
            ("twice", [all.clone(), born("a", 30)].concat(), vec![], false),
            ("lists before and after", all.clone(), vec![(9, keys(&[])), (15, keys(&BORN))], true),
            ("a list of a part", all.clone(), vec![(15, keys(&BORN[..3]))], false),
            ("a list that lacks one", all.clone(), vec![(13, keys(&[]))], false),
            ("a list ahead of its version", all.clone(), vec![(9, keys(&BORN))], false),
            ("a list at a version within", all.clone(), vec![(12, keys(&[]))], false),
        ] {
            let checked = check_atomic(&seen, &lists);
            assert_eq!(checked.is_ok(), fine, "{case}: {checked:?}");
        }
    }
}
