//! Frame of all writes through one endpoint: the shape of the object, and the fields that are never owned there.

use std::sync::LazyLock;

use portolan_types::annotations::{EXPECT_PLAN, SERVER_OWNED, SERVER_OWNED_LABELS};
use serde_json::Value;

use super::{
    compare::Difference,
    conversions::Conversions,
    set::FieldSet,
    shape::{OwnershipShape, field_element},
};
use portolan_kinds::{Kind, KindTable};

pub(super) struct Frame<'t> {
    pub(super) table: &'t KindTable,
    pub(super) kind: &'t Kind,
    pub(super) shape: OwnershipShape<'t>,
    pub(super) api_version: String,
    pub(super) subresource: &'t str,
    /// Fields that the endpoint resets, with all that is below them.
    pub(super) reset: FieldSet,
    pub(super) conversions: &'t Conversions,
}

/// Fields that only the server writes, and those that are never stored.
static THE_SERVERS: LazyLock<FieldSet> = LazyLock::new(|| {
    let annotations = SERVER_OWNED.iter().chain([&EXPECT_PLAN]).map(|key| ["metadata", "annotations", *key]);
    let labels = SERVER_OWNED_LABELS.iter().map(|key| ["metadata", "labels", *key]);
    let all: Vec<_> = annotations.chain(labels).collect();
    set_of(&all.iter().map(|path| &path[..]).collect::<Vec<_>>())
});

/// Identity and bookkeeping of an object: owned by no manager.
static NEVER_OWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    let bookkeeping = set_of(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ]);
    bookkeeping.union(THE_SERVERS.clone())
});

impl<'t> Frame<'t> {
    pub(super) fn new(
        table: &'t KindTable,
        kind: &'t Kind,
        subresource: Option<&'t str>,
        conversions: &'t Conversions,
    ) -> Self {
        let subresource = subresource.unwrap_or_default();
        Self {
            table,
            kind,
            shape: OwnershipShape::of_object(table, kind),
            api_version: kind.group_version().to_string(),
            subresource,
            reset: reset_by(kind, subresource),
            conversions,
        }
    }

    /// Returns the ownable fields that a write changes.
    pub(super) fn difference(&self, old: &Value, new: &Value) -> Difference {
        Difference::between(self.shape, old, new).outside(&self.reset).without(Self::never_owned())
    }

    pub(super) fn never_owned() -> &'static FieldSet {
        &NEVER_OWNED
    }

    /// Returns the ones that clients cannot claim either.
    pub(super) fn the_servers() -> &'static FieldSet {
        &THE_SERVERS
    }
}

pub(super) fn set_of(paths: &[&[&str]]) -> FieldSet {
    let mut set = FieldSet::default();
    for path in paths {
        let path: Vec<_> = path.iter().map(|name| field_element(name)).collect();
        set.insert(&path);
    }
    set
}

/// Returns the fields that a write through an endpoint cannot change (Kubernetes' `GetResetFields`).
fn reset_by(kind: &Kind, subresource: &str) -> FieldSet {
    let of = (&*kind.gvk.group, &*kind.gvk.kind);
    match (subresource, of) {
        ("scale", _) => FieldSet::default(),
        ("status", ("", "Pod")) => {
            set_of(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
        }
        ("status", ("apps", "Deployment")) => set_of(&[&["spec"], &["metadata", "labels"]]),
        ("status", ("certificates.k8s.io", _)) => set_of(&[&["spec"], &["status", "conditions"]]),
        ("approval", _) => set_of(&[&["spec"], &["status", "certificate"]]),
        ("status", _) if !kind.is_typed() || kind.status_keeps_metadata() => set_of(&[&["spec"], &["metadata"]]),
        ("status", _) => set_of(&[&["spec"]]),
        (_, ("certificates.k8s.io", "CertificateSigningRequest")) => set_of(&[&["spec"], &["status"]]),
        _ if kind.subresource("status").is_some() => set_of(&[&["status"]]),
        _ => FieldSet::default(),
    }
}
