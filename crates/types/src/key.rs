//! Addresses of stored objects.

use std::fmt;

use crate::{
    group::GroupResource,
    names::{LogicalClusterId, NamespaceName, ObjectName},
};

/// Scope of an object within its logical cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Cluster-scoped.
    Cluster,
    /// The object is in a namespace.
    Namespace(NamespaceName),
}

impl Scope {
    /// Returns the namespace's name; `None` for cluster scope.
    pub fn namespace(&self) -> Option<&NamespaceName> {
        match self {
            Self::Cluster => None,
            Self::Namespace(name) => Some(name),
        }
    }
}

impl From<Option<NamespaceName>> for Scope {
    fn from(namespace: Option<NamespaceName>) -> Self {
        namespace.map_or(Self::Cluster, Self::Namespace)
    }
}

/// Address of a stored object. No API version: all versions of a resource serve the same object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Logical cluster that holds the object.
    pub cluster: LogicalClusterId,
    /// Resource it is stored as.
    pub resource: GroupResource,
    /// Namespace or cluster scope.
    pub scope: Scope,
    /// Name within the scope.
    pub name: ObjectName,
}

impl ObjectKey {
    /// Returns a key in a namespace.
    pub fn namespaced(
        cluster: LogicalClusterId,
        resource: GroupResource,
        namespace: NamespaceName,
        name: ObjectName,
    ) -> Self {
        Self { cluster, resource, scope: Scope::Namespace(namespace), name }
    }

    /// Returns a key at cluster scope.
    pub fn cluster_scoped(cluster: LogicalClusterId, resource: GroupResource, name: ObjectName) -> Self {
        Self { cluster, resource, scope: Scope::Cluster, name }
    }

    /// Returns the namespace's name; `None` for cluster scope.
    pub fn namespace(&self) -> Option<&NamespaceName> {
        self.scope.namespace()
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}/", self.cluster, self.resource)?;
        if let Some(namespace) = self.namespace() {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}", self.name)
    }
}
