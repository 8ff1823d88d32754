//! The fields that an applied configuration holds.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    set::FieldSet,
    shape::{Form, OwnershipShape, field_element},
};

/// Collects all leaves of `value`, entries of maps and elements of lists. Declared fields that are objects or lists are
/// no members themselves, unless they are empty.
pub(super) fn collect(shape: OwnershipShape<'_>, value: &Value) -> FieldSet {
    match shape.form(Some(value)) {
        Form::Whole => FieldSet::default(),
        Form::Object => collect_object(shape, value),
        Form::List => collect_list(shape, value),
    }
}

fn is_leaf(shape: OwnershipShape<'_>, value: &Value) -> bool {
    shape.form(Some(value)) == Form::Whole
}

fn collect_object(shape: OwnershipShape<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        let child = shape.child(name);
        let is_empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
        let member = is_leaf(child, value) || is_empty || !shape.declares(name);
        set.put(field_element(name), member, collect(child, value));
    }
    set
}

/// Placeholder for indistinguishable elements, which removal leaves, so their list does not count as empty.
const NOTHING: &str = "";

fn collect_list(shape: OwnershipShape<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    let elements = shape.identified(list);
    if elements.len() < list.len() {
        set.put(NOTHING.into(), true, FieldSet::default());
    }
    let mut seen = HashSet::new();
    let twice: HashSet<_> = elements.iter().map(|(id, _)| id).filter(|id| !seen.insert(*id)).collect();
    for (id, element) in &elements {
        let below = if twice.contains(id) { FieldSet::default() } else { collect(shape.element(), element) };
        set.put(id.clone(), true, below);
    }
    set
}

/// Returns `set` with all declared fields on the way to its members as members.
pub(super) fn with_declared(set: &FieldSet, shape: OwnershipShape<'_>) -> FieldSet {
    let mut all = FieldSet::default();
    for (element, node) in set.nodes() {
        let (declared, child) = match element.strip_prefix("f:") {
            Some(name) => (shape.declares(name), shape.child(name)),
            None => (false, shape.element()),
        };
        all.put(element.into(), node.is_member() || declared, with_declared(node.below(), child));
    }
    all
}
