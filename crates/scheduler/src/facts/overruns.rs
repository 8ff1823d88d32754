//! Objects for which the overrides of a policy exceed their budget.

use std::collections::BTreeMap;

use portolan_types::{ObjectKey, placement::PolicyRef};

use super::usage::name;

/// Most objects that are kept per policy: the condition names one, and counts the others up to here.
const MAX_OBJECTS: usize = 64;

/// Reasons by policy and object.
#[derive(Default)]
pub(crate) struct OverrideOverruns(BTreeMap<String, BTreeMap<ObjectKey, String>>);

impl OverrideOverruns {
    /// Replaces what is known of one object. Returns true when that changed.
    pub(crate) fn note(&mut self, key: &ObjectKey, found: Vec<(PolicyRef, String)>) -> bool {
        if found.is_empty() && self.0.is_empty() {
            return false;
        }
        let found: BTreeMap<String, String> = found.iter().map(|(policy, why)| (name(policy), why.clone())).collect();
        let mut changed = false;
        for (policy, objects) in &mut self.0 {
            changed |= !found.contains_key(policy) && objects.remove(key).is_some();
        }
        self.0.retain(|_, objects| !objects.is_empty());
        for (policy, why) in found {
            let objects = self.0.entry(policy).or_default();
            if objects.get(key) != Some(&why) && (objects.contains_key(key) || objects.len() < MAX_OBJECTS) {
                objects.insert(key.clone(), why);
                changed = true;
            }
        }
        changed
    }

    /// Returns the sentence for the condition of a policy, while any object exceeds its budget.
    pub(crate) fn message(&self, policy: &PolicyRef) -> Option<String> {
        let objects = self.0.get(&name(policy))?;
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
