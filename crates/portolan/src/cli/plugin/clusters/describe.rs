//! `kubectl portolan cluster describe`.

use clap::Args;
use portolan_types::{
    object,
    placement::{PhysicalClusterSpec, PhysicalClusterStatus, StatusCondition, Taint},
};
use serde_json::Value;

use super::{
    RegisteredCluster,
    follow::{DrainOfCluster, counts_text},
};
use crate::cli::plugin::{context::PluginContext, flags::OutputFlags, formats, text_table::TextTable};

/// Describe a physical cluster: its state, its capacity, its taints and its drains.
#[derive(Args)]
pub(super) struct DescribeArgs {
    /// Name of the physical cluster.
    #[arg(value_name = "CLUSTER")]
    name: String,
    #[command(flatten)]
    format: OutputFlags,
}

impl DescribeArgs {
    pub(super) async fn run(self, ctx: &mut PluginContext) -> anyhow::Result<()> {
        let cluster = RegisteredCluster::read(ctx.session(), &self.name).await?;
        ctx.print_warnings();
        if let Some(format) = self.format.object_format() {
            return formats::print_object(&mut ctx.terminal, &format, &cluster.object);
        }
        // Drains are those of administrators; others see the cluster without them.
        let drains = DrainOfCluster::list(ctx.session(), &cluster, &self.name).await.unwrap_or_default();
        let home = cluster.home.as_ref().or(ctx.session().url().workspace.as_ref()).map(ToString::to_string);
        let text = described(&cluster.object, &home.unwrap_or_default(), &drains);
        ctx.terminal.print(&text)
    }
}

fn described(cluster: &Value, home: &str, drains: &[DrainOfCluster]) -> String {
    let spec: PhysicalClusterSpec = serde_json::from_value(cluster["spec"].clone()).unwrap_or_default();
    let status: PhysicalClusterStatus = serde_json::from_value(cluster["status"].clone()).unwrap_or_default();
    let mut text = String::new();
    let mut field = |name: &str, value: String| {
        let value = if value.is_empty() { "<none>".to_owned() } else { value };
        text.push_str(&format!("{:<16}{value}\n", format!("{name}:")));
    };
    field("Name", object::name(cluster).to_owned());
    field("Workspace", home.to_owned());
    field("Labels", labels(cluster));
    field("Mode", mode(cluster, &spec));
    field("Version", status.version.clone());
    field("Created", object::meta_text(cluster, "creationTimestamp").to_owned());
    field("Unschedulable", spec.unschedulable.to_string());
    field("Taints", spec.taints.iter().map(taint).collect::<Vec<_>>().join(", "));
    field("Namespaces", format!("{:?}", spec.namespace_mapping));
    let amounts = amounts(&status);
    if !amounts.is_empty() {
        text.push_str(&format!("Resources:\n{}", indented(&amounts.text(true))));
    }
    if !status.conditions.is_empty() {
        text.push_str(&format!("Conditions:\n{}", indented(&conditions(&status.conditions).text(true))));
    }
    if !drains.is_empty() {
        let mut table = TextTable::new(["DRAIN", "PHASE", "OBJECTS", "STARTED"]);
        for drain in drains {
            let started = drain.status.start_time.clone().unwrap_or_default();
            let name = object::name(&drain.object).to_owned();
            table.row([name, drain.status.phase.word().to_owned(), counts_text(&drain.status), started]);
        }
        text.push_str(&format!("Drains:\n{}", indented(&table.text(true))));
    }
    text
}

fn labels(cluster: &Value) -> String {
    let labels = cluster["metadata"]["labels"].as_object();
    let label = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    labels.into_iter().flatten().map(label).collect::<Vec<_>>().join(", ")
}

/// Returns the kind of connection; descendants of the workspace see it as an annotation.
fn mode(cluster: &Value, spec: &PhysicalClusterSpec) -> String {
    let connection = &spec.connection;
    let own = [
        (connection.direct.is_some(), "direct"),
        (connection.tunnel.is_some(), "tunnel"),
        (connection.simulated.is_some(), "simulated"),
    ];
    let own = own.iter().find(|(is_set, _)| *is_set).map(|(_, mode)| *mode);
    own.or_else(|| object::annotation(cluster, "portolan.dev/mode")).unwrap_or_default().to_owned()
}

fn taint(taint: &Taint) -> String {
    let value = if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
    format!("{}{value}:{}", taint.key, taint.effect)
}

fn amounts(status: &PhysicalClusterStatus) -> TextTable {
    let mut table = TextTable::new(["RESOURCE", "USED", "BOUND", "ALLOCATABLE", "CAPACITY"]);
    let mut names: Vec<&String> = [&status.usage, &status.bounds, &status.allocatable, &status.capacity]
        .into_iter()
        .flat_map(std::collections::BTreeMap::keys)
        .collect();
    names.sort();
    names.dedup();
    for name in names {
        let amount =
            |of: &portolan_types::placement::ResourceAmounts| of.get(name).map(ToString::to_string).unwrap_or_default();
        let [used, bound, allocatable, capacity] =
            [&status.usage, &status.bounds, &status.allocatable, &status.capacity].map(amount);
        table.row([name.clone(), used, bound, allocatable, capacity]);
    }
    table
}

fn conditions(conditions: &[StatusCondition]) -> TextTable {
    let mut table = TextTable::new(["TYPE", "STATUS", "REASON", "MESSAGE"]);
    for condition in conditions {
        table.row([&condition.kind, &condition.status, &condition.reason, &condition.message].map(String::as_str));
    }
    table
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_is_described_with_its_resources_and_conditions() {
        let cluster = json!({
            "metadata": {"name": "eu-1", "labels": {"region": "eu", "zone": "a"}, "creationTimestamp": "2026-11-27T09:00:00Z"},
            "spec": {"connection": {"simulated": {"nodes": 2}}, "unschedulable": true,
                "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "old", "effect": "NoExecute"}]},
            "status": {"version": "v1.36.0", "usage": {"pods": "3"}, "allocatable": {"cpu": "8", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Answers", "message": "the API server answers"}]}});
        let drain = DrainOfCluster::of(json!({"metadata": {"name": "eu-1-x"}, "spec": {"physicalClusters": ["eu-1"]},
            "status": {"phase": "Completed", "counts": {"total": 2, "moved": 2}, "startTime": "2026-11-27T09:10:00Z"}}));
        let expected = "Name:           eu-1
Workspace:      root
Labels:         region=eu, zone=a
Mode:           simulated
Version:        v1.36.0
Created:        2026-11-27T09:00:00Z
Unschedulable:  true
Taints:         gpu=yes:NoSchedule, old:NoExecute
Namespaces:     Hashed
Resources:
  RESOURCE   USED     BOUND    ALLOCATABLE   CAPACITY
  cpu        <none>   <none>   8             <none>
  pods       3        <none>   110           <none>
Conditions:
  TYPE    STATUS   REASON    MESSAGE
  Ready   True     Answers   the API server answers
Drains:
  DRAIN    PHASE       OBJECTS        STARTED
  eu-1-x   Completed   2 moved of 2   2026-11-27T09:10:00Z
";
        assert_eq!(described(&cluster, "root", &[drain]), expected);
    }
}
