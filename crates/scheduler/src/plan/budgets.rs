//! PodDisruptionBudgets that the moves of a plan would violate. An object that runs in both places until the new copy
//! is available disrupts no pods; one that stops first disrupts all of the copy that leaves.

use std::collections::BTreeMap;

use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{
    GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, labels::LabelSelectorSpec,
    placement::PlacementRecord,
};
use serde_json::Value;

use super::{PlanError, rows::BudgetRow};
use crate::{context::SchedulerContext, inputs::DecisionInputs, queue::rescan::placed_from_here};

/// Pods of one object that stop before they start elsewhere.
pub(super) struct DisruptedPods {
    namespace: NamespaceName,
    labels: BTreeMap<String, String>,
    pods: i64,
}

impl DisruptedPods {
    /// Returns the pods that a move to `after` stops; `None` if it stops none.
    pub(super) fn of(inputs: &DecisionInputs, after: &PlacementRecord) -> Option<Self> {
        let workload = &inputs.workload;
        if !workload.moves.one_at_a_time() || workload.finished {
            return None;
        }
        let left = inputs.record.active().filter(|copy| after.on(&copy.uid).is_none());
        let pods: i64 = left.map(|copy| inputs.record.replicas_of(copy, workload.pods)).sum();
        let template = inputs.object.pointer("/spec/template/metadata/labels");
        let labels = template.or_else(|| inputs.object.pointer("/metadata/labels")).and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        (pods > 0).then_some(Self { namespace: inputs.namespace.clone(), labels, pods })
    }
}

/// Returns the budgets that permit fewer disruptions than the moves would cause, by key.
pub(super) async fn budget_rows(
    shadow: &SchedulerContext,
    disrupted: &BTreeMap<ObjectKey, DisruptedPods>,
) -> Result<Vec<BudgetRow>, PlanError> {
    let mut namespaces: BTreeMap<(LogicalClusterId, &NamespaceName), Vec<&DisruptedPods>> = BTreeMap::new();
    for (key, pods) in disrupted {
        namespaces.entry((key.cluster, &pods.namespace)).or_default().push(pods);
    }
    let resource = GroupResource::new("policy", "poddisruptionbudgets");
    let mut rows = Vec::new();
    for ((cluster, namespace), disrupted) in namespaces {
        let scope = RangeScope::Namespace(cluster, resource.clone(), namespace.clone());
        let request = RangeRequest { labels: placed_from_here(), ..RangeRequest::all(scope).skip_damaged() };
        for stored in shadow.objects.store().range(request).await?.objects {
            let Ok(budget) = stored.to_value() else { continue };
            let (Some(selector), Some(allowed)) = (selector(&budget), allowed(&budget)) else { continue };
            let selected = disrupted.iter().filter(|pods| selector.matches_map(&pods.labels));
            let disrupted: i64 = selected.map(|pods| pods.pods).sum();
            if disrupted > allowed {
                rows.push(BudgetRow { key: stored.key, disrupted, allowed });
            }
        }
    }
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(rows)
}

fn selector(budget: &Value) -> Option<LabelSelector> {
    let spec = budget.pointer("/spec/selector").cloned()?;
    let spec: LabelSelectorSpec = serde_json::from_value(spec).ok()?;
    LabelSelector::try_from(&spec).ok()
}

/// Returns the number of pods that a budget permits to stop now; `None` if it is unknown.
fn allowed(budget: &Value) -> Option<i64> {
    let counted = budget.pointer("/status/disruptionsAllowed").and_then(Value::as_i64);
    counted.or_else(|| budget.pointer("/spec/maxUnavailable").and_then(Value::as_i64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pods_that_a_budget_permits_to_stop() {
        for (case, budget, expected) in [
            ("counted", json!({"status": {"disruptionsAllowed": 2}, "spec": {"maxUnavailable": 1}}), Some(2)),
            ("not counted yet", json!({"spec": {"maxUnavailable": 1}}), Some(1)),
            ("a share of an unknown number", json!({"spec": {"maxUnavailable": "50%"}}), None),
            ("all but an unknown number", json!({"spec": {"minAvailable": 1}}), None),
        ] {
            assert_eq!(allowed(&budget), expected, "{case}");
        }
    }
}
