//! CEL in policies: compiled once for each policy, evaluated once for each state of an object.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use portolan_cel::{PLACEMENT_COST_LIMIT, PlacementExpression, PlacementTruth, cluster_expression, object_expression};
use portolan_types::{annotations, object};
use serde_json::{Map, Value, json};

/// Most verdicts that are remembered of one object. Beyond them, expressions are evaluated each time.
const MAX_REMEMBERED: usize = 512;

/// Verdict of an expression on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CelVerdict {
    /// It is true.
    Match,
    /// It is false.
    Mismatch,
    /// It has no value: the sentence.
    Failed(Arc<str>),
}

/// Compiled expression of a policy. Two are equal if they have the same text and are about the same kind of object.
#[derive(Clone, Debug)]
pub(crate) struct CompiledCel {
    text: Arc<str>,
    expression: Arc<PlacementExpression>,
}

impl PartialEq for CompiledCel {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for CompiledCel {}

impl CompiledCel {
    /// Compiles an expression over a physical cluster.
    ///
    /// # Errors
    /// The error in kube-apiserver's words.
    pub(crate) fn of_cluster(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.into(), expression: Arc::new(cluster_expression(text)?) })
    }

    /// Compiles an expression over the object that is placed.
    ///
    /// # Errors
    /// The error in kube-apiserver's words.
    pub(crate) fn of_object(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.into(), expression: Arc::new(object_expression(text)?) })
    }

    fn evaluate(&self, subject: &Value) -> CelVerdict {
        match self.expression.evaluate(subject) {
            PlacementTruth::Known(true) => CelVerdict::Match,
            PlacementTruth::Known(false) => CelVerdict::Mismatch,
            PlacementTruth::Failed(message) => CelVerdict::Failed(message.into()),
            PlacementTruth::TooCostly(_) => {
                CelVerdict::Failed(format!("it costs more than {PLACEMENT_COST_LIMIT}, and was stopped").into())
            }
        }
    }
}

/// Object as expressions see it, with the verdicts of the expressions that were evaluated on it.
///
/// Two objects are equal if all remembered expressions have the same verdict on both. So a change that no expression
/// reads does not count: the status of a physical cluster changes all the time.
#[derive(Debug, Default)]
pub struct ExpressionSubject {
    visible: Value,
    known: Mutex<RememberedVerdicts>,
}

#[derive(Clone, Debug, Default)]
struct RememberedVerdicts {
    by_text: BTreeMap<Arc<str>, (CompiledCel, CelVerdict)>,
    /// True once there were more than are remembered.
    is_partial: bool,
}

impl Clone for ExpressionSubject {
    fn clone(&self) -> Self {
        Self { visible: self.visible.clone(), known: Mutex::new(self.remembered().clone()) }
    }
}

impl PartialEq for ExpressionSubject {
    fn eq(&self, other: &Self) -> bool {
        if std::ptr::eq(self, other) || self.visible == other.visible {
            return true;
        }
        let (mine, theirs) = (self.expressions(), other.expressions());
        let (Some(mine), Some(theirs)) = (mine, theirs) else { return false };
        mine.iter().chain(&theirs).all(|cel| self.verdict(cel) == other.verdict(cel))
    }
}

impl Eq for ExpressionSubject {}

impl ExpressionSubject {
    /// Returns a `PhysicalCluster` as expressions see it: without its connection, and with empty values in place of
    /// missing fields.
    pub fn of_cluster(cluster: &Value) -> Self {
        let metadata = object::metadata(cluster);
        let mut shown = Map::new();
        for field in ["name", "uid", "creationTimestamp", "deletionTimestamp"] {
            if let Some(value) = metadata.get(field).filter(|value| value.is_string()) {
                shown.insert(field.into(), value.clone());
            }
        }
        for field in ["labels", "annotations"] {
            shown.insert(field.into(), metadata.get(field).filter(|v| v.is_object()).cloned().unwrap_or(json!({})));
        }
        let mut spec = json!({"taints": [], "unschedulable": false, "bounds": {}, "syncedResources": []});
        let mut status = json!({"conditions": [], "version": "", "capacity": {}, "allocatable": {}, "usage": {}, "bounds": {}, "taints": []});
        for (part, known) in [("spec", &mut spec), ("status", &mut status)] {
            let (Some(given), Some(known)) = (cluster.get(part).and_then(Value::as_object), known.as_object_mut())
            else {
                continue;
            };
            let seen = given.iter().filter(|(field, value)| *field != "connection" && !value.is_null());
            known.extend(seen.map(|(field, value)| (field.clone(), value.clone())));
        }
        Self { visible: json!({"metadata": shown, "spec": spec, "status": status}), known: Mutex::default() }
    }

    /// Returns an object to be placed as expressions see it: as its users wrote it, without status, field managers and
    /// the annotations of the server.
    pub fn of_object(whole: &Value) -> Self {
        let mut visible = Map::new();
        for (field, value) in whole.as_object().into_iter().flatten().filter(|(field, _)| *field != "status") {
            let value = match (field.as_str(), value.as_object()) {
                ("metadata", Some(metadata)) => visible_metadata(metadata),
                _ => value.clone(),
            };
            visible.insert(field.clone(), value);
        }
        Self { visible: visible.into(), known: Mutex::default() }
    }

    /// Returns true if expressions see the same.
    pub fn has_same_fields(&self, other: &Self) -> bool {
        self.visible == other.visible
    }

    /// Takes over from the state before which expressions are of interest, with their verdicts on this one.
    #[must_use]
    pub fn after(self, previous: Option<&Self>) -> Self {
        let Some(previous) = previous else { return self };
        if previous.visible == self.visible {
            return previous.clone();
        }
        // Expressions that no policy has any more are remembered until there are too many. Then the states count as
        // different, so that decisions about the new one remember only the remaining expressions.
        previous.expressions().into_iter().flatten().for_each(|cel| drop(self.verdict(&cel)));
        self
    }

    /// Returns the verdict of an expression, which is evaluated at most once while it is remembered.
    pub(crate) fn verdict(&self, cel: &CompiledCel) -> CelVerdict {
        if let Some((_, verdict)) = self.remembered().by_text.get(&cel.text) {
            return verdict.clone();
        }
        let verdict = cel.evaluate(&self.visible);
        let mut known = self.remembered();
        if known.by_text.len() < MAX_REMEMBERED {
            known.by_text.insert(cel.text.clone(), (cel.clone(), verdict.clone()));
        } else {
            known.is_partial = true;
        }
        verdict
    }

    /// Returns the expressions that were evaluated; `None` if not all are remembered.
    fn expressions(&self) -> Option<Vec<CompiledCel>> {
        let known = self.remembered();
        (!known.is_partial).then(|| known.by_text.values().map(|(cel, _)| cel.clone()).collect())
    }

    fn remembered(&self) -> MutexGuard<'_, RememberedVerdicts> {
        // No code panics under this lock, and a lost verdict is only evaluated again.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn visible_metadata(metadata: &Map<String, Value>) -> Value {
    let mut shown = metadata.clone();
    for field in ["managedFields", "resourceVersion"] {
        shown.remove(field);
    }
    for field in ["labels", "annotations"] {
        let map = object::child_mut(&mut shown, field);
        map.retain(|key, _| !annotations::SERVER_OWNED.contains(&key.as_str()));
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn east(version: &str, region: &str) -> ExpressionSubject {
        ExpressionSubject::of_cluster(&json!({
            "metadata": {"name": "east", "labels": {"region": region}},
            "spec": {"connection": {"simulated": {}}},
            "status": {"version": version},
        }))
    }

    #[test]
    fn a_state_is_another_one_if_an_expression_says_so() {
        let eu = CompiledCel::of_cluster("physicalCluster.metadata.labels['region'] == 'eu'").unwrap();
        let before = east("v1.35", "eu");
        assert_eq!(before, east("v1.36", "us"), "no expression has looked");
        assert_eq!(before.verdict(&eu), CelVerdict::Match);
        let later = east("v1.36", "eu").after(Some(&before));
        assert_eq!(before, later, "what no expression reads");
        assert_ne!(later, east("v1.36", "us"), "the later state knows the expression as well");
        assert_ne!(before, east("v1.35", "us"));
        let failing = CompiledCel::of_cluster("physicalCluster.metadata.labels['zone'] == 'a'").unwrap();
        assert_eq!(before.verdict(&failing), CelVerdict::Failed("no such key: zone".into()));
    }

    #[test]
    fn more_expressions_than_are_remembered_make_the_next_change_count() {
        let before = east("v1.35", "eu");
        for n in 0..=MAX_REMEMBERED {
            let cel = CompiledCel::of_cluster(&format!("physicalCluster.metadata.name == 'c{n}'")).unwrap();
            assert_eq!(before.verdict(&cel), CelVerdict::Mismatch);
        }
        let later = east("v1.36", "eu").after(Some(&before));
        assert_ne!(before, later);
        assert_eq!(before, east("v1.35", "eu"));
        let eu = CompiledCel::of_cluster("physicalCluster.metadata.labels['region'] == 'eu'").unwrap();
        assert_eq!(later.verdict(&eu), CelVerdict::Match);
        let last = east("v1.37", "eu").after(Some(&later));
        assert_eq!(later, last, "those that no policy has any more are forgotten");
        assert_ne!(last, east("v1.37", "us"));
    }

    #[test]
    fn expressions_see_neither_connections_nor_server_fields() {
        let cluster = east("v1.35", "eu");
        assert_eq!(
            cluster.visible["spec"],
            json!({"taints": [], "unschedulable": false, "bounds": {}, "syncedResources": []})
        );
        let object = ExpressionSubject::of_object(&json!({
            "kind": "Deployment",
            "metadata": {"name": "web", "resourceVersion": "7", "annotations": {annotations::PLACEMENT: "{}", "a": "b"}},
            "spec": {"replicas": 1},
            "status": {"replicas": 1},
        }));
        let metadata = json!({"name": "web", "labels": {}, "annotations": {"a": "b"}});
        assert_eq!(object.visible, json!({"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}}));
    }
}
