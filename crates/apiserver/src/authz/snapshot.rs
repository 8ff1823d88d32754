//! Snapshot of the roles and bindings of one logical cluster, including shared ones.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, LazyLock},
};

use portolan_strategy::rbac::{Binding, Bindings, PolicyRule, Roles, Subject, User, bootstrap, cluster_rules};
use portolan_types::object;
use serde_json::Value;

/// Roles and bindings of a logical cluster: its own, and shared ones that it has not overridden.
pub struct ClusterRoles {
    cluster_bindings: Bindings,
    bindings: HashMap<String, Bindings>,
    cluster_rules: HashMap<String, Vec<PolicyRule>>,
    /// Rules by namespace and role name.
    rules: HashMap<String, HashMap<String, Vec<PolicyRule>>>,
    members: OwnSubjects,
    /// True if the logical cluster has not replaced the binding that lets its members enter.
    admits_members: bool,
}

/// Shared binding that lets the members of a logical cluster enter it, and its role.
const ENTRY: [&str; 2] = ["portolan:workspace-access", "system:kcp:workspace:access"];

/// Subjects of the logical cluster's own bindings.
#[derive(Default)]
struct OwnSubjects {
    users: HashSet<String>,
    groups: HashSet<String>,
}

/// Stored roles and bindings of a logical cluster.
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

type ObjectsByName = BTreeMap<String, Arc<Value>>;

fn merged(shared: &[Value], own: Vec<Value>) -> ObjectsByName {
    let named = |value: &Value| object::name(value).to_owned();
    let mut all: ObjectsByName = shared.iter().map(|value| (named(value), Arc::new(value.clone()))).collect();
    all.extend(own.into_iter().map(|value| (named(&value), Arc::new(value))));
    all
}

impl ClusterRoles {
    /// Returns the snapshot of a logical cluster that has written no role or binding, shared by all of these.
    pub fn shared_only() -> Arc<Self> {
        static SHARED: LazyLock<Arc<ClusterRoles>> =
            LazyLock::new(|| Arc::new(ClusterRoles::build(OwnObjects::default())));
        SHARED.clone()
    }

    /// Builds a snapshot from stored objects.
    pub fn new(own: OwnObjects) -> Arc<Self> {
        if own.is_empty() { Self::shared_only() } else { Arc::new(Self::build(own)) }
    }

    fn build(own: OwnObjects) -> Self {
        let cluster_rules = cluster_rules(&own.cluster_roles);
        let cluster_rules = cluster_rules.into_iter().map(|(name, rules)| (name.to_owned(), rules)).collect();
        let members = OwnSubjects::of(&own.cluster_role_bindings, &own.role_bindings);
        let mut replaced = own.cluster_role_bindings.iter().chain(&own.cluster_roles).map(object::name);
        let admits_members = !replaced.any(|name| ENTRY.contains(&name));
        let cluster_bindings = merged(&bootstrap().cluster_role_bindings, own.cluster_role_bindings);
        let mut bindings: HashMap<String, Vec<Binding>> = HashMap::new();
        for binding in &own.role_bindings {
            bindings.entry(object::namespace(binding).to_owned()).or_default().push(Binding::of(binding));
        }
        let mut rules: HashMap<String, HashMap<String, Vec<PolicyRule>>> = HashMap::new();
        for role in bootstrap().roles.iter().chain(&own.roles) {
            let here = rules.entry(object::namespace(role).to_owned()).or_default();
            here.insert(object::name(role).to_owned(), PolicyRule::of(role));
        }
        Self {
            cluster_bindings: Bindings::new(cluster_bindings.values().map(|binding| Binding::of(binding)).collect()),
            bindings: bindings.into_iter().map(|(namespace, all)| (namespace, Bindings::new(all))).collect(),
            cluster_rules,
            rules,
            members,
            admits_members,
        }
    }

    /// Returns the rules of a ClusterRole, with aggregation computed.
    pub fn rules(&self, cluster_role: &str) -> Option<&[PolicyRule]> {
        self.cluster_rules.get(cluster_role).map(Vec::as_slice)
    }

    /// Returns true if every member may enter the logical cluster, as is so from the start.
    pub(super) fn admits_members(&self) -> bool {
        self.admits_members
    }

    /// Returns true if one of the logical cluster's own bindings names the user.
    pub(super) fn has_member(&self, user: &User) -> bool {
        let OwnSubjects { users, groups } = &self.members;
        users.contains(&user.name) || user.groups.iter().any(|group| groups.contains(group))
    }
}

impl OwnSubjects {
    fn of(cluster_bindings: &[Value], bindings: &[Value]) -> Self {
        let mut members = Self::default();
        let subjects = cluster_bindings.iter().chain(bindings).flat_map(own_subjects);
        subjects.for_each(|subject| members.add(subject));
        members
    }

    fn add(&mut self, subject: Subject) {
        match (subject.user_name(), &subject) {
            (Some(name), _) => self.users.insert(name.into_owned()),
            (None, Subject::Group(name)) => self.groups.insert(name.clone()),
            (None, Subject::User(_) | Subject::ServiceAccount { .. }) => false,
        };
    }
}

/// Returns the subjects of a stored binding who are members of its logical cluster. The subjects of a shared binding do
/// not count in a copy of it, because every copy contains them.
pub(super) fn own_subjects(binding: &Value) -> Vec<Subject> {
    let is_copy =
        |shared: &&Value| object::namespace(binding).is_empty() && object::name(shared) == object::name(binding);
    let copied = bootstrap().cluster_role_bindings.iter().find(is_copy);
    let common = copied.map(|shared| Binding::of(shared).subjects).unwrap_or_default();
    Binding::of(binding).subjects.into_iter().filter(|subject| !common.contains(subject)).collect()
}

impl Roles for ClusterRoles {
    fn cluster_role_bindings(&self) -> &Bindings {
        &self.cluster_bindings
    }

    fn role_bindings(&self, namespace: &str) -> Option<&Bindings> {
        self.bindings.get(namespace)
    }

    fn cluster_role_rules(&self, name: &str) -> Option<&[PolicyRule]> {
        self.rules(name)
    }

    fn role_rules(&self, namespace: &str, name: &str) -> Option<&[PolicyRule]> {
        self.rules.get(namespace)?.get(name).map(Vec::as_slice)
    }
}
