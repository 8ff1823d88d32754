//! Invariants, and the violations.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use portolan_placement::is_legal;
use portolan_store::{ChangeKind, Event, WatchScope};
use portolan_types::{
    GroupResource, ObjectKey,
    placement::{CopyPhase, PlacementRecord},
};
use tokio::time::Instant;

use crate::plane::ControlPlane;

/// Time after which every decision knows of a constraint.
const NOTICED: Duration = Duration::from_secs(5);

/// Property of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// No syncer ends the last healthy copy of an object that is wanted.
    NeverEmpty,
    /// Left alone, as many replicas run as are wanted, in the records and downstream.
    Sums,
    /// No copy arrives where a constraint forbids it.
    Constraints,
    /// Each written record follows from the one before.
    LegalTransitions,
    /// The undo of a drain restores the exact split.
    ExactUndo,
    /// No copy is deleted while its object is placed there.
    NoWrongfulDeletion,
}

/// All violations of a run.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    found: Mutex<Vec<(Invariant, String)>>,
    /// Physical clusters that a constraint excludes, and since when.
    excluded: Mutex<BTreeMap<String, Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Findings {
    pub(crate) fn report(&self, invariant: Invariant, what: String) {
        lock(&self.found).push((invariant, what));
    }

    pub(crate) fn all(&self) -> Vec<(Invariant, String)> {
        lock(&self.found).clone()
    }

    pub(crate) fn exclude(&self, name: &str, is_excluded: bool) {
        let mut excluded = lock(&self.excluded);
        if is_excluded {
            excluded.entry(name.to_owned()).or_insert_with(Instant::now);
        } else {
            excluded.remove(name);
        }
    }

    pub(crate) fn is_excluded(&self, name: &str) -> bool {
        lock(&self.excluded).get(name).is_some_and(|since| since.elapsed() >= NOTICED)
    }

    /// Checks a written record against the one before.
    fn check_step(&self, key: &ObjectKey, before: &PlacementRecord, after: &PlacementRecord) {
        if let Err(illegal) = is_legal(before, after) {
            self.report(Invariant::LegalTransitions, format!("{key}: {illegal}"));
        }
        let arrives = |name: &str| {
            let is_active = |record: &PlacementRecord| record.active().any(|copy| copy.name == name);
            is_active(after) && !is_active(before)
        };
        let forbidden: Vec<String> = {
            let excluded = lock(&self.excluded);
            let noticed = excluded.iter().filter(|(_, since)| since.elapsed() >= NOTICED);
            noticed.filter(|(name, _)| arrives(name)).map(|(name, _)| name.clone()).collect()
        };
        for name in forbidden {
            self.report(Invariant::Constraints, format!("{key} arrives on {name}, which a constraint excludes"));
        }
    }
}

/// Returns the record of an object before and after a write.
fn records(event: &Event) -> Option<(PlacementRecord, PlacementRecord)> {
    if event.change != ChangeKind::Updated {
        return None;
    }
    let of = |record: &portolan_types::Record| {
        let object = record.to_value(event.revision).ok()?;
        Some(PlacementRecord::of(&object).unwrap_or_default())
    };
    Some((of(event.previous.as_ref()?)?, of(&event.record)?))
}

/// Checks every write of a record, in order, as long as the run lasts.
pub(crate) async fn watch(plane: &ControlPlane, findings: &Findings) {
    let scope = WatchScope::Resource(GroupResource::new("apps", "deployments"), None);
    let mut stream = plane.store.watch(scope, None).await.expect("the store is in memory");
    loop {
        let batch = stream.next().await.expect("the store keeps its history");
        for event in &batch.events {
            if let Some((before, after)) = records(event) {
                findings.check_step(&event.key, &before, &after);
            }
        }
    }
}

/// Returns the words of a record: `east*2 west-`.
pub(crate) fn words(record: &PlacementRecord) -> String {
    let word = |copy: &portolan_types::placement::PlacedCopy| {
        let replicas = copy.replicas.map(|n| format!("*{n}")).unwrap_or_default();
        let leaves = if copy.phase == CopyPhase::Leaving { "-" } else { "" };
        format!("{}{replicas}{leaves}", copy.name)
    };
    record.clusters.iter().map(word).collect::<Vec<_>>().join(" ")
}
