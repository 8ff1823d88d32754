//! Kubernetes' own steps, those that kube-apiserver runs by default, in its order.

mod certificates;
mod classes;
mod limits;
mod priority;
mod runtime_class;
mod service_accounts;
mod storage;
mod topology;

use portolan_types::{Status, object::child_mut};
use serde_json::{Value, json};

use super::{Operation, Request, pod_security};
use crate::{ApiServer, metrics::Step};

/// Fills in what Kubernetes fills in.
pub(super) async fn mutate(
    api: &ApiServer,
    request: &Request<'_>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let creates = request.operation == Operation::Create;
    match (&*request.kind.gvk.group, &*request.kind.resource, request.subresource) {
        ("", "pods", "") => pod(api, request, object, old).await,
        ("", "pods", "resize") => {
            timed(api, request, ("LimitRanger", ADMIT), limits::mutate(api, request, object)).await
        }
        ("", "nodes", "") if creates => {
            taint(object);
            Ok(())
        }
        ("", "persistentvolumeclaims", "") if creates => {
            classes::default_storage(api, request, object).await?;
            storage::protect(object, storage::CLAIM_FINALIZER);
            Ok(())
        }
        ("", "persistentvolumes", "") if creates => {
            storage::protect(object, storage::VOLUME_FINALIZER);
            Ok(())
        }
        ("storage.k8s.io", "volumeattributesclasses", "") if creates => {
            storage::protect(object, storage::ATTRIBUTES_FINALIZER);
            Ok(())
        }
        ("networking.k8s.io", "ingresses", "") if creates => classes::default_ingress(api, request, object).await,
        _ => Ok(()),
    }
}

async fn pod(api: &ApiServer, request: &Request<'_>, pod: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let creates = request.operation == Operation::Create;
    if creates {
        timed(api, request, ("LimitRanger", ADMIT), limits::mutate(api, request, pod)).await?;
        timed(api, request, ("ServiceAccount", ADMIT), service_accounts::mutate(api, request, pod)).await?;
    }
    timed(api, request, ("Priority", ADMIT), priority::mutate(api, request, pod, old)).await?;
    add_default_tolerations(pod);
    if creates {
        timed(api, request, ("RuntimeClass", ADMIT), runtime_class::mutate(api, request, pod)).await?;
        timed(api, request, ("PodTopologyLabels", ADMIT), topology::label_pod(api, request, pod)).await?;
    }
    Ok(())
}

/// Fills in what is never stored itself.
pub(super) async fn mutate_passing(api: &ApiServer, request: &Request<'_>, object: &mut Value) -> Result<(), Status> {
    match (&*request.kind.gvk.group, &*request.kind.resource, request.subresource) {
        ("", "pods", "binding") => {
            timed(api, request, ("PodTopologyLabels", ADMIT), topology::label_binding(api, request, object)).await
        }
        _ => Ok(()),
    }
}

const ADMIT: &str = "admit";
const VALIDATE: &str = "validate";

/// Measures a step under the name that it has in kube-apiserver.
async fn timed(
    api: &ApiServer,
    request: &Request<'_>,
    (name, kind): (&'static str, &'static str),
    work: impl Future<Output = Result<(), Status>>,
) -> Result<(), Status> {
    api.metrics.admission.controller(Step { name, kind, operation: request.operation.word() }, work).await
}

/// Looks at the object as it would be stored.
pub(super) async fn validate(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let creates = request.operation == Operation::Create;
    let of = (&*request.kind.gvk.group, &*request.kind.resource, request.subresource);
    match of {
        ("", "pods", "") if creates => {
            limited(api, request, object, old).await?;
            with_account(api, request, object).await?;
        }
        ("", "pods", "resize") | ("", "persistentvolumeclaims", "") => limited(api, request, object, old).await?,
        ("", "pods", "ephemeralcontainers") => with_account(api, request, object).await?,
        _ => {}
    }
    let secure = pod_security::validate(api, request, object, old);
    timed(api, request, ("PodSecurity", VALIDATE), secure).await?;
    match of {
        ("", "pods", "") if creates => {
            timed(api, request, ("RuntimeClass", VALIDATE), runtime_class::validate(api, request, object)).await
        }
        ("scheduling.k8s.io", "priorityclasses", "") => priority::validate(api, request, object).await,
        ("", "persistentvolumeclaims", "") => storage::check_growth(api, request, object, old).await,
        ("certificates.k8s.io", ..) => certificates::validate(api, request, object, old).await,
        _ => Ok(()),
    }
}

async fn limited(api: &ApiServer, request: &Request<'_>, object: &Value, old: Option<&Value>) -> Result<(), Status> {
    timed(api, request, ("LimitRanger", VALIDATE), limits::validate(api, request, object, old)).await
}

async fn with_account(api: &ApiServer, request: &Request<'_>, object: &Value) -> Result<(), Status> {
    timed(api, request, ("ServiceAccount", VALIDATE), service_accounts::validate(api, request, object)).await
}

/// A new node is not ready until its controller has looked at it.
fn taint(node: &mut Value) {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    let Some(top) = node.as_object_mut() else { return };
    let taints = child_mut(top, "spec").entry("taints").or_insert_with(|| json!([]));
    if taints.is_null() {
        *taints = json!([]);
    }
    let Some(taints) = taints.as_array_mut() else { return };
    let has = taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule");
    if !has {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

/// Adds the tolerations that kube-apiserver's DefaultTolerationSeconds adds at create and update: a pod stays for five minutes on
/// a node that is not ready or unreachable, unless it says otherwise.
pub fn add_default_tolerations(pod: &mut Value) {
    const SECONDS: u32 = 300;
    let Some(top) = pod.as_object_mut() else { return };
    let spec = child_mut(top, "spec");
    let own: Vec<Value> = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let says = |key: &str| {
        own.iter().any(|toleration| {
            let text = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or_default();
            (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
        })
    };
    let missing =
        ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].into_iter().filter(|key| !says(key));
    let added: Vec<Value> = missing
        .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS}))
        .collect();
    if !added.is_empty() {
        spec.insert("tolerations".into(), own.into_iter().chain(added).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_tolerate_silence_unless_they_say_otherwise() {
        for (case, own, added) in [
            ("nothing is said", json!([]), 2),
            (
                "one is said",
                json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]),
                1,
            ),
            ("all are said", json!([{"operator": "Exists"}]), 0),
            ("another effect is no matter", json!([{"operator": "Exists", "effect": "NoSchedule"}]), 2),
        ] {
            let mut pod = json!({"spec": {"tolerations": own}});
            add_default_tolerations(&mut pod);
            let now = pod["spec"]["tolerations"].as_array().unwrap().len();
            assert_eq!(now, own.as_array().unwrap().len() + added, "{case}");
        }
    }

    #[test]
    fn new_nodes_are_tainted_once() {
        let mut node = json!({"metadata": {"name": "n"}});
        taint(&mut node);
        taint(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
    }
}
