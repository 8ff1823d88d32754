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
    let Some(more) = more.and_then(Value::as_array) else { return };
    let Some(top) = pod.as_object_mut() else { return };
    let spec = child_mut(top, "spec");
    let mut all: Vec<Value> = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    for toleration in more {
        if !all.contains(toleration) {
            all.push(toleration.clone());
        }
    }
    spec.insert("tolerations".into(), all.into());
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
