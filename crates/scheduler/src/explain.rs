//! Answers on demand: what a write would be warned about, and the whole trace of a decision.

use std::collections::BTreeMap;

use portolan_placement::{Explanation, Outcome, Pin, PinOn, Question, Role, Workload, explain, place};
use portolan_types::{GroupVersionKind, LogicalClusterId, ObjectKey, object, placement::PlacementRecord};
use serde_json::{Value, json};

use crate::{
    facts::Reach,
    gather::{Gathered, ready},
    scheduler::{Inner, Scheduler, SchedulerError},
};

/// Edits that a name may be away from another to be meant.
const MAX_EDITS: usize = 2;

impl Scheduler {
    /// One-line warnings about an object that is about to be written: it has no place to run, or its pin names a physical
    /// cluster that is not in reach. Nothing that went well is told. At most 3 lines, each without line breaks.
    ///
    /// From memory alone, so that it can stand in the path of a write: a pin of the namespace is not looked at.
    pub fn preview(&self, cluster: LogicalClusterId, kind: &GroupVersionKind, object: &Value) -> Vec<String> {
        let inner = &self.inner;
        let reach = inner.reach(cluster);
        let mut warnings = inner.warn_of_pins(&reach, object);
        let Some(resource) = inner.resource_of(&kind.group, &kind.kind) else { return warnings };
        let workload = Workload::of(kind.group_kind(), resource, object);
        let record = PlacementRecord::of(object).unwrap_or_default();
        let runs = workload.role == Role::Workload && !workload.finished && !object::is_deleting(object);
        if reach.lineage.is_empty() || !runs || record.active().next().is_some() {
            return warnings;
        }
        let decision = inner.ask(&reach, &workload, &record, place);
        if decision.outcome == Outcome::Unplaced {
            warnings.push(format!("{} has no place to run: {}", workload.title(), decision.summary()));
        }
        warnings
    }

    /// The whole trace of the decision about an object, as `status` of a `PlacementExplanation`; `None` when there is no such
    /// object.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn explain_object(&self, key: &ObjectKey) -> Result<Option<Value>, SchedulerError> {
        let Some((object, revision)) = self.inner.objects.get_value(key).await? else { return Ok(None) };
        let title = format!("{}/{}", key.resource.resource, key.name);
        Ok(Some(match self.inner.gather(key, object, revision).await? {
            None => {
                json!({"summary": format!("{title} is not placed by itself"), "policies": [], "clusters": [], "notes": []})
            }
            Some(gathered) => self.inner.explain(&gathered),
        }))
    }
}

impl Inner {
    /// Asks a question from what is in memory.
    fn ask<T>(
        &self,
        reach: &Reach,
        workload: &Workload,
        previous: &PlacementRecord,
        answer: impl FnOnce(&Question) -> T,
    ) -> T {
        let (policies, clusters) = {
            let facts = self.facts();
            (facts.policies(reach, &workload.namespace), facts.clusters(reach, &*self.rights, previous))
        };
        let (home, ready, now) = (&[][..], &BTreeMap::new(), self.now());
        answer(&Question { workload, policies: &policies, clusters: &clusters, previous, home, ready, now })
    }

    fn explain(&self, gathered: &Gathered) -> Value {
        let ready = ready(&gathered.record, gathered.placement.as_ref().map(|(placement, _)| placement));
        let home = &gathered.home.uids;
        let mut explanation: Explanation =
            self.ask(&gathered.reach, &gathered.workload, &gathered.record, |question| {
                explain(&Question { home, ready: &ready, ..*question })
            });
        if gathered.workload.role.follows() {
            explanation
                .notes
                .push("it also goes where what names it goes, or where its namespace has a workload".into());
        }
        explanation.to_value()
    }

    /// Names of a pin that are not in reach.
    fn warn_of_pins(&self, reach: &Reach, object: &Value) -> Vec<String> {
        let Some(pin) = Pin::of(object, PinOn::Object) else { return Vec::new() };
        let known: Vec<String> = {
            let facts = self.facts();
            facts.clusters(reach, &*self.rights, &Default::default()).iter().map(|c| c.info.name.clone()).collect()
        };
        let warn = |name: &String| {
            let near = known.iter().map(|k| (edits(k, name), k)).min().filter(|(n, _)| *n <= MAX_EDITS);
            let hint = near.map(|(_, k)| format!("; did you mean {k:?}?")).unwrap_or_default();
            format!("portolan.dev/pin: physical cluster {name:?} is not in reach{hint}")
        };
        pin.names.iter().filter(|name| !known.contains(name)).map(warn).take(2).collect()
    }
}

/// How many letters have to be changed, added or taken away (Levenshtein), over at most 64 letters of each.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[b.len()]
}
