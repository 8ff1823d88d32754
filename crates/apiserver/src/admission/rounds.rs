//! What the two rounds of those who change an object know of each other, be they policies or webhooks.

use std::collections::BTreeSet;

use serde_json::Value;

/// The rounds; `K` tells one who changes objects from all others, whatever is configured beside it meanwhile.
#[derive(Debug)]
pub(super) struct Rounds<K> {
    changed: bool,
    second: bool,
    /// Those who want to be called again, and have not seen the last change.
    invoked: BTreeSet<K>,
    again: BTreeSet<K>,
    /// What the first round left.
    last: Option<Value>,
}

impl<K> Default for Rounds<K> {
    fn default() -> Self {
        Self { changed: false, second: false, invoked: BTreeSet::new(), again: BTreeSet::new(), last: None }
    }
}

impl<K: Ord> Rounds<K> {
    /// Whether something was changed: the whole chain runs once more.
    pub(super) fn changed(&self) -> bool {
        self.changed
    }

    /// The first round ends with this object.
    pub(super) fn end(&mut self, object: Option<&Value>) {
        if !self.second && !self.invoked.is_empty() {
            self.last = object.cloned();
        }
    }

    /// The second round begins, after Kubernetes' own steps have run again.
    pub(super) fn begin_second(&mut self, object: &Value) {
        self.second = true;
        if self.last.as_ref() != Some(object) {
            self.require();
        }
    }

    /// Whether it is one's turn: in the second round that of those only who want it and have not seen the last change.
    pub(super) fn includes(&self, key: &K) -> bool {
        !self.second || self.again.contains(key)
    }

    /// One has been called, which may have `changed` the object, and may want to be called again after others change it.
    pub(super) fn called(&mut self, key: K, changed: bool, reinvoked: bool) {
        if changed {
            self.changed = true;
            self.require();
        }
        if reinvoked {
            self.invoked.insert(key);
        }
    }

    fn require(&mut self) {
        self.again.append(&mut self.invoked);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Who is called again after a first round of these, each with whether it changes the object and wants to be called again.
    fn again(first: &[(&'static str, bool, bool)], moved: bool) -> Vec<&'static str> {
        let mut rounds = Rounds::default();
        let (object, other) = (json!({"n": 1}), json!({"n": 2}));
        for (key, changed, reinvoked) in first {
            assert!(rounds.includes(key), "in the first round everybody is called");
            rounds.called(*key, *changed, *reinvoked);
        }
        rounds.end(Some(&object));
        rounds.begin_second(if moved { &other } else { &object });
        first.iter().map(|(key, ..)| *key).chain(["new"]).filter(|key| rounds.includes(key)).collect()
    }

    #[test]
    fn those_are_called_again_who_have_not_seen_the_last_change() {
        for (case, first, moved, expected) in [
            ("nobody changes anything", vec![("a", false, true)], false, vec![]),
            ("a later one does", vec![("a", false, true), ("b", true, true)], false, vec!["a"]),
            ("who does not want it is not", vec![("a", false, false), ("b", true, true)], false, vec![]),
            ("Kubernetes' steps do", vec![("a", false, true), ("b", false, false)], true, vec!["a"]),
            ("one has seen its own change", vec![("a", true, true)], false, vec![]),
        ] {
            assert_eq!(again(&first, moved), expected, "{case}");
        }
    }
}
