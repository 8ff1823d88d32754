//! Ordinals of one copy of a StatefulSet whose copies share them.

use std::borrow::Cow;

use portolan_types::{
    object,
    placement::{OrdinalRange, PlacementRecord},
    upstream::UpstreamObject,
};
use serde_json::{Value, json};

use super::CopyContext;

/// JSON pointer of the fields that tell a copy its ordinals.
pub(crate) const ORDINALS: &str = "/spec/ordinals";

/// Ordinals that a copy runs.
pub(super) struct OrdinalShare {
    /// First ordinal of the upstream object.
    first: i64,
    /// Ordinals of the copy.
    own: OrdinalRange,
}

/// Returns the ordinals of a copy: those of its range that the object asks for, as many as its share; `None` if the
/// copies do not share ordinals.
pub(super) fn share(
    record: &PlacementRecord,
    context: &CopyContext,
    upstream: &UpstreamObject,
) -> Option<OrdinalShare> {
    if !is_set(upstream) || record.ordinals.is_empty() {
        return None;
    }
    let wanted = OrdinalRange::of(&upstream.object);
    let range = record.ordinals.get(context.physical).copied();
    let own = range.map_or(OrdinalRange::starting_at(wanted.first, 0), |range| range.within(wanted));
    let count = context.entry.replicas.unwrap_or(0).min(own.count());
    Some(OrdinalShare { first: wanted.first, own: OrdinalRange::starting_at(own.first, count) })
}

fn is_set(upstream: &UpstreamObject) -> bool {
    (&*upstream.kind.group, &*upstream.kind.kind) == ("apps", "StatefulSet")
}

/// Returns true for a StatefulSet whose copies share ordinals.
pub(crate) fn shares_ordinals(upstream: &UpstreamObject) -> bool {
    is_set(upstream) && PlacementRecord::of(&upstream.object).is_some_and(|record| !record.ordinals.is_empty())
}

/// Returns the object with the fields that its copies have beside its own.
pub(crate) fn with_ordinals(upstream: &UpstreamObject) -> Cow<'_, Value> {
    if !shares_ordinals(upstream) {
        return Cow::Borrowed(&upstream.object);
    }
    let mut object = upstream.object.clone();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        object::child_mut(spec, "ordinals").entry("start").or_insert_with(|| 0.into());
    }
    Cow::Owned(object)
}

/// Returns true for a field that no policy yields to the physical cluster while copies share ordinals.
pub(super) fn is_owned(path: &str) -> bool {
    let path = path.trim_start_matches('.');
    let is_at = |field: &str| path == field || path.strip_prefix(field).is_some_and(|rest| rest.starts_with('.'));
    path == "spec" || is_at("spec.replicas") || is_at("spec.ordinals")
}

impl OrdinalShare {
    /// Sets the ordinals, and the partition of a rolling update, which counts from the first ordinal on.
    pub(super) fn apply(&self, copy: &mut Value) {
        let Some(spec) = copy.get_mut("spec").and_then(Value::as_object_mut) else { return };
        spec.insert("replicas".into(), self.own.count().into());
        object::child_mut(spec, "ordinals").insert("start".into(), self.own.first.into());
        let partition = copy.pointer_mut("/spec/updateStrategy/rollingUpdate/partition");
        if let Some(partition) = partition
            && let Some(number) = partition.as_i64()
        {
            *partition = json!(self.first.saturating_add(number).saturating_sub(self.own.first).max(0));
        }
    }
}
