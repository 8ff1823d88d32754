//! Pod Security admission: namespace labels limit what pods may use of their host.

mod checks;
mod policy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{GroupResource, Status, object};
use serde_json::Value;

use self::{
    checks::{PodSecurityViolation, violations},
    policy::{PodSecurityLevel, PodSecuritySettings, PodSecurityStandard},
};
use super::{forbidden, lookup};
use crate::hooks::{AdmissionRequest, Operation};
use crate::{errors::status_for, storage::StorageContext};

/// Limit of existing pods that are checked when a namespace becomes stricter.
const MAX_PODS: usize = 3000;
/// Time limit for checking existing pods.
const MAX_TIME: Duration = Duration::from_secs(1);

/// Checks pods and namespace labels, and warns of templates whose pods would be refused.
pub(super) async fn validate(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    match (&*request.kind.gvk.group, &*request.kind.resource, request.subresource) {
        ("", "namespaces", "") => namespace(storage, request, object, old).await,
        ("", "pods", "" | "resize" | "ephemeralcontainers") => pod(storage, request, object, old).await,
        (group, resource, "") => match template(group, resource) {
            Some(pointer) => controller(storage, request, object.pointer(pointer)).await,
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Returns the JSON pointer of the pod template of a kind.
fn template(group: &str, resource: &str) -> Option<&'static str> {
    match (group, resource) {
        ("", "podtemplates") => Some("/template"),
        ("", "replicationcontrollers")
        | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => Some("/spec/template"),
        ("batch", "cronjobs") => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

async fn pod(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    pod: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let (policy, _) = of_namespace(storage, request).await?;
    if policy.is_privileged() || old.is_some_and(|old| !changes_images(pod, old)) {
        return Ok(());
    }
    let annotations = object::metadata(pod).get("annotations");
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let found = violations(policy.enforce, annotations, spec);
    if !found.is_empty() {
        let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
        return Err(forbidden(request, Some(pod), why));
    }
    add_warnings(request, &policy, annotations, spec);
    Ok(())
}

async fn controller(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    template: Option<&Value>,
) -> Result<(), Status> {
    let Some((template, spec)) = template.and_then(|template| Some((template, template.get("spec")?))) else {
        return Ok(());
    };
    let (policy, _) = of_namespace(storage, request).await?;
    add_warnings(request, &policy, object::metadata(template).get("annotations"), spec);
    Ok(())
}

fn add_warnings(
    request: &AdmissionRequest<'_>,
    policy: &PodSecuritySettings,
    annotations: Option<&Value>,
    spec: &Value,
) {
    let found = violations(policy.warn, annotations, spec);
    if !found.is_empty() {
        request.warn(format!("would violate PodSecurity \"{}\": {}", policy.warn, details(&found)));
    }
    let found = violations(policy.audit, annotations, spec);
    if !found.is_empty() {
        let text = format!("would violate PodSecurity \"{}\": {}", policy.audit, details(&found));
        request.annotate("pod-security.kubernetes.io/audit-violations", &text);
    }
}

async fn of_namespace(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
) -> Result<(PodSecuritySettings, bool), Status> {
    let namespace = lookup::namespace(storage, request.cluster.id, request.namespace).await?;
    let found = namespace.is_some();
    Ok((PodSecuritySettings::of(&namespace.unwrap_or_default()).0, found))
}

async fn namespace(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    namespace: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let (policy, causes) = PodSecuritySettings::of(namespace);
    let before = old.map(PodSecuritySettings::of);
    let was_as_wrong = before.as_ref().is_some_and(|(_, before)| *before == causes);
    if !causes.is_empty() && !was_as_wrong {
        return Err(Status::invalid(&request.kind.gvk.group_kind(), object::name(namespace), causes));
    }
    let Some((before, _)) = before.filter(|_| request.operation == Operation::Update) else { return Ok(()) };
    let (new, old) = (policy.enforce, before.enforce);
    let not_stricter = new.version == old.version && new.level <= old.level;
    if new == old || new.level == PodSecurityLevel::Privileged || not_stricter {
        return Ok(());
    }
    for warning in existing(storage, request, object::name(namespace), new).await? {
        request.warn(warning);
    }
    Ok(())
}

/// Warns of existing pods that the new level would refuse.
async fn existing(
    storage: &StorageContext,
    request: &AdmissionRequest<'_>,
    namespace: &str,
    enforce: PodSecurityStandard,
) -> Result<Vec<String>, Status> {
    let mut found = ExistingPods::default();
    let is_whole = tokio::time::timeout(MAX_TIME, found.read(storage, request, namespace, enforce)).await;
    let (mut warnings, is_whole) = (Vec::new(), is_whole.unwrap_or(Ok(false))?);
    let ExistingPods { checked, by_reason } = found;
    if !is_whole {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of the existing pods"
        ));
    }
    if !by_reason.is_empty() {
        let text = "violate the new PodSecurity enforce level";
        warnings.push(format!("existing pods in namespace {namespace:?} {text} \"{enforce}\""));
    }
    let mut lines: Vec<String> = by_reason.iter().map(|(reason, alike)| alike.warning_text(reason)).collect();
    lines.sort();
    warnings.append(&mut lines);
    Ok(warnings)
}

/// Result of checking the pods of a namespace.
#[derive(Default)]
struct ExistingPods {
    checked: usize,
    by_reason: BTreeMap<String, ViolationGroup>,
}

/// Pods that would be refused for the same reason.
#[derive(Default)]
struct ViolationGroup {
    first: String,
    count: usize,
}

impl ExistingPods {
    /// Reads pods within the limits. Returns true if these were all.
    async fn read(
        &mut self,
        storage: &StorageContext,
        request: &AdmissionRequest<'_>,
        namespace: &str,
        enforce: PodSecurityStandard,
    ) -> Result<bool, Status> {
        let Ok(namespace) = namespace.parse() else { return Ok(true) };
        let scope = RangeScope::Namespace(request.cluster.id, GroupResource::new("", "pods"), namespace);
        let mut next = Some(RangeRequest::slices(scope));
        while let Some(slice) = next {
            let page = storage.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
            for pod in &page.objects {
                if self.checked == MAX_PODS {
                    return Ok(false);
                }
                self.check(&lookup::tree(pod)?, enforce);
            }
            next = slice.next(&page);
        }
        Ok(true)
    }

    fn check(&mut self, pod: &Value, enforce: PodSecurityStandard) {
        self.checked += 1;
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        let found = violations(enforce, object::metadata(pod).get("annotations"), spec);
        if found.is_empty() {
            return;
        }
        let alike = self.by_reason.entry(reasons(&found)).or_default();
        // Pods arrive ordered by name.
        if alike.count == 0 {
            object::name(pod).clone_into(&mut alike.first);
        }
        alike.count += 1;
    }
}

impl ViolationGroup {
    fn warning_text(&self, reason: &str) -> String {
        let first = &self.first;
        match self.count {
            0 | 1 => format!("{first}: {reason}"),
            2 => format!("{first} (and 1 other pod): {reason}"),
            n => format!("{first} (and {} other pods): {reason}", n - 1),
        }
    }
}

fn reasons(found: &[PodSecurityViolation]) -> String {
    found.iter().map(|violation| violation.reason).collect::<Vec<_>>().join(", ")
}

fn details(found: &[PodSecurityViolation]) -> String {
    let shown = found.iter().map(|violation| match violation.detail.as_str() {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns true if an update changes container images; other changes of a pod need no check.
fn changes_images(pod: &Value, old: &Value) -> bool {
    let images = |pod: &Value, key: &str| -> Vec<(Value, Value)> {
        let list = pod.pointer(&format!("/spec/{key}")).and_then(Value::as_array).into_iter().flatten();
        list.map(|container| (container["name"].clone(), container["image"].clone())).collect()
    };
    let plain = |key: &str| {
        let (new, old) = (images(pod, key), images(old, key));
        new.len() != old.len() || new.iter().zip(&old).any(|(new, old)| new.1 != old.1)
    };
    let before = images(old, "ephemeralContainers");
    let ephemeral = images(pod, "ephemeralContainers").iter().any(|container| !before.contains(container));
    plain("containers") || plain("initContainers") || ephemeral
}
