//! HorizontalPodAutoscalers that scale upstream: by the usage of the pods on all physical clusters together, with the
//! algorithm of kube-controller-manager. The replicas of the target are then divided as any others.
//!
//! A policy with `autoscaling: Global` marks the targets ([`PlacementRecord::scales_globally`]); their autoscalers have
//! no copies on physical clusters. Resource and ContainerResource metrics are read; others need an API that is not
//! served.
mod metrics;
mod scaling;
mod status;
mod target;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use portolan_apiserver::{
    Directory,
    hooks::{MeasuredResource, UsageRequest, UsageSource},
};
use portolan_controllers::{Controller, Plane, PlaneError, WorkOutcome};
use portolan_store::{ChangeKind, Event};
use portolan_types::{
    BoxFuture, GroupResource, GroupVersionKind, ObjectKey, Record, ResourceVersion, Uid, event_draft::EventDraft,
    object, placement::PlacementRecord,
};
use serde_json::Value;

use self::{
    metrics::{MeasuredAmount, MeasuredPods, MetricTarget, Tolerances, milli, samples},
    scaling::{ScalingHistory, ScalingRequest},
    status::{ScalerCounts, ScalerStatus, current_metric},
    target::ScaleTarget,
};

/// Time between two looks, the default of kube-controller-manager.
const PERIOD: Duration = Duration::from_secs(15);
/// Time between two looks at an autoscaler that has no copies and does not scale upstream.
const UNPLACED_PERIOD: Duration = Duration::from_secs(60);
/// Deviation from a target that changes nothing.
const TOLERANCE: f64 = 0.1;
/// Component of Events.
const COMPONENT: &str = "horizontal-pod-autoscaler";

/// Controller of autoscalers that scale upstream.
pub(crate) struct GlobalAutoscaler {
    plane: Arc<Plane>,
    directory: Arc<Directory>,
    usage: Arc<dyn UsageSource>,
    /// Histories of autoscalers, by their keys, with their uids.
    histories: Mutex<HashMap<ObjectKey, (Option<Uid>, ScalingHistory)>>,
}

/// Replicas that the metrics of an autoscaler ask for.
struct MetricsResult {
    /// Number, and the name of the metric that asks for it; the failure otherwise.
    wanted: Result<(i64, String), String>,
    /// `currentMetrics`.
    current: Vec<Value>,
}

/// Metric that could not be read.
#[derive(Clone)]
struct MetricFailure {
    /// Reason of the condition and Event.
    reason: &'static str,
    message: String,
}

/// Event about an autoscaler.
struct ScalerEvent {
    is_warning: bool,
    reason: &'static str,
    message: String,
}

impl GlobalAutoscaler {
    pub(crate) fn new(plane: Arc<Plane>, directory: Arc<Directory>, usage: Arc<dyn UsageSource>) -> Self {
        Self { plane, directory, usage, histories: Mutex::default() }
    }

    /// Takes the history of an autoscaler; a new one if there is none, or if it belongs to another autoscaler.
    fn take_history(&self, key: &ObjectKey, uid: Option<&Uid>) -> ScalingHistory {
        let mut histories = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        histories.remove(key).filter(|(of, _)| of.as_ref() == uid).map(|(_, history)| history).unwrap_or_default()
    }

    fn keep_history(&self, key: &ObjectKey, uid: Option<Uid>, history: ScalingHistory) {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), (uid, history));
    }

    /// Makes one look at an autoscaler. Returns false if it does not scale upstream.
    async fn look(&self, key: &ObjectKey, scaler: &Value) -> Result<bool, PlaneError> {
        let now = self.plane.seams().now_text();
        let target = match ScaleTarget::read(&self.plane, key, scaler).await? {
            Ok(target) => target,
            // Whether it would scale upstream is not known.
            Err(_) => return Ok(false),
        };
        if !target.scales_globally() {
            self.take_history(key, None);
            return Ok(false);
        }
        let uid = object::uid(scaler);
        let mut history = self.take_history(key, uid.as_ref());
        let (mut status, mut events) = (ScalerStatus::of(scaler, &now), Vec::new());
        status.set(
            "AbleToScale",
            true,
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        let looked = self.decide(key, scaler, &target, (&mut status, &mut events, &mut history)).await;
        self.keep_history(key, uid, history);
        let wanted = status.finish(&looked?);
        let write = |current: &mut Value| {
            let differs = current["status"] != wanted;
            current["status"] = wanted.clone();
            differs
        };
        self.plane.force(key, write).await?;
        for event in events {
            self.tell(key, scaler, &event).await?;
        }
        Ok(true)
    }

    /// Decides on the number of replicas, and sets it.
    async fn decide(
        &self,
        key: &ObjectKey,
        scaler: &Value,
        target: &ScaleTarget,
        (status, events, history): (&mut ScalerStatus<'_>, &mut Vec<ScalerEvent>, &mut ScalingHistory),
    ) -> Result<ScalerCounts, PlaneError> {
        let now = self.plane.seams().clock.now().as_second();
        let number = |field: &str| scaler["spec"][field].as_i64();
        let (current, least, most) =
            (target.replicas(), number("minReplicas").unwrap_or(1), number("maxReplicas").unwrap_or(1));
        history.begin(current, now);
        let mut counts = ScalerCounts { current, ..ScalerCounts::default() };
        let (desired, why) = if current == 0 && least != 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            status.set("ScalingActive", false, "ScalingDisabled", message);
            counts.desired = Some(0);
            return Ok(counts);
        } else if current > most {
            (most, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < least {
            (least, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let result = self.by_metrics(key, scaler, target, (status, events)).await?;
            counts.metrics = result.current;
            let (wanted, metric) = match result.wanted {
                Ok(wanted) => wanted,
                Err(message) => {
                    events.push(ScalerEvent { is_warning: true, reason: "FailedComputeMetricsReplicas", message });
                    return Ok(counts);
                }
            };
            let behavior = &scaler["spec"]["behavior"];
            let request = ScalingRequest { current, desired: wanted, least, most, behavior, now };
            let outcome = request.limit(history);
            status.set_outcome(&outcome);
            let above = || format!("{metric} above target");
            let why = if wanted > current { above() } else { "All metrics below target".to_owned() };
            (outcome.desired, why)
        };
        counts.desired = Some(desired);
        if desired == current {
            return Ok(counts);
        }
        if let Err(error) = target.scale(&self.plane, desired).await {
            let message = format!("the HPA controller was unable to update the target scale: {error}");
            status.set("AbleToScale", false, "FailedUpdateScale", &message);
            let message = format!("New size: {desired}; reason: {why}; error: {error}");
            events.push(ScalerEvent { is_warning: true, reason: "FailedRescale", message });
            counts.desired = None;
            return Ok(counts);
        }
        history.note_change(current, desired, now);
        let message = format!("the HPA controller was able to update the target scale to {desired}");
        status.set("AbleToScale", true, "SucceededRescale", &message);
        let message = format!("New size: {desired}; reason: {why}");
        events.push(ScalerEvent { is_warning: false, reason: "SuccessfulRescale", message });
        counts.has_scaled = true;
        Ok(counts)
    }

    /// Returns the number of replicas that the metrics ask for. Unless all can be read, it may only grow.
    async fn by_metrics(
        &self,
        key: &ObjectKey,
        scaler: &Value,
        target: &ScaleTarget,
        (status, events): (&mut ScalerStatus<'_>, &mut Vec<ScalerEvent>),
    ) -> Result<MetricsResult, PlaneError> {
        let none = |message: &str| MetricsResult { wanted: Err(message.to_owned()), current: Vec::new() };
        let Some(pods) = target.pods(&self.plane).await? else {
            status.set("ScalingActive", false, "InvalidSelector", "the HPA target's scale is missing a selector");
            events.push(ScalerEvent { is_warning: true, reason: "SelectorRequired", message: String::new() });
            return Ok(none("selector is required"));
        };
        let usage = self.usage_of(key, &pods).await;
        let (current, mut best, mut failures) = (target.replicas(), None, Vec::new());
        let specs = metrics_of(scaler);
        let mut shown = Vec::with_capacity(specs.len());
        for metric in &specs {
            match self.by_metric(scaler, (metric, &pods), current, &usage) {
                Ok((replicas, name, current)) => {
                    shown.push(current);
                    if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                        best = Some((replicas, name));
                    }
                }
                Err(failure) => {
                    shown.push(Value::Null);
                    let MetricFailure { reason, message } = failure.clone();
                    events.push(ScalerEvent { is_warning: true, reason, message });
                    failures.push(failure);
                }
            }
        }
        let growing = best.filter(|(replicas, _)| failures.is_empty() || *replicas >= current);
        let wanted = match (growing, failures.first()) {
            (Some((replicas, name)), _) => {
                let message = format!("the HPA was able to successfully calculate a replica count from {name}");
                status.set("ScalingActive", true, "ValidMetricFound", &message);
                Ok((replicas, name))
            }
            (None, Some(first)) => {
                let message = format!("the HPA was unable to compute the replica count: {}", first.message);
                status.set("ScalingActive", false, first.reason, &message);
                let (invalid, all, why) = (failures.len(), specs.len(), &first.message);
                Err(format!("invalid metrics ({invalid} invalid out of {all}), first error is: {why}"))
            }
            (None, None) => Err("no metrics".to_owned()),
        };
        Ok(MetricsResult { wanted, current: shown })
    }

    /// Returns the `PodMetrics` of pods; the error says why there are none.
    async fn usage_of(&self, key: &ObjectKey, pods: &[Value]) -> Result<Vec<Value>, String> {
        let cluster = self.directory.by_id(key.cluster).ok_or_else(|| "the workspace is gone".to_owned())?;
        let request = UsageRequest { cluster, resource: MeasuredResource::Pods, objects: pods.to_vec() };
        let measured = self.usage.usage(request).await.map_err(|status| status.message().to_owned())?;
        if !measured.items.is_empty() {
            return Ok(measured.items);
        }
        let gaps =
            if measured.warnings.is_empty() { String::new() } else { format!(": {}", measured.warnings.join("; ")) };
        Err(format!("no metrics returned from resource metrics API{gaps}"))
    }

    /// Returns the number of replicas that one metric asks for, its name, and its present value.
    fn by_metric(
        &self,
        scaler: &Value,
        (metric, pods): (&Value, &[Value]),
        current: i64,
        usage: &Result<Vec<Value>, String>,
    ) -> Result<(i64, String, Value), MetricFailure> {
        let (source, reason) = match metric["type"].as_str().unwrap_or_default() {
            "Resource" => (&metric["resource"], "FailedGetResourceMetric"),
            "ContainerResource" => (&metric["containerResource"], "FailedGetContainerResourceMetric"),
            other => return Err(unserved(other, metric)),
        };
        let failed = |message: String| MetricFailure { reason, message };
        let amount = MeasuredAmount {
            resource: source["name"].as_str().unwrap_or_default(),
            container: source["container"].as_str().filter(|_| metric["type"] == "ContainerResource"),
        };
        let (name, wanted) = (amount.resource, &source["target"]);
        let (target, kind) = match (milli(&wanted["averageValue"]), wanted["averageUtilization"].as_i64()) {
            (Some(average), _) => (MetricTarget::Average(average), "usage"),
            (None, Some(utilization)) => (MetricTarget::Utilization(utilization), "utilization"),
            (None, None) => {
                let why = "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set";
                return Err(failed(why.to_owned()));
            }
        };
        let unread = |why: String| failed(format!("failed to get {name} {kind}: {why}"));
        let read = usage.as_ref().map_err(String::clone).and_then(|usage| samples(usage, amount));
        let samples = read.map_err(|why| unread(format!("unable to get metrics for resource {name}: {why}")))?;
        let measured = MeasuredPods { pods, samples, now: self.plane.seams().clock.now().as_second() };
        let proposal = measured.propose(current, amount, (target, tolerances(scaler))).map_err(unread)?;
        let label = match target {
            MetricTarget::Average(_) => format!("{name} resource"),
            MetricTarget::Utilization(_) => format!("{name} resource utilization (percentage of request)"),
        };
        Ok((proposal.replicas, label, current_metric(metric, &proposal)))
    }

    async fn tell(&self, key: &ObjectKey, scaler: &Value, event: &ScalerEvent) -> Result<(), PlaneError> {
        let ScalerEvent { is_warning, reason, message } = event;
        let name = reason.to_lowercase();
        let draft = EventDraft { component: COMPONENT, name: &name, is_warning: *is_warning, reason, message };
        let Some((event_key, mut event)) = draft.about(self.plane.seams(), key, scaler) else { return Ok(()) };
        let again = |known: &mut Value| {
            known["count"] = known["count"].as_i64().unwrap_or(1).saturating_add(1).into();
            for field in ["message", "lastTimestamp", "involvedObject"] {
                known[field] = event[field].clone();
            }
            true
        };
        if self.plane.force(&event_key, again).await?.is_none() {
            let kind = self.plane.table().kind(&GroupVersionKind::new("", "v1", "Event"));
            let kind = kind.expect("the table has core/v1");
            object::metadata_mut(&mut event).remove("uid");
            self.plane.create(kind, event_key.cluster, event).await?;
        }
        Ok(())
    }
}

/// Returns the metrics of an autoscaler: 80 percent of the CPU requests if it has none.
fn metrics_of(scaler: &Value) -> Vec<Value> {
    let metrics = scaler["spec"]["metrics"].as_array().filter(|metrics| !metrics.is_empty());
    metrics.cloned().unwrap_or_else(|| {
        let target = serde_json::json!({"type": "Utilization", "averageUtilization": 80});
        vec![serde_json::json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})]
    })
}

/// Returns the failure of a metric whose API is not served.
fn unserved(kind: &str, metric: &Value) -> MetricFailure {
    let (field, reason, api) = match kind {
        "Pods" => ("pods", "FailedGetPodsMetric", "custom metrics"),
        "Object" => ("object", "FailedGetObjectMetric", "custom metrics"),
        "External" => ("external", "FailedGetExternalMetric", "external metrics"),
        _ => {
            let message = format!("unknown metric source type {kind:?}");
            return MetricFailure { reason: "InvalidMetricSourceType", message };
        }
    };
    let name = metric[field]["metric"]["name"].as_str().unwrap_or_default();
    let message =
        format!("unable to get metric {name}: unable to fetch metrics from {api} API: no {api} API registered");
    MetricFailure { reason, message }
}

fn tolerances(scaler: &Value) -> Tolerances {
    let of = |direction: &str| {
        let set = milli(&scaler["spec"]["behavior"][direction]["tolerance"]);
        set.map_or(TOLERANCE, |thousandths| thousandths as f64 / 1000.0)
    };
    Tolerances { down: of("scaleDown"), up: of("scaleUp") }
}

impl Controller for GlobalAutoscaler {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "autoscaling"
    }

    fn resources(&self) -> Vec<GroupResource> {
        vec![GroupResource::new("autoscaling", "horizontalpodautoscalers")]
    }

    /// A write of the status triggers no extra evaluation: the next one is scheduled anyway.
    fn keys(&self, event: &Event) -> Vec<ObjectKey> {
        let spec = |record: &Record| Some(record.to_value(ResourceVersion::FIRST).ok()?["spec"].take());
        let is_same = event.previous.as_ref().is_some_and(|previous| {
            let (before, after) = (&previous.header, &event.record.header);
            let is_same_place = before.placed_on == after.placed_on && before.is_deleting == after.is_deleting;
            is_same_place && event.change == ChangeKind::Updated && spec(previous) == spec(&event.record)
        });
        if is_same { Vec::new() } else { vec![event.key.clone()] }
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<WorkOutcome, PlaneError>> {
        Box::pin(async move {
            let found = self.plane.get(key).await?.filter(|found| !object::is_deleting(&found.object));
            let Some(found) = found else {
                self.take_history(key, None);
                return Ok(WorkOutcome::Done);
            };
            let is_ours = self.look(key, &found.object).await?;
            // The target of one without copies may turn out to scale upstream.
            let has_copies = PlacementRecord::of(&found.object).is_some_and(|record| !record.clusters.is_empty());
            Ok(match (is_ours, has_copies) {
                (true, _) => WorkOutcome::RequeueAfter(PERIOD),
                (false, false) => WorkOutcome::RequeueAfter(UNPLACED_PERIOD),
                (false, true) => WorkOutcome::Done,
            })
        })
    }
}
