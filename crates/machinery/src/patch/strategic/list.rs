//! Merging lists.

use std::mem;

use serde_json::Value;

use super::{Failure, FieldShape, PATCH, merge_objects, order, settled};
use crate::patch::strategic::shape::Shape;

/// Merges a list of the patch into the list that is there, or replaces it when the field is not merged.
pub(super) fn merge(live: Vec<Value>, patch: Vec<Value>, field: &FieldShape<'_>) -> Result<Vec<Value>, Failure> {
    if !field.merge {
        return Ok(patch.into_iter().filter_map(settled).collect());
    }
    let objects = check_elements(&live, &patch)?;
    if !objects {
        return merge_scalars(live, patch);
    }
    let key = field.merge_key.ok_or_else(|| Failure::Keyless(field.value.name()))?;
    let before = live.clone();
    let (live, patch) = obey_directives(live, patch, key)?;
    let wanted = patch.clone();
    let merged = merge_elements(live, patch, key, field.value)?;
    order::arrange(merged, &wanted, &before, Some(key))
}

/// Whether the elements are objects.
fn check_elements(live: &[Value], patch: &[Value]) -> Result<bool, Failure> {
    let mut all = live.iter().chain(patch);
    let Some(first) = all.next() else { return Ok(false) };
    if first.is_array() {
        return Err(Failure::ListOfLists);
    }
    match all.all(|other| mem::discriminant(other) == mem::discriminant(first)) {
        true => Ok(first.is_object()),
        false => Err(Failure::MixedElements(live.iter().chain(patch).cloned().collect())),
    }
}

/// The union, in the order of the patch, with what only the live list has at its old place between.
fn merge_scalars(live: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, Failure> {
    let mut merged: Vec<Value> = Vec::with_capacity(live.len() + patch.len());
    for value in live.iter().chain(&patch) {
        if !merged.contains(value) {
            merged.push(value.clone());
        }
    }
    order::arrange(merged, &patch, &live, None)
}

/// Removes what `$patch: delete` names, and everything for `$patch: replace`. Returns the list and the patch without them.
fn obey_directives(live: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), Failure> {
    let (mut live, mut plain, mut replace) = (live, Vec::with_capacity(patch.len()), false);
    for element in patch {
        match element.get(PATCH) {
            None => plain.push(element),
            Some(directive) if directive == "delete" => {
                let gone = element.get(key).ok_or_else(|| Failure::NoMergeKey(element.clone(), key.into()))?;
                live.retain(|own| own.get(key) != Some(gone));
            }
            Some(directive) if directive == "replace" => replace = true,
            Some(directive) if directive == "merge" => return Err(Failure::MergeDirective),
            Some(directive) => return Err(Failure::Directive(directive.clone(), element.clone())),
        }
    }
    if replace {
        live.clear();
    }
    Ok((live, plain))
}

fn merge_elements(mut live: Vec<Value>, patch: Vec<Value>, key: &str, shape: Shape<'_>) -> Result<Vec<Value>, Failure> {
    for element in patch {
        let Some(name) = element.get(key) else { return Err(Failure::NoMergeKey(element, key.into())) };
        let own = live.iter_mut().find(|own| own.get(key) == Some(name));
        match (own, element) {
            (Some(Value::Object(own)), Value::Object(patch)) => *own = merge_objects(mem::take(own), patch, shape)?,
            (_, element) => live.extend(settled(element)),
        }
    }
    Ok(live)
}
