//! Plans as text.

use portolan_types::placement::{PlacementPlanStatus, PlannedCapacity, PlannedCopy, PlannedObject};

use crate::cli::plugin::text_table::TextTable;

/// Formats copies: `eu-1=3,us-1=3`; names only where the kind has no replicas.
pub(crate) fn copies_text(copies: &[PlannedCopy]) -> String {
    let copy = |copy: &PlannedCopy| match copy.replicas {
        Some(replicas) => format!("{}={replicas}", copy.cluster),
        None => copy.cluster.clone(),
    };
    copies.iter().map(copy).collect::<Vec<_>>().join(",")
}

/// Formats an object: `deployment/web`.
pub(super) fn object_name(object: &PlannedObject) -> String {
    format!("{}/{}", object.kind.to_lowercase(), object.name)
}

/// Formats a plan: its line, then tables. With `wide`, also objects that follow others, and the use of clusters.
pub(super) fn plan_text(plan: &PlacementPlanStatus, wide: bool, headers: bool) -> String {
    let mut text = format!("{}\n", plan.summary);
    let tables =
        [moves(plan, wide), refusals(plan), if wide { capacity(&plan.capacity) } else { TextTable::default() }];
    for table in tables.iter().filter(|table| !table.is_empty()) {
        text.push('\n');
        text.push_str(&table.text(headers));
    }
    let notes = notes(plan, wide);
    if !notes.is_empty() {
        text.push('\n');
        notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
    }
    text
}

fn moves(plan: &PlacementPlanStatus, wide: bool) -> TextTable {
    let mut table = TextTable::new(["WORKSPACE", "NAMESPACE", "OBJECT", "FROM", "TO", "REASON"]);
    let shown = plan.moves.iter().chain(&plan.splits).filter(|row| wide || !row.follows);
    for row in shown {
        let object = &row.object;
        let (from, to) = (copies_text(&row.from), copies_text(&row.to));
        table.row(
            [&object.workspace, &object.namespace, &object_name(object), &from, &to, &row.reason].map(String::as_str),
        );
    }
    table
}

fn refusals(plan: &PlacementPlanStatus) -> TextTable {
    let mut table = TextTable::new(["WORKSPACE", "NAMESPACE", "OBJECT", "STAYS", "REFUSED", "MESSAGE"]);
    for row in &plan.refused {
        let object = &row.object;
        let (name, stays) = (object_name(object), copies_text(&row.stays));
        table.row([&object.workspace, &object.namespace, &name, &stays, &row.reason, &row.message].map(String::as_str));
    }
    table
}

fn capacity(clusters: &[PlannedCapacity]) -> TextTable {
    let mut table = TextTable::new(["CLUSTER", "RESOURCE", "BEFORE", "AFTER", "BOUND", "ALLOCATABLE"]);
    for cluster in clusters {
        let mut resources: Vec<&String> = cluster.before.keys().chain(cluster.after.keys()).collect();
        resources.sort();
        resources.dedup();
        for resource in resources {
            let amount = |of: &portolan_types::placement::ResourceAmounts| {
                of.get(resource).map(ToString::to_string).unwrap_or_default()
            };
            let amounts = [&cluster.before, &cluster.after, &cluster.bounds, &cluster.allocatable].map(amount);
            let [before, after, bound, allocatable] = amounts;
            table.row([cluster.cluster.clone(), resource.clone(), before, after, bound, allocatable]);
        }
    }
    table
}

/// Returns the lines about objects without a row.
fn notes(plan: &PlacementPlanStatus, wide: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if plan.counts.followers > 0 && !wide {
        notes.push(format!("{} more objects follow these; -o wide lists them", plan.counts.followers));
    }
    for hidden in &plan.hidden {
        let place = if hidden.workspace.is_empty() { "workspaces that you may not see" } else { &hidden.workspace };
        let counts = hidden.counts;
        notes.push(format!(
            "in {place}: {} would move, {} would follow, {} would be refused (you may not see which)",
            counts.moves + counts.splits,
            counts.followers,
            counts.refused
        ));
    }
    if !plan.omitted.is_zero() {
        let omitted = plan.omitted;
        let rows = omitted.moves + omitted.followers + omitted.splits + omitted.refused;
        notes.push(format!("{rows} rows are not listed; --limit sets their number"));
    }
    for conflict in &plan.disruption_budgets {
        notes.push(format!(
            "poddisruptionbudget/{} in {} permits {} disruptions, the moves need {}",
            conflict.budget.name, conflict.budget.namespace, conflict.allowed, conflict.disrupted
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_names_moves_and_refusals() {
        let object = |kind: &str, name: &str| json!({"workspace": "root:shop", "namespace": "default", "kind": kind, "name": name});
        let plan: PlacementPlanStatus = serde_json::from_value(json!({
            "summary": "1 object would move, 1 would be refused; plan 6f3a",
            "counts": {"moves": 1, "followers": 1, "refused": 1},
            "moves": [
                {"object": object("Deployment", "web"), "from": [{"cluster": "eu-1", "replicas": 3}],
                    "to": [{"cluster": "eu-2", "replicas": 3}], "reason": "by pin"},
                {"object": object("ConfigMap", "web"), "from": [{"cluster": "eu-1"}], "to": [{"cluster": "eu-2"}],
                    "reason": "follows what needs it", "follows": true}],
            "refused": [{"object": object("StatefulSet", "db"), "stays": [{"cluster": "eu-1", "replicas": 1}],
                "reason": "MoveRefused", "message": "its volumes would stay behind"}],
            "hidden": [{"counts": {"moves": 2}}],
            "capacity": [{"cluster": "eu-2", "before": {"pods": "1"}, "after": {"pods": "4"}, "bounds": {"pods": "10"}}],
        }))
        .unwrap();
        let expected = "1 object would move, 1 would be refused; plan 6f3a

WORKSPACE   NAMESPACE   OBJECT           FROM     TO       REASON
root:shop   default     deployment/web   eu-1=3   eu-2=3   by pin

WORKSPACE   NAMESPACE   OBJECT           STAYS    REFUSED       MESSAGE
root:shop   default     statefulset/db   eu-1=1   MoveRefused   its volumes would stay behind

1 more objects follow these; -o wide lists them
in workspaces that you may not see: 2 would move, 0 would follow, 0 would be refused (you may not see which)
";
        assert_eq!(plan_text(&plan, false, true), expected);
        let wide = plan_text(&plan, true, true);
        assert!(wide.contains("configmap/web    eu-1     eu-2     follows what needs it\n"), "{wide}");
        assert!(wide.contains("CLUSTER   RESOURCE   BEFORE   AFTER   BOUND   ALLOCATABLE\neu-2      pods       1        4       10      <none>\n"), "{wide}");
        let none = PlacementPlanStatus { summary: "no object would move".into(), ..PlacementPlanStatus::default() };
        assert_eq!(plan_text(&none, true, true), "no object would move\n");
    }
}
