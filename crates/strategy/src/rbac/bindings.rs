//! Bindings, parsed once and indexed by their subjects.

use std::{borrow::Cow, collections::HashMap, fmt};

use portolan_types::{object, quoted::go_quoted};
use serde_json::Value;

use super::User;

/// A RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Its name.
    pub name: String,
    /// Subjects of the binding.
    pub subjects: Vec<Subject>,
    /// `ClusterRole` or `Role`.
    pub role_kind: String,
    /// The role's name.
    pub role_name: String,
}

/// Subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A user by name, which may be that of a service account.
    User(String),
    /// A group.
    Group(String),
    /// A service account.
    ServiceAccount {
        /// Namespace of the service account.
        namespace: String,
        /// Its name there.
        name: String,
    },
}

impl Binding {
    /// Reads a binding from its object. Invalid subjects are left out.
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
    /// Reads a subject. A service account without a namespace gets the binding's.
    fn of(subject: &Value, binding_namespace: &str) -> Option<Self> {
        let text = |key: &str| subject.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("kind") {
            "User" => Some(Self::User(text("name").to_owned())),
            "Group" => Some(Self::Group(text("name").to_owned())),
            "ServiceAccount" => {
                let own = text("namespace");
                let namespace = if own.is_empty() { binding_namespace } else { own };
                let account =
                    || Self::ServiceAccount { namespace: namespace.to_owned(), name: text("name").to_owned() };
                (!namespace.is_empty()).then(account)
            }
            _ => None,
        }
    }

    /// Returns the name of the user, or `None` for a group.
    pub fn user_name(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::User(name) => Some(name.into()),
            Self::Group(_) => None,
            Self::ServiceAccount { namespace, name } => {
                Some(format!("system:serviceaccount:{namespace}:{name}").into())
            }
        }
    }

    /// Returns true for the user itself or one of its groups.
    pub fn is(&self, user: &User) -> bool {
        match self {
            Self::Group(group) => user.is_in(group),
            Self::User(_) | Self::ServiceAccount { .. } => self.user_name().is_some_and(|name| name == user.name),
        }
    }
}

/// Formats a subject as kube-apiserver does in reasons (`describeSubject`).
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "User {}", go_quoted(name)),
            Self::Group(name) => write!(f, "Group {}", go_quoted(name)),
            Self::ServiceAccount { namespace, name } => {
                write!(f, "ServiceAccount {}", go_quoted(&format!("{name}/{namespace}")))
            }
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
    /// Indexes all bindings of a scope.
    pub fn new(mut all: Vec<Binding>) -> Self {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let (mut by_user, mut by_group) = (HashMap::<_, Vec<usize>>::new(), HashMap::<_, Vec<usize>>::new());
        for (at, binding) in all.iter().enumerate() {
            for subject in &binding.subjects {
                let places = match (subject, subject.user_name()) {
                    (_, Some(name)) => by_user.entry(name.into_owned()).or_default(),
                    (Subject::Group(name), None) => by_group.entry(name.clone()).or_default(),
                    (Subject::User(_) | Subject::ServiceAccount { .. }, None) => continue,
                };
                places.push(at);
            }
        }
        Self { all, by_user, by_group }
    }

    /// Returns all bindings.
    pub fn iter(&self) -> impl Iterator<Item = &Binding> {
        self.all.iter()
    }

    /// Returns the bindings of a user, by name or by group.
    pub fn of<'a>(&'a self, user: &User) -> impl Iterator<Item = &'a Binding> + use<'a> {
        let groups = user.groups.iter().filter_map(|group| self.by_group.get(group));
        let mut places: Vec<usize> = groups.chain(self.by_user.get(&user.name)).flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|at| &self.all[at])
    }
}
