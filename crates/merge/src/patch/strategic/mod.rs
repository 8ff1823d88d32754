//! Strategic merge patch: a merge patch that knows which lists are maps or sets, and takes directives.
//!
//! | directive | where | effect |
//! |---|---|---|
//! | `$patch: replace` | object | the rest of the object replaces what is there |
//! | `$patch: delete` | object | empties it |
//! | `$patch: replace` | element of a merged list | the other elements replace the list |
//! | `$patch: delete` and the merge key | element of a merged list | removes the element |
//! | `$deleteFromPrimitiveList/<list>` | object | removes values from a list of scalars |
//! | `$setElementOrder/<list>` | object | the order of the merged list |
//! | `$retainKeys` | object | removes all other keys of the object |

mod left;
mod list;
mod order;
mod shape;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, mem};

use portolan_types::{Reason, Status, object::Object, quoted::go_quoted};
use serde_json::Value;

pub use self::left::left_of_patch;
use self::shape::{FieldShape, PatchShape};
use super::json::unprocessable;
use portolan_gocompat::print::{go_print, go_print_text, go_type};
use portolan_kinds::{KindTable, TypeId};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

/// Applies a strategic merge patch to an object of the type `schema`.
///
/// # Errors
/// 400 if a directive is malformed, 422 for lists of lists, and, as in kube-apiserver, 500 for other misfits:
/// an element without its merge key, an order that contradicts the patch.
pub fn strategic_merge(table: &KindTable, schema: TypeId, doc: &Value, patch: &Value) -> Result<Value, Status> {
    let Value::Object(patch) = patch else { return Err(Failure::Document.into()) };
    let live = doc.as_object().cloned().unwrap_or_default();
    let merged = merge_objects(live, patch.clone(), PatchShape::of_type(table, schema))?;
    Ok(Value::Object(merged))
}

/// Reason why a patch is refused. Texts are kube-apiserver's.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("invalid JSON document")]
    Document,
    #[error("invalid patch format of primitive list")]
    DeletedValues,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    ElementOrder,
    #[error("expected a []interface {{}}, but received a {}", type_text(.0))]
    NoList(Value),
    #[error("unknown patch type: {} in map: {}", go_print_text(.0), go_print(.1))]
    Directive(Value, Value),
    #[error("merging lists cannot yet be specified in the patch")]
    MergeDirective,
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("list element types are not identical: {}", go_print(.0))]
    MixedElements(Value),
    #[error("cannot merge lists without merge key for {0}")]
    Keyless(String),
    #[error("unable to find api field in struct {} for the json field {}", .0, go_quoted(.1))]
    NoField(String, String),
    #[error("merging an object in json but data type is not struct, instead is: map")]
    NoStruct,
    #[error("map: {} does not contain declared merge key: {key}", go_print(.0), key = .1)]
    NoMergeKey(Value, String),
    #[error("The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n", go_print(.0), go_print(.1))]
    Order(Value, Value),
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Document | Failure::DeletedValues | Failure::RetainKeys | Failure::ElementOrder => {
                Status::bad_request(failure.to_string())
            }
            Failure::ListOfLists => unprocessable(),
            Failure::NoList(_)
            | Failure::Directive(..)
            | Failure::MergeDirective
            | Failure::MixedElements(_)
            | Failure::Keyless(_)
            | Failure::NoField(..)
            | Failure::NoStruct
            | Failure::NoMergeKey(..)
            | Failure::Order(..) => Status::new(Reason::Unknown, failure.to_string()),
        }
    }
}

/// Returns the type of a value where a string is expected; empty for null.
fn type_text(value: &Value) -> &'static str {
    if value.is_null() { "%!s(<nil>)" } else { go_type(value) }
}

fn merge_objects(mut live: Object, mut patch: Object, shape: PatchShape<'_>) -> Result<Object, Failure> {
    match patch.get(PATCH).cloned() {
        None => {}
        Some(directive) if directive == "replace" => {
            patch.remove(PATCH);
            return Ok(patch);
        }
        Some(directive) if directive == "delete" => return Ok(Object::new()),
        Some(directive) => return Err(Failure::Directive(directive, Value::Object(patch))),
    }
    retain_keys(&mut live, &mut patch)?;
    merge_ordered_lists(&mut live, &mut patch, shape)?;
    for (key, value) in patch {
        match directive_target(&key, DELETE_VALUES) {
            Some(list) => delete_values(&mut live, list?, &value)?,
            None => merge_field(&mut live, key, value, shape)?,
        }
    }
    Ok(live)
}

/// Returns the target of the directive `directive` in `key`; an error if nothing follows the `/`.
fn directive_target<'a>(key: &'a str, directive: &str) -> Option<Result<&'a str, Failure>> {
    let rest = key.strip_prefix(directive)?;
    Some(rest.strip_prefix('/').ok_or(match directive {
        DELETE_VALUES => Failure::DeletedValues,
        _ => Failure::ElementOrder,
    }))
}

fn retain_keys(live: &mut Object, patch: &mut Object) -> Result<(), Failure> {
    let Some(kept) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(kept) = kept else { return Err(Failure::RetainKeys) };
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let is_kept = |key: &str| kept.contains(key);
    let is_directive = |key: &str| key.starts_with(DELETE_VALUES) || key.starts_with(ELEMENT_ORDER);
    if patch.iter().any(|(key, value)| !value.is_null() && !is_directive(key) && !is_kept(key)) {
        return Err(Failure::RetainKeys);
    }
    live.retain(|key, _| is_kept(key));
    Ok(())
}

/// Merges the lists that the patch gives an order for, and takes both out of the patch.
fn merge_ordered_lists(live: &mut Object, patch: &mut Object, shape: PatchShape<'_>) -> Result<(), Failure> {
    let ordered: Vec<String> = patch.keys().filter(|key| key.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in ordered {
        let order = patch.remove(&directive).unwrap_or_default();
        let order = match order {
            Value::Array(order) => order,
            other => return Err(Failure::NoList(other)),
        };
        let key = directive_target(&directive, ELEMENT_ORDER).unwrap_or(Err(Failure::ElementOrder))?;
        let array = |value: Option<Value>| match value {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(Failure::NoList(other)),
        };
        if patch.get(key).is_some_and(Value::is_null) {
            continue;
        }
        let (before, patched) = (array(live.get(key).cloned())?, array(patch.remove(key))?);
        let field = shape.field(key)?;
        if before.is_none() && patched.is_none() {
            continue;
        }
        order::check(patched.as_deref().unwrap_or(&[]), &order, field.merge_key)?;
        let (merged, slots) = match (before, patched) {
            (before, None) => (before.clone().unwrap_or_default(), before.unwrap_or_default()),
            // A new list keeps nulls.
            (None, Some(items)) => (items.into_iter().filter_map(undirected).collect(), Vec::new()),
            (Some(before), Some(items)) => {
                let slots = order::slots(&before, &items, field.merge_key);
                (list::merge(before, items, &field)?, slots)
            }
        };
        let sorted = order::arrange(merged, &order, &slots, field.merge_key)?;
        live.insert(key.to_owned(), Value::Array(sorted));
    }
    Ok(())
}

fn delete_values(live: &mut Object, key: &str, unwanted: &Value) -> Result<(), Failure> {
    let Some(list) = live.get_mut(key).and_then(Value::as_array_mut) else { return Ok(()) };
    let unwanted: HashSet<&Value> = unwanted.as_array().ok_or(Failure::DeletedValues)?.iter().collect();
    list.retain(|value| !unwanted.contains(value));
    Ok(())
}

fn merge_field(live: &mut Object, key: String, value: Value, shape: PatchShape<'_>) -> Result<(), Failure> {
    let merged = match (live.get_mut(&key).map(mem::take), value) {
        (_, Value::Null) => None,
        (Some(Value::Object(own)), Value::Object(patch)) => {
            let field = shape.field(&key)?;
            let merged = if field.replace { patch } else { merge_objects(own, patch, field.value)? };
            Some(Value::Object(merged))
        }
        (Some(Value::Array(own)), Value::Array(patch)) => {
            Some(Value::Array(list::merge(own, patch, &shape.field(&key)?)?))
        }
        (_, value) => without_nulls_and_directives(value),
    };
    match merged {
        Some(value) => drop(live.insert(key, value)),
        None => drop(live.remove(&key)),
    }
    Ok(())
}

/// Returns a part of the patch without a live counterpart, without nulls in objects and merge directives; `None` if
/// nothing else is left. Other directives stay, as unknown fields.
fn without_nulls_and_directives(mut value: Value) -> Option<Value> {
    drop_nulls(&mut value);
    undirected(value)
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns a value without the objects in it that are merge directives.
fn undirected(value: Value) -> Option<Value> {
    match value {
        Value::Object(object) if object.contains_key(PATCH) => None,
        Value::Object(object) => {
            Some(Value::Object(object.into_iter().filter_map(|(key, value)| Some((key, undirected(value)?))).collect()))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(undirected).collect()),
        other => Some(other),
    }
}
