//! Merging lists.

use std::{
    collections::{HashMap, HashSet},
    mem,
};

use serde_json::Value;

use super::{Failure, FieldShape, PATCH, merge_objects, order};
use crate::patch::strategic::shape::Shape;

/// Merges a list of the patch into the list that is there, or replaces it when the field is not merged: then, as upstream, also
/// nulls and directives in it stay, which are unknown fields to whoever reads the object.
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
            // An element that is deleted and added anew stood nowhere.
            let (before, wanted) = (live.clone(), patch.clone());
            let merged = merge_elements(live, patch, key, field.value)?;
            order::arrange(merged, &wanted, &before, Some(key))
        }
    }
}

/// What the directives in a list of the patch come to.
enum Obeyed {
    /// The elements without one are the list, each as it is.
    Replaced(Vec<Value>),
    /// What is left of the list that is there, and of the patch.
    Left(Vec<Value>, Vec<Value>),
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
        false => Err(Failure::MixedElements(Value::Array(vec![live.to_vec().into(), patch.to_vec().into()]))),
    }
}

/// The union, in the order of the patch, with what only the live list has at its old place between.
fn merge_scalars(live: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, Failure> {
    let mut seen = HashSet::new();
    let merged = live.iter().chain(&patch).filter(|value| seen.insert(*value)).cloned().collect();
    order::arrange(merged, &patch, &live, None)
}

/// Removes what `$patch: delete` names, and everything for `$patch: replace`.
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

/// Merges elements into those of the same key; the others stand behind as they are, with nulls and directives.
fn merge_elements(mut live: Vec<Value>, patch: Vec<Value>, key: &str, shape: Shape<'_>) -> Result<Vec<Value>, Failure> {
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
        // A key that is null is gone then. The next one that has it stands behind.
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
