//! Status of an autoscaler, with the conditions of kube-controller-manager. Pure.

use portolan_types::quantity::Quantity;
use serde_json::{Value, json};

use super::{metrics::MetricProposal, scaling::ScalingOutcome};

/// Status under construction.
pub(super) struct ScalerStatus<'a> {
    before: &'a Value,
    now: &'a str,
    conditions: Vec<Value>,
}

impl<'a> ScalerStatus<'a> {
    /// Starts from the status of `scaler`.
    pub(super) fn of(scaler: &'a Value, now: &'a str) -> Self {
        let before = &scaler["status"];
        let conditions = before["conditions"].as_array().cloned().unwrap_or_default();
        Self { before, now, conditions }
    }

    /// Sets a condition. Its time changes with its status only.
    pub(super) fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: &str) {
        let status = if is_true { "True" } else { "False" };
        let known = self.conditions.iter_mut().find(|condition| condition["type"] == kind);
        let since =
            known.as_ref().filter(|known| known["status"] == status).map(|known| known["lastTransitionTime"].clone());
        let since = since.unwrap_or_else(|| self.now.into());
        let wanted = json!({
            "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
        });
        match known {
            Some(known) => *known = wanted,
            None => self.conditions.push(wanted),
        }
    }

    /// Sets the conditions of a number after its bounds.
    pub(super) fn set_outcome(&mut self, outcome: &ScalingOutcome) {
        let ScalingOutcome { able, limited: (is_limited, cause), .. } = *outcome;
        self.set("AbleToScale", true, able.0, able.1);
        self.set("ScalingLimited", is_limited, cause.0, cause.1);
    }

    /// Returns the status. Without a new desired number, the earlier one stays.
    pub(super) fn finish(self, counts: &ScalerCounts) -> Value {
        let mut status = json!({
            "currentReplicas": counts.current,
            "desiredReplicas": counts.desired.or_else(|| self.before["desiredReplicas"].as_i64()).unwrap_or(0),
            "conditions": self.conditions,
        });
        let metrics: Vec<&Value> = counts.metrics.iter().filter(|metric| !metric.is_null()).collect();
        if !metrics.is_empty() {
            status["currentMetrics"] = json!(metrics);
        }
        let scaled_at = if counts.has_scaled { self.now.into() } else { self.before["lastScaleTime"].clone() };
        if !scaled_at.is_null() {
            status["lastScaleTime"] = scaled_at;
        }
        if let Some(observed) = self.before.get("observedGeneration") {
            status["observedGeneration"] = observed.clone();
        }
        status
    }
}

/// Numbers of a status.
#[derive(Default)]
pub(super) struct ScalerCounts {
    pub(super) current: i64,
    pub(super) desired: Option<i64>,
    /// `currentMetrics`, one for each metric of the spec; null for one that could not be read.
    pub(super) metrics: Vec<Value>,
    pub(super) has_scaled: bool,
}

/// Returns the entry of `currentMetrics` for a metric of the spec.
pub(super) fn current_metric(metric: &Value, found: &MetricProposal) -> Value {
    let average = format!("{}m", found.average).parse::<Quantity>().map(|quantity| quantity.to_string());
    let mut current = json!({"averageValue": average.unwrap_or_default()});
    if let Some(utilization) = found.utilization {
        current["averageUtilization"] = utilization.into();
    }
    if metric["type"] == "ContainerResource" {
        let source = &metric["containerResource"];
        let own = json!({"name": source["name"], "container": source["container"], "current": current});
        json!({"type": "ContainerResource", "containerResource": own})
    } else {
        json!({"type": "Resource", "resource": {"name": metric["resource"]["name"], "current": current}})
    }
}
