//! The order of merged lists: what the patch lists stands as the patch has it, the rest as it stood.

use serde_json::Value;

use super::{Failure, PATCH};

/// The element itself, or the value of its merge key.
fn identity<'a>(element: &'a Value, key: Option<&str>) -> Result<&'a Value, Failure> {
    match key {
        None => Ok(element),
        Some(key) => element.get(key).ok_or_else(|| Failure::NoMergeKey(element.clone(), key.into())),
    }
}

/// Checks that `order` has all elements of `patch`, and in the same order. Elements with directives do not count.
pub(super) fn check(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Failure> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for element in patch.iter().filter(|element| element.get(PATCH).is_none()) {
        let wanted = identity(element, key)?;
        let found = loop {
            match rest.next() {
                None => break false,
                Some(next) if identity(next, key)? == wanted => break true,
                Some(_) => {}
            }
        };
        if !found {
            return Err(Failure::Order(patch.to_vec().into(), order.to_vec().into()));
        }
    }
    Ok(())
}

/// The order that the live list counts as having: as upstream, new elements of the patch take the slots of deleted ones.
pub(super) fn slots(live: &[Value], patch: &[Value], key: Option<&str>) -> Vec<Value> {
    let Some(key) = key else { return live.to_vec() };
    let is_deleted = |element: &&Value| patch.iter().any(|p| p.get(PATCH).is_some() && p.get(key) == element.get(key));
    let kept: Vec<&Value> = live.iter().filter(|element| !is_deleted(element)).collect();
    let is_new = |element: &&Value| !kept.iter().any(|own| own.get(key) == element.get(key));
    let new = patch.iter().filter(|element| element.get(PATCH).is_none()).filter(is_new);
    kept.iter().copied().chain(new).take(live.len()).cloned().collect()
}

/// Sorts `merged`: elements in `wanted` by that, the others by `before`. Others go before the first element of `wanted`
/// that stood behind them.
pub(super) fn arrange(
    merged: Vec<Value>,
    wanted: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Failure> {
    let ids = |list: &[Value]| list.iter().map(|e| identity(e, key).cloned()).collect::<Result<Vec<_>, _>>();
    let (wanted, before) = (ids(wanted)?, ids(before)?);
    let place = |list: &[Value], id: &Value| list.iter().position(|other| other == id);
    let (mut listed, mut others) = (Vec::new(), Vec::new());
    for element in merged {
        let id = identity(&element, key)?.clone();
        let was = place(&before, &id);
        match place(&wanted, &id) {
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
