//! Objects that are left in a scope that is being emptied, in kube-controller-manager's words
//! (`namespace/deletion/status_condition_utils.go`), and conditions about them.

use std::collections::BTreeMap;

use portolan_types::{GroupResource, object};
use serde_json::{Value, json};

/// Most finalizers that are named: clients can make up names for them.
const MOST_FINALIZERS: usize = 64;

/// Number of objects that are left, and their finalizers.
#[derive(Default)]
pub(crate) struct RemainingContent {
    /// True if there may be more objects.
    pub(crate) is_part: bool,
    /// Number per resource.
    resources: BTreeMap<GroupResource, usize>,
    /// Number per finalizer, of the first [`MOST_FINALIZERS`].
    finalizers: BTreeMap<String, usize>,
    /// Number of objects with further finalizers.
    other_finalizers: usize,
}

impl RemainingContent {
    /// Adds an object that is left.
    pub(crate) fn add(&mut self, resource: &GroupResource, object: &Value) {
        match self.resources.get_mut(resource) {
            Some(count) => *count += 1,
            None => drop(self.resources.insert(resource.clone(), 1)),
        }
        for finalizer in object::finalizers(object) {
            let is_full = self.finalizers.len() >= MOST_FINALIZERS;
            match self.finalizers.get_mut(finalizer) {
                Some(count) => *count += 1,
                None if is_full => self.other_finalizers += 1,
                None => drop(self.finalizers.insert(finalizer.to_owned(), 1)),
            }
        }
    }

    /// Returns the number of objects.
    pub(crate) fn objects(&self) -> usize {
        self.resources.values().sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Returns the sentence about the resources, if there are any.
    pub(crate) fn resources(&self) -> Option<String> {
        let of_each = |(resource, many): (&GroupResource, &usize)| {
            format!("{}.{} has {many} resource instances", resource.resource, resource.group)
        };
        Some(format!("Some resources are remaining: {}", in_order(self.resources.iter().map(of_each))?))
    }

    /// Returns the sentence about the finalizers, if there are any; `place` names the scope.
    pub(crate) fn finalizers(&self, place: &str) -> Option<String> {
        let of_each = |(finalizer, many): (&String, &usize)| format!("{finalizer} in {many} resource instances");
        let all = in_order(self.finalizers.iter().map(of_each))?;
        let others = match self.other_finalizers {
            0 => String::new(),
            many => format!(", and others in {many} resource instances"),
        };
        Some(format!("Some content in the {place} has finalizers remaining: {all}{others}"))
    }
}

/// Joins phrases in alphabetical order.
fn in_order(words: impl Iterator<Item = String>) -> Option<String> {
    let mut all: Vec<_> = words.collect();
    all.sort();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Writes conditions into the status of `object`. Returns true if any has changed; its time changes with its status
/// only.
pub(crate) fn set_conditions(object: &mut Value, wanted: impl IntoIterator<Item = Value>, now: &str) -> bool {
    let top = object.as_object_mut().expect("an API object is a JSON object");
    let conditions = object::child_mut(top, "status").entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let conditions = conditions.as_array_mut().expect("it was made above");
    wanted.into_iter().fold(false, |changed, wanted| changed | set(conditions, wanted, now))
}

fn set(conditions: &mut Vec<Value>, mut wanted: Value, now: &str) -> bool {
    let Some(known) = conditions.iter_mut().find(|known| known["type"] == wanted["type"]) else {
        wanted["lastTransitionTime"] = now.into();
        conditions.push(wanted);
        return true;
    };
    if ["status", "severity", "reason", "message"].iter().all(|key| known.get(key) == wanted.get(key)) {
        return false;
    }
    wanted["lastTransitionTime"] =
        if known["status"] == wanted["status"] { known["lastTransitionTime"].take() } else { now.into() };
    *known = wanted;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_finalizers_some_are_named() {
        let mut remains = RemainingContent::default();
        let maps = GroupResource::new("", "configmaps");
        for n in 0..1000 {
            remains.add(&maps, &json!({"metadata": {"finalizers": [format!("x/{n:04}")]}}));
        }
        remains.add(&maps, &json!({"metadata": {"finalizers": ["x/0000"]}}));
        let told = remains.finalizers("place").unwrap();
        assert!(told.contains(": x/0000 in 2 resource instances, x/0001 in 1 resource instances, "), "{told}");
        assert!(told.ends_with("x/0063 in 1 resource instances, and others in 936 resource instances"), "{told}");
    }
}
