//! Certificate signing requests: the server sets the requester, and the times of conditions.

use portolan_types::object::child_mut;
use serde_json::Value;

use super::WriteContext;

/// Fields in which the server records the requester.
const ASKER: [&str; 4] = ["username", "uid", "groups", "extra"];

/// Sets the requester of a new request (`username`, `uid`, `groups`, `extra`), whatever the client sent.
pub fn set_requester(request: &mut Value, asker: &Value) {
    let Some(fields) = request.as_object_mut() else { return };
    let spec = child_mut(fields, "spec");
    for name in ASKER {
        match asker.get(name) {
            Some(value) => drop(spec.insert(name.to_owned(), value.clone())),
            None => drop(spec.remove(name)),
        }
    }
}

/// Conditions that only the endpoint `approval` changes.
const APPROVALS: [&str; 2] = ["Approved", "Denied"];

/// Takes the approvals of `old` over, as long as there are as many of them as before.
pub(super) fn keep_approvals(old: &Value, new: &mut Value) {
    for kind in APPROVALS {
        let before: Vec<Value> = conditions(old).filter(|one| is(one, kind)).cloned().collect();
        if conditions(new).filter(|one| is(one, kind)).count() != before.len() {
            continue;
        }
        let list = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
        let after = list.into_iter().flatten().filter(|one| is(one, kind));
        for (after, before) in after.zip(before) {
            *after = before;
        }
    }
}

/// Sets the times of the last update and the last transition of conditions.
pub(super) fn date_conditions(ctx: &WriteContext<'_>, old: &Value, new: &mut Value) {
    let now = ctx.seams.now_text();
    let list = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in list.into_iter().flatten() {
        let same = |one: &&Value| ["type", "status"].iter().all(|name| one.get(*name) == condition.get(*name));
        let since = conditions(old).filter(same).find_map(|one| one.get("lastTransitionTime").filter(|t| !t.is_null()));
        let since = since.cloned().unwrap_or_else(|| now.clone().into());
        let Some(fields) = condition.as_object_mut() else { continue };
        for (name, value) in [("lastUpdateTime", Value::from(now.clone())), ("lastTransitionTime", since)] {
            if fields.get(name).is_none_or(Value::is_null) {
                fields.insert(name.to_owned(), value);
            }
        }
    }
}

fn conditions(request: &Value) -> impl Iterator<Item = &Value> {
    request.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

fn is(condition: &Value, kind: &str) -> bool {
    condition.get("type").and_then(Value::as_str) == Some(kind)
}
