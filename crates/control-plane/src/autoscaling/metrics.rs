//! Replicas that a metric asks for, as kube-controller-manager counts them (`replica_calculator.go`): pods that are not
//! ready, or have no metrics, hold a change back. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portolan_types::{duration, object, quantity::Quantity};
use serde_json::Value;

/// Time after the start of a pod in which its CPU usage may be that of its start, in seconds.
const CPU_INITIALIZATION: i64 = 300;
/// Time after the start of a pod in which it becomes ready for the first time, in seconds.
const FIRST_READINESS: i64 = 30;

/// Usage of one resource by one pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodSample {
    /// Time of the measurement, in seconds.
    at: i64,
    /// Time that it covers, in seconds.
    window: i64,
    /// Usage in thousandths.
    pub(super) value: i64,
}

/// Pods of a target, and their samples by pod name.
pub(super) struct MeasuredPods<'a> {
    pub(super) pods: &'a [Value],
    pub(super) samples: BTreeMap<String, PodSample>,
    /// Present time, in seconds.
    pub(super) now: i64,
}

/// Resource that a metric is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredAmount<'a> {
    /// `cpu` or `memory`.
    pub(super) resource: &'a str,
    /// The one container that counts; `None` for all of a pod.
    pub(super) container: Option<&'a str>,
}

/// Target of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricTarget {
    /// Percentage of the requests.
    Utilization(i64),
    /// Thousandths per pod.
    Average(i64),
}

/// Deviation from a target that changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerances {
    pub(super) down: f64,
    pub(super) up: f64,
}

/// Replicas that a metric asks for, and its present value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricProposal {
    pub(super) replicas: i64,
    /// Percentage of the requests, of a metric of utilization.
    pub(super) utilization: Option<i64>,
    /// Thousandths per pod.
    pub(super) average: i64,
}

/// Pods by their part in a decision.
#[derive(Debug, Default)]
struct PodGroups {
    ready: usize,
    unready: Vec<String>,
    missing: Vec<String>,
    ignored: Vec<String>,
}

impl Tolerances {
    fn include(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// Returns the samples of an amount in `PodMetrics`, by pod name. A pod one of whose containers lacks the amount has
/// none.
///
/// # Errors
/// A pod without the container.
pub(super) fn samples(metrics: &[Value], amount: MeasuredAmount<'_>) -> Result<BTreeMap<String, PodSample>, String> {
    let mut found = BTreeMap::new();
    for item in metrics {
        let containers = item["containers"].as_array().map_or(&[][..], Vec::as_slice);
        let counts = |own: &&Value| amount.container.is_none_or(|name| own["name"] == name);
        let counted: Vec<&Value> = containers.iter().filter(counts).collect();
        if let Some(container) = amount.container.filter(|_| counted.is_empty()) {
            let (namespace, name) = (object::namespace(item), object::name(item));
            return Err(format!("container {container} not present in metrics for pod {namespace}/{name}"));
        }
        let values: Option<Vec<i64>> = counted.iter().map(|own| milli(&own["usage"][amount.resource])).collect();
        let sample = values.filter(|values| !values.is_empty()).and_then(|values| {
            let at = seconds(&item["timestamp"])?;
            let window = duration::parse(item["window"].as_str()?).ok()? / 1_000_000_000;
            let value = values.iter().try_fold(0_i64, |sum, value| sum.checked_add(*value))?;
            Some(PodSample { at, window, value })
        });
        if let Some(sample) = sample {
            found.insert(object::name(item).to_owned(), sample);
        }
    }
    Ok(found)
}

/// Returns a quantity in thousandths, rounded up.
pub(super) fn milli(quantity: &Value) -> Option<i64> {
    let quantity: Quantity = quantity.as_str()?.parse().ok()?;
    i64::try_from(quantity.nanos().checked_add(999_999)?.div_euclid(1_000_000)).ok()
}

fn seconds(time: &Value) -> Option<i64> {
    time.as_str()?.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

impl MeasuredPods<'_> {
    /// Returns the replicas that a metric asks for.
    ///
    /// # Errors
    /// The reason why it cannot be counted, in the words of kube-controller-manager.
    pub(super) fn propose(
        mut self,
        current: i64,
        amount: MeasuredAmount<'_>,
        (target, tolerances): (MetricTarget, Tolerances),
    ) -> Result<MetricProposal, String> {
        if self.pods.is_empty() {
            return Err("no pods returned by selector while calculating replica count".into());
        }
        let groups = self.group(amount.resource);
        for name in groups.ignored.iter().chain(&groups.unready) {
            self.samples.remove(name);
        }
        if self.samples.is_empty() {
            return Err("did not receive metrics for targeted pods (pods might be unready)".into());
        }
        let requests = match target {
            MetricTarget::Utilization(_) => requests(self.pods, amount)?,
            MetricTarget::Average(_) => BTreeMap::new(),
        };
        let measure = |samples: &BTreeMap<String, PodSample>| match target {
            MetricTarget::Utilization(wanted) => utilization_ratio(samples, &requests, wanted),
            MetricTarget::Average(wanted) => Ok(average_ratio(samples, wanted)),
        };
        let first = measure(&self.samples)?;
        let proposal = |replicas: i64| MetricProposal { replicas, ..first.proposal.clone() };
        let is_held_back = !groups.unready.is_empty() && first.ratio > 1.0;
        if !is_held_back && groups.missing.is_empty() {
            let is_near = tolerances.include(first.ratio);
            return Ok(proposal(if is_near { current } else { ceiling(first.ratio, groups.ready) }));
        }
        let assumed = |value| PodSample { at: self.now, window: 0, value };
        for name in &groups.missing {
            let value = match target {
                _ if first.ratio > 1.0 => Some(0),
                // A pod without metrics counts as using the target, so that it is not a reason to scale down.
                MetricTarget::Utilization(wanted) if first.ratio < 1.0 => {
                    requests.get(name).map(|request| request.saturating_mul(wanted.max(100)) / 100)
                }
                MetricTarget::Average(wanted) if first.ratio < 1.0 => Some(wanted),
                MetricTarget::Utilization(_) | MetricTarget::Average(_) => None,
            };
            self.samples.extend(value.map(|value| (name.clone(), assumed(value))));
        }
        if is_held_back {
            self.samples.extend(groups.unready.iter().map(|name| (name.clone(), assumed(0))));
        }
        let ratio = measure(&self.samples)?.ratio;
        let turns = (first.ratio < 1.0 && ratio > 1.0) || (first.ratio > 1.0 && ratio < 1.0);
        if tolerances.include(ratio) || turns {
            return Ok(proposal(current));
        }
        let replicas = ceiling(ratio, self.samples.len());
        let is_opposite = (ratio < 1.0 && replicas > current) || (ratio > 1.0 && replicas < current);
        Ok(proposal(if is_opposite { current } else { replicas }))
    }

    fn group(&self, resource: &str) -> PodGroups {
        let mut groups = PodGroups::default();
        for pod in self.pods {
            let (name, phase) = (object::name(pod).to_owned(), pod["status"]["phase"].as_str().unwrap_or_default());
            if object::is_deleting(pod) || phase == "Failed" {
                groups.ignored.push(name);
            } else if phase == "Pending" {
                groups.unready.push(name);
            } else {
                match self.samples.get(&name) {
                    None => groups.missing.push(name),
                    Some(sample) if resource == "cpu" && self.is_starting(pod, *sample) => groups.unready.push(name),
                    Some(_) => groups.ready += 1,
                }
            }
        }
        groups
    }

    /// Returns true for a pod whose CPU usage says nothing yet.
    fn is_starting(&self, pod: &Value, sample: PodSample) -> bool {
        let conditions = pod["status"]["conditions"].as_array();
        let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
        let (Some(ready), Some(started)) = (ready, seconds(&pod["status"]["startTime"])) else { return true };
        let changed = seconds(&ready["lastTransitionTime"]).unwrap_or(0);
        let is_unready = ready["status"] == "False";
        if started + CPU_INITIALIZATION > self.now {
            is_unready || sample.at < changed + sample.window
        } else {
            is_unready && started + FIRST_READINESS > changed
        }
    }
}

/// Present value of a metric in proportion to its target.
struct MetricRatio {
    ratio: f64,
    proposal: MetricProposal,
}

fn utilization_ratio(
    samples: &BTreeMap<String, PodSample>,
    requests: &BTreeMap<String, i64>,
    wanted: i64,
) -> Result<MetricRatio, String> {
    let (mut used, mut requested, mut count) = (0_i64, 0_i64, 0_i64);
    for (name, sample) in samples {
        let Some(request) = requests.get(name) else { continue };
        used = used.saturating_add(sample.value);
        requested = requested.saturating_add(*request);
        count += 1;
    }
    if count == 0 || requested == 0 || wanted <= 0 {
        return Err("no metrics returned matched known pods".into());
    }
    let utilization = used.saturating_mul(100) / requested;
    let proposal = MetricProposal { replicas: 0, utilization: Some(utilization), average: used / count };
    Ok(MetricRatio { ratio: utilization as f64 / wanted as f64, proposal })
}

fn average_ratio(samples: &BTreeMap<String, PodSample>, wanted: i64) -> MetricRatio {
    let used = samples.values().fold(0_i64, |sum, sample| sum.saturating_add(sample.value));
    let average = used / i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1);
    let proposal = MetricProposal { replicas: 0, utilization: None, average };
    MetricRatio { ratio: average as f64 / wanted.max(1) as f64, proposal }
}

/// Returns the requests of an amount by pod name.
///
/// # Errors
/// A container without a request.
fn requests(pods: &[Value], amount: MeasuredAmount<'_>) -> Result<BTreeMap<String, i64>, String> {
    pods.iter().map(|pod| Ok((object::name(pod).to_owned(), requests_of(pod, amount)?))).collect()
}

fn requests_of(pod: &Value, MeasuredAmount { resource, container }: MeasuredAmount<'_>) -> Result<i64, String> {
    let spec = &pod["spec"];
    if let Some(whole) = milli(&spec["resources"]["requests"][resource]).filter(|_| container.is_none()) {
        return Ok(whole);
    }
    let list = |field: &str| spec[field].as_array().into_iter().flatten();
    let sidecars = list("initContainers").filter(|own| own["restartPolicy"] == "Always");
    let counted = list("containers").chain(sidecars);
    let counted = counted.filter(|own| container.is_none_or(|name| own["name"] == name));
    let mut sum = 0_i64;
    for own in counted {
        let request = milli(&own["resources"]["requests"][resource]).ok_or_else(|| {
            let name = own["name"].as_str().unwrap_or_default();
            format!("missing request for {resource} in container {name} of Pod {}", object::name(pod))
        })?;
        sum = sum.saturating_add(request);
    }
    Ok(sum)
}

fn ceiling(ratio: f64, count: usize) -> i64 {
    // Saturates at the bounds of the number.
    (ratio * count as f64).ceil() as i64
}
