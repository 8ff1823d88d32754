//! Takes fields out of an object.

use portolan_types::object::Object;
use serde_json::Value;

use super::{
    collect::{collect, with_declared},
    set::FieldSet,
    shape::{Form, OwnershipShape},
};

/// Returns `value` without the members of `gone`. Objects and lists that become empty turn into `null`, and so does an
/// atomic value if a part of it is to be removed.
pub(super) fn remove(shape: OwnershipShape<'_>, value: &Value, gone: &FieldSet) -> Value {
    let left = match (shape.form(Some(value)), value) {
        _ if gone.is_empty() => return value.clone(),
        (Form::Object, Value::Object(object)) => Value::Object(remove_fields(shape, object, gone)),
        (Form::List, Value::Array(list)) => Value::Array(remove_elements(shape, list, gone)),
        (_, Value::Object(_) | Value::Array(_)) => Value::Null,
        (_, scalar) => return scalar.clone(),
    };
    let is_empty = left.as_object().is_some_and(Object::is_empty) || left.as_array().is_some_and(Vec::is_empty);
    if is_empty { Value::Null } else { left }
}

fn remove_fields(shape: OwnershipShape<'_>, object: &Object, gone: &FieldSet) -> Object {
    let kept = object.iter().filter_map(|(name, value)| {
        let value = match gone.get(&super::shape::field_element(name)) {
            None => value.clone(),
            Some(node) if node.is_member() => return None,
            Some(node) => remove(shape.child(name), value, node.below()),
        };
        Some((name.clone(), value))
    });
    kept.collect()
}

fn remove_elements(shape: OwnershipShape<'_>, list: &[Value], gone: &FieldSet) -> Vec<Value> {
    let kept = list.iter().filter_map(|element| {
        let node = shape.identify(element).ok().and_then(|id| gone.get(&id));
        match node {
            None => Some(element.clone()),
            Some(node) if node.is_member() => None,
            // An element without content stays in the list as `null`.
            Some(node) => Some(remove(shape.element(), element, node.below())),
        }
    });
    kept.collect()
}

/// Removes from `merged` the fields that the manager applied last time and does not apply now, unless a manager owns
/// them.
///
/// `last` holds the fields that the manager applied last time. `owned` holds the fields that all managers own now,
/// including its new configuration.
pub(super) fn prune(shape: OwnershipShape<'_>, merged: Value, last: &FieldSet, owned: &FieldSet) -> Value {
    if last.difference(owned).is_empty() {
        return merged;
    }
    let last = with_declared(last, shape);
    let all = with_declared(&collect(shape, &merged), shape);
    let left_of = |value: &Value| with_declared(&collect(shape, value), shape);
    // An owned field would disappear with its removed parent: only fields that are neither left nor owned are removed.
    let rest = left_of(&remove(shape, &merged, &last)).union(with_declared(owned, shape));
    let rest = left_of(&remove(shape, &merged, &all.difference(&rest)));
    // Only the manager's own fields are removed. Other fields in `all` are inside of them and have no owner.
    remove(shape, &merged, &all.difference(&rest).intersection(&last))
}
