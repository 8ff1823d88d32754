//! History of everything that clients and watchers saw, and its check.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::guarantees::Truth;
use super::linear::{CallOutcome, Op, RegisterCall, Value, misfit};

/// Write of a key: the state before and after.
pub(crate) type ObservedWrite = (String, Option<Value>, Option<Value>);

/// The calls of all clients, by key.
pub(crate) struct History {
    start: Instant,
    ops: Mutex<BTreeMap<String, Vec<Op>>>,
    /// resourceVersion of each acknowledged write.
    acknowledged: Mutex<HashMap<ObservedWrite, u64>>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), ops: Mutex::default(), acknowledged: Mutex::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records a call that began at `begun` and ends now.
    pub(crate) fn note(&self, key: &str, begun: u64, call: RegisterCall, version: Option<u64>) {
        let unanswered = matches!(call, RegisterCall::Swap { outcome: CallOutcome::Unknown, .. });
        let ended = if unanswered { u64::MAX } else { self.now() };
        let mut ops = self.ops.lock().expect("no code panics under this lock");
        ops.entry(key.to_owned()).or_default().push(Op { call, begun, ended });
        if let (RegisterCall::Swap { from, to, outcome: CallOutcome::Done }, Some(version)) = (call, version) {
            let mut acknowledged = self.acknowledged.lock().expect("no code panics under this lock");
            acknowledged.insert((key.to_owned(), from, to), version);
        }
    }

    /// Returns all recorded keys.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.ops.lock().expect("no code panics under this lock").keys().cloned().collect()
    }

    /// Returns the numbers of calls, of acknowledged writes, and of writes with an unknown outcome.
    pub(crate) fn counts(&self) -> CallCounts {
        let ops = self.ops.lock().expect("no code panics under this lock");
        let mut counts = CallCounts::default();
        for op in ops.values().flatten() {
            counts.calls += 1;
            match op.call {
                RegisterCall::Swap { outcome: CallOutcome::Done, .. } => counts.acknowledged += 1,
                RegisterCall::Swap { outcome: CallOutcome::Unknown, .. } => counts.unknown += 1,
                RegisterCall::Swap { outcome: CallOutcome::Refused, .. } | RegisterCall::Read(_) => {}
            }
        }
        counts
    }

    /// # Errors
    /// Fails for a key whose calls fit into no order.
    pub(crate) fn check_linearizable(&self) -> Result<()> {
        let ops = self.ops.lock().expect("no code panics under this lock");
        for (key, ops) in &*ops {
            if let Some(misfit) = misfit(ops) {
                bail!(
                    "the calls of {key} fit into no order, {:?} is the first that does not:\n{}",
                    misfit.call,
                    around(ops, &misfit)
                );
            }
        }
        Ok(())
    }

    /// Compares the events of a watch of all objects with the acknowledged writes, and returns the events.
    ///
    /// # Errors
    /// Fails if an event is out of order, missing, duplicated, or matches no write.
    pub(crate) fn check_watch(&self, seen: &[WatchItem]) -> Result<Truth> {
        let mut last = 0;
        let mut truth = Truth::new();
        let mut states: HashMap<&str, Value> = HashMap::new();
        let mut brought: HashMap<ObservedWrite, u64> = HashMap::new();
        // Up to this revision, a list replaces events that were compacted.
        let mut listed = 0;
        for seen in seen {
            let (key, value, version, kind) = match seen {
                WatchItem::Change { key, value, version, kind } => (key, value, version, kind),
                WatchItem::Bookmark(version) => {
                    ensure!(*version >= last, "a bookmark at {version} comes after {last}");
                    last = *version;
                    continue;
                }
                WatchItem::List { version, objects } => {
                    ensure!(*version >= last, "a list at {version} comes after {last}");
                    (last, listed) = (*version, *version);
                    states = objects.iter().map(|(key, value)| (key.as_str(), *value)).collect();
                    continue;
                }
            };
            ensure!(*version > last, "ordered and unique: {version} comes after {last}");
            last = *version;
            let from = states.get(key.as_str()).copied();
            let (fits, to) = match kind {
                WatchEventKind::Added => (from.is_none(), Some(*value)),
                WatchEventKind::Modified => (from.is_some(), Some(*value)),
                WatchEventKind::Deleted => (from == Some(*value), None),
            };
            ensure!(fits, "{kind:?} of {key} at {version}, {value}: it was {from:?} before");
            match to {
                Some(value) => drop(states.insert(key, value)),
                None => drop(states.remove(key.as_str())),
            }
            brought.insert((key.clone(), from, to), *version);
            truth.insert(*version, (key.clone(), from, to));
        }
        let acknowledged = self.acknowledged.lock().expect("no code panics under this lock");
        for (write, version) in &*acknowledged {
            // A deletion answers with the last state of the object, so its version is not that of the deletion.
            let fits = brought.get(write).map_or(*version <= listed, |seen| write.2.is_none() || seen == version);
            ensure!(fits, "reliable: {write:?} was acknowledged at {version}, the watch has {:?}", brought.get(write));
        }
        self.check_sent(brought.keys())?;
        Ok(truth)
    }

    fn check_sent<'a>(&self, brought: impl Iterator<Item = &'a ObservedWrite>) -> Result<()> {
        let ops = self.ops.lock().expect("no code panics under this lock");
        for (key, from, to) in brought {
            let sent = ops.get(key).into_iter().flatten().any(|op| match op.call {
                RegisterCall::Swap { from: f, to: t, outcome: CallOutcome::Done | CallOutcome::Unknown } => {
                    (f, t) == (*from, *to)
                }
                RegisterCall::Swap { outcome: CallOutcome::Refused, .. } | RegisterCall::Read(_) => false,
            });
            ensure!(sent, "{key}: no client changed {from:?} to {to:?}, or it was refused");
        }
        Ok(())
    }
}

/// Number of calls that are shown before and after one that does not fit.
const SHOWN: (usize, usize) = (16, 4);

fn around(ops: &[Op], misfit: &Op) -> String {
    let mut ops = ops.to_vec();
    ops.sort_by_key(|op| op.begun);
    let at = ops.iter().position(|op| op == misfit).unwrap_or_default();
    // An unanswered write may take effect at any later time.
    let is_near =
        |(index, op): &(usize, &Op)| (*index + SHOWN.0 >= at || op.ended == u64::MAX) && *index <= at + SHOWN.1;
    let lines = ops.iter().enumerate().filter(is_near);
    let lines = lines.map(|(_, op)| format!("{:>14} … {:<20} {:?}", op.begun, op.ended, op.call));
    lines.collect::<Vec<_>>().join("\n")
}

/// Figures of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) calls: usize,
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
}

/// Kind of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEventKind {
    Added,
    Modified,
    Deleted,
}

impl WatchEventKind {
    /// Returns the kind of an event on the wire; `None` for events that change no object.
    pub(crate) fn of(event: &serde_json::Value) -> Option<Self> {
        match event["type"].as_str()? {
            "ADDED" => Some(Self::Added),
            "MODIFIED" => Some(Self::Modified),
            "DELETED" => Some(Self::Deleted),
            _ => None,
        }
    }
}

/// Item that a watcher received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchItem {
    Change {
        key: String,
        value: Value,
        version: u64,
        kind: WatchEventKind,
    },
    Bookmark(u64),
    /// Content of a new list, after history was compacted.
    List {
        version: u64,
        objects: Vec<(String, Value)>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: WatchEventKind, value: Value, version: u64) -> WatchItem {
        WatchItem::Change { key: "k".into(), value, version, kind }
    }

    #[test]
    fn a_write_that_is_not_there_in_the_end_is_found() {
        for (found, fine) in [(Some(1), true), (None, false)] {
            let history = History::new();
            let write = RegisterCall::Swap { from: None, to: Some(1), outcome: CallOutcome::Done };
            history.note("k", history.now(), write, Some(10));
            assert!(history.check_linearizable().is_ok());
            for key in history.keys() {
                history.note(&key, history.now(), RegisterCall::Read(found), None);
            }
            assert_eq!(history.check_linearizable().is_ok(), fine, "{found:?}");
        }
    }

    #[test]
    fn events_that_a_watch_must_deliver() {
        let history = History::new();
        let done = |from, to| RegisterCall::Swap { from, to, outcome: CallOutcome::Done };
        history.note("k", 0, done(None, Some(1)), Some(10));
        history.note("k", 0, done(Some(1), Some(2)), Some(12));
        let unknown = |from, to| RegisterCall::Swap { from, to, outcome: CallOutcome::Unknown };
        for call in [unknown(Some(2), None), unknown(None, Some(3)), unknown(Some(1), None)] {
            history.note("k", 0, call, None);
        }
        let (added, modified) = (change(WatchEventKind::Added, 1, 10), change(WatchEventKind::Modified, 2, 12));
        for (case, seen, fine) in [
            ("all of it", vec![added.clone(), WatchItem::Bookmark(11), modified.clone()], true),
            (
                "an unknown write too",
                vec![added.clone(), modified.clone(), change(WatchEventKind::Deleted, 2, 13)],
                true,
            ),
            ("a hole", vec![added.clone()], false),
            // Each of these may be the next write, but none fits the present state.
            (
                "a creation of what is there",
                vec![added.clone(), modified.clone(), change(WatchEventKind::Added, 3, 13)],
                false,
            ),
            (
                "a change of what is not there",
                vec![
                    added.clone(),
                    modified.clone(),
                    change(WatchEventKind::Deleted, 2, 13),
                    change(WatchEventKind::Modified, 3, 14),
                ],
                false,
            ),
            (
                "a deletion of another state than was there",
                vec![added.clone(), modified.clone(), change(WatchEventKind::Deleted, 1, 13)],
                false,
            ),
            ("twice", vec![added.clone(), added.clone(), modified.clone()], false),
            (
                "a bookmark that promised too much",
                vec![added.clone(), WatchItem::Bookmark(12), modified.clone()],
                false,
            ),
            (
                "events that were never sent",
                vec![added.clone(), modified.clone(), change(WatchEventKind::Modified, 9, 14)],
                false,
            ),
            (
                "a list in place of what was forgotten",
                vec![WatchItem::List { version: 11, objects: vec![("k".into(), 1)] }, modified.clone()],
                true,
            ),
            (
                "a list of the past",
                vec![added.clone(), WatchItem::List { version: 9, objects: vec![] }, modified.clone()],
                false,
            ),
            (
                "a list that lacks something",
                vec![WatchItem::List { version: 11, objects: vec![] }, modified.clone()],
                false,
            ),
            ("another version than was acknowledged", vec![added, change(WatchEventKind::Modified, 2, 13)], false),
        ] {
            assert_eq!(history.check_watch(&seen).is_ok(), fine, "{case}");
        }
    }
}
