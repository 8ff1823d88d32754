//! The roles and bindings of one logical cluster at one moment, the shared ones among them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
};

use portolan_machinery::rbac::{PolicyRule, Roles, aggregated_rules, bootstrap};
use portolan_types::object;
use serde_json::Value;

/// All roles and bindings of a logical cluster: its own and, where it has no own of that name, the shared ones.
pub struct ClusterRoles {
    cluster_bindings: Vec<Arc<Value>>,
    bindings: HashMap<String, Vec<Arc<Value>>>,
    cluster_rules: HashMap<String, Vec<PolicyRule>>,
    rules: HashMap<(String, String), Vec<PolicyRule>>,
    /// Bindings that are the logical cluster's own: they make members.
    own_bindings: Vec<Arc<Value>>,
}

/// The objects of a logical cluster's own, as stored.
#[derive(Default)]
pub struct OwnObjects {
    /// ClusterRoles.
    pub cluster_roles: Vec<Value>,
    /// ClusterRoleBindings.
    pub cluster_role_bindings: Vec<Value>,
    /// Roles of all namespaces.
    pub roles: Vec<Value>,
    /// RoleBindings of all namespaces.
    pub role_bindings: Vec<Value>,
}

impl OwnObjects {
    fn is_empty(&self) -> bool {
        self.cluster_roles.is_empty()
            && self.cluster_role_bindings.is_empty()
            && self.roles.is_empty()
            && self.role_bindings.is_empty()
    }
}

type ByName = BTreeMap<String, Arc<Value>>;

fn merged(shared: &[Value], own: Vec<Value>) -> ByName {
    let named = |value: &Value| object::name(value).to_owned();
    let mut all: ByName = shared.iter().map(|value| (named(value), Arc::new(value.clone()))).collect();
    all.extend(own.into_iter().map(|value| (named(&value), Arc::new(value))));
    all
}

impl ClusterRoles {
    /// What a logical cluster has that never wrote a role or binding. One for all of them.
    pub fn untouched() -> Arc<Self> {
        static SHARED: LazyLock<Arc<ClusterRoles>> =
            LazyLock::new(|| Arc::new(ClusterRoles::build(OwnObjects::default())));
        SHARED.clone()
    }

    /// From a logical cluster's own objects.
    pub fn new(own: OwnObjects) -> Arc<Self> {
        if own.is_empty() { Self::untouched() } else { Arc::new(Self::build(own)) }
    }

    fn build(own: OwnObjects) -> Self {
        let roles = merged(&bootstrap().cluster_roles, own.cluster_roles);
        let cluster_rules = rules_of(&roles);
        let cluster_bindings = merged(&bootstrap().cluster_role_bindings, own.cluster_role_bindings);
        let shared_names: Vec<&str> = bootstrap().cluster_role_bindings.iter().map(object::name).collect();
        let mut own_bindings: Vec<Arc<Value>> = cluster_bindings
            .iter()
            .filter(|(name, _)| !shared_names.contains(&name.as_str()))
            .map(|(_, binding)| binding.clone())
            .collect();
        let mut bindings: HashMap<String, Vec<Arc<Value>>> = HashMap::new();
        for binding in own.role_bindings.into_iter().map(Arc::new) {
            own_bindings.push(binding.clone());
            bindings.entry(object::namespace(&binding).to_owned()).or_default().push(binding);
        }
        let keyed =
            |role: &Value| ((object::namespace(role).to_owned(), object::name(role).to_owned()), PolicyRule::of(role));
        Self {
            cluster_bindings: cluster_bindings.into_values().collect(),
            bindings,
            cluster_rules,
            rules: own.roles.iter().map(keyed).collect(),
            own_bindings,
        }
    }

    /// The rules of a ClusterRole, aggregated ones computed.
    pub fn rules(&self, cluster_role: &str) -> Option<&[PolicyRule]> {
        self.cluster_rules.get(cluster_role).map(Vec::as_slice)
    }

    /// Whether a binding of the logical cluster's own may name somebody like this; the exact test is the evaluation's.
    pub(super) fn own_bindings(&self) -> &[Arc<Value>] {
        &self.own_bindings
    }
}

/// Aggregation can go over several levels (admin ← edit ← view), so it is repeated until nothing is added.
fn rules_of(roles: &ByName) -> HashMap<String, Vec<PolicyRule>> {
    let mut current: BTreeMap<String, Value> =
        roles.iter().map(|(name, role)| (name.clone(), Value::clone(role))).collect();
    let aggregated: Vec<String> = current
        .iter()
        .filter(|(_, role)| role.get("aggregationRule").is_some())
        .map(|(name, _)| name.clone())
        .collect();
    for _ in 0..4 {
        let mut changed = false;
        for name in &aggregated {
            let Some(rules) = aggregated_rules(&current[name], current.values()) else { continue };
            let rules = serde_json::to_value(rules).expect("strings serialize");
            if current[name].get("rules") != Some(&rules) {
                changed = true;
                if let Some(role) = current.get_mut(name).and_then(Value::as_object_mut) {
                    role.insert("rules".into(), rules);
                }
            }
        }
        if !changed {
            break;
        }
    }
    current.into_iter().map(|(name, role)| (name, PolicyRule::of(&role))).collect()
}

impl Roles for ClusterRoles {
    fn cluster_role_bindings(&self) -> Box<dyn Iterator<Item = &Value> + '_> {
        Box::new(self.cluster_bindings.iter().map(|b| &**b))
    }

    fn role_bindings(&self, namespace: &str) -> Box<dyn Iterator<Item = &Value> + '_> {
        Box::new(self.bindings.get(namespace).into_iter().flatten().map(|b| &**b))
    }

    fn cluster_role_rules(&self, name: &str) -> Option<Vec<PolicyRule>> {
        self.cluster_rules.get(name).cloned()
    }

    fn role_rules(&self, namespace: &str, name: &str) -> Option<Vec<PolicyRule>> {
        self.rules.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
}
