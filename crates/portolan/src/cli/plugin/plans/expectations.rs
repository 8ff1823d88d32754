//! Expectations about a plan, for `kubectl portolan policy test`.

use std::collections::BTreeMap;

use portolan_types::placement::{PlacementPlanStatus, PlannedMove};
use serde::Deserialize;

use super::{copies_text, text::object_name};

/// Expectations about a plan.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PlanExpectations {
    /// Most objects that move or are divided again, without those that follow.
    moves: Option<u64>,
    /// Most objects that are refused.
    refused: Option<u64>,
    /// Physical clusters after the move, by `namespace/kind/name`; `stays` for an object that must not move.
    objects: BTreeMap<String, ExpectedClusters>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ExpectedClusters {
    Word(String),
    Names(Vec<String>),
    Replicas(BTreeMap<String, i64>),
}

impl PlanExpectations {
    /// Returns a line per expectation that the plan does not meet.
    pub(super) fn failures(&self, plan: &PlacementPlanStatus) -> Vec<String> {
        let mut failures = Vec::new();
        let mut at_most = |what: &str, most: Option<u64>, number: u64| {
            if let Some(most) = most.filter(|most| number > *most) {
                failures.push(format!("{what}: at most {most} expected, {number} planned"));
            }
        };
        at_most("moves", self.moves, plan.counts.moves + plan.counts.splits);
        at_most("refused", self.refused, plan.counts.refused);
        for (name, expected) in &self.objects {
            let row = plan.moves.iter().chain(&plan.splits).find(|row| key(row) == *name);
            let planned = row.map_or_else(|| "stays".to_owned(), |row| copies_text(&row.to));
            if !expected.is_met(row) {
                failures.push(format!("{name}: {} expected, {planned} planned", expected.text()));
            }
        }
        failures
    }
}

/// Returns `namespace/kind/name` of a row.
fn key(row: &PlannedMove) -> String {
    format!("{}/{}", row.object.namespace, object_name(&row.object))
}

impl ExpectedClusters {
    fn is_met(&self, row: Option<&PlannedMove>) -> bool {
        let to = row.map(|row| &row.to);
        match self {
            Self::Word(word) => word == "stays" && row.is_none(),
            Self::Names(names) => to.is_some_and(|to| {
                let mut wanted: Vec<&str> = names.iter().map(String::as_str).collect();
                let mut planned: Vec<&str> = to.iter().map(|copy| copy.cluster.as_str()).collect();
                wanted.sort_unstable();
                planned.sort_unstable();
                wanted == planned
            }),
            Self::Replicas(replicas) => to.is_some_and(|to| {
                let planned: BTreeMap<_, _> =
                    to.iter().map(|copy| (copy.cluster.clone(), copy.replicas.unwrap_or(1))).collect();
                planned == *replicas
            }),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            Self::Names(names) => names.join(","),
            Self::Replicas(replicas) => {
                replicas.iter().map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>().join(",")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expectations_are_compared_with_the_plan() {
        let plan: PlacementPlanStatus = serde_json::from_value(json!({
            "counts": {"moves": 2, "refused": 1},
            "moves": [{"object": {"namespace": "shop", "kind": "Deployment", "name": "web"},
                "to": [{"cluster": "b", "replicas": 2}, {"cluster": "a", "replicas": 1}]}],
        }))
        .unwrap();
        for (case, expectations, failures) in [
            ("none", "{}", vec![]),
            ("numbers that hold", "{moves: 2, refused: 1}", vec![]),
            ("too many", "{moves: 1}", vec!["moves: at most 1 expected, 2 planned"]),
            ("names, in any order", "{objects: {shop/deployment/web: [a, b]}}", vec![]),
            (
                "other names",
                "{objects: {shop/deployment/web: [a]}}",
                vec!["shop/deployment/web: a expected, b=2,a=1 planned"],
            ),
            ("replicas", "{objects: {shop/deployment/web: {a: 1, b: 2}}}", vec![]),
            (
                "other replicas",
                "{objects: {shop/deployment/web: {a: 3}}}",
                vec!["shop/deployment/web: a=3 expected, b=2,a=1 planned"],
            ),
            ("what stays", "{objects: {shop/deployment/api: stays}}", vec![]),
            (
                "what does not stay",
                "{objects: {shop/deployment/web: stays}}",
                vec!["shop/deployment/web: stays expected, b=2,a=1 planned"],
            ),
            (
                "what does not move",
                "{objects: {shop/deployment/api: [a]}}",
                vec!["shop/deployment/api: a expected, stays planned"],
            ),
        ] {
            let expected: PlanExpectations = serde_saphyr::from_str(expectations).unwrap();
            assert_eq!(expected.failures(&plan), failures, "{case}");
        }
        assert!(serde_saphyr::from_str::<PlanExpectations>("{move: 1}").is_err());
    }
}
