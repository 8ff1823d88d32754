//! Objects for which the overrides of a policy exceed their budget.

use std::collections::BTreeMap;

use portolan_placement::{LeveledPolicy, Workload, changes_over_budget, patches_over_budget};
use portolan_types::{
    ObjectKey, fingerprint, object,
    placement::{PlacementRecord, PolicyRef},
};
use serde_json::{Value, json};

use super::policy_complaints::PolicyComplaints;
use crate::{context::SchedulerContext, inputs::DecisionInputs};

/// Most objects for which the outcome of their patches is kept. Beyond them, all are tried again.
const MAX_OUTCOMES: usize = 16 * 1024;

/// Policies whose patches of an object exceed their budget, each with the reason.
type PolicyOverruns = Vec<(PolicyRef, String)>;

/// Objects for which overrides exceed their budget, and outcomes of patches that have been tried.
#[derive(Clone, Default)]
pub(crate) struct OverrideOverruns {
    complaints: PolicyComplaints,
    /// Outcomes by object, with the fingerprint of what was tried.
    outcomes: BTreeMap<ObjectKey, (String, PolicyOverruns)>,
}

/// Returns the fingerprint of what the outcome of an object's patches depends on; `None` without patches. Objects
/// without generation count as a whole.
fn fingerprint_of_patches(object: &Value, record: &PlacementRecord) -> Option<String> {
    let patches: Vec<_> = record.overrides.iter().filter(|one| !one.change.patch.is_empty()).collect();
    if patches.is_empty() {
        return None;
    }
    let generation = object::generation(object);
    let of = if generation > 0 { json!(generation) } else { object.clone() };
    Some(fingerprint(&json!([of, object::meta_text(object, "uid"), patches])))
}

/// Notes of which policies the overrides of an object exceed their budget. A policy can make its patches take long:
/// they are tried while no caller waits for the facts, and only when they or the object have changed.
pub(crate) fn record_overruns(
    ctx: &SchedulerContext,
    inputs: &DecisionInputs,
    policies: &[LeveledPolicy],
    record: &PlacementRecord,
) {
    let tried = fingerprint_of_patches(&inputs.object, record);
    let known = tried.as_ref().and_then(|tried| ctx.facts().overruns.outcome(&inputs.key, tried));
    let try_patches = || patches_over_budget(&inputs.object, &record.overrides);
    let outcome = tried.map(|tried| (tried, known.unwrap_or_else(try_patches)));
    let mut found = outcome.as_ref().map(|(_, found)| found.clone()).unwrap_or_default();
    if !record.clusters.is_empty() {
        found.extend(changes_over_budget(&inputs.workload, policies));
    }
    let mut facts = ctx.facts();
    facts.overruns.keep_outcome(&inputs.key, outcome);
    let failed = selection_failures(&inputs.workload, policies);
    if facts.overruns.complaints.note(&inputs.key, found) | facts.failed_selections.note(&inputs.key, failed) {
        ctx.signals.policy_status.notify_one();
    }
}

/// Returns the policies of which it is not known if they are about an object, because an expression failed.
fn selection_failures(workload: &Workload, policies: &[LeveledPolicy]) -> PolicyOverruns {
    let of = |p: &LeveledPolicy| Some((p.reference.clone(), p.policy.selection_failure(workload)?));
    policies.iter().filter_map(of).collect()
}

impl OverrideOverruns {
    /// Returns the outcome of an object's patches, when it is known for this fingerprint.
    fn outcome(&self, key: &ObjectKey, tried: &str) -> Option<PolicyOverruns> {
        self.outcomes.get(key).filter(|(known, _)| known == tried).map(|(_, found)| found.clone())
    }

    fn keep_outcome(&mut self, key: &ObjectKey, outcome: Option<(String, PolicyOverruns)>) {
        let Some(outcome) = outcome else {
            self.outcomes.remove(key);
            return;
        };
        if self.outcomes.len() >= MAX_OUTCOMES && !self.outcomes.contains_key(key) {
            self.outcomes.clear();
        }
        self.outcomes.insert(key.clone(), outcome);
    }

    /// Forgets an object that is gone. Returns true when it exceeded a budget.
    pub(crate) fn forget(&mut self, key: &ObjectKey) -> bool {
        self.outcomes.remove(key);
        self.complaints.note(key, Vec::new())
    }

    /// Returns the sentence for the condition of a policy, while any object exceeds its budget.
    pub(crate) fn message(&self, policy: &PolicyRef) -> Option<String> {
        self.complaints.sentence(policy).map(|sentence| format!("overrides exceed their budget for {sentence}"))
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        let resource = GroupResource::new("apps", "deployments");
        ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name.parse().unwrap())
    }

    #[test]
    fn patches_are_tried_again_only_when_they_or_the_object_have_changed() {
        let web = |generation: i64, ready: i64| json!({"metadata": {"uid": "u", "generation": generation}, "status": {"readyReplicas": ready}});
        let record = |value: &str| {
            let change = json!({"patch": [{"op": "add", "path": "/spec/a", "value": value}]});
            let policy = json!({"kind": "PlacementPolicy", "workspace": "root", "name": "p"});
            let overrides = json!([{"policy": policy, "on": ["east"], "change": change}]);
            let overrides = serde_json::from_value(overrides).unwrap();
            PlacementRecord { overrides, ..PlacementRecord::default() }
        };
        assert_eq!(fingerprint_of_patches(&web(1, 0), &PlacementRecord::default()), None, "no patches");
        let tried = fingerprint_of_patches(&web(1, 0), &record("a"));
        assert!(tried.is_some());
        assert_eq!(fingerprint_of_patches(&web(1, 3), &record("a")), tried, "the status does not count");
        assert_ne!(fingerprint_of_patches(&web(2, 0), &record("a")), tried);
        assert_ne!(fingerprint_of_patches(&web(1, 0), &record("b")), tried);
        let settings = |text: &str| json!({"metadata": {"uid": "u"}, "data": {"a": text}});
        let of = |text: &str| fingerprint_of_patches(&settings(text), &record("a"));
        assert_ne!(of("a"), of("b"), "an object without generation");
        let mut overruns = OverrideOverruns::default();
        let tried = tried.unwrap();
        overruns.keep_outcome(&key("a"), Some((tried.clone(), Vec::new())));
        assert_eq!(overruns.outcome(&key("a"), &tried), Some(Vec::new()));
        assert_eq!(overruns.outcome(&key("a"), "another"), None);
        for at in 0..2 * MAX_OUTCOMES {
            overruns.keep_outcome(&key(&format!("b{at}")), Some((tried.clone(), Vec::new())));
            assert!(overruns.outcomes.len() <= MAX_OUTCOMES);
        }
        overruns.keep_outcome(&key("a"), Some((tried.clone(), Vec::new())));
        overruns.forget(&key("a"));
        assert_eq!(overruns.outcome(&key("a"), &tried), None);
    }
}
