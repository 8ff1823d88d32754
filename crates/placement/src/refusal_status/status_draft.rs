//! Status in the making: counts and conditions.

use serde_json::{Map, Value};

use crate::decide::PodRefusal;

/// Fields that count pods of an object.
const COUNTS: [&str; 8] = [
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "unavailableReplicas",
    "fullyLabeledReplicas",
    "currentReplicas",
    "terminatingReplicas",
];

/// Status that is being changed.
pub(super) struct StatusDraft {
    fields: Map<String, Value>,
    conditions: Vec<Value>,
}

impl StatusDraft {
    pub(super) fn of(status: Option<&Value>) -> Self {
        let mut fields = status.and_then(Value::as_object).cloned().unwrap_or_default();
        let conditions = match fields.remove("conditions") {
            Some(Value::Array(conditions)) => conditions,
            _ => Vec::new(),
        };
        Self { fields, conditions }
    }

    pub(super) fn into_value(mut self) -> Value {
        if !self.conditions.is_empty() {
            self.fields.insert("conditions".into(), Value::Array(self.conditions));
        }
        Value::Object(self.fields)
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&Value> {
        self.conditions.iter().find(|condition| condition["type"] == kind)
    }

    /// Returns the reason of a condition, empty if there is none.
    pub(super) fn reason(&self, kind: &str) -> &str {
        self.condition(kind).and_then(|condition| condition["reason"].as_str()).unwrap_or_default()
    }

    /// Sets a condition, unless it is equal already.
    pub(super) fn set(&mut self, condition: Value) {
        let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let is_same_message = |known: &Value| {
            ["status", "reason"].iter().all(|field| known[*field] == condition[*field])
                && PodRefusal::is_same_message(&text(known, "message"), &text(&condition, "message"))
        };
        if !self.condition(&text(&condition, "type")).is_some_and(is_same_message) {
            self.renew(condition);
        }
    }

    /// Sets a condition. The time of its last transition stays if its status does.
    pub(super) fn renew(&mut self, mut condition: Value) {
        let kind = condition["type"].as_str().unwrap_or_default();
        if let Some(known) = self.condition(kind).filter(|known| known["status"] == condition["status"]) {
            condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
        }
        self.put(condition);
    }

    /// Stores a condition unchanged.
    pub(super) fn put(&mut self, condition: Value) {
        match self.conditions.iter_mut().find(|known| known["type"] == condition["type"]) {
            Some(known) => *known = condition,
            None => self.conditions.push(condition),
        }
    }

    pub(super) fn remove(&mut self, kind: &str) {
        self.conditions.retain(|condition| condition["type"] != kind);
    }

    pub(super) fn number(&self, field: &str) -> i64 {
        self.fields.get(field).and_then(Value::as_i64).unwrap_or(0)
    }

    pub(super) fn count(&mut self, field: &str, number: i64) {
        self.fields.insert(field.into(), number.into());
    }

    pub(super) fn forget_count(&mut self, field: &str) {
        self.fields.remove(field);
    }

    pub(super) fn forget_counts(&mut self) {
        COUNTS.iter().for_each(|field| self.forget_count(field));
    }

    pub(super) fn observed(&self) -> i64 {
        self.number("observedGeneration")
    }

    /// Raises `observedGeneration`; it never decreases.
    pub(super) fn observe(&mut self, generation: i64) {
        self.count("observedGeneration", generation.max(self.observed()));
    }
}
