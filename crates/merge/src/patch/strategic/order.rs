//! The order of merged lists: elements of the patch have the patch's order, the others keep theirs.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Failure, PATCH};

/// Returns the element itself, or the value of its merge key.
fn identity<'a>(element: &'a Value, key: Option<&str>) -> Result<&'a Value, Failure> {
    match key {
        None => Ok(element),
        Some(key) => element.get(key).ok_or_else(|| Failure::NoMergeKey(element.clone(), key.into())),
    }
}

/// Checks that `order` has all elements of `patch`, in the same order. Elements with a directive are ignored; but, as
/// in kube-apiserver, only deleted ones once `order` has ended.
pub(super) fn check(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Failure> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let is_deleted =
        |element: &Value| key.is_some() && element.get(PATCH).is_some_and(|directive| directive == "delete");
    let mut elements = patch.iter().filter(|element| !is_deleted(element)).peekable();
    let mut rest = order.iter().peekable();
    while let (Some(element), Some(next)) = (elements.peek(), rest.peek()) {
        if element.get(PATCH).is_some() {
            elements.next();
            continue;
        }
        if identity(element, key)? == identity(next, key)? {
            elements.next();
        }
        rest.next();
    }
    match elements.peek() {
        None => Ok(()),
        Some(_) => Err(Failure::Order(patch.to_vec().into(), order.to_vec().into())),
    }
}

/// Returns the order that the live list counts as having. As in kube-apiserver, new elements of the patch take the
/// slots of deleted ones.
pub(super) fn slots(live: &[Value], patch: &[Value], key: Option<&str>) -> Vec<Value> {
    let Some(key) = key else { return live.to_vec() };
    let (plain, directives): (Vec<&Value>, Vec<&Value>) =
        patch.iter().partition(|element| element.get(PATCH).is_none());
    let deleted: HashSet<Option<&Value>> = directives.iter().map(|element| element.get(key)).collect();
    let kept: Vec<&Value> = live.iter().filter(|element| !deleted.contains(&element.get(key))).collect();
    let own: HashSet<Option<&Value>> = kept.iter().map(|element| element.get(key)).collect();
    // None are new to a list that is replaced.
    let replaces = directives.iter().any(|element| element[PATCH] == "replace");
    let new = plain.into_iter().filter(|element| !replaces && !own.contains(&element.get(key)));
    kept.iter().copied().chain(new).take(live.len()).cloned().collect()
}

/// Returns the first position of each element.
fn places<'a>(list: &'a [Value], key: Option<&str>) -> Result<HashMap<&'a Value, usize>, Failure> {
    let mut places = HashMap::with_capacity(list.len());
    for (at, element) in list.iter().enumerate() {
        places.entry(identity(element, key)?).or_insert(at);
    }
    Ok(places)
}

/// Sorts `merged`: elements in `wanted` by that, the others by `before`. Others go before the first element of `wanted`
/// that stood behind them.
pub(super) fn arrange(
    merged: Vec<Value>,
    wanted: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Failure> {
    let (wanted, before) = (places(wanted, key)?, places(before, key)?);
    let (mut listed, mut others) = (Vec::new(), Vec::new());
    for element in merged {
        let id = identity(&element, key)?;
        let was = before.get(id).copied();
        match wanted.get(id).copied() {
            Some(at) => listed.push((at, was, element)),
            None => others.push((was.unwrap_or(usize::MAX), was, element)),
        }
    }
    listed.sort_by_key(|(at, ..)| *at);
    others.sort_by_key(|(at, ..)| *at);
    Ok(interleave(others, listed))
}

type Placed = (usize, Option<usize>, Value);

fn interleave(others: Vec<Placed>, listed: Vec<Placed>) -> Vec<Value> {
    let mut all = Vec::with_capacity(others.len() + listed.len());
    let (mut others, mut listed) = (others.into_iter().peekable(), listed.into_iter().peekable());
    while let (Some((_, left, _)), Some((_, right, _))) = (others.peek(), listed.peek()) {
        let left_first = matches!((left, right), (Some(left), Some(right)) if left < right);
        let next = if left_first { others.next() } else { listed.next() };
        all.extend(next.map(|(.., element)| element));
    }
    all.extend(others.chain(listed).map(|(.., element)| element));
    all
}
