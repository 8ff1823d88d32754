//! Merging lists.

use std::{
    collections::{HashMap, HashSet},
    mem,
};

use serde_json::Value;

use super::{Failure, FieldShape, PATCH, merge_objects, order};
use crate::patch::strategic::shape::PatchShape;

/// Merges a list of the patch into the live list, or replaces it if the field is not merged. Then, as in
/// kube-apiserver, its nulls and directives stay; a reader of the object reports them as unknown fields.
pub(super) fn merge(live: Vec<Value>, patch: Vec<Value>, field: &FieldShape<'_>) -> Result<Vec<Value>, Failure> {
    if !field.merge {
        return Ok(patch);
    }
    let objects = check_elements(&live, &patch)?;
    if !objects {
        return merge_scalars(live, patch);
    }
    let key = field.merge_key.ok_or_else(|| Failure::Keyless(field.value.name()))?;
    match obey_directives(live, patch, key)? {
        Obeyed::Replaced(list) => order::arrange(list.clone(), &[], &list, Some(key)),
        Obeyed::Left(live, patch) => {
            // An element that is deleted and added again has no previous position.
            let (before, wanted) = (live.clone(), patch.clone());
            let merged = merge_elements(live, patch, key, field.value)?;
            order::arrange(merged, &wanted, &before, Some(key))
        }
    }
}

/// Result of the directives in a list of the patch.
enum Obeyed {
    /// Elements without a key form the list, unchanged.
    Replaced(Vec<Value>),
    /// Remainders of the live list and of the patch.
    Left(Vec<Value>, Vec<Value>),
}

/// Returns true if the elements are objects.
fn check_elements(live: &[Value], patch: &[Value]) -> Result<bool, Failure> {
    let mut all = live.iter().chain(patch);
    let Some(first) = all.next() else { return Ok(false) };
    if first.is_array() {
        return Err(Failure::ListOfLists);
    }
    if all.all(|other| mem::discriminant(other) == mem::discriminant(first)) {
        Ok(first.is_object())
    } else {
        Err(Failure::MixedElements(Value::Array(vec![live.to_vec().into(), patch.to_vec().into()])))
    }
}

/// Returns the union in the order of the patch; values that only the live list has keep their places between.
fn merge_scalars(live: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, Failure> {
    let mut seen = HashSet::new();
    let merged = live.iter().chain(&patch).filter(|value| seen.insert(*value)).cloned().collect();
    order::arrange(merged, &patch, &live, None)
}

/// Removes the elements that `$patch: delete` names, or all for `$patch: replace`.
fn obey_directives(live: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<Obeyed, Failure> {
    let (mut live, mut plain, mut replace) = (live, Vec::with_capacity(patch.len()), false);
    let mut all_gone = HashSet::new();
    for element in patch {
        match element.get(PATCH) {
            None => plain.push(element),
            Some(directive) if directive == "delete" => {
                let gone = element.get(key).ok_or_else(|| Failure::NoMergeKey(element.clone(), key.into()))?;
                all_gone.insert(gone.clone());
            }
            Some(directive) if directive == "replace" => replace = true,
            Some(directive) if directive == "merge" => return Err(Failure::MergeDirective),
            Some(directive) => return Err(Failure::Directive(directive.clone(), element.clone())),
        }
    }
    if replace {
        return Ok(Obeyed::Replaced(plain));
    }
    if !all_gone.is_empty() {
        live.retain(|own| own.get(key).is_none_or(|own| !all_gone.contains(own)));
    }
    Ok(Obeyed::Left(live, plain))
}

/// Merges elements into those of the same key; the others are appended unchanged, with nulls and directives.
fn merge_elements(
    mut live: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
    shape: PatchShape<'_>,
) -> Result<Vec<Value>, Failure> {
    let mut places: HashMap<Value, usize> = HashMap::new();
    for (at, own) in live.iter().enumerate() {
        if let Some(name) = own.get(key) {
            places.entry(name.clone()).or_insert(at);
        }
    }
    for element in patch {
        let Some(name) = element.get(key).cloned() else { return Err(Failure::NoMergeKey(element, key.into())) };
        let place = places.get(&name).copied();
        match (place.and_then(|at| live.get_mut(at)), element) {
            (Some(Value::Object(own)), Value::Object(patch)) => *own = merge_objects(mem::take(own), patch, shape)?,
            (_, element) => {
                places.entry(name.clone()).or_insert(live.len());
                live.push(element);
            }
        }
        // A merge that sets the key to null removes it. The next element with this key is further back.
        let is_named = |own: &Value| own.get(key) == Some(&name);
        if let Some(at) = place.filter(|at| !is_named(&live[*at])) {
            match live[at..].iter().position(is_named) {
                Some(next) => drop(places.insert(name, at + next)),
                None => drop(places.remove(&name)),
            }
        }
    }
    Ok(live)
}
