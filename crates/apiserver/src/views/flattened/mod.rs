//! Flattened views: the consumers of an export as one cluster, for an operator that was written for one.
//!
//! A flattened view is the view of an export (its resources, its rule of consent, one order of revisions) whose objects
//! have the names that they would have in one cluster. Its contract:
//!
//! - A namespace or cluster-scoped object of a consumer has the id of its logical cluster in front of its name.
//! - A name without an id is one in the logical cluster of the export: the operator's own namespace, with its leases,
//!   configuration and secrets. There the caller's own rights decide, as without the view.
//! - Kinds that the export neither offers nor claims, and kinds of infrastructure, are shown from the logical cluster
//!   of the export alone. Infrastructure is read-only.
//! - A list or watch across namespaces has the objects of all consumers and, if the caller may read them, those of the
//!   logical cluster of the export.
//! - Names in objects are rewritten with the objects. A write that names an object of another logical cluster is
//!   refused: no reference crosses the border between two workspaces.
//! - Objects of the export's logical cluster whose names look like those of a consumer are not shown, so that no two
//!   objects have one name.

mod lookup;
mod names;
mod rewrite;
mod table;

#[cfg(test)]
mod tests;

use std::{cell::RefCell, collections::BTreeMap, fmt, sync::Arc};

use portolan_kinds::{Kind, KindTable, Surface, custom};
use portolan_types::{
    GroupResource, LogicalClusterId, NamespaceName, ObjectKey, Scope, Status,
    annotations::{KCP_CLUSTER, KCP_PATH},
    object,
};
use serde_json::Value;

use super::ApiView;

pub(crate) use lookup::{NameLookup, hashed_names};
pub(crate) use names::FlatName;
use names::{NAME_LIMIT, NAMESPACE_LIMIT, flattened};
use rewrite::{CLUSTER_LABEL, Direction, Rewriter};

/// Names of a flattened view, for one request.
#[derive(Clone)]
pub(crate) struct FlattenedNames {
    /// Logical cluster of the export.
    own: LogicalClusterId,
    /// Kinds of the view.
    surface: Arc<Surface>,
    /// True if the view shows the objects of the export's logical cluster.
    pub(crate) shows_own: bool,
    /// Names of the hashes in the body of the request.
    hashed: BTreeMap<String, String>,
}

impl fmt::Debug for FlattenedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlattenedNames").field("own", &self.own).field("shows_own", &self.shows_own).finish()
    }
}

impl PartialEq for FlattenedNames {
    fn eq(&self, other: &Self) -> bool {
        (self.own, self.shows_own, &self.hashed) == (other.own, other.shows_own, &other.hashed)
    }
}

impl Eq for FlattenedNames {}

/// Returns true for a resource that is shown once, from the logical cluster of the export.
pub(crate) fn is_shown_once(resource: &GroupResource) -> bool {
    table::SHOWN_ONCE.iter().any(|(group, plural, _)| *group == &*resource.group && *plural == &*resource.resource)
}

/// Returns true for a resource whose objects of all consumers a flattened view of an export has.
pub(crate) fn has_consumers(view: &ApiView, resource: &GroupResource) -> bool {
    !is_shown_once(resource) && !custom::is_own_group(&resource.group) && view.resources().contains(resource)
}

impl FlattenedNames {
    /// Returns the names of the view of an export in the logical cluster `own`.
    pub(crate) fn new(own: LogicalClusterId, surface: Arc<Surface>, shows_own: bool) -> Self {
        Self { own, surface, shows_own, hashed: BTreeMap::new() }
    }

    /// Returns the same names, with those of the hashes in a body.
    pub(crate) fn with_hashes(&self, hashed: BTreeMap<String, String>) -> Self {
        Self { hashed, ..self.clone() }
    }

    /// Returns the logical cluster of the export.
    pub(crate) fn own(&self) -> LogicalClusterId {
        self.own
    }

    /// Returns the key of an object as the view shows it; `None` for an object that it does not show.
    pub(crate) fn shown_key(&self, key: &ObjectKey) -> Option<ObjectKey> {
        if key.cluster == self.own {
            let name = key.namespace().map_or(key.name.as_str(), NamespaceName::as_str);
            return FlatName::parse(name).cluster().is_none().then(|| key.clone());
        }
        let is_namespace = key.resource.group.is_empty() && *key.resource.resource == *"namespaces";
        let shown = match key.namespace() {
            Some(namespace) => {
                let namespace = flattened(key.cluster, namespace, NAMESPACE_LIMIT).parse().ok()?;
                ObjectKey { scope: Scope::Namespace(namespace), ..key.clone() }
            }
            None => {
                let limit = if is_namespace { NAMESPACE_LIMIT } else { NAME_LIMIT };
                ObjectKey { name: flattened(key.cluster, &key.name, limit).parse().ok()?, ..key.clone() }
            }
        };
        Some(shown)
    }

    /// Rewrites an object of a logical cluster to the names of the view.
    pub(crate) fn show(&self, (table, kind): (&KindTable, &Kind), cluster: LogicalClusterId, value: &mut Value) {
        let _ = self.show_with_hashes((table, kind), cluster, value);
    }

    /// Rewrites an object like [`FlattenedNames::show`], and returns the names that became hashes.
    fn show_with_hashes(
        &self,
        (table, kind): (&KindTable, &Kind),
        cluster: LogicalClusterId,
        value: &mut Value,
    ) -> BTreeMap<String, String> {
        let hashed = RefCell::default();
        if cluster != self.own {
            let rewriter =
                Rewriter { cluster, direction: Direction::Show(&hashed), surface: &self.surface, table, kind };
            // Every name can be shown.
            let _ = rewriter.rewrite(value);
        }
        hashed.into_inner()
    }

    /// Rewrites an object that a client sent to the names of a logical cluster. `old` is the stored state, with names.
    ///
    /// # Errors
    /// 403 for a name of another logical cluster.
    pub(crate) fn store(
        &self,
        (table, kind): (&KindTable, &Kind),
        cluster: LogicalClusterId,
        (value, old): (&mut Value, Option<&Value>),
    ) -> Result<(), Status> {
        // What the object names already it can name again, also if no object has the name any more.
        let before = old.map(|old| self.show_with_hashes((table, kind), cluster, &mut old.clone()));
        let known = before
            .filter(|before| !before.is_empty())
            .map(|before| self.hashed.iter().map(|(text, name)| (text.clone(), name.clone())).chain(before).collect());
        let direction = Direction::Store(known.as_ref().unwrap_or(&self.hashed));
        let rewriter = Rewriter { cluster, direction, surface: &self.surface, table, kind };
        rewriter.rewrite(value).map_err(|foreign| {
            let why = format!("{:?} is not a name in the workspace of the object", foreign.0);
            Status::forbidden(&kind.group_resource(), object::name(value), why)
        })?;
        remove_marks(kind, value, old);
        Ok(())
    }
}

/// Restores the metadata that a view adds for its clients.
fn remove_marks(kind: &Kind, value: &mut Value, old: Option<&Value>) {
    for key in [KCP_CLUSTER, KCP_PATH] {
        let before = old.and_then(|old| object::annotation(old, key)).map(str::to_owned);
        if before.is_some() || object::annotation(value, key).is_some() {
            object::set_annotation(value, key, before);
        }
    }
    if kind.gvk.group.is_empty() && *kind.gvk.kind == *"Namespace" {
        let before = old.and_then(|old| object::label(old, CLUSTER_LABEL)).map(str::to_owned);
        if before.is_some() || object::label(value, CLUSTER_LABEL).is_some() {
            object::set_label(value, CLUSTER_LABEL, before);
        }
    }
}
