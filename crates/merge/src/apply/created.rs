//! The fields of a new object, written as `fieldsV1` in one walk over the tree.
//!
//! Go compares a new object with an empty one of its type. The empty one already has the structs that are not pointers,
//! and the zero value or `null` of fields that are always written. So no manager owns `f:spec` itself, only its fields,
//! and zero values of such fields have no owner.

use std::collections::HashSet;

use portolan_types::object::Object;
use serde_json::Value;

use super::{
    set::{FieldSet, Node},
    shape::{Form, OwnershipShape, field_element},
};
use portolan_kinds::{KindTable, Zero};

/// Returns the fields of `value`, an object of a type, without the members of `excluded` and everything inside them.
pub(super) fn fields(shape: OwnershipShape<'_>, table: &KindTable, value: &Value, excluded: &FieldSet) -> Object {
    Created { table }.beside_zero(shape, value, Some(excluded))
}

struct Created<'t> {
    table: &'t KindTable,
}

impl Created<'_> {
    fn beside_zero(&self, shape: OwnershipShape<'_>, value: &Value, excluded: Option<&FieldSet>) -> Object {
        let mut fields = Object::new();
        for (name, value) in value.as_object().into_iter().flatten() {
            let element = field_element(name);
            let node = excluded.and_then(|set| set.get(&element));
            if node.is_some_and(|node| node.is_member() && node.below().is_empty()) {
                continue;
            }
            let zero = shape.field(name).map_or(Zero::Nothing, |field| self.table.zero(field));
            let owned = self.field(shape.child(name), value, &zero, node.map(Node::below));
            fields.extend(owned.map(|below| (element.into(), below)));
        }
        fields
    }

    fn field(
        &self,
        shape: OwnershipShape<'_>,
        value: &Value,
        zero: &Zero,
        excluded: Option<&FieldSet>,
    ) -> Option<Value> {
        let is_container = match shape.form(Some(value)) {
            Form::Object => value.as_object().is_some_and(|object| !object.is_empty()),
            Form::List => value.as_array().is_some_and(|list| !list.is_empty()),
            Form::Whole => false,
        };
        match zero {
            Zero::Struct(_) if shape.form(Some(value)) == Form::Object => {
                let below = self.beside_zero(shape, value, excluded);
                (!below.is_empty()).then_some(Value::Object(below))
            }
            Zero::Struct(id) if self.table.empty(*id) == *value => None,
            Zero::Struct(_) => Some(Value::Object(Object::new())),
            Zero::Null if value.is_null() => None,
            Zero::Scalar(zero) if zero == value => None,
            Zero::Null if is_container => Some(Value::Object(whole_contents(shape, value))),
            Zero::Nothing | Zero::Null | Zero::Scalar(_) => Some(whole(shape, value)),
        }
    }
}

/// Returns the set for a value without a counterpart: the value and everything in it.
fn whole(shape: OwnershipShape<'_>, value: &Value) -> Value {
    let mut contents = whole_contents(shape, value);
    if !contents.is_empty() {
        contents.insert(".".into(), Value::Object(Object::new()));
    }
    Value::Object(contents)
}

fn whole_contents(shape: OwnershipShape<'_>, value: &Value) -> Object {
    match (shape.form(Some(value)), value) {
        (Form::Object, Value::Object(object)) => {
            let entry =
                |(name, value): (&String, &Value)| (field_element(name).into(), whole(shape.child(name), value));
            object.iter().map(entry).collect()
        }
        (Form::List, Value::Array(list)) => elements(shape, list),
        _ => Object::new(),
    }
}

fn elements(shape: OwnershipShape<'_>, list: &[Value]) -> Object {
    let elements = shape.identified(list);
    let mut seen = HashSet::new();
    let twice: HashSet<_> = elements.iter().map(|(id, _)| id).filter(|id| !seen.insert(*id)).collect();
    let owned = |(id, element): &(Box<str>, &Value)| {
        if twice.contains(id) {
            (id.to_string(), Value::Object(Object::new()))
        } else {
            (id.to_string(), whole(shape.element(), element))
        }
    };
    elements.iter().map(owned).collect()
}
