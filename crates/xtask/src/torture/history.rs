//! What all clients and watchers saw, and the verdict about it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::guarantees::Truth;
use super::linear::{Call, Op, Outcome, Value, misfit};

/// A write of a key: from what, to what.
pub(crate) type Write = (String, Option<Value>, Option<Value>);

/// The calls of all clients, by key.
pub(crate) struct History {
    start: Instant,
    ops: Mutex<BTreeMap<String, Vec<Op>>>,
    /// The resourceVersion that each acknowledged write was given.
    acknowledged: Mutex<HashMap<Write, u64>>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), ops: Mutex::default(), acknowledged: Mutex::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Notes a call that began at `begun` and ends now.
    pub(crate) fn note(&self, key: &str, begun: u64, call: Call, version: Option<u64>) {
        let unanswered = matches!(call, Call::Swap { outcome: Outcome::Unknown, .. });
        let ended = if unanswered { u64::MAX } else { self.now() };
        let mut ops = self.ops.lock().expect("no code panics under this lock");
        ops.entry(key.to_owned()).or_default().push(Op { call, begun, ended });
        if let (Call::Swap { from, to, outcome: Outcome::Done }, Some(version)) = (call, version) {
            let mut acknowledged = self.acknowledged.lock().expect("no code panics under this lock");
            acknowledged.insert((key.to_owned(), from, to), version);
        }
    }

    /// All keys of which anything is noted.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.ops.lock().expect("no code panics under this lock").keys().cloned().collect()
    }

    /// How many calls there were, how many writes were acknowledged, and of how many nothing is known.
    pub(crate) fn counts(&self) -> Counts {
        let ops = self.ops.lock().expect("no code panics under this lock");
        let mut counts = Counts::default();
        for op in ops.values().flatten() {
            counts.calls += 1;
            match op.call {
                Call::Swap { outcome: Outcome::Done, .. } => counts.acknowledged += 1,
                Call::Swap { outcome: Outcome::Unknown, .. } => counts.unknown += 1,
                Call::Swap { outcome: Outcome::Refused, .. } | Call::Read(_) => {}
            }
        }
        counts
    }

    /// # Errors
    /// For a key whose calls fit into no order.
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

    /// Compares what a watch of everything brought with what was acknowledged and sent, and returns it.
    ///
    /// # Errors
    /// When something is out of order, missing, twice, or was never sent.
    pub(crate) fn check_watch(&self, seen: &[Seen]) -> Result<Truth> {
        let mut last = 0;
        let mut truth = Truth::new();
        let mut states: HashMap<&str, Value> = HashMap::new();
        let mut brought: HashMap<Write, u64> = HashMap::new();
        // Up to here a list has taken the place of events that were forgotten.
        let mut listed = 0;
        for seen in seen {
            let (key, value, version, kind) = match seen {
                Seen::Change { key, value, version, kind } => (key, value, version, kind),
                Seen::Bookmark(version) => {
                    ensure!(*version >= last, "a bookmark at {version} comes after {last}");
                    last = *version;
                    continue;
                }
                Seen::List { version, objects } => {
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
                Kind::Added => (from.is_none(), Some(*value)),
                Kind::Modified => (from.is_some(), Some(*value)),
                Kind::Deleted => (from == Some(*value), None),
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
            // The answer to a deletion is the object as it was last: its version is not that of the deletion.
            let fits = brought.get(write).map_or(*version <= listed, |seen| write.2.is_none() || seen == version);
            ensure!(fits, "reliable: {write:?} was acknowledged at {version}, the watch has {:?}", brought.get(write));
        }
        self.check_sent(brought.keys())?;
        Ok(truth)
    }

    fn check_sent<'a>(&self, brought: impl Iterator<Item = &'a Write>) -> Result<()> {
        let ops = self.ops.lock().expect("no code panics under this lock");
        for (key, from, to) in brought {
            let sent = ops.get(key).into_iter().flatten().any(|op| match op.call {
                Call::Swap { from: f, to: t, outcome: Outcome::Done | Outcome::Unknown } => (f, t) == (*from, *to),
                Call::Swap { outcome: Outcome::Refused, .. } | Call::Read(_) => false,
            });
            ensure!(sent, "{key}: nobody changed {from:?} to {to:?}, or it was refused");
        }
        Ok(())
    }
}

/// How many calls are shown before one that does not fit, and after it.
const SHOWN: (usize, usize) = (16, 4);

fn around(ops: &[Op], misfit: &Op) -> String {
    let mut ops = ops.to_vec();
    ops.sort_by_key(|op| op.begun);
    let at = ops.iter().position(|op| op == misfit).unwrap_or_default();
    // What was never answered may come at any time.
    let is_near =
        |(index, op): &(usize, &Op)| (*index + SHOWN.0 >= at || op.ended == u64::MAX) && *index <= at + SHOWN.1;
    let lines = ops.iter().enumerate().filter(is_near);
    let lines = lines.map(|(_, op)| format!("{:>14} … {:<20} {:?}", op.begun, op.ended, op.call));
    lines.collect::<Vec<_>>().join("\n")
}

/// Figures of a history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) calls: usize,
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Added,
    Modified,
    Deleted,
}

impl Kind {
    /// Of an event on the wire; nothing for those that change no object.
    pub(crate) fn of(event: &serde_json::Value) -> Option<Self> {
        match event["type"].as_str()? {
            "ADDED" => Some(Self::Added),
            "MODIFIED" => Some(Self::Modified),
            "DELETED" => Some(Self::Deleted),
            _ => None,
        }
    }
}

/// What a watcher was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Change {
        key: String,
        value: Value,
        version: u64,
        kind: Kind,
    },
    Bookmark(u64),
    /// What a new list had, when history was forgotten.
    List {
        version: u64,
        objects: Vec<(String, Value)>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: Kind, value: Value, version: u64) -> Seen {
        Seen::Change { key: "k".into(), value, version, kind }
    }

    #[test]
    fn a_write_that_is_not_there_in_the_end_is_found() {
        for (found, fine) in [(Some(1), true), (None, false)] {
            let history = History::new();
            let write = Call::Swap { from: None, to: Some(1), outcome: Outcome::Done };
            history.note("k", history.now(), write, Some(10));
            assert!(history.check_linearizable().is_ok());
            for key in history.keys() {
                history.note(&key, history.now(), Call::Read(found), None);
            }
            assert_eq!(history.check_linearizable().is_ok(), fine, "{found:?}");
        }
    }

    #[test]
    fn what_a_watch_must_bring() {
        let history = History::new();
        let done = |from, to| Call::Swap { from, to, outcome: Outcome::Done };
        history.note("k", 0, done(None, Some(1)), Some(10));
        history.note("k", 0, done(Some(1), Some(2)), Some(12));
        let unknown = |from, to| Call::Swap { from, to, outcome: Outcome::Unknown };
        for call in [unknown(Some(2), None), unknown(None, Some(3)), unknown(Some(1), None)] {
            history.note("k", 0, call, None);
        }
        let (added, modified) = (change(Kind::Added, 1, 10), change(Kind::Modified, 2, 12));
        for (case, seen, fine) in [
            ("all of it", vec![added.clone(), Seen::Bookmark(11), modified.clone()], true),
            ("an unknown write too", vec![added.clone(), modified.clone(), change(Kind::Deleted, 2, 13)], true),
            ("a hole", vec![added.clone()], false),
            // Somebody may have done each of these, but not to what was there.
            ("a creation of what is there", vec![added.clone(), modified.clone(), change(Kind::Added, 3, 13)], false),
            (
                "a change of what is not there",
                vec![added.clone(), modified.clone(), change(Kind::Deleted, 2, 13), change(Kind::Modified, 3, 14)],
                false,
            ),
            (
                "a deletion of another state than was there",
                vec![added.clone(), modified.clone(), change(Kind::Deleted, 1, 13)],
                false,
            ),
            ("twice", vec![added.clone(), added.clone(), modified.clone()], false),
            ("a bookmark that promised too much", vec![added.clone(), Seen::Bookmark(12), modified.clone()], false),
            ("what nobody sent", vec![added.clone(), modified.clone(), change(Kind::Modified, 9, 14)], false),
            (
                "a list in place of what was forgotten",
                vec![Seen::List { version: 11, objects: vec![("k".into(), 1)] }, modified.clone()],
                true,
            ),
            (
                "a list of the past",
                vec![added.clone(), Seen::List { version: 9, objects: vec![] }, modified.clone()],
                false,
            ),
            ("a list that lacks something", vec![Seen::List { version: 11, objects: vec![] }, modified.clone()], false),
            ("another version than was acknowledged", vec![added, change(Kind::Modified, 2, 13)], false),
        ] {
            assert_eq!(history.check_watch(&seen).is_ok(), fine, "{case}");
        }
    }
}
