//! The life of an object: what a create, an update and a delete make of what a client sends, for any kind.
//!
//! Each function gives the object as it is to be stored, or a `Status`. The order of steps is that of upstream's registry:
//! system metadata, the kind's strategy, defaults, validation. What needs state, such as addresses of services, is only said
//! here (`allocation`), and done by the caller.

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
mod qos;
mod scale;
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
pub(crate) use qos::class_of as qos_class;
pub(crate) use scale::{NO_REPLICAS, replicas_path};
pub use scale::{live_scale, read_scale, scale_of, with_scale};
pub use signing::asked_by;
pub use strategy::creates_on_update;
pub(crate) use strategy::{same_sources, status_keeps_metadata};
pub use update::{Update, prepare_update, uid_conflict};

use crate::{
    decode::{self, Emptiness},
    kinds::{Kind, KindTable},
};

/// A new object as it is validated, with system metadata as given.
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

/// Fills in what a service has of addresses and families by itself.
#[cfg(test)]
pub(crate) fn complete_service(service: &mut Value) {
    allocation::list_address(service);
    families::settle(None, service);
}

/// A changed object as it is validated.
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

/// What every write needs.
#[derive(Clone, Copy)]
pub struct WriteContext<'a> {
    /// The kinds.
    pub table: &'a KindTable,
    /// Time and randomness.
    pub seams: &'a Seams,
    /// Reads again what the client sent. It is asked when a refusal is to show it.
    pub sent: Option<&'a (dyn Fn() -> Option<Value> + Sync)>,
    /// Whether the text that the client sent has a word in it.
    pub names: Option<&'a (dyn Fn(&str) -> bool + Sync)>,
    /// Hears what is wrong with an object, and was before.
    pub warn: Option<&'a (dyn Fn(Vec<String>) + Sync)>,
    /// Whether claims of the namespace may have admin access to devices.
    pub grants_admin_access: bool,
    /// Whether addresses and ports of a Service are given out.
    pub allocates: Allocates,
    /// A uid that is sent is that of the object that is meant. Otherwise it is what the object is to have, which cannot be.
    pub asks_uid: bool,
}

/// What a Service is given of addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocates {
    /// Nothing: it comes to be through its status, as upstream.
    Nothing,
    /// What it would be given: nobody holds it.
    Tried,
    /// What is its own from then on.
    Given,
}

impl<'a> WriteContext<'a> {
    /// Of a write that no client sent.
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

    /// What `check` has against an object, with the values in it as they were sent.
    pub(crate) fn causes(
        &self,
        kind: &Kind,
        subresource: Option<&str>,
        object: &Value,
        check: impl Fn(&Value) -> Vec<StatusCause>,
    ) -> Vec<StatusCause> {
        let causes = check(object);
        // Only such a text can be about it, and reading all again takes as much memory as the object.
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
        // What is empty changes texts, and no verdict.
        let is_same =
            |(one, other): (&StatusCause, &StatusCause)| one.reason == other.reason && one.field == other.field;
        match shown.len() == causes.len() && shown.iter().zip(&causes).all(is_same) {
            true => shown,
            false => causes,
        }
    }
}

/// Whether nothing holds a deleting object any more: no finalizer, no grace period, no physical cluster that still has it.
pub fn is_removable(object: &Value) -> bool {
    let grace = object::metadata(object).get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    object::is_deleting(object) && grace == 0 && !is_held(object)
}

/// Whether a finalizer or a copy on a physical cluster keeps the object from going.
fn is_held(object: &Value) -> bool {
    let own_finalizers = |key| object.pointer(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let is_namespace = object.get("kind").and_then(Value::as_str) == Some("Namespace")
        && object.get("apiVersion").and_then(Value::as_str) == Some("v1");
    object::finalizers(object).next().is_some()
        || (is_namespace && own_finalizers("/spec/finalizers"))
        || PlacementRecord::of(object).is_some_and(|record| !record.clusters.is_empty())
}

/// Whether a client sent other values than `old` has for annotations or labels that only the server writes; they are ignored,
/// which is worth a warning. Sending back what was read is not, also of another object: `kubectl rollout undo` gives a Deployment
/// the annotations of a ReplicaSet, also those that say where it runs.
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

/// Puts the server's annotations and labels back to what they were, whatever the client sent; `None` takes them off. It comes
/// before ownership is recorded, so that who sends them owns none, and once more when admission has seen the object.
pub fn keep_server_keys(object: &mut Value, old: Option<&Value>) {
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
