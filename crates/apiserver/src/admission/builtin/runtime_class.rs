//! RuntimeClass admission: adds the overhead, node selector and tolerations of a pod's class.

use portolan_strategy::quota::amounts;
use portolan_types::{GroupResource, Reason, Status, object::child_mut, quoted::go_quoted};
use serde_json::Value;

use super::super::{forbidden, lookup};
use crate::hooks::AdmissionRequest;
use crate::{request::invalid_client_name, storage::StorageContext};

/// Limit of tolerations of a pod and its class, which are compared pairwise.
const MAX_TOLERATIONS: usize = 2000;

/// Returns the runtime class of a pod; `None` if it names none.
async fn class_of(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &Value,
) -> Result<Option<Value>, Status> {
    let name = pod.pointer("/spec/runtimeClassName").and_then(Value::as_str);
    let Some(name) = name else { return Ok(None) };
    let resource = GroupResource::new("node.k8s.io", "runtimeclasses");
    let class = lookup::cluster_scoped(storage, request.cluster.id, resource, name).await?;
    let missing = || match invalid_client_name(name) {
        Some(why) => Status::new(Reason::Unknown, why),
        None => forbidden(request, Some(pod), format!("pod rejected: RuntimeClass {} not found", go_quoted(name))),
    };
    class.map(Some).ok_or_else(missing)
}

fn overhead_of(class: &Value) -> Option<&Value> {
    class.get("overhead").filter(|overhead| !overhead.is_null())
}

const OTHER_OVERHEAD: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(super) async fn mutate(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
) -> Result<(), Status> {
    let Some(class) = class_of(storage, request, pod).await? else { return Ok(()) };
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
    let more = class.pointer("/scheduling/tolerations").and_then(Value::as_array).filter(|more| !more.is_empty());
    let Some(more) = more else { return Ok(()) };
    match with_tolerations(pod, more) {
        Some(all) => {
            if let Some(top) = pod.as_object_mut() {
                child_mut(top, "spec").insert("tolerations".into(), all.into());
            }
            Ok(())
        }
        None => {
            let why = format!("pod rejected: more than {MAX_TOLERATIONS} tolerations, with those of its RuntimeClass");
            Err(forbidden(request, Some(pod), why))
        }
    }
}

/// Merges the tolerations of a pod and its class; `None` beyond the limit.
fn with_tolerations(pod: &Value, more: &[Value]) -> Option<Vec<Value>> {
    let own = pod.pointer("/spec/tolerations").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let all: Vec<&Value> = own.iter().chain(more).collect();
    (all.len() <= MAX_TOLERATIONS).then(|| merged(&all))
}

/// Removes tolerations that others include; of equal ones the first stays.
fn merged(all: &[&Value]) -> Vec<Value> {
    let read: Vec<TolerationRef<'_>> = all.iter().copied().map(TolerationRef::of).collect();
    let mut kept: Vec<usize> = Vec::new();
    for (at, one) in read.iter().enumerate() {
        let by_earlier = kept.iter().any(|other| read[*other].includes(one));
        let by_later = read[at + 1..].iter().any(|other| other != one && other.includes(one));
        if !by_earlier && !by_later {
            kept.push(at);
        }
    }
    kept.into_iter().map(|at| all[at].clone()).collect()
}

#[derive(PartialEq)]
struct TolerationRef<'a> {
    key: &'a str,
    operator: &'a str,
    value: &'a str,
    effect: &'a str,
    seconds: Option<i64>,
}

impl<'a> TolerationRef<'a> {
    fn of(toleration: &'a Value) -> Self {
        let text = |key: &str| toleration.get(key).and_then(Value::as_str).unwrap_or_default();
        let seconds = toleration.get("tolerationSeconds").and_then(Value::as_i64);
        let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
        Self { key, operator, value, effect, seconds }
    }

    /// Returns true if it tolerates all that `narrow` does.
    fn includes(&self, narrow: &Self) -> bool {
        if self == narrow {
            return true;
        }
        let any_key = self.key.is_empty() && self.operator == "Exists";
        let lasts = match (self.effect, self.seconds) {
            ("NoExecute", Some(most)) => narrow.seconds.is_some_and(|own| own <= most),
            _ => true,
        };
        let matches = match self.operator {
            "" | "Equal" => narrow.operator == "Equal" && self.value == narrow.value,
            "Exists" => true,
            _ => false,
        };
        (any_key || self.key == narrow.key)
            && (self.effect.is_empty() || self.effect == narrow.effect)
            && lasts
            && matches
    }
}

pub(super) async fn validate(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &Value,
) -> Result<(), Status> {
    let own = pod.pointer("/spec/overhead").filter(|overhead| !overhead.is_null());
    let class = class_of(storage, request, pod).await?;
    match (class.as_ref().and_then(overhead_of), own) {
        (Some(overhead), own) => {
            if amounts(overhead.get("podFixed")) == amounts(own) {
                Ok(())
            } else {
                Err(forbidden(request, Some(pod), OTHER_OVERHEAD))
            }
        }
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
    fn redundant_tolerations_are_removed() {
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
            assert_eq!(merged(&all.iter().collect::<Vec<_>>()), expected, "{case}");
        }
    }

    #[test]
    fn too_many_tolerations_are_refused() {
        let many = |count: usize| -> Vec<Value> { (0..count).map(|n| json!({"key": n.to_string()})).collect() };
        let pod = |count: usize| json!({"spec": {"tolerations": many(count)}});
        let class = [json!({"key": "a", "operator": "Exists"})];
        assert_eq!(with_tolerations(&pod(MAX_TOLERATIONS - 1), &class).map(|all| all.len()), Some(MAX_TOLERATIONS));
        assert_eq!(with_tolerations(&pod(MAX_TOLERATIONS), &class), None);
    }
}
