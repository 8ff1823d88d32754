//! Answers on demand: warnings about a write, and the trace of a decision.

pub(crate) mod move_warnings;
pub(crate) mod warnings;

use std::collections::BTreeMap;

use portolan_placement::{
    ClusterFacts, DecisionOutcome, LeveledPolicy, PlacementInputs, References, Role, Workload, abandons_volumes,
    explain, place, placed_condition, role_of,
};
use portolan_types::{
    GroupVersionKind, LogicalClusterId, ObjectKey, object,
    placement::{GROUP, PlacementRecord},
};
use serde_json::{Value, json};

use crate::{
    context::SchedulerContext,
    decide::scheduling_gates::SCHEDULING_GATED,
    explain::move_warnings::move_warnings,
    explain::warnings::{drain_warnings, pin_warnings, policy_warnings, reference_warning, synced_resource_warnings},
    facts::ClusterLineage,
    inputs::{DecisionInputs, read_inputs},
    observe::kind_of,
    scheduler::{Scheduler, SchedulerError},
    status::policy_status::is_policy,
};

impl Scheduler {
    /// Returns one-line warnings about an object that is about to be written: no physical cluster fits, its pin names
    /// a physical cluster out of reach, or a policy names something that does not exist. At most 3 lines, without line
    /// breaks.
    ///
    /// Answers from memory, because it runs in the path of a write: a pin of the namespace is not read.
    pub fn preview(&self, cluster: LogicalClusterId, kind: &GroupVersionKind, object: &Value) -> Vec<String> {
        let ctx = &self.ctx;
        let reach = ctx.lineage_of(cluster);
        if is_policy(kind) {
            return policy_warnings(ctx, &reach, object, &*kind.kind == "PlacementPolicy");
        }
        if &*kind.group == GROUP && &*kind.kind == "PhysicalCluster" {
            let mut warnings = drain_warnings(ctx, object);
            warnings.extend(synced_resource_warnings(ctx, object));
            return warnings;
        }
        if &*kind.group == GROUP && &*kind.kind == "Drain" {
            return crate::drain::warnings::warnings(ctx, cluster, object);
        }
        if &*kind.kind == "CustomResourceDefinition" && &*kind.group == "apiextensions.k8s.io" {
            return reference_warning(object).into_iter().collect();
        }
        let mut warnings = pin_warnings(ctx, &reach, object);
        let Some(resource) = ctx.resource_in(cluster, &kind.group, &kind.kind) else { return warnings };
        let mut workload = Workload::of(kind.group_kind(), resource, object);
        if ctx.facts().reads_objects(&reach, &kind.group, &kind.kind) {
            workload = workload.with_object(object);
        }
        // The access modes of a claim are not in memory.
        let has_own_claims = workload.keeps_volumes;
        workload.keeps_volumes |= References::of(object).claims().next().is_some() && !abandons_volumes(object);
        let record = PlacementRecord::of(object).unwrap_or_default();
        let runs = workload.role == Role::Workload && !workload.finished && !object::is_deleting(object);
        let is_placed = record.active().next().is_some();
        if runs {
            warnings.extend(move_warnings(ctx, &workload, object));
        }
        if reach.lineage.is_empty() || !runs || (is_placed && !workload.keeps_volumes) {
            return warnings;
        }
        let (policies, clusters) = policies_and_clusters(ctx, &reach, &workload.namespace, &record);
        // Other workloads are not in memory.
        let is_unsure = policies.iter().any(|policy| policy.policy.has_workload_terms());
        let decision = place(&PlacementInputs {
            workload: &workload,
            policies: &policies,
            clusters: &clusters,
            previous: &record,
            home: &[],
            existing: &BTreeMap::new(),
            now: ctx.now(),
        });
        if decision.move_refused {
            let condition = if has_own_claims { "" } else { "if one of its claims is ReadWriteOnce: " };
            warnings.push(format!("{condition}{} {}", workload.title(), decision.held.join("; ")));
        } else if !is_placed && !is_unsure && decision.outcome == DecisionOutcome::Unplaced {
            warnings.push(format!("{} has no place to run: {}", workload.title(), decision.summary()));
        }
        warnings
    }

    /// Returns the trace of the decision about an object, as `status` of a `PlacementExplanation`; `None` if the
    /// object does not exist.
    ///
    /// # Errors
    /// Fails if the store fails, or if the facts are older than the store for a second.
    pub async fn explain_object(&self, key: &ObjectKey) -> Result<Option<Value>, SchedulerError> {
        self.ctx.fact_barrier.wait_for(self.ctx.objects.store().current()).await?;
        let Some((object, revision)) = self.ctx.objects.get_value(key).await? else { return Ok(None) };
        let title = format!("{}/{}", key.resource.resource, key.name);
        let never = kind_of(&object).and_then(|kind| match role_of(&kind.group, &kind.kind, &object) {
            Role::Never(why) => Some(format!("{title} is not placed: {why}")),
            _ => None,
        });
        Ok(Some(match read_inputs(&self.ctx, key, object, revision).await? {
            None => {
                let summary = never.unwrap_or_else(|| format!("{title} is not placed by itself"));
                json!({"summary": summary, "policies": [], "clusters": [], "notes": []})
            }
            Some(inputs) => explain_inputs(&self.ctx, &inputs),
        }))
    }
}

/// Returns the policies that may hold in a namespace, and the physical clusters within reach and of `previous`.
fn policies_and_clusters(
    ctx: &SchedulerContext,
    reach: &ClusterLineage,
    namespace: &str,
    previous: &PlacementRecord,
) -> (Vec<LeveledPolicy>, Vec<ClusterFacts>) {
    let facts = ctx.facts();
    (facts.policies(reach, namespace), facts.clusters(reach, &*ctx.rights, previous))
}

fn explain_inputs(ctx: &SchedulerContext, inputs: &DecisionInputs) -> Value {
    let DecisionInputs { workload, record: previous, reach, .. } = inputs;
    let (policies, clusters) = policies_and_clusters(ctx, reach, &workload.namespace, previous);
    let mut explanation = explain(&PlacementInputs {
        workload,
        policies: &policies,
        clusters: &clusters,
        previous,
        home: &inputs.home.uids,
        existing: &inputs.existing(),
        now: ctx.now(),
    });
    explanation.notes.extend(match inputs.workload.role {
        Role::Autoscaler => Some("it also goes where the target of its scaleTargetRef goes".to_owned()),
        role if role.follows() => {
            Some("it also goes where what names it goes, or where its namespace has a workload".to_owned())
        }
        _ => None,
    });
    explanation.notes.extend(refusal(inputs));
    explanation.to_value()
}

/// Returns the note on the last refusal of the pods of an object.
fn refusal(inputs: &DecisionInputs) -> Option<String> {
    let (reason, message) = placed_condition(&inputs.placement.as_ref()?.0)?;
    match reason {
        "AdmissionRefused" | "QuotaExceeded" => Some(format!("its pods are not admitted: {message}")),
        SCHEDULING_GATED => Some(message.to_owned()),
        _ => None,
    }
}
