//! Model of a store: all states of a history, as plain maps.

use std::collections::{BTreeMap, BTreeSet};

use portolan_store::{ChangeKind, Event, Expect, RangeScope, StoredObject, Transaction, WatchScope, Write};
use portolan_types::{ObjectKey, Record, ResourceVersion};
use proptest::prelude::*;

use crate::scene::{ContractScene, pod, related, role};

/// Object of a state: body, last write, first write.
pub(crate) type ModelObject = (Record, u64, u64);
type ModelState = BTreeMap<ObjectKey, ModelObject>;

/// Write of a random history.
#[derive(Clone, Debug)]
pub(crate) struct ModelWrite {
    key: ObjectKey,
    record: Option<Record>,
}

/// All states after each transaction, and all events.
pub(crate) struct StoreModel {
    pub(crate) boundaries: Vec<(u64, ModelState)>,
    pub(crate) events: Vec<Event>,
}

/// Generates a random history: transactions of one to three writes on few objects.
pub(crate) fn history() -> impl Strategy<Value = Vec<Vec<ModelWrite>>> {
    let key = (1..3u64, 0..2u8, 0..2u8, 0..3u8).prop_map(|(cluster, resource, namespace, name)| match resource {
        0 => role(cluster, &format!("r{name}")),
        _ => pod(cluster, &format!("n{namespace}/p{name}")),
    });
    let uids = |names: &'static [&'static str]| prop::sample::subsequence(names.to_vec(), 0..=names.len());
    let step = (key, prop::option::weighted(0.75, (uids(&["o1", "o2"]), uids(&["east", "west"]))));
    let step = step.prop_map(|(key, relations)| {
        let record = relations.map(|(owners, placed)| related(&key, &owners, &placed));
        ModelWrite { key, record }
    });
    prop::collection::vec(prop::collection::vec(step, 1..4), 1..40)
}

impl StoreModel {
    pub(crate) fn new(current: ResourceVersion) -> Self {
        Self { boundaries: vec![(current.get(), ModelState::new())], events: Vec::new() }
    }

    pub(crate) fn latest(&self) -> (u64, &ModelState) {
        let (revision, state) = self.boundaries.last().unwrap();
        (*revision, state)
    }

    /// Runs a transaction on the store and on the model, and checks that both answer the same.
    pub(crate) async fn commit(&mut self, scene: &ContractScene, mut steps: Vec<ModelWrite>) {
        let mut keys = Vec::new();
        steps.retain(|step| {
            !keys.contains(&step.key) && {
                keys.push(step.key.clone());
                true
            }
        });
        let (last, state) = self.latest();
        let (mut state, mut events) = (state.clone(), Vec::new());
        let fails = steps.iter().any(|step| step.record.is_none() && !state.contains_key(&step.key));
        let write =
            |step: &ModelWrite| Write { key: step.key.clone(), expect: Expect::Anything, record: step.record.clone() };
        let committed =
            scene.commit(Transaction { writes: steps.iter().map(write).collect(), ..Transaction::default() }).await;
        assert_eq!(committed.is_err(), fails);
        let Ok(committed) = committed else { return };
        let before = ResourceVersion::new(last).unwrap();
        scene.check_next(before, committed, steps.len() as u64, "the model and the store");
        for (step, revision) in steps.iter().zip(committed.first.get()..) {
            let before = state.get(&step.key).cloned();
            let (change, record, previous) = match (&step.record, &before) {
                (Some(record), None) => (ChangeKind::Created, record.clone(), None),
                (Some(record), Some((old, ..))) => (ChangeKind::Updated, record.clone(), Some(old.clone())),
                (None, Some((old, ..))) => (ChangeKind::Deleted, old.clone(), None),
                (None, None) => unreachable!("it would have failed"),
            };
            match &step.record {
                Some(record) => {
                    let created = before.map_or(revision, |(_, _, created)| created);
                    state.insert(step.key.clone(), (record.clone(), revision, created));
                }
                None => drop(state.remove(&step.key)),
            }
            let revision = ResourceVersion::new(revision).unwrap();
            let (record, previous) = (record.into(), previous.map(Into::into));
            events.push(Event { revision, change, key: step.key.clone(), record, previous });
        }
        self.boundaries.push((committed.last.get(), state));
        self.events.append(&mut events);
    }

    /// Returns all revisions from `from` on.
    pub(crate) fn revisions(&self, from: u64) -> Vec<u64> {
        let first = self.boundaries.first().map(|(boundary, _)| *boundary);
        let events = self.events.iter().map(|event| event.revision.get());
        [Some(from), first]
            .into_iter()
            .flatten()
            .chain(events)
            .filter(|at| *at >= from)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Returns the state that a read at `revision` shows: that of the transaction it belongs to.
    pub(crate) fn at(&self, revision: u64) -> (u64, &ModelState) {
        let after = self.events.iter().find(|event| event.revision.get() >= revision);
        let (boundary, state) = match after {
            // Within a transaction its end is shown; between two of them, the earlier one.
            Some(event) if event.revision.get() == revision => {
                self.boundaries.iter().find(|(boundary, _)| *boundary >= revision).unwrap()
            }
            _ => self.boundaries.iter().rfind(|(boundary, _)| *boundary <= revision).unwrap(),
        };
        (*boundary, state)
    }

    /// Returns the events of a watch from `after` on.
    pub(crate) fn events_after(&self, scope: &WatchScope, after: u64) -> Vec<Event> {
        let wanted = |event: &&Event| event.revision.get() > after && concerns(scope, event);
        self.events.iter().filter(wanted).cloned().collect()
    }
}

fn concerns(scope: &WatchScope, event: &Event) -> bool {
    match scope {
        WatchScope::Resource(resource, cluster) => {
            event.key.resource == *resource && cluster.is_none_or(|cluster| event.key.cluster == cluster)
        }
        WatchScope::PlacedOn(uid) => {
            let records = [Some(&event.record), event.previous.as_ref()];
            records.into_iter().flatten().any(|record| record.header.placed_on.contains(uid))
        }
        WatchScope::All => true,
    }
}

/// Returns the result of a range over a state, in key order if the scope has one resource.
pub(crate) fn in_scope(state: &ModelState, scope: &RangeScope) -> Vec<(ObjectKey, ModelObject)> {
    let wanted = |(key, (record, ..)): &(&ObjectKey, &ModelObject)| match scope {
        RangeScope::All => true,
        RangeScope::AllClusters(resource) => key.resource == *resource,
        RangeScope::Cluster(cluster, resource) => key.cluster == *cluster && key.resource == *resource,
        RangeScope::Namespace(cluster, resource, namespace) => {
            key.cluster == *cluster && key.resource == *resource && key.namespace() == Some(namespace)
        }
        RangeScope::Everything(cluster) => key.cluster == *cluster,
        RangeScope::PlacedOn(uid) => record.header.placed_on.contains(uid),
        RangeScope::OwnedBy(cluster, uid) => key.cluster == *cluster && record.header.owners.contains(uid),
    };
    state.iter().filter(wanted).map(|(key, seen)| (key.clone(), seen.clone())).collect()
}

/// Converts objects that a store returned to the same form.
pub(crate) fn seen(objects: &[StoredObject]) -> Vec<(ObjectKey, ModelObject)> {
    let seen = |o: &StoredObject| (o.key.clone(), ((*o.record).clone(), o.revision.get(), o.created.get()));
    objects.iter().map(seen).collect()
}
