//! The status of policies: whether they can be used, and how many objects they decide.

use std::time::Duration;

use portolan_store::{Objects, Step, StoreError};
use portolan_types::{
    GroupVersionKind, ObjectKey, object,
    placement::{Condition, GROUP, PlacementPolicyStatus},
};
use serde_json::json;
use tracing::warn;

use crate::{facts::reference, scheduler::Inner};

/// Type of the condition of a policy that has overrides, or leaves fields to copies.
const OVERRIDES_WITHIN_BUDGET: &str = "OverridesWithinBudget";

/// Type of the condition that says whether every part of a policy has an effect.
const FULLY_EFFECTIVE: &str = "FullyEffective";

/// What the status of a policy should say.
struct Wanted {
    key: ObjectKey,
    matched: u64,
    fault: Option<String>,
    /// Sentence about objects for which its overrides exceed their budget.
    overrun: Option<String>,
    changes_copies: bool,
    /// Sentences about parts of it that have no effect.
    without_effect: Vec<String>,
}

/// Whether objects of a kind are policies.
pub(crate) fn is_policy(kind: &GroupVersionKind) -> bool {
    &*kind.group == GROUP && matches!(&*kind.kind, "PlacementPolicy" | "ClusterPlacementPolicy")
}

impl Inner {
    /// Writes the status of policies whose count has changed, after waiting for more to come.
    pub(crate) async fn keep_policy_status(&self, delay: Duration) {
        loop {
            self.matched_changed.notified().await;
            tokio::time::sleep(delay).await;
            if !self.leads() {
                continue;
            }
            for wanted in self.policy_statuses() {
                match write(&self.objects, &wanted, &self.seams.now_text()).await {
                    Ok(()) | Err(StoreError::ClusterGone { .. }) => {}
                    Err(error) => {
                        warn!(policy = %wanted.key, %error, "could not write the status of a policy");
                        self.matched_changed.notify_one();
                    }
                }
            }
        }
    }

    fn policy_statuses(&self) -> Vec<Wanted> {
        let facts = self.facts();
        let of = |(key, policy): (&ObjectKey, &std::sync::Arc<portolan_placement::Policy>)| {
            let path = self.tree.lineage(key.cluster).into_iter().next()?.1;
            let reference = reference(key, &path);
            Some(Wanted {
                key: key.clone(),
                matched: facts.usage.matched(&reference),
                fault: policy.fault().map(str::to_owned),
                overrun: facts.overruns.message(&reference),
                changes_copies: policy.changes_copies(),
                without_effect: policy.parts_without_effect(),
            })
        };
        facts.all_policies().filter_map(of).collect()
    }
}

async fn write(objects: &Objects, wanted: &Wanted, now: &str) -> Result<(), StoreError> {
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

fn status(known: &PlacementPolicyStatus, wanted: &Wanted, generation: i64, now: &str) -> PlacementPolicyStatus {
    let condition = |kind: &str, (reason, fault): (&str, Option<&String>)| {
        let status = if fault.is_some() { "False" } else { "True" };
        let last = known.conditions.iter().find(|c| c.kind == kind && c.status == status);
        Condition {
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
    let ineffective = (!wanted.without_effect.is_empty()).then(|| wanted.without_effect.join("; "));
    let reason = if ineffective.is_some() { "PartsWithoutEffect" } else { "AllPartsEffective" };
    conditions.push(condition(FULLY_EFFECTIVE, (reason, ineffective.as_ref())));
    PlacementPolicyStatus { conditions, matched: wanted.matched }
}
