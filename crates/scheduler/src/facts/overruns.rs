//! Objects for which the overrides of a policy exceed their budget.

use std::collections::BTreeMap;

use portolan_placement::{LeveledPolicy, changes_over_budget, patches_over_budget};
use portolan_types::{
    ObjectKey, fingerprint, object,
    placement::{PlacementRecord, PolicyRef},
};
use serde_json::{Value, json};

use super::usage::name;
use crate::{gather::Gathered, scheduler::Inner};

/// Most objects that are kept per policy: the condition names one, and counts the others up to here.
const MAX_OBJECTS: usize = 64;

/// Most objects for which the outcome of their patches is kept. Beyond them, all are tried anew.
const MAX_OUTCOMES: usize = 16 * 1024;

/// Policies whose patches of an object exceed their budget, each with the reason.
type Overruns = Vec<(PolicyRef, String)>;

/// Objects for which overrides exceed their budget, and outcomes of patches that have been tried.
#[derive(Default)]
pub(crate) struct OverrideOverruns {
    /// Reasons by policy and object.
    reasons: BTreeMap<String, BTreeMap<ObjectKey, String>>,
    /// Outcomes by object, with the fingerprint of what was tried.
    outcomes: BTreeMap<ObjectKey, (String, Overruns)>,
}

/// Returns the fingerprint of what the outcome of an object's patches depends on; `None` without patches. Objects without
/// generation count as a whole.
fn fingerprint_of_patches(object: &Value, record: &PlacementRecord) -> Option<String> {
    let patches: Vec<_> = record.overrides.iter().filter(|one| !one.change.patch.is_empty()).collect();
    if patches.is_empty() {
        return None;
    }
    let generation = object::generation(object);
    let of = if generation > 0 { json!(generation) } else { object.clone() };
    Some(fingerprint(&json!([of, object::meta_text(object, "uid"), patches])))
}

impl Inner {
    /// Notes of which policies the overrides of an object exceed their budget. A policy can make its patches take long: they are tried
    /// while nobody waits for the facts, and only when they or the object have changed.
    pub(crate) fn note_overruns(&self, gathered: &Gathered, policies: &[LeveledPolicy], record: &PlacementRecord) {
        let tried = fingerprint_of_patches(&gathered.object, record);
        let known = tried.as_ref().and_then(|tried| self.facts().overruns.outcome(&gathered.key, tried));
        let try_patches = || patches_over_budget(&gathered.object, &record.overrides);
        let outcome = tried.map(|tried| (tried, known.unwrap_or_else(try_patches)));
        let mut found = outcome.as_ref().map(|(_, found)| found.clone()).unwrap_or_default();
        if !record.clusters.is_empty() {
            found.extend(changes_over_budget(&gathered.workload, policies));
        }
        let mut facts = self.facts();
        facts.overruns.keep_outcome(&gathered.key, outcome);
        if facts.overruns.note(&gathered.key, found) {
            self.matched_changed.notify_one();
        }
    }
}

impl OverrideOverruns {
    /// Replaces what is known of one object. Returns true when that changed.
    pub(crate) fn note(&mut self, key: &ObjectKey, found: Vec<(PolicyRef, String)>) -> bool {
        if found.is_empty() && self.reasons.is_empty() {
            return false;
        }
        let found: BTreeMap<String, String> = found.iter().map(|(policy, why)| (name(policy), why.clone())).collect();
        let mut changed = false;
        for (policy, objects) in &mut self.reasons {
            changed |= !found.contains_key(policy) && objects.remove(key).is_some();
        }
        self.reasons.retain(|_, objects| !objects.is_empty());
        for (policy, why) in found {
            let objects = self.reasons.entry(policy).or_default();
            if objects.get(key) != Some(&why) && (objects.contains_key(key) || objects.len() < MAX_OBJECTS) {
                objects.insert(key.clone(), why);
                changed = true;
            }
        }
        changed
    }

    /// Returns the outcome of an object's patches, when it is known for this fingerprint.
    fn outcome(&self, key: &ObjectKey, tried: &str) -> Option<Overruns> {
        self.outcomes.get(key).filter(|(known, _)| known == tried).map(|(_, found)| found.clone())
    }

    fn keep_outcome(&mut self, key: &ObjectKey, outcome: Option<(String, Overruns)>) {
        let Some(outcome) = outcome else {
            self.outcomes.remove(key);
            return;
        };
        if self.outcomes.len() >= MAX_OUTCOMES && !self.outcomes.contains_key(key) {
            self.outcomes.clear();
        }
        self.outcomes.insert(key.clone(), outcome);
    }

    /// Forgets an object that is gone. Returns true when it exceeded a budget.
    pub(crate) fn forget(&mut self, key: &ObjectKey) -> bool {
        self.outcomes.remove(key);
        self.note(key, Vec::new())
    }

    /// Returns the sentence for the condition of a policy, while any object exceeds its budget.
    pub(crate) fn message(&self, policy: &PolicyRef) -> Option<String> {
        let objects = self.reasons.get(&name(policy))?;
        let (key, why) = objects.first_key_value()?;
        let namespace = key.namespace().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let more = match objects.len() {
            1 => String::new(),
            MAX_OBJECTS => format!(", and {} or more others", MAX_OBJECTS - 1),
            others => format!(", and {} others", others - 1),
        };
        let resource = &key.resource.resource;
        Some(format!("overrides exceed their budget for {resource}/{}{namespace}{more}: {why}", key.name))
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::{GroupResource, LogicalClusterId};

    use super::*;

    fn key(name: &str) -> ObjectKey {
        let resource = GroupResource::new("apps", "deployments");
        ObjectKey::namespaced(LogicalClusterId::ROOT, resource, "shop".parse().unwrap(), name.parse().unwrap())
    }

    #[test]
    fn patches_are_tried_again_only_when_they_or_the_object_have_changed() {
        let web = |generation: i64, ready: i64| json!({"metadata": {"uid": "u", "generation": generation}, "status": {"readyReplicas": ready}});
        let record = |value: &str| {
            let change = json!({"patch": [{"op": "add", "path": "/spec/a", "value": value}]});
            let policy = json!({"kind": "PlacementPolicy", "workspace": "root", "name": "p"});
            let overrides = json!([{"policy": policy, "on": ["east"], "change": change}]);
            let overrides = serde_json::from_value(overrides).unwrap();
            PlacementRecord { overrides, ..PlacementRecord::default() }
        };
        assert_eq!(fingerprint_of_patches(&web(1, 0), &PlacementRecord::default()), None, "no patches");
        let tried = fingerprint_of_patches(&web(1, 0), &record("a"));
        assert!(tried.is_some());
        assert_eq!(fingerprint_of_patches(&web(1, 3), &record("a")), tried, "the status does not count");
        assert_ne!(fingerprint_of_patches(&web(2, 0), &record("a")), tried);
        assert_ne!(fingerprint_of_patches(&web(1, 0), &record("b")), tried);
        let settings = |text: &str| json!({"metadata": {"uid": "u"}, "data": {"a": text}});
        let of = |text: &str| fingerprint_of_patches(&settings(text), &record("a"));
        assert_ne!(of("a"), of("b"), "an object without generation");
        let mut overruns = OverrideOverruns::default();
        let tried = tried.unwrap();
        overruns.keep_outcome(&key("a"), Some((tried.clone(), Vec::new())));
        assert_eq!(overruns.outcome(&key("a"), &tried), Some(Vec::new()));
        assert_eq!(overruns.outcome(&key("a"), "another"), None);
        for at in 0..2 * MAX_OUTCOMES {
            overruns.keep_outcome(&key(&format!("b{at}")), Some((tried.clone(), Vec::new())));
            assert!(overruns.outcomes.len() <= MAX_OUTCOMES);
        }
        overruns.keep_outcome(&key("a"), Some((tried.clone(), Vec::new())));
        overruns.forget(&key("a"));
        assert_eq!(overruns.outcome(&key("a"), &tried), None);
    }

    #[test]
    fn an_overrun_lasts_until_the_object_fits_or_goes() {
        let policy = PolicyRef {
            kind: "ClusterPlacementPolicy".into(),
            workspace: "root".into(),
            namespace: None,
            name: "p".into(),
        };
        let mut overruns = OverrideOverruns::default();
        let over = || vec![(policy.clone(), "too much".to_owned())];
        assert!(overruns.note(&key("a"), over()));
        assert!(!overruns.note(&key("a"), over()), "nothing changed");
        let message = "overrides exceed their budget for deployments/a in shop: too much";
        assert_eq!(overruns.message(&policy).as_deref(), Some(message));
        for at in 0..2 * MAX_OBJECTS {
            overruns.note(&key(&format!("b{at}")), over());
        }
        assert!(overruns.message(&policy).is_some_and(|message| message.contains(", and 63 or more others: ")));
        for at in 0..2 * MAX_OBJECTS {
            overruns.note(&key(&format!("b{at}")), Vec::new());
        }
        assert!(overruns.note(&key("a"), Vec::new()));
        assert_eq!(overruns.message(&policy), None);
    }
}
