//! What the runtime class of a pod brings with it: overhead, and where it can run.

use portolan_machinery::quota::amounts;
use portolan_types::{Status, object::child_mut};
use serde_json::Value;

use super::super::{Request, forbidden, lookup};
use crate::ApiServer;

/// The class of a pod; `None` when it names none.
async fn class_of(api: &ApiServer, request: &Request<'_>, pod: &Value) -> Result<Option<Value>, Status> {
    let name = pod.pointer("/spec/runtimeClassName").and_then(Value::as_str);
    let Some(name) = name else { return Ok(None) };
    let class = lookup::cluster_scoped(api, request.cluster.id, ("node.k8s.io", "runtimeclasses"), name).await?;
    let missing = || forbidden(request, Some(pod), format!("pod rejected: RuntimeClass {name:?} not found"));
    class.map(Some).ok_or_else(missing)
}

fn overhead_of(class: &Value) -> Option<&Value> {
    class.get("overhead").filter(|overhead| !overhead.is_null())
}

const OTHER_OVERHEAD: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(super) async fn mutate(api: &ApiServer, request: &Request<'_>, pod: &mut Value) -> Result<(), Status> {
    let Some(class) = class_of(api, request, pod).await? else { return Ok(()) };
    if let Some(overhead) = overhead_of(&class) {
        let fixed = overhead.get("podFixed").cloned().unwrap_or_default();
        let own = amounts(pod.pointer("/spec/overhead"));
        if !own.is_empty() && own != amounts(Some(&fixed)) {
            return Err(forbidden(request, Some(pod), OTHER_OVERHEAD));
        }
        if let Some(top) = pod.as_object_mut() {
            child_mut(top, "spec").insert("overhead".into(), fixed);
        }
    }
    let selector = class.pointer("/scheduling/nodeSelector").and_then(Value::as_object).into_iter().flatten();
    for (key, wanted) in selector {
        let own = pod.pointer("/spec/nodeSelector").and_then(|selector| selector.get(key));
        if let Some(own) = own.filter(|own| *own != wanted) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (wanted, own) = (text(wanted), text(own));
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {own}"
            );
            return Err(forbidden(request, Some(pod), why));
        }
        if let Some(top) = pod.as_object_mut() {
            child_mut(child_mut(top, "spec"), "nodeSelector").insert(key.clone(), wanted.clone());
        }
    }
    tolerate(pod, class.pointer("/scheduling/tolerations"));
    Ok(())
}

fn tolerate(pod: &mut Value, more: Option<&Value>) {
    let Some(more) = more.and_then(Value::as_array).filter(|more| !more.is_empty()) else { return };
    let Some(top) = pod.as_object_mut() else { return };
    let spec = child_mut(top, "spec");
    let mut all: Vec<Value> = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    all.extend(more.iter().cloned());
    spec.insert("tolerations".into(), merged(&all).into());
}

/// Without those that others include; of equal ones the first stays.
fn merged(all: &[Value]) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let by_earlier = kept.iter().any(|other| includes(other, one));
        let by_later = all[at + 1..].iter().any(|other| other != one && includes(other, one));
        if !by_earlier && !by_later {
            kept.push(one.clone());
        }
    }
    kept
}

/// Whether `wide` tolerates all that `narrow` does.
fn includes(wide: &Value, narrow: &Value) -> bool {
    fn text<'v>(of: &'v Value, key: &str) -> &'v str {
        of.get(key).and_then(Value::as_str).unwrap_or_default()
    }
    let seconds = |of: &Value| of.get("tolerationSeconds").and_then(Value::as_i64);
    if wide == narrow {
        return true;
    }
    let any_key = text(wide, "key").is_empty() && text(wide, "operator") == "Exists";
    let any_effect = text(wide, "effect").is_empty();
    let same = |key: &str| text(wide, key) == text(narrow, key);
    let lasts = match (text(wide, "effect"), seconds(wide)) {
        ("NoExecute", Some(most)) => seconds(narrow).is_some_and(|own| own <= most),
        _ => true,
    };
    let matches = match text(wide, "operator") {
        "" | "Equal" => text(narrow, "operator") == "Equal" && same("value"),
        "Exists" => true,
        _ => false,
    };
    (any_key || same("key")) && (any_effect || same("effect")) && lasts && matches
}

pub(super) async fn validate(api: &ApiServer, request: &Request<'_>, pod: &Value) -> Result<(), Status> {
    let own = pod.pointer("/spec/overhead").filter(|overhead| !overhead.is_null());
    let class = class_of(api, request, pod).await?;
    match (class.as_ref().and_then(overhead_of), own) {
        (Some(overhead), own) => match amounts(overhead.get("podFixed")) == amounts(own) {
            true => Ok(()),
            false => Err(forbidden(request, Some(pod), OTHER_OVERHEAD)),
        },
        (None, None) => Ok(()),
        (None, Some(_)) => {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            Err(forbidden(request, Some(pod), why))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tolerations_that_others_include_are_left_out() {
        let exists = |key: &str| json!({"key": key, "operator": "Exists"});
        let equal = |value: &str| json!({"key": "a", "operator": "Equal", "value": value});
        let until = |seconds: i64| json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let at_once = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        for (case, all, expected) in [
            ("equal ones", vec![equal("x"), equal("x")], vec![equal("x")]),
            ("a value before all values", vec![equal("x"), exists("a")], vec![exists("a")]),
            ("a value after all values", vec![exists("a"), equal("x")], vec![exists("a")]),
            ("other keys", vec![exists("a"), exists("b")], vec![exists("a"), exists("b")]),
            ("all keys", vec![exists("a"), json!({"operator": "Exists"})], vec![json!({"operator": "Exists"})]),
            ("a shorter time", vec![at_once.clone(), until(9)], vec![until(9)]),
            ("a longer time", vec![at_once.clone(), until(3)], vec![at_once.clone(), until(3)]),
            ("for ever", vec![exists("a"), until(3)], vec![exists("a"), until(3)]),
        ] {
            assert_eq!(merged(&all), expected, "{case}");
        }
    }
}
