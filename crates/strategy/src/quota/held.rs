//! Resources that containers hold during an in-place resize: the pod's status shows them, and they may exceed the
//! spec.

use std::{borrow::Cow, collections::HashMap};

use portolan_types::object::Object;
use serde_json::{Value, json};

use super::{Amounts, amounts, list, resources::raise};

/// Returns the spec of a pod as quotas count it: with the allocated or actual amounts of each container, if larger.
pub(super) fn spec(pod: &Value) -> Cow<'_, Value> {
    static NOTHING: Value = Value::Null;
    let spec = pod.get("spec").unwrap_or(&NOTHING);
    let statuses = statuses(pod);
    if statuses.is_empty() {
        return Cow::Borrowed(spec);
    }
    let refused = is_refused(pod);
    let mut held = spec.clone();
    for (key, sidecars_only) in [("containers", false), ("initContainers", true)] {
        let containers = held.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let counts = !sidecars_only || container.get("restartPolicy").and_then(Value::as_str) == Some("Always");
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            if let Some(status) = statuses.get(name).filter(|_| counts) {
                let resources = of_container(container, status, refused);
                container.insert("resources".into(), resources);
            }
        }
    }
    Cow::Owned(held)
}

/// Returns the statuses of containers that report resources, by name.
fn statuses(pod: &Value) -> HashMap<&str, &Value> {
    let list = |key: &str| pod.pointer(&format!("/status/{key}")).and_then(Value::as_array).into_iter().flatten();
    let all = list("containerStatuses").chain(list("initContainerStatuses"));
    let telling = all.filter(|status| status.get("resources").is_some_and(Value::is_object));
    telling.filter_map(|status| Some((status.get("name")?.as_str()?, status))).collect()
}

/// Returns true if the node cannot satisfy the spec now: then only the amounts that containers hold count.
fn is_refused(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let text = |condition: &Value, key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let pending = conditions.into_iter().flatten().find(|one| text(one, "type") == "PodResizePending");
    pending.is_some_and(|condition| text(condition, "reason") == "Infeasible")
}

fn of_container(container: &Object, status: &Value, refused: bool) -> Value {
    let asked = |key: &str| {
        if refused { Amounts::new() } else { amounts(container.get("resources").and_then(|all| all.get(key))) }
    };
    let has = |key: &str| amounts(status.get("resources").and_then(|all| all.get(key)));
    let (mut requests, mut limits) = (asked("requests"), asked("limits"));
    raise(&mut requests, &has("requests"));
    raise(&mut requests, &amounts(status.get("allocatedResources")));
    raise(&mut limits, &has("limits"));
    json!({"requests": list(&requests), "limits": list(&limits)})
}
