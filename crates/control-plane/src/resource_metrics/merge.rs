//! Usage upstream, from the answers of physical clusters. Nothing of an answer is passed on unparsed: one malformed
//! amount would make clients drop the whole list.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portolan_types::{duration, object, quantity::Quantity, seams::seconds_text};
use serde_json::{Value, json};

/// Amounts that are passed on.
const AMOUNTS: [&str; 2] = ["cpu", "memory"];

/// Time of a measurement, and the time that it covers.
#[derive(Clone, Copy)]
struct Measurement {
    at: Timestamp,
    /// In nanoseconds.
    window: i64,
}

impl Measurement {
    fn of(item: &Value) -> Option<Self> {
        let window = duration::parse(item["window"].as_str()?).ok().filter(|window| *window >= 0)?;
        Some(Self { at: item["timestamp"].as_str()?.parse().ok()?, window })
    }

    /// Returns the measurement that covers both: the older time, and the longer window.
    fn covering(self, other: Self) -> Self {
        Self { at: self.at.min(other.at), window: self.window.max(other.window) }
    }

    /// Writes it to the metrics of `of`.
    fn write_to(self, metrics: &mut Value, of: &Value) {
        let at = seconds_text(self.at);
        metrics["metadata"] = json!({"name": object::name(of), "creationTimestamp": at});
        for key in ["namespace", "labels"] {
            if let Some(value) = object::metadata(of).get(key) {
                metrics["metadata"][key] = value.clone();
            }
        }
        metrics["timestamp"] = at.into();
        metrics["window"] = duration_text(self.window).into();
    }
}

/// Writes nanoseconds as Go does, in minutes, seconds and thousandths.
fn duration_text(nanoseconds: i64) -> String {
    let millis = nanoseconds / 1_000_000;
    let seconds = format!("{}.{:03}", millis % 60_000 / 1000, millis % 1000);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match millis / 60_000 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{seconds}s"),
    }
}

/// Returns the `PodMetrics` of an upstream pod from those of the pod downstream; `None` if they are invalid.
/// Containers that the pod does not have upstream, such as injected ones, are left out.
pub(super) fn pod(pod: &Value, item: &Value) -> Option<Value> {
    let measurement = Measurement::of(item)?;
    let named = item["containers"].as_array()?.iter().filter_map(|own| Some((own["name"].as_str()?, own)));
    let containers = named.filter(|(name, _)| has_container(pod, name)).map(|(name, container)| {
        let usage = written(&amounts(&container["usage"])?);
        Some(json!({"name": name, "usage": usage}))
    });
    let containers = containers.collect::<Option<Vec<_>>>()?;
    if containers.is_empty() {
        return None;
    }
    let mut metrics = json!({"containers": containers});
    measurement.write_to(&mut metrics, pod);
    Some(metrics)
}

fn has_container(pod: &Value, name: &str) -> bool {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let mut containers = lists.iter().flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten());
    containers.any(|container| container["name"] == name)
}

/// Usage of all nodes of a physical cluster.
#[derive(Default)]
pub(super) struct NodeUsage(Option<(Measurement, BTreeMap<&'static str, Quantity>)>);

impl NodeUsage {
    /// Adds the `NodeMetrics` of a node, unless they are invalid.
    pub(super) fn add(&mut self, item: &Value) {
        let Some((measurement, own)) = Measurement::of(item).zip(amounts(&item["usage"])) else { return };
        let (at, mut all) = self.0.take().unwrap_or_else(|| (measurement, BTreeMap::new()));
        for (name, amount) in own {
            let sum = all.get(name).copied().unwrap_or(Quantity::ZERO) + amount;
            all.insert(name, sum);
        }
        self.0 = Some((at.covering(measurement), all));
    }

    /// Returns the `NodeMetrics` of the node that stands for the physical cluster; `None` without any.
    pub(super) fn of(self, node: &Value) -> Option<Value> {
        let (measurement, usage) = self.0?;
        let mut metrics = json!({"usage": written(&usage)});
        measurement.write_to(&mut metrics, node);
        Some(metrics)
    }
}

fn amounts(usage: &Value) -> Option<BTreeMap<&'static str, Quantity>> {
    AMOUNTS.into_iter().map(|name| Some((name, usage[name].as_str()?.parse().ok()?))).collect()
}

fn written(amounts: &BTreeMap<&'static str, Quantity>) -> Value {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), Value::from(amount.to_string()))).collect()
}
