//! Physical clusters that a plan drains: objects leave them by the same mark as in a `Drain`.

use std::collections::BTreeSet;

use portolan_placement::{ChosenCluster, PlacementDecision, Workload};
use portolan_types::{
    Uid,
    placement::{DrainMark, DrainStage, PlacementRecord},
};

use super::change::PlannedChange;
use crate::{
    drain::{NO_ROOM, lacks_room},
    facts::Facts,
};

/// Name of the drain in the marks of a plan. They are never written.
const NAME: &str = "planned";

/// Drain of a plan. Every object that can leave is taken to be marked.
#[derive(Default)]
pub(super) struct PlannedDrain {
    from: BTreeSet<Uid>,
    /// Those of them that are drained by force.
    forced: BTreeSet<Uid>,
}

impl PlannedDrain {
    /// Returns the drain of the changes. Its physical clusters take nothing new in `facts`.
    pub(super) fn of(changes: &[PlannedChange], facts: &mut Facts) -> Self {
        let mut planned = Self::default();
        for change in changes {
            let PlannedChange::Drain { key, force } = change else { continue };
            let Some(uid) = facts.registered_in(key.cluster, &key.name).cloned() else { continue };
            facts.drain_physical(&uid);
            planned.forced.extend(force.then(|| uid.clone()));
            planned.from.insert(uid);
        }
        planned
    }

    /// Marks the record of an object with a copy that is to leave.
    pub(super) fn mark(&self, record: &mut PlacementRecord) {
        if !record.active().any(|copy| self.from.contains(&copy.uid)) {
            return;
        }
        let force = record.active().any(|copy| self.forced.contains(&copy.uid));
        record.drain = Some(Box::new(DrainMark {
            cluster: String::new(),
            home: String::new(),
            name: NAME.to_owned(),
            uid: NAME.parse().expect("the uid is a constant"),
            stage: DrainStage::Leaving,
            from: self.from.iter().cloned().collect(),
            force,
            since: 0,
            available: 0,
            downtime: 0,
            before: record.split(),
            divided_by: record.divided_by.clone(),
            after: Vec::new(),
            earlier: None,
        }));
    }

    /// Returns the reason that an object cannot leave: fewer replicas would run elsewhere.
    pub(super) fn refusal(
        &self,
        workload: &Workload,
        record: &PlacementRecord,
        decision: &PlacementDecision,
    ) -> Option<(&'static str, String)> {
        let leaves = |chosen: &ChosenCluster| !self.from.contains(&chosen.uid);
        let is_planned = record.drain.as_ref().is_some_and(|mark| mark.uid.as_str() == NAME);
        let moves = is_planned && !decision.is_to_end() && decision.chosen.iter().all(leaves);
        lacks_room(workload, record, decision).filter(|_| moves).map(|message| (NO_ROOM, message))
    }

    /// Returns the reason of a row: by a mark, or by the decision.
    pub(super) fn reason(record: &PlacementRecord, by: &str) -> String {
        match &record.drain {
            Some(mark) if mark.uid.as_str() == NAME => "by a drain".to_owned(),
            _ => by.to_owned(),
        }
    }
}
