//! Reinvocation of mutating policies and webhooks: the state shared by the two rounds.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::hooks::AdmissionRequest;

use super::AdmissionContext;

/// Request whose object policies and webhooks may change.
#[derive(Clone, Copy)]
pub(super) struct MutatingRequest<'a> {
    pub(super) context: &'a AdmissionContext,
    pub(super) request: &'a AdmissionRequest<'a>,
    /// Stored state; `None` for a create.
    pub(super) old: Option<&'a Value>,
}

/// Reinvocation state; `K` identifies one policy binding or webhook even if the configuration changes meanwhile.
#[derive(Debug)]
pub(super) struct ReinvocationState<K> {
    is_changed: bool,
    second: bool,
    /// Callers to reinvoke that have not seen the last change.
    called: BTreeSet<K>,
    reinvoked: BTreeSet<K>,
    /// Object after the first round.
    last: Option<Value>,
}

impl<K> Default for ReinvocationState<K> {
    fn default() -> Self {
        Self { is_changed: false, second: false, called: BTreeSet::new(), reinvoked: BTreeSet::new(), last: None }
    }
}

impl<K: Ord> ReinvocationState<K> {
    /// Returns true if an object was changed, so that the second round runs.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Ends the first round with this object.
    pub(super) fn end_first_round(&mut self, object: Option<&Value>) {
        if !self.second && !self.called.is_empty() {
            self.last = object.cloned();
        }
    }

    /// Begins the second round, after Kubernetes' own plugins have run again.
    pub(super) fn begin_second_round(&mut self, object: &Value) {
        self.second = true;
        if self.last.as_ref() != Some(object) {
            self.reinvoke_called();
        }
    }

    /// Returns true if `key` is called in this round: always in the first, in the second if it has not seen the last
    /// change.
    pub(super) fn includes(&self, key: &K) -> bool {
        !self.second || self.reinvoked.contains(key)
    }

    /// Records a call that may have `is_changed` the object and may ask to be reinvoked after later changes.
    pub(super) fn record_call(&mut self, key: K, is_changed: bool, reinvoked: bool) {
        if is_changed {
            self.is_changed = true;
            self.reinvoke_called();
        }
        if reinvoked {
            self.called.insert(key);
        }
    }

    fn reinvoke_called(&mut self) {
        self.reinvoked.append(&mut self.called);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns who is called in the second round after a first round of (key, changed, reinvocation wanted).
    fn reinvoked(first: &[(&'static str, bool, bool)], moved: bool) -> Vec<&'static str> {
        let mut state = ReinvocationState::default();
        let (object, other) = (json!({"n": 1}), json!({"n": 2}));
        for (key, is_changed, reinvoked) in first {
            assert!(state.includes(key), "in the first round everybody is called");
            state.record_call(*key, *is_changed, *reinvoked);
        }
        state.end_first_round(Some(&object));
        state.begin_second_round(if moved { &other } else { &object });
        first.iter().map(|(key, ..)| *key).chain(["new"]).filter(|key| state.includes(key)).collect()
    }

    #[test]
    fn callers_that_missed_the_last_change_are_reinvoked() {
        for (case, first, moved, expected) in [
            ("no client changes anything", vec![("a", false, true)], false, vec![]),
            ("a later one does", vec![("a", false, true), ("b", true, true)], false, vec!["a"]),
            ("who does not want it is not", vec![("a", false, false), ("b", true, true)], false, vec![]),
            ("Kubernetes' steps do", vec![("a", false, true), ("b", false, false)], true, vec!["a"]),
            ("one has seen its own change", vec![("a", true, true)], false, vec![]),
        ] {
            assert_eq!(reinvoked(&first, moved), expected, "{case}");
        }
    }
}
