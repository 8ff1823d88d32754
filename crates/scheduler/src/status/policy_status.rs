//! Status of policies: conditions, and the number of objects that they decide.

use std::time::Duration;

use portolan_placement::CompiledPolicy;
use portolan_store::{ObjectClient, Step, StoreError};
use portolan_types::{
    GroupVersionKind, ObjectKey, object,
    placement::{ClusterSelector, GROUP, PlacementPolicyStatus, StatusCondition},
};
use serde_json::json;
use tracing::warn;

use crate::{
    context::SchedulerContext,
    explain::warnings::{definition_warning, kind_warnings, warn_of_clusters},
    facts::{Facts, reference},
};

/// Type of the condition that is false while the overrides of a policy exceed their budget for an object.
const OVERRIDES_WITHIN_BUDGET: &str = "OverridesWithinBudget";

/// Type of the condition that is false while a part of a policy has no effect.
const FULLY_EFFECTIVE: &str = "FullyEffective";

/// Type of the condition that is false while an expression of a policy has no value for a physical cluster or object.
const EXPRESSIONS_EVALUATED: &str = "ExpressionsEvaluated";

/// Most physical clusters that a condition names.
const MAX_FAILURES: usize = 3;

/// New status of a policy.
struct PolicyStatusUpdate {
    key: ObjectKey,
    matched: u64,
    fault: Option<String>,
    /// Sentence about objects for which its overrides exceed their budget.
    overrun: Option<String>,
    changes_copies: bool,
    /// Sentences about its expressions that have no value; `None` without expressions.
    failures: Option<Vec<String>>,
    /// Sentences about parts of it that have no effect.
    without_effect: Vec<String>,
}

/// Returns true for the kinds of policies.
pub(crate) fn is_policy(kind: &GroupVersionKind) -> bool {
    &*kind.group == GROUP && matches!(&*kind.kind, "PlacementPolicy" | "ClusterPlacementPolicy")
}

/// Writes the status of changed policies forever. The delay collects changes.
pub(crate) async fn run_policy_status(ctx: &SchedulerContext, delay: Duration) {
    loop {
        ctx.signals.policy_status.notified().await;
        tokio::time::sleep(delay).await;
        if !ctx.leads() {
            continue;
        }
        for wanted in policy_statuses(ctx) {
            match write(&ctx.objects, &wanted, &ctx.seams.now_text()).await {
                Ok(()) | Err(StoreError::ClusterGone { .. }) => {}
                Err(error) => {
                    warn!(policy = %wanted.key, %error, "policy status was not written, will retry");
                    ctx.signals.policy_status.notify_one();
                }
            }
        }
    }
}

/// Returns a sentence for each part of a policy that has no effect, kinds that nothing serves among them.
fn parts_without_effect(
    ctx: &SchedulerContext,
    key: &ObjectKey,
    policy: &portolan_placement::CompiledPolicy,
) -> Vec<String> {
    let unserved = policy.spec.resources.iter().flat_map(|resource| kind_warnings(ctx, resource));
    unserved
        .chain(definition_warning(&policy.spec, key.namespace().is_some()))
        .chain(portolan_placement::parts_without_effect(policy))
        .collect()
}

fn policy_statuses(ctx: &SchedulerContext) -> Vec<PolicyStatusUpdate> {
    let facts = ctx.facts();
    let of = |(key, policy): (&ObjectKey, &std::sync::Arc<portolan_placement::CompiledPolicy>)| {
        let path = ctx.tree.lineage(key.cluster).into_iter().next()?.1;
        let reference = reference(key, &path);
        Some(PolicyStatusUpdate {
            key: key.clone(),
            matched: facts.usage.matched(&reference),
            fault: policy.fault().map(str::to_owned),
            overrun: facts.overruns.message(&reference),
            changes_copies: policy.changes_copies(),
            failures: policy.has_expressions().then(|| expression_failures(ctx, &facts, key, policy)),
            without_effect: [parts_without_effect(ctx, key, policy), unknown_names(ctx, &facts, key, policy)].concat(),
        })
    };
    facts.all_policies().filter_map(of).collect()
}

/// Returns a sentence for each name of a policy that no physical cluster within its reach has. Workspaces below the one
/// of a `ClusterPlacementPolicy` may have physical clusters of their own.
fn unknown_names(ctx: &SchedulerContext, facts: &Facts, key: &ObjectKey, policy: &CompiledPolicy) -> Vec<String> {
    let clusters = &policy.spec.clusters;
    let suspended = ClusterSelector { names: policy.spec.suspend.dispatch_on.clone(), ..ClusterSelector::default() };
    if *clusters == ClusterSelector::default() && suspended.names.is_empty() {
        return Vec::new();
    }
    let reach = facts.clusters(&ctx.lineage_of(key.cluster), &*ctx.rights, &Default::default());
    let below = if key.namespace().is_none() { ctx.tree.subtree(key.cluster) } else { Vec::new() };
    let below = facts.all_physical().filter(|(_, home, _)| below.contains(&home.cluster));
    let known: Vec<String> =
        reach.iter().map(|c| c.info.name.clone()).chain(below.map(|(_, home, _)| home.name.to_string())).collect();
    let mut found = warn_of_clusters("spec.clusters", clusters, &known);
    found.extend(warn_of_clusters("spec.suspend.dispatchOn", &suspended, &known));
    found.truncate(MAX_FAILURES);
    found
}

/// Returns a sentence for each expression of a policy that has no value for a physical cluster within its reach, and
/// one for the objects on which the `cel` expression of its `resources` failed.
fn expression_failures(ctx: &SchedulerContext, facts: &Facts, key: &ObjectKey, policy: &CompiledPolicy) -> Vec<String> {
    let reach = ctx.lineage_of(key.cluster);
    let clusters = facts.clusters(&reach, &*ctx.rights, &Default::default());
    let usable = clusters.iter().filter(|cluster| cluster.may_use);
    let mut failures: Vec<String> =
        usable.flat_map(|cluster| policy.expression_failures(&cluster.info)).take(MAX_FAILURES).collect();
    let path = reach.lineage.first().map(|(_, path)| path);
    let objects = path.and_then(|path| facts.failed_selections.sentence(&reference(key, path)));
    failures.extend(objects.map(|objects| format!("resources.cel failed for {objects}")));
    failures
}

async fn write(objects: &ObjectClient, wanted: &PolicyStatusUpdate, now: &str) -> Result<(), StoreError> {
    let change = |policy: &mut serde_json::Value| {
        let before = policy.get("status").cloned().unwrap_or_default();
        let known: PlacementPolicyStatus = serde_json::from_value(before).unwrap_or_default();
        let status = status(&known, wanted, object::generation(policy), now);
        if known == status {
            return Ok(Step::Keep);
        }
        policy["status"] = json!(status);
        Ok(Step::Write)
    };
    objects.modify(&wanted.key, change).await.map(drop)
}

fn status(
    known: &PlacementPolicyStatus,
    wanted: &PolicyStatusUpdate,
    generation: i64,
    now: &str,
) -> PlacementPolicyStatus {
    let condition = |kind: &str, (reason, fault): (&str, Option<&String>)| {
        let status = if fault.is_some() { "False" } else { "True" };
        let last = known.conditions.iter().find(|c| c.kind == kind && c.status == status);
        StatusCondition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: fault.cloned().unwrap_or_default(),
            last_transition_time: last.map_or_else(|| now.to_owned(), |c| c.last_transition_time.clone()),
            observed_generation: generation,
        }
    };
    let reason = if wanted.fault.is_some() { "Invalid" } else { "Accepted" };
    let mut conditions = vec![condition("Accepted", (reason, wanted.fault.as_ref()))];
    if wanted.changes_copies {
        let reason = if wanted.overrun.is_some() { "BudgetExceeded" } else { "WithinBudget" };
        conditions.push(condition(OVERRIDES_WITHIN_BUDGET, (reason, wanted.overrun.as_ref())));
    }
    if let Some(failures) = &wanted.failures {
        let failed = (!failures.is_empty()).then(|| failures.join("; "));
        let reason = if failed.is_some() { "EvaluationFailed" } else { "Evaluated" };
        conditions.push(condition(EXPRESSIONS_EVALUATED, (reason, failed.as_ref())));
    }
    let ineffective = (!wanted.without_effect.is_empty()).then(|| wanted.without_effect.join("; "));
    let reason = if ineffective.is_some() { "PartsWithoutEffect" } else { "AllPartsEffective" };
    conditions.push(condition(FULLY_EFFECTIVE, (reason, ineffective.as_ref())));
    PlacementPolicyStatus { conditions, matched: wanted.matched }
}
