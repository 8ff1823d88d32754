//! `status` of HorizontalPodAutoscalers, as kube-controller-manager keeps it in a cluster without metrics: the bounds
//! hold, and no metric can be read.

use std::{sync::Arc, time::Duration};

use portolan_controllers::{
    Controller, Plane, PlaneError, WorkOutcome,
    plane::{PlaneChange, PlaneObject},
};
use portolan_store::Event;
use portolan_types::{BoxFuture, GroupResource, ObjectKey, event_draft::EventDraft, object};
use serde_json::{Value, json};

use crate::{
    disruption::scaled_resource,
    events,
    fields::{list, number, set_condition, text},
};

/// Time between two looks, the default of kube-controller-manager.
const PERIOD: Duration = Duration::from_secs(15);

/// Loop of HorizontalPodAutoscalers.
pub(crate) struct AutoscalingController {
    pub(crate) plane: Arc<Plane>,
}

/// Decision about a target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScalingDecision {
    /// There is no target.
    NoTarget(String),
    /// Its number of replicas is out of bounds: the number it gets, and why.
    Rescale(i64, &'static str),
    /// It has no replicas.
    Disabled,
    /// It stays, as its metrics cannot be read: reason and message.
    NoMetrics(&'static str, String),
}

/// Decides about a target with this number of replicas. Pure.
fn decide(autoscaler: &Value, replicas: i64) -> ScalingDecision {
    let least = number(autoscaler, "/spec/minReplicas").unwrap_or(1);
    let most = number(autoscaler, "/spec/maxReplicas").unwrap_or(i64::MAX);
    if replicas == 0 && least != 0 {
        ScalingDecision::Disabled
    } else if replicas > most {
        ScalingDecision::Rescale(most, "Current number of replicas above Spec.MaxReplicas")
    } else if replicas < least {
        ScalingDecision::Rescale(least, "Current number of replicas below Spec.MinReplicas")
    } else {
        let (reason, message) = metric_fault(list(autoscaler, "/spec/metrics").first());
        ScalingDecision::NoMetrics(reason, message)
    }
}

/// Returns why the first metric cannot be read, in the words of kube-controller-manager.
fn metric_fault(metric: Option<&Value>) -> (&'static str, String) {
    let metric = metric.unwrap_or(&Value::Null);
    let custom = |kind: &str, api: &str| {
        let name = text(metric, &format!("/{kind}/metric/name")).to_owned();
        format!("unable to get metric {name}: unable to fetch metrics from {api} API: no {api} API registered")
    };
    match text(metric, "/type") {
        "Pods" => ("FailedGetPodsMetric", custom("pods", "custom metrics")),
        "Object" => ("FailedGetObjectMetric", custom("object", "custom metrics")),
        "External" => ("FailedGetExternalMetric", custom("external", "external metrics")),
        kind => {
            let (kind, reason) = match kind {
                "ContainerResource" => ("containerResource", "FailedGetContainerResourceMetric"),
                _ => ("resource", "FailedGetResourceMetric"),
            };
            let name = Some(text(metric, &format!("/{kind}/name"))).filter(|name| !name.is_empty()).unwrap_or("cpu");
            let amount =
                if text(metric, &format!("/{kind}/target/type")) == "AverageValue" { "usage" } else { "utilization" };
            let why = format!(
                "failed to get {name} {amount}: unable to get metrics for resource {name}: unable to fetch metrics from resource \
                 metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"
            );
            (reason, why)
        }
    }
}

/// Returns the status after a decision. Pure.
fn status(autoscaler: &Value, replicas: i64, decision: &ScalingDecision, now: &str) -> Value {
    let before = autoscaler.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut conditions = list(autoscaler, "/status/conditions").to_vec();
    let mut set = |kind: &str, status: bool, reason: &str, message: &str| {
        set_condition(&mut conditions, kind, status, reason, message, now);
    };
    let desired = match decision {
        ScalingDecision::NoTarget(why) => {
            let why = format!("the HPA controller was unable to get the target's current scale: {why}");
            set("AbleToScale", false, "FailedGetScale", &why);
            before["desiredReplicas"].as_i64().unwrap_or(0)
        }
        ScalingDecision::Rescale(wanted, _) => {
            let message = format!("the HPA controller was able to update the target scale to {wanted}");
            set("AbleToScale", true, "SucceededRescale", &message);
            *wanted
        }
        ScalingDecision::Disabled => {
            let message = "scaling is disabled since the replica count of the target is zero";
            set("ScalingActive", false, "ScalingDisabled", message);
            0
        }
        ScalingDecision::NoMetrics(reason, why) => {
            set("ScalingActive", false, reason, &format!("the HPA was unable to compute the replica count: {why}"));
            before["desiredReplicas"].as_i64().unwrap_or(0)
        }
    };
    if matches!(decision, ScalingDecision::Disabled | ScalingDecision::NoMetrics(..)) {
        let message = "the HPA controller was able to get the target's current scale";
        set("AbleToScale", true, "SucceededGetScale", message);
    }
    let mut status = json!({"currentReplicas": replicas, "desiredReplicas": desired, "currentMetrics": null, "conditions": conditions});
    status["lastScaleTime"] = match decision {
        ScalingDecision::Rescale(..) => now.into(),
        _ => before["lastScaleTime"].clone(),
    };
    if let Some(status) = status.as_object_mut() {
        status.retain(|_, value| !value.is_null());
    }
    status
}

impl AutoscalingController {
    /// Returns the target, or why there is none.
    async fn target(&self, key: &ObjectKey, autoscaler: &Value) -> Result<Result<PlaneObject, String>, PlaneError> {
        let [version, kind, name] = ["apiVersion", "kind", "name"]
            .map(|field| text(autoscaler, &format!("/spec/scaleTargetRef/{field}")).to_owned());
        let Some(resource) = scaled_resource(&version, &kind) else {
            return Ok(Err(format!(
                "no matches for kind {kind:?} in group {:?}",
                version.split('/').next().unwrap_or("")
            )));
        };
        let shown = if resource.group.is_empty() {
            resource.resource.to_string()
        } else {
            format!("{}.{}", resource.resource, resource.group)
        };
        let missing = format!("{shown} {name:?} not found");
        let Ok(name) = name.parse() else { return Ok(Err(missing)) };
        Ok(self.plane.get(&ObjectKey { resource, name, ..key.clone() }).await?.ok_or(missing))
    }

    async fn rescale(&self, target: &PlaneObject, replicas: i64) -> Result<(), PlaneError> {
        let kind = self.plane.stored_kind(&target.key.resource).expect("the table has the kinds with a scale");
        let scale = |current: &mut Value| {
            current["spec"]["replicas"] = replicas.into();
            PlaneChange::Write(None)
        };
        self.plane.change(kind, &target.key, scale).await.map(drop)
    }

    async fn update(&self, key: &ObjectKey, autoscaler: &Value) -> Result<(), PlaneError> {
        let (decision, replicas) = match self.target(key, autoscaler).await? {
            Err(why) => (ScalingDecision::NoTarget(why), number(autoscaler, "/status/currentReplicas").unwrap_or(0)),
            Ok(target) => {
                let replicas = number(&target.object, "/spec/replicas").unwrap_or(1);
                let decision = decide(autoscaler, replicas);
                if let ScalingDecision::Rescale(wanted, _) = decision {
                    self.rescale(&target, wanted).await?;
                }
                (decision, replicas)
            }
        };
        let wanted = status(autoscaler, replicas, &decision, &self.plane.seams().now_text());
        let mut differs = false;
        let write = |current: &mut Value| {
            differs = current["status"] != wanted;
            current["status"] = wanted.clone();
            differs
        };
        self.plane.force(key, write).await?;
        if differs { self.tell(key, autoscaler, &decision).await } else { Ok(()) }
    }

    async fn tell(&self, key: &ObjectKey, autoscaler: &Value, decision: &ScalingDecision) -> Result<(), PlaneError> {
        let (is_warning, reason, message) = match decision {
            ScalingDecision::NoTarget(why) => (true, "FailedGetScale", why.clone()),
            ScalingDecision::Rescale(to, why) => (false, "SuccessfulRescale", format!("New size: {to}; reason: {why}")),
            ScalingDecision::Disabled => return Ok(()),
            ScalingDecision::NoMetrics(reason, why) => (true, *reason, why.clone()),
        };
        let (component, name) = ("horizontal-pod-autoscaler", reason.to_lowercase());
        let note = EventDraft { component, name: &name, is_warning, reason, message: &message };
        events::write(&self.plane, key, autoscaler, note).await
    }
}

impl Controller for AutoscalingController {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "simulated-autoscaling"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("autoscaling", "horizontalpodautoscalers")]
    }

    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        vec![event.key.clone()]
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let found = self.plane.get(key).await?.filter(|found| !object::is_deleting(&found.object));
            let Some(found) = found else { return Ok(WorkOutcome::Done) };
            self.update(key, &found.object).await?;
            Ok(WorkOutcome::RequeueAfter(PERIOD))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn autoscaler() -> Value {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}});
        json!({"spec": {"minReplicas": 2, "maxReplicas": 5, "metrics": [cpu]}})
    }

    #[test]
    fn bounds_hold_and_metrics_are_missing() {
        for (replicas, expected) in [
            (0, ScalingDecision::Disabled),
            (1, ScalingDecision::Rescale(2, "Current number of replicas below Spec.MinReplicas")),
            (6, ScalingDecision::Rescale(5, "Current number of replicas above Spec.MaxReplicas")),
        ] {
            assert_eq!(decide(&autoscaler(), replicas), expected);
        }
        let decision = decide(&autoscaler(), 3);
        let status = status(&autoscaler(), 3, &decision, "t");
        assert_eq!((&status["currentReplicas"], &status["desiredReplicas"]), (&json!(3), &json!(0)));
        let conditions: Vec<_> =
            list(&status, "/conditions").iter().map(|own| [&own["type"], &own["status"], &own["reason"]]).collect();
        assert_eq!(
            json!(conditions),
            json!([
                ["ScalingActive", "False", "FailedGetResourceMetric"],
                ["AbleToScale", "True", "SucceededGetScale"]
            ])
        );
        assert!(text(&status, "/conditions/0/message").contains("(get pods.metrics.k8s.io)"));
    }
}
