//! Objects for which a policy does not work as written, with the reasons.

use std::collections::BTreeMap;

use portolan_types::{ObjectKey, placement::PolicyRef};

use super::usage::name;

/// Most objects that are kept per policy: the sentence names one, and counts the others up to this number.
const MAX_OBJECTS: usize = 64;

/// Reasons by policy and object.
#[derive(Clone, Default)]
pub(crate) struct PolicyComplaints {
    reasons: BTreeMap<String, BTreeMap<ObjectKey, String>>,
}

impl PolicyComplaints {
    /// Replaces the known state of one object. Returns true when that changed.
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

    /// Returns the objects and the first reason: `deployments/web in shop, and 2 others: too much`.
    pub(crate) fn sentence(&self, policy: &PolicyRef) -> Option<String> {
        let objects = self.reasons.get(&name(policy))?;
        let (key, why) = objects.first_key_value()?;
        let namespace = key.namespace().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let more = match objects.len() {
            1 => String::new(),
            MAX_OBJECTS => format!(", and {} or more others", MAX_OBJECTS - 1),
            others => format!(", and {} others", others - 1),
        };
        Some(format!("{}/{}{namespace}{more}: {why}", key.resource.resource, key.name))
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
    fn a_complaint_lasts_until_the_object_fits_or_goes() {
        let policy = PolicyRef {
            kind: "ClusterPlacementPolicy".into(),
            workspace: "root".into(),
            namespace: None,
            name: "p".into(),
        };
        let mut complaints = PolicyComplaints::default();
        let over = || vec![(policy.clone(), "too much".to_owned())];
        assert!(complaints.note(&key("a"), over()));
        assert!(!complaints.note(&key("a"), over()), "nothing changed");
        assert_eq!(complaints.sentence(&policy).as_deref(), Some("deployments/a in shop: too much"));
        for at in 0..2 * MAX_OBJECTS {
            complaints.note(&key(&format!("b{at}")), over());
        }
        assert!(complaints.sentence(&policy).is_some_and(|message| message.contains(", and 63 or more others: ")));
        for at in 0..2 * MAX_OBJECTS {
            complaints.note(&key(&format!("b{at}")), Vec::new());
        }
        assert!(complaints.note(&key("a"), Vec::new()));
        assert_eq!(complaints.sentence(&policy), None);
    }
}
