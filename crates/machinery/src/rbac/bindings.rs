//! Bindings, read once from their objects and found by whom they name.

use std::collections::HashMap;

use portolan_types::object;
use serde_json::Value;

use super::User;

/// A RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Its name.
    pub name: String,
    /// Whom it binds.
    pub subjects: Vec<Subject>,
    /// `ClusterRole` or `Role`.
    pub role_kind: String,
    /// The role's name.
    pub role_name: String,
}

/// Whom a binding names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A user, or a service account by its user name.
    User(String),
    /// A group.
    Group(String),
}

impl Binding {
    /// From its object. Subjects that can be nobody are left out.
    pub fn of(object: &Value) -> Self {
        let role = |key: &str| object.pointer(&format!("/roleRef/{key}")).and_then(Value::as_str).unwrap_or_default();
        let subjects = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
        Self {
            name: object::name(object).to_owned(),
            subjects: subjects.filter_map(|subject| Subject::of(subject, object::namespace(object))).collect(),
            role_kind: role("kind").to_owned(),
            role_name: role("name").to_owned(),
        }
    }
}

impl Subject {
    /// A service account without a namespace takes the binding's.
    fn of(subject: &Value, binding_namespace: &str) -> Option<Self> {
        let text = |key: &str| subject.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("kind") {
            "User" => Some(Self::User(text("name").to_owned())),
            "Group" => Some(Self::Group(text("name").to_owned())),
            "ServiceAccount" => {
                let own = text("namespace");
                let namespace = if own.is_empty() { binding_namespace } else { own };
                let user = || Self::User(format!("system:serviceaccount:{namespace}:{}", text("name")));
                (!namespace.is_empty()).then(user)
            }
            _ => None,
        }
    }
}

/// Bindings of one scope, in the order of their names.
#[derive(Debug, Default)]
pub struct Bindings {
    all: Vec<Binding>,
    by_user: HashMap<String, Vec<usize>>,
    by_group: HashMap<String, Vec<usize>>,
}

impl Bindings {
    /// From all bindings of the scope.
    pub fn new(mut all: Vec<Binding>) -> Self {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let (mut by_user, mut by_group) = (HashMap::<_, Vec<usize>>::new(), HashMap::<_, Vec<usize>>::new());
        for (at, binding) in all.iter().enumerate() {
            for subject in &binding.subjects {
                let places = match subject {
                    Subject::User(name) => by_user.entry(name.clone()).or_default(),
                    Subject::Group(name) => by_group.entry(name.clone()).or_default(),
                };
                places.push(at);
            }
        }
        Self { all, by_user, by_group }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Binding> {
        self.all.iter()
    }

    /// Those that bind a user, by name or by group.
    pub fn of<'a>(&'a self, user: &User) -> impl Iterator<Item = &'a Binding> + use<'a> {
        let groups = user.groups.iter().filter_map(|group| self.by_group.get(group));
        let mut places: Vec<usize> = groups.chain(self.by_user.get(&user.name)).flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|at| &self.all[at])
    }
}
