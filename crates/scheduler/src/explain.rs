//! Answers on demand: what a write would be warned about, and the whole trace of a decision.

use std::collections::BTreeMap;

use portolan_placement::{
    Explanation, Outcome, Question, References, Role, Workload, abandons_volumes, explain, place, placed_condition,
    role_of,
};
use portolan_types::{
    GroupVersionKind, LogicalClusterId, ObjectKey, object,
    placement::{GROUP, PlacementRecord},
};
use serde_json::{Value, json};

use crate::{
    facts::Reach,
    gates::SCHEDULING_GATED,
    gather::Gathered,
    observe::kind_of,
    policies,
    scheduler::{Inner, Scheduler, SchedulerError},
};

impl Scheduler {
    /// One-line warnings about an object that is about to be written: it has no place to run, its pin names a physical cluster
    /// that is not in reach, or it is a policy that names what is not there. Nothing that went well is told. At most 3 lines,
    /// each without line breaks.
    ///
    /// From memory alone, so that it can stand in the path of a write: a pin of the namespace is not looked at.
    pub fn preview(&self, cluster: LogicalClusterId, kind: &GroupVersionKind, object: &Value) -> Vec<String> {
        let inner = &self.inner;
        let reach = inner.reach(cluster);
        if policies::is_policy(kind) {
            return inner.warn_of_policy(&reach, object);
        }
        if &*kind.group == GROUP && &*kind.kind == "PhysicalCluster" {
            return inner.warn_of_drain(object);
        }
        let mut warnings = inner.warn_of_pins(&reach, object);
        let Some(resource) = inner.resource_of(&kind.group, &kind.kind) else { return warnings };
        let mut workload = Workload::of(kind.group_kind(), resource, object);
        // Whether many nodes may use a claim is not known here.
        let has_own_claims = workload.keeps_volumes;
        workload.keeps_volumes |= References::of(object).claims().next().is_some() && !abandons_volumes(object);
        let record = PlacementRecord::of(object).unwrap_or_default();
        let runs = workload.role == Role::Workload && !workload.finished && !object::is_deleting(object);
        let is_placed = record.active().next().is_some();
        if reach.lineage.is_empty() || !runs || (is_placed && !workload.keeps_volumes) {
            return warnings;
        }
        let decision = inner.ask(&reach, &workload, &record, place);
        if decision.move_refused {
            let condition = if has_own_claims { "" } else { "if one of its claims is ReadWriteOnce: " };
            warnings.push(format!("{condition}{} {}", workload.title(), decision.held.join("; ")));
        } else if !is_placed && decision.outcome == Outcome::Unplaced {
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
        let never = kind_of(&object).and_then(|kind| match role_of(&kind.group, &kind.kind, &object) {
            Role::Never(why) => Some(format!("{title} is not placed: {why}")),
            _ => None,
        });
        Ok(Some(match self.inner.gather(key, object, revision).await? {
            None => {
                let summary = never.unwrap_or_else(|| format!("{title} is not placed by itself"));
                json!({"summary": summary, "policies": [], "clusters": [], "notes": []})
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
        let (home, existing, now) = (&[][..], &BTreeMap::new(), self.now());
        answer(&Question { workload, policies: &policies, clusters: &clusters, previous, home, existing, now })
    }

    fn explain(&self, gathered: &Gathered) -> Value {
        let existing = gathered.existing();
        let home = &gathered.home.uids;
        let mut explanation: Explanation =
            self.ask(&gathered.reach, &gathered.workload, &gathered.record, |question| {
                explain(&Question { home, existing: &existing, ..*question })
            });
        if gathered.workload.role.follows() {
            explanation
                .notes
                .push("it also goes where what names it goes, or where its namespace has a workload".into());
        }
        explanation.notes.extend(refusal(gathered));
        explanation.to_value()
    }
}

/// Why the pods of an object were not let in when that was last asked.
fn refusal(gathered: &Gathered) -> Option<String> {
    let (reason, message) = placed_condition(&gathered.placement.as_ref()?.0)?;
    match reason {
        "AdmissionRefused" | "QuotaExceeded" => Some(format!("its pods are not let in: {message}")),
        SCHEDULING_GATED => Some(message.to_owned()),
        _ => None,
    }
}
