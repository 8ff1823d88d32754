//! Role-based access control over role and binding objects: evaluation, the check of grants, and the roles that every
//! logical cluster has from the start. The caller reads the objects.

mod aggregation;
mod bindings;
mod bootstrap;
mod evaluate;
mod rules;

pub use aggregation::{cluster_rules, is_aggregated};
pub use bindings::{Binding, Bindings, Subject};
pub use bootstrap::{Bootstrap, bootstrap};
pub use evaluate::{Roles, Verdict, authorize, rules_for, uncovered};
pub use rules::{Action, PolicyRule};

/// Identity of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User name; service accounts are `system:serviceaccount:<namespace>:<name>`.
    pub name: String,
    /// Uid, when the authenticator knows one.
    pub uid: String,
    /// Groups, `system:authenticated` included.
    pub groups: Vec<String>,
    /// Further attributes of the authenticator.
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns true if the user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
