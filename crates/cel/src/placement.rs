//! Expressions of placement policies (`portolan.dev`), over a physical cluster or the placed object.

use crate::check::Environment;
use crate::expression::{Expression, ExpressionAnswer, ExpressionVariables};
use crate::types::CelType;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// Cost limit of one evaluation, about a millisecond. Each expression is evaluated for every physical cluster in reach.
pub const PLACEMENT_COST_LIMIT: u64 = 10_000;
/// Maximum length of an expression of a placement policy, in bytes.
pub const MAX_PLACEMENT_EXPRESSION: usize = 4 * 1024;

const CLUSTER: &str = "physicalCluster";
const OBJECT: &str = "object";

/// Result of an expression of a placement policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementTruth {
    /// Value.
    Known(bool),
    /// Error in kube-apiserver's words.
    Failed(String),
    /// The evaluation exceeded its cost limit.
    TooCostly(String),
}

/// Compiled expression of a placement policy.
#[derive(Debug)]
pub struct PlacementExpression {
    variable: &'static str,
    expression: Expression,
}

/// Fields of `physicalCluster`, so that a misspelled one is an error when the policy is written.
static OF_CLUSTERS: LazyLock<Environment> = LazyLock::new(|| {
    let text = || CelType::String;
    let texts = || CelType::list(CelType::String);
    let by_name = || CelType::map(CelType::String, CelType::String);
    let object = |name: &str| CelType::Struct(name.into());
    let mut environment = Environment::default();
    let mut declare = |name: &str, all: &[(&str, CelType)]| {
        let fields: BTreeMap<Arc<str>, CelType> = all.iter().map(|(name, one)| ((*name).into(), one.clone())).collect();
        environment.objects.insert(name.into(), fields);
    };
    let (metadata, spec, status) =
        ("portolan.PhysicalClusterMetadata", "portolan.PhysicalClusterSpec", "portolan.PhysicalClusterStatus");
    let (taint, condition) = ("portolan.Taint", "portolan.Condition");
    declare(
        metadata,
        &[
            ("name", text()),
            ("uid", text()),
            ("labels", by_name()),
            ("annotations", by_name()),
            ("creationTimestamp", text()),
            ("deletionTimestamp", text()),
        ],
    );
    declare(taint, &[("key", text()), ("value", text()), ("effect", text())]);
    declare(
        spec,
        &[
            ("taints", CelType::list(object(taint))),
            ("unschedulable", CelType::Bool),
            ("bounds", by_name()),
            ("namespaceMapping", text()),
            ("syncedResources", texts()),
        ],
    );
    declare(
        condition,
        &[
            ("type", text()),
            ("status", text()),
            ("reason", text()),
            ("message", text()),
            ("lastTransitionTime", text()),
            ("observedGeneration", CelType::Int),
        ],
    );
    declare(
        status,
        &[
            ("conditions", CelType::list(object(condition))),
            ("version", text()),
            ("capacity", by_name()),
            ("allocatable", by_name()),
            ("usage", by_name()),
            ("bounds", by_name()),
            ("taints", CelType::list(object(taint))),
        ],
    );
    let root = "portolan.PhysicalCluster";
    declare(root, &[("metadata", object(metadata)), ("spec", object(spec)), ("status", object(status))]);
    environment.variables.insert(CLUSTER.into(), object(root));
    environment
});

static OF_OBJECTS: LazyLock<Environment> = LazyLock::new(|| {
    let variables = [(Arc::from(OBJECT), CelType::Dyn)];
    Environment { variables: variables.into(), ..Environment::default() }
});

/// Compiles an expression over a physical cluster.
///
/// # Errors
/// The error in kube-apiserver's words.
pub fn cluster_expression(text: &str) -> Result<PlacementExpression, String> {
    compile(text, &OF_CLUSTERS, CLUSTER)
}

/// Compiles an expression over the placed object.
///
/// # Errors
/// The error in kube-apiserver's words.
pub fn object_expression(text: &str) -> Result<PlacementExpression, String> {
    compile(text, &OF_OBJECTS, OBJECT)
}

fn compile(text: &str, environment: &Environment, variable: &'static str) -> Result<PlacementExpression, String> {
    if text.len() > MAX_PLACEMENT_EXPRESSION {
        return Err(format!("may not be longer than {MAX_PLACEMENT_EXPRESSION} bytes"));
    }
    let expression =
        Expression::compile(text, environment).map_err(|problems| format!("compilation failed: {problems}"))?;
    match expression.output() {
        CelType::Bool | CelType::Dyn => Ok(PlacementExpression { variable, expression }),
        other => Err(format!("must evaluate to bool but got {other}")),
    }
}

impl PlacementExpression {
    /// Evaluates the expression within [`PLACEMENT_COST_LIMIT`].
    #[must_use]
    pub fn evaluate(&self, subject: &Json) -> PlacementTruth {
        let data = [(self.variable, subject)];
        let variables = ExpressionVariables { data: &data, ..ExpressionVariables::default() };
        match self.expression.evaluate(&variables, PLACEMENT_COST_LIMIT).answer {
            Ok(ExpressionAnswer::Bool(truth)) => PlacementTruth::Known(truth),
            Ok(_) => PlacementTruth::Failed("the value is not a bool".to_owned()),
            Err(error) if error.over_limit => PlacementTruth::TooCostly(error.message),
            Err(error) => PlacementTruth::Failed(error.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_of_policies_are_checked_when_they_are_compiled() {
        for (text, expected) in [
            ("physicalCluster.metadata.labels['region'] == 'eu'", ""),
            ("physicalCluster.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')", ""),
            ("quantity(physicalCluster.status.allocatable['cpu']).isGreaterThan(quantity('8'))", ""),
            ("physicalCluster.metadata.name", "must evaluate to bool but got string"),
            ("physicalCluster.spec.connection == ''", "undefined field 'connection'"),
            ("physicalCluster.metadata.label['a'] == 'b'", "undefined field 'label'"),
            ("object.spec == 1", "undeclared reference to 'object'"),
            ("1 +", "Syntax error"),
        ] {
            match (cluster_expression(text), expected) {
                (Ok(_), "") => {}
                (Err(problem), expected) => assert!(!expected.is_empty() && problem.contains(expected), "{problem}"),
                (Ok(_), expected) => panic!("{text} is no error: {expected}"),
            }
        }
        assert!(object_expression("object.spec.replicas > 3").is_ok());
        assert!(object_expression("physicalCluster.metadata.name == 'a'").is_err());
        let long = format!("object.a == '{}'", "x".repeat(MAX_PLACEMENT_EXPRESSION));
        assert_eq!(object_expression(&long).err().as_deref(), Some("may not be longer than 4096 bytes"));
    }

    #[test]
    fn expressions_of_policies_are_evaluated_within_a_limit() {
        let cluster = json!({
            "metadata": {"name": "east", "labels": {"region": "eu"}, "annotations": {}},
            "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}], "unschedulable": false, "bounds": {}},
            "status": {"allocatable": {"cpu": "16"}, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let lists = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
        let costly = format!("{lists}.all(a, {lists}.all(b, {lists}.all(c, {lists}.all(d, a + b + c + d > 0))))");
        for (text, expected) in [
            ("physicalCluster.metadata.labels['region'] == 'eu'", PlacementTruth::Known(true)),
            ("physicalCluster.metadata.labels.region == 'us'", PlacementTruth::Known(false)),
            (
                "quantity(physicalCluster.status.allocatable['cpu']).isGreaterThan(quantity('8'))",
                PlacementTruth::Known(true),
            ),
            ("physicalCluster.spec.taints.exists(t, t.key == 'gpu')", PlacementTruth::Known(true)),
            ("has(physicalCluster.metadata.labels.zone)", PlacementTruth::Known(false)),
            ("physicalCluster.metadata.labels['zone'] == 'a'", PlacementTruth::Failed("no such key: zone".to_owned())),
            (&costly, PlacementTruth::TooCostly("operation cancelled: actual cost limit exceeded".to_owned())),
        ] {
            assert_eq!(cluster_expression(text).expect(text).evaluate(&cluster), expected, "{text}");
        }
    }
}
