//! Lays an applied configuration over the live object.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use super::shape::{Form, OwnershipShape};

/// Returns `live` merged with `applied`; the applied value wins.
pub(super) fn merge(shape: OwnershipShape<'_>, live: &Value, applied: &Value) -> Value {
    match shape.form(Some(applied)) {
        Form::Whole => applied.clone(),
        Form::Object => match (live.as_object(), applied.as_object()) {
            (Some(live), Some(applied)) => Value::Object(merge_objects(shape, live, applied)),
            // A null keeps the live value: it makes no statement about the content.
            (Some(own), None) if applied.is_null() && !own.is_empty() => live.clone(),
            _ => applied.clone(),
        },
        Form::List => match (live.as_array(), applied.as_array()) {
            (Some(live), Some(applied)) => Value::Array(merge_lists(shape, live, applied)),
            (Some(own), None) if applied.is_null() && !own.is_empty() => live.clone(),
            _ => applied.clone(),
        },
    }
}

fn merge_objects(
    shape: OwnershipShape<'_>,
    live: &Map<String, Value>,
    applied: &Map<String, Value>,
) -> Map<String, Value> {
    let mut merged = live.clone();
    for (name, value) in applied {
        let value = match live.get(name) {
            Some(own) => merge(shape.child(name), own, value),
            None => value.clone(),
        };
        merged.insert(name.clone(), value);
    }
    merged
}

/// Merges element by element. The applied order holds; elements that only the live list has keep their place before the
/// next element that both have.
fn merge_lists(shape: OwnershipShape<'_>, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let (live, applied) = (shape.identified(live), shape.identified(applied));
    let mut own: HashMap<&str, Vec<&Value>> = HashMap::new();
    for (id, element) in &live {
        own.entry(id).or_default().push(element);
    }
    let wanted: HashSet<&str> = applied.iter().map(|(id, _)| &**id).collect();
    let mut shared: VecDeque<&str> = applied.iter().map(|(id, _)| &**id).filter(|id| own.contains_key(id)).collect();
    let merged = |id: &str, element: &Value| match own.get(id).map(Vec::as_slice) {
        Some([own]) => merge(shape.element(), own, element),
        // Elements that are there more than once are replaced by the applied one.
        _ => element.clone(),
    };
    let (mut out, mut done) = (Vec::with_capacity(live.len().max(applied.len())), HashSet::new());
    let (mut l, mut r) = (0, 0);
    while l < live.len() || r < applied.len() {
        if let (Some((left, _)), Some((right, element))) = (live.get(l), applied.get(r)) {
            if left == right {
                out.push(merged(right, element));
                done.insert(&**right);
                shared.pop_front();
                (l, r) = (l + 1, r + 1);
                continue;
            }
            if wanted.contains(&**left) && shared.front().is_some_and(|next| *next != &**left) {
                l += 1;
                continue;
            }
        }
        if let Some((left, element)) = live.get(l) {
            if !wanted.contains(&**left) {
                out.push((*element).clone());
                l += 1;
                continue;
            }
            if done.contains(&**left) {
                l += 1;
            }
        }
        if let Some((right, element)) = applied.get(r) {
            out.push(merged(right, element));
            done.insert(&**right);
            if shared.front() == Some(&&**right) {
                shared.pop_front();
            }
            r += 1;
        }
    }
    out
}
