//! The lifecycle of an object: the changes that a create, an update and a delete make to it, for any kind.
//!
//! Each function returns the object to store, or a `Status`. The order of steps is that of kube-apiserver's registry:
//! system metadata, the kind's strategy, defaults, validation. Steps that need state, such as the allocation of service
//! addresses, are only described here (`allocation`); the caller runs them.

pub mod allocation;
mod binding;
mod create;
mod delete;
mod devices;
mod emptiness;
pub mod eviction;
mod families;
mod gates;
pub mod node_ports;
mod pods;
mod services;
mod signing;
mod strategy;
#[cfg(test)]
mod tests;
mod update;

use portolan_types::{Seams, StatusCause, annotations, object, placement::PlacementRecord};
use serde_json::Value;

pub use binding::{bind, check_binding};
pub use create::{check_unset_revision, match_namespace, name_owners_once, prepare_create, wipe_system_fields};
pub use delete::{
    DeleteOptions, Deletion, FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Propagation, UNSAFE_DELETE, check_preconditions,
    delete_options, prepare_delete, unsafe_delete_refused,
};
pub use devices::{ADMIN_ACCESS, asks_for_admin_access};
pub(crate) use pods::profile_of_annotation;
pub use signing::set_requester;
pub use strategy::creates_on_update;
pub use update::{Update, prepare_update};

use portolan_codec::decode::{self, Emptiness};
use portolan_kinds::{Kind, KindTable};

/// Returns a new object in the form that validation checks, with system metadata as given.
#[cfg(test)]
pub(crate) fn as_created(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    mut object: Value,
) -> Result<Value, portolan_types::Status> {
    strategy::before_create(ctx, kind, &mut object);
    crate::defaults::apply(ctx.table, kind, &mut object).expect("built-in kinds have room");
    strategy::allocate(ctx, kind, None, &mut object)?;
    strategy::after_defaults(ctx, kind, &mut object);
    Ok(object)
}

/// Fills in the addresses and families of a service that need no state.
#[cfg(test)]
pub(crate) fn complete_service(service: &mut Value) {
    allocation::list_address(service);
    families::settle(None, service);
}

/// Returns a changed object in the form that validation checks.
#[cfg(test)]
pub(crate) fn as_updated(
    ctx: &WriteContext<'_>,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    mut new: Value,
) -> Result<Value, portolan_types::Status> {
    crate::defaults::apply(ctx.table, kind, &mut new).expect("built-in kinds have room");
    update::keep_system_fields(old, &mut new);
    if subresource.is_none() {
        strategy::allocate(ctx, kind, Some(old), &mut new)?;
    }
    strategy::before_update(ctx, kind, subresource, old, &mut new);
    Ok(new)
}

/// Context of every write.
#[derive(Clone, Copy)]
pub struct WriteContext<'a> {
    /// The kinds.
    pub table: &'a KindTable,
    /// Time and randomness.
    pub seams: &'a Seams,
    /// Reads the client's object again. It is called if an error has to show it.
    pub sent: Option<&'a (dyn Fn() -> Option<Value> + Sync)>,
    /// Test whether the client's body contains a word.
    pub names: Option<&'a (dyn Fn(&str) -> bool + Sync)>,
    /// Receives the errors of an object that its old state has too.
    pub warn: Option<&'a (dyn Fn(Vec<String>) + Sync)>,
    /// True if claims of the namespace may have admin access to devices.
    pub grants_admin_access: bool,
    /// Allocation of addresses and ports for a Service.
    pub allocates: Allocates,
    /// True if a uid in the object is a precondition. Otherwise it would be the uid to give the object, which is an
    /// error.
    pub asks_uid: bool,
}

/// Allocation of addresses and ports for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocates {
    /// Nothing: the object is created through its status, as in kube-apiserver.
    Nothing,
    /// Dry run: free values are shown and not reserved.
    Tried,
    /// Values are reserved for the Service.
    Given,
}

impl<'a> WriteContext<'a> {
    /// Returns the context of a write that no client sent.
    pub fn new(table: &'a KindTable, seams: &'a Seams) -> Self {
        Self {
            table,
            seams,
            sent: None,
            names: None,
            warn: None,
            grants_admin_access: true,
            allocates: Allocates::Given,
            asks_uid: true,
        }
    }

    /// Returns the errors that `check` finds in an object, with values as the client sent them.
    pub(crate) fn causes(
        &self,
        kind: &Kind,
        subresource: Option<&str>,
        object: &Value,
        check: impl Fn(&Value) -> Vec<StatusCause>,
    ) -> Vec<StatusCause> {
        let causes = check(object);
        // Only a text of this form can name the field, and parsing everything again takes as much memory as the object.
        let shows_nothing = causes.iter().any(|cause| cause.message.contains("null"));
        let sent = if shows_nothing { self.sent.and_then(|sent| sent()) } else { None };
        let Some(sent) = sent else { return causes };
        let mut shown = object.clone();
        let all = Emptiness { table: self.table, only: None };
        decode::restore_empty(all, kind, subresource, &sent, &mut shown);
        if &*kind.gvk.kind == "ResourceSlice" {
            devices::drop_gated(object, &mut shown);
        }
        let shown = check(&shown);
        // Empty values change messages, but not the result.
        let is_same =
            |(one, other): (&StatusCause, &StatusCause)| one.reason == other.reason && one.field == other.field;
        if shown.len() == causes.len() && shown.iter().zip(&causes).all(is_same) { shown } else { causes }
    }
}

/// Returns true if nothing holds a deleting object: no finalizer, no grace period, no copy on a physical cluster.
pub fn is_removable(object: &Value) -> bool {
    let grace = object::metadata(object).get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    object::is_deleting(object) && grace == 0 && !is_held(object)
}

/// Returns true if a finalizer or a copy on a physical cluster holds the object.
fn is_held(object: &Value) -> bool {
    let own_finalizers = |key| object.pointer(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let is_namespace = object.get("kind").and_then(Value::as_str) == Some("Namespace")
        && object.get("apiVersion").and_then(Value::as_str) == Some("v1");
    object::finalizers(object).next().is_some()
        || (is_namespace && own_finalizers("/spec/finalizers"))
        || PlacementRecord::of(object).is_some_and(|record| !record.clusters.is_empty())
}

/// Returns true if a client sent other values than `old` has for annotations or labels that only the server writes;
/// they are ignored with a warning. Values that were read from another object cause none: `kubectl rollout undo` gives
/// a Deployment the annotations of a ReplicaSet, with its placement.
pub fn sends_server_keys(object: &Value, old: Option<&Value>) -> bool {
    let differs = |get: fn(&Value, &str) -> Option<String>, key: &str| {
        get(object, key).is_some_and(|sent| old.and_then(|old| get(old, key)).as_ref() != Some(&sent))
    };
    let annotation = |object: &Value, key: &str| object::annotation(object, key).map(str::to_owned);
    let label = |object: &Value, key: &str| object::label(object, key).map(str::to_owned);
    let annotated = annotations::SERVER_OWNED.iter().any(|key| differs(annotation, key));
    (annotated && !PlacementRecord::is_copied_from_projected(object))
        || annotations::SERVER_OWNED_LABELS.iter().any(|key| differs(label, key))
}

/// Restores the server's annotations and labels, whatever the client sent; `None` removes them. It runs before
/// ownership is recorded, so that no client owns them, and again after admission. Preconditions of the write are
/// removed.
pub fn keep_server_keys(object: &mut Value, old: Option<&Value>) {
    if object::annotation(object, annotations::EXPECT_PLAN).is_some() {
        object::set_annotation(object, annotations::EXPECT_PLAN, None);
    }
    for key in annotations::SERVER_OWNED {
        let kept = old.and_then(|old| object::annotation(old, key));
        if object::annotation(object, key) != kept {
            object::set_annotation(object, key, kept.map(str::to_owned));
        }
    }
    for key in annotations::SERVER_OWNED_LABELS {
        let kept = old.and_then(|old| object::label(old, key));
        if object::label(object, key) != kept {
            object::set_label(object, key, kept.map(str::to_owned));
        }
    }
}
