//! Kubernetes' own admission plugins that kube-apiserver enables by default, in its order.

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

use super::{AdmissionContext, pod_security};
use crate::hooks::{AdmissionRequest, Operation};
use crate::metrics::AdmissionStepLabels;

/// Runs the mutating plugins.
pub(super) async fn mutate(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let creates = request.operation == Operation::Create;
    match (&*request.kind.gvk.group, &*request.kind.resource, request.subresource) {
        ("", "pods", "") => pod(context, request, object, old).await,
        ("", "pods", "resize") => {
            timed(context, step(request, "LimitRanger", ADMIT), limits::mutate(&context.configuration, request, object))
                .await
        }
        ("", "nodes", "") if creates => {
            taint(object);
            Ok(())
        }
        ("", "persistentvolumeclaims", "") if creates => {
            classes::default_storage(&context.storage, request, object).await?;
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
        ("networking.k8s.io", "ingresses", "") if creates => {
            classes::default_ingress(&context.storage, request, object).await
        }
        _ => Ok(()),
    }
}

async fn pod(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    pod: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let creates = request.operation == Operation::Create;
    if creates {
        timed(context, step(request, "LimitRanger", ADMIT), limits::mutate(&context.configuration, request, pod))
            .await?;
        timed(
            context,
            step(request, "ServiceAccount", ADMIT),
            service_accounts::mutate(&context.storage, request, pod),
        )
        .await?;
    }
    timed(context, step(request, "Priority", ADMIT), priority::mutate(&context.configuration, request, pod, old))
        .await?;
    add_default_tolerations(pod);
    if creates {
        timed(context, step(request, "RuntimeClass", ADMIT), runtime_class::mutate(&context.storage, request, pod))
            .await?;
        timed(context, step(request, "PodTopologyLabels", ADMIT), topology::label_pod(&context.storage, request, pod))
            .await?;
    }
    Ok(())
}

/// Runs the mutating plugins for objects that are never stored.
pub(super) async fn mutate_unstored(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: &mut Value,
) -> Result<(), Status> {
    match (&*request.kind.gvk.group, &*request.kind.resource, request.subresource) {
        ("", "pods", "binding") => {
            timed(
                context,
                step(request, "PodTopologyLabels", ADMIT),
                topology::label_binding(&context.storage, request, object),
            )
            .await
        }
        _ => Ok(()),
    }
}

const ADMIT: &str = "admit";
const VALIDATE: &str = "validate";

/// Returns the labels of a plugin by its name in kube-apiserver.
fn step(request: &AdmissionRequest<'_>, name: &'static str, kind: &'static str) -> AdmissionStepLabels<'static> {
    AdmissionStepLabels { name, kind, operation: request.operation.word() }
}

/// Measures a plugin.
async fn timed(
    context: &AdmissionContext,
    step: AdmissionStepLabels<'static>,
    work: impl Future<Output = Result<(), Status>>,
) -> Result<(), Status> {
    context.metrics.admission.controller(step, work).await
}

/// Runs the validating plugins on the object as it would be stored.
pub(super) async fn validate(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let creates = request.operation == Operation::Create;
    let of = (&*request.kind.gvk.group, &*request.kind.resource, request.subresource);
    match of {
        ("", "pods", "") if creates => {
            limited(context, request, object, old).await?;
            with_account(context, request, object).await?;
        }
        ("", "pods", "resize") | ("", "persistentvolumeclaims", "") => limited(context, request, object, old).await?,
        ("", "pods", "ephemeralcontainers") => with_account(context, request, object).await?,
        _ => {}
    }
    let secure = pod_security::validate(&context.storage, request, object, old);
    timed(context, step(request, "PodSecurity", VALIDATE), secure).await?;
    match of {
        ("", "pods", "") if creates => {
            timed(
                context,
                step(request, "RuntimeClass", VALIDATE),
                runtime_class::validate(&context.storage, request, object),
            )
            .await
        }
        ("scheduling.k8s.io", "priorityclasses", "") => {
            priority::validate(&context.configuration, request, object).await
        }
        ("", "persistentvolumeclaims", "") => storage::check_growth(&context.storage, request, object, old).await,
        ("certificates.k8s.io", ..) => certificates::validate(&context.rbac, request, object, old).await,
        _ => Ok(()),
    }
}

async fn limited(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    timed(
        context,
        step(request, "LimitRanger", VALIDATE),
        limits::validate(&context.configuration, request, object, old),
    )
    .await
}

async fn with_account(
    context: &AdmissionContext,
    request: &AdmissionRequest<'_>,
    object: &Value,
) -> Result<(), Status> {
    timed(
        context,
        step(request, "ServiceAccount", VALIDATE),
        service_accounts::validate(&context.storage, request, object),
    )
    .await
}

/// Taints a new node until its controller has seen it.
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

/// Adds the tolerations of kube-apiserver's DefaultTolerationSeconds at create and update: unless it says otherwise,
/// a pod stays for five minutes on a node that is not ready or unreachable.
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
    fn pods_get_default_tolerations_unless_they_set_their_own() {
        for (case, own, added) in [
            ("nothing is said", json!([]), 2),
            (
                "one is said",
                json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]),
                1,
            ),
            ("all are said", json!([{"operator": "Exists"}]), 0),
            ("another effect does not matter", json!([{"operator": "Exists", "effect": "NoSchedule"}]), 2),
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
