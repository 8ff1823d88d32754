//! Drains and the objects that they have marked. Both follow from watch events, so they are complete after a restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use portolan_types::{
    GroupResource, LogicalClusterId, ObjectKey, ResourceVersion, Uid, object,
    placement::{DrainMark, DrainPhase, DrainSpec, DrainStage, DrainStatus},
};
use serde_json::Value;

use crate::drain::{
    deletion::{effective_spec, owner_of},
    part,
    reconcile::has_aborted_undo,
};

/// Drain as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegisteredDrain {
    pub(crate) key: ObjectKey,
    pub(crate) revision: ResourceVersion,
    pub(crate) spec: DrainSpec,
    pub(crate) phase: DrainPhase,
    pub(crate) has_started: bool,
    /// True once its undo was aborted.
    pub(crate) has_aborted_undo: bool,
    /// Physical clusters that it started with.
    pub(crate) clusters: BTreeSet<Uid>,
    /// Physical cluster whose deletion it is.
    pub(crate) deletes: Option<Uid>,
}

impl RegisteredDrain {
    /// Returns true while its physical clusters take nothing new.
    pub(crate) fn cordons(&self) -> bool {
        let has_ended = matches!(self.phase, DrainPhase::Aborted | DrainPhase::Undone);
        self.has_started && !has_ended && !self.spec.abort && !self.spec.undo
    }

    /// Returns true if it is at work, also on the way back.
    pub(crate) fn is_at_work(&self) -> bool {
        let undoes = self.spec.undo && self.phase != DrainPhase::Undone && !self.has_aborted_undo;
        self.has_started && (self.phase.is_active() || undoes)
    }
}

/// Stage of the deletion of a physical cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeletionStage {
    /// It is not being deleted.
    #[default]
    NotDeleted,
    /// It is being deleted, and the finalizer holds it until it is drained.
    Drains,
    /// It is being deleted without a drain.
    Undrained,
}

impl DeletionStage {
    /// Reads the stage from a `PhysicalCluster`.
    pub(crate) fn of(physical: &Value) -> Self {
        match (object::is_deleting(physical), object::finalizers(physical).any(|f| f == crate::FINALIZER)) {
            (false, _) => Self::NotDeleted,
            (true, true) => Self::Drains,
            (true, false) => Self::Undrained,
        }
    }
}

/// Drains of all logical clusters, and the objects that they have marked.
#[derive(Clone, Default)]
pub(crate) struct DrainRegistry {
    drains: BTreeMap<Uid, RegisteredDrain>,
    marks: BTreeMap<Uid, MarkedObjects>,
    /// Drains that are about to start, with their physical clusters: no event has shown their start yet.
    claims: BTreeMap<Uid, BTreeSet<Uid>>,
}

/// Objects that one drain has marked.
#[derive(Clone, Debug, Default)]
struct MarkedObjects {
    stages: BTreeMap<ObjectKey, DrainStage>,
    by_stage: BTreeMap<DrainStage, BTreeSet<ObjectKey>>,
    /// Objects that another drain has marked since.
    superseded: BTreeSet<ObjectKey>,
}

impl MarkedObjects {
    fn put(&mut self, key: &ObjectKey, stage: DrainStage) {
        self.remove(key);
        self.stages.insert(key.clone(), stage);
        self.by_stage.entry(stage).or_default().insert(key.clone());
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.superseded.remove(key);
        if let Some(stage) = self.stages.remove(key)
            && let Some(keys) = self.by_stage.get_mut(&stage)
        {
            keys.remove(key);
        }
    }

    fn retain(&mut self, keep: impl Fn(&ObjectKey) -> bool) {
        self.stages.retain(|key, _| keep(key));
        self.by_stage.values_mut().for_each(|keys| keys.retain(&keep));
        self.superseded.retain(&keep);
    }

    fn is_empty(&self) -> bool {
        self.stages.is_empty() && self.superseded.is_empty()
    }
}

impl DrainRegistry {
    /// Returns a copy without the marks, of which there may be one for each object.
    pub(crate) fn without_marks(&self) -> Self {
        Self { drains: self.drains.clone(), marks: BTreeMap::new(), claims: BTreeMap::new() }
    }

    /// Stores the present state of a drain. Returns true if it is new or has another phase.
    pub(crate) fn put(&mut self, key: &ObjectKey, revision: ResourceVersion, object: &Value) -> bool {
        let Some(uid) = object::uid(object) else { return false };
        let status: DrainStatus = part(object, "status");
        let drain = RegisteredDrain {
            key: key.clone(),
            revision,
            spec: effective_spec(object),
            phase: status.phase,
            has_started: status.start_time.is_some(),
            has_aborted_undo: has_aborted_undo(&status),
            clusters: status.clusters.into_iter().map(|cluster| cluster.uid).collect(),
            deletes: owner_of(object),
        };
        let phase = drain.phase;
        if drain.has_started {
            self.claims.remove(&uid);
        }
        self.drains.insert(uid, drain).is_none_or(|before| before.phase != phase)
    }

    /// Forgets a drain that has been deleted. Its marks stay until their objects lose them.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        self.drains.retain(|_, drain| drain.key != *key);
        self.claims.retain(|uid, _| self.drains.contains_key(uid));
    }

    /// Notes that a drain is about to start, until an event shows its start.
    pub(crate) fn claim(&mut self, drain: &Uid, clusters: impl IntoIterator<Item = Uid>) {
        self.claims.insert(drain.clone(), clusters.into_iter().collect());
    }

    /// Notes that a drain has not started after all.
    pub(crate) fn release(&mut self, drain: &Uid) {
        self.claims.remove(drain);
    }

    /// Returns another drain that is at work on a physical cluster, or is about to start there.
    pub(crate) fn other_at_work(&self, physical: &Uid, drain: &Uid) -> Option<&RegisteredDrain> {
        let mut claims = self.claims.iter().filter(|(_, clusters)| clusters.contains(physical));
        let claimed = claims.find(|(uid, _)| *uid != drain).and_then(|(uid, _)| self.drains.get(uid));
        self.on(physical).find(|(uid, known)| *uid != drain && known.is_at_work()).map(|(_, known)| known).or(claimed)
    }

    /// Forgets all drains, before they are listed.
    pub(crate) fn clear(&mut self) {
        self.drains.clear();
    }

    /// Forgets the marks of a resource except those of `listed`. Called after a list, never before it: without marks, a
    /// drain or its undo looks complete.
    pub(crate) fn keep_marks(&mut self, resource: &GroupResource, listed: &BTreeSet<ObjectKey>) {
        let stays = |key: &ObjectKey| key.resource != *resource || listed.contains(key);
        self.marks.values_mut().for_each(|marked| marked.retain(stays));
        self.marks.retain(|_, marked| !marked.is_empty());
    }

    /// Replaces all marks of an object by that of a list.
    pub(crate) fn put_listed_mark(&mut self, key: &ObjectKey, mark: &DrainMark) {
        self.marks.values_mut().for_each(|marked| marked.remove(key));
        self.note_mark(key, None, Some(mark));
    }

    /// Notes the change of the mark of an object.
    pub(crate) fn note_mark(&mut self, key: &ObjectKey, before: Option<&DrainMark>, after: Option<&DrainMark>) {
        let all = |mark: Option<&DrainMark>| -> Vec<Uid> {
            let marks = mark.into_iter().flat_map(|mark| std::iter::once(mark).chain(mark.all_earlier()));
            marks.map(|mark| mark.uid.clone()).collect()
        };
        for uid in all(before) {
            if let Some(marked) = self.marks.get_mut(&uid) {
                marked.remove(key);
            }
        }
        if let Some(mark) = after {
            self.marks.entry(mark.uid.clone()).or_default().put(key, mark.stage);
            for earlier in mark.all_earlier() {
                self.marks.entry(earlier.uid.clone()).or_default().superseded.insert(key.clone());
            }
        }
        for uid in all(before) {
            if self.marks.get(&uid).is_some_and(MarkedObjects::is_empty) {
                self.marks.remove(&uid);
            }
        }
    }

    /// Returns a drain.
    pub(crate) fn get(&self, uid: &Uid) -> Option<&RegisteredDrain> {
        self.drains.get(uid)
    }

    /// Returns all drains.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RegisteredDrain> {
        self.drains.values()
    }

    /// Returns the drains of a logical cluster.
    pub(crate) fn of(&self, home: LogicalClusterId) -> impl Iterator<Item = (&Uid, &RegisteredDrain)> {
        self.drains.iter().filter(move |(_, drain)| drain.key.cluster == home)
    }

    /// Returns the drains that started with a physical cluster.
    pub(crate) fn on(&self, physical: &Uid) -> impl Iterator<Item = (&Uid, &RegisteredDrain)> {
        self.drains.iter().filter(move |(_, drain)| drain.clusters.contains(physical))
    }

    /// Returns true while a physical cluster takes nothing new because of a drain. If it is being deleted, only an
    /// active drain counts: objects that a finished drain left there leave because of the deletion, which waits for its
    /// own drain to start.
    pub(crate) fn is_draining(&self, physical: &Uid, deletion: DeletionStage) -> bool {
        let is_deleting = deletion != DeletionStage::NotDeleted;
        let counts = |drain: &RegisteredDrain| drain.cordons() && (!is_deleting || drain.is_at_work());
        let waits = deletion == DeletionStage::Drains && !self.deletions_of(physical).any(|drain| drain.has_started);
        waits || self.on(physical).any(|(_, drain)| counts(drain))
    }

    /// Returns the drains of the deletion of a physical cluster.
    pub(crate) fn deletions_of(&self, physical: &Uid) -> impl Iterator<Item = &RegisteredDrain> {
        self.drains.values().filter(move |drain| drain.deletes.as_ref() == Some(physical))
    }

    /// Returns true if objects are under way.
    pub(crate) fn is_at_work(&self) -> bool {
        self.drains.values().any(RegisteredDrain::is_at_work)
    }

    /// Returns all objects that a drain has marked. There may be many: passes read [`Self::view`].
    pub(crate) fn marked(&self, uid: &Uid) -> Vec<ObjectKey> {
        self.marks.get(uid).map(|marked| marked.stages.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns at most `most` objects of a drain in one stage after a key.
    pub(super) fn page(&self, uid: &Uid, stage: DrainStage, after: Option<&ObjectKey>, most: usize) -> Vec<ObjectKey> {
        let keys = self.marks.get(uid).and_then(|marked| marked.by_stage.get(&stage));
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        keys.map(|keys| keys.range((start, Bound::Unbounded)).take(most).cloned().collect()).unwrap_or_default()
    }

    /// Returns the number of objects of a drain in one stage.
    pub(super) fn number_in(&self, uid: &Uid, stage: DrainStage) -> usize {
        self.marks.get(uid).and_then(|marked| marked.by_stage.get(&stage)).map_or(0, BTreeSet::len)
    }

    /// Returns the objects of a drain that another one has marked since.
    pub(super) fn superseded(&self, uid: &Uid) -> Vec<ObjectKey> {
        self.marks.get(uid).map(|marked| marked.superseded.iter().cloned().collect()).unwrap_or_default()
    }

    /// Returns the stage of an object that a drain has marked.
    pub(super) fn stage(&self, uid: &Uid, key: &ObjectKey) -> Option<DrainStage> {
        self.marks.get(uid)?.stages.get(key).copied()
    }

    /// Returns the drains that have an object under way.
    pub(crate) fn moving(&self, object: &ObjectKey) -> Vec<ObjectKey> {
        let moves = |stage: &DrainStage| matches!(stage, DrainStage::Leaving | DrainStage::Returning);
        let of = |(uid, marked): (&Uid, &MarkedObjects)| {
            marked.stages.get(object).filter(|stage| moves(stage))?;
            Some(self.drains.get(uid)?.key.clone())
        };
        self.marks.iter().filter_map(of).collect()
    }

    /// Returns the objects with marks of drains that are not known.
    pub(crate) fn orphans(&self) -> Vec<ObjectKey> {
        let orphaned = self.marks.iter().filter(|(uid, _)| !self.drains.contains_key(*uid));
        orphaned.flat_map(|(_, marked)| marked.stages.keys().cloned()).collect()
    }

    /// Returns the number of drains by phase.
    pub(crate) fn phases(&self) -> BTreeMap<DrainPhase, i64> {
        let mut phases: BTreeMap<DrainPhase, i64> = DrainPhase::ALL.into_iter().map(|phase| (phase, 0)).collect();
        for drain in self.drains.values() {
            *phases.entry(drain.phase).or_default() += 1;
        }
        phases
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mark(uid: &str) -> DrainMark {
        let mark = json!({
            "cluster": "1", "home": "root", "name": uid, "uid": uid, "stage": "Returning", "from": [], "since": 0,
            "available": 0, "before": [],
        });
        serde_json::from_value(mark).unwrap()
    }

    #[test]
    fn a_list_keeps_the_marks_that_it_shows_and_forgets_the_others() {
        let key = |name: &str| {
            let resource = GroupResource::new("example.dev", "widgets");
            ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap())
        };
        let (mut registry, drain) = (DrainRegistry::default(), mark("d").uid);
        for name in ["stays", "gone", "moved"] {
            registry.note_mark(&key(name), None, Some(&mark("d")));
        }
        registry.put_listed_mark(&key("stays"), &mark("d"));
        registry.put_listed_mark(&key("moved"), &mark("other"));
        assert_eq!(registry.marked(&drain), [key("gone"), key("stays")], "while the list is read nothing is forgotten");
        registry.keep_marks(&key("stays").resource, &BTreeSet::from([key("stays"), key("moved")]));
        assert_eq!(registry.marked(&drain), [key("stays")]);
        assert_eq!(registry.marked(&mark("other").uid), [key("moved")]);
    }
}
