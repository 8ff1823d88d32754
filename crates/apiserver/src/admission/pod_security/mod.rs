//! Pod Security: what pods of a namespace may ask of their host, by labels of the namespace.

mod checks;
mod policy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use portolan_store::{RangeRequest, RangeScope};
use portolan_types::{GroupResource, Status, object};
use serde_json::Value;

use self::{
    checks::{Violation, violations},
    policy::{Level, Policy, Standard},
};
use super::{Operation, Request, forbidden, lookup};
use crate::{ApiServer, errors::status_for};

/// Existing pods that are looked at when a namespace gets stricter.
const MAX_PODS: usize = 3000;
/// How long existing pods are looked at.
const MAX_TIME: Duration = Duration::from_secs(1);

/// Checks pods, warns of templates that could make none, and checks the labels of namespaces.
pub(super) async fn validate(
    api: &ApiServer,
    request: &Request<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    match (&*request.kind.gvk.group, &*request.kind.resource, request.subresource) {
        ("", "namespaces", "") => namespace(api, request, object, old).await,
        ("", "pods", "" | "resize" | "ephemeralcontainers") => pod(api, request, object, old).await,
        (group, resource, "") => match template(group, resource) {
            Some(pointer) => controller(api, request, object.pointer(pointer)).await,
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Where kinds have their pod template.
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

async fn pod(api: &ApiServer, request: &Request<'_>, pod: &Value, old: Option<&Value>) -> Result<(), Status> {
    let (policy, _) = of_namespace(api, request).await?;
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
    tell(request, &policy, annotations, spec);
    Ok(())
}

async fn controller(api: &ApiServer, request: &Request<'_>, template: Option<&Value>) -> Result<(), Status> {
    let Some((template, spec)) = template.and_then(|template| Some((template, template.get("spec")?))) else {
        return Ok(());
    };
    let (policy, _) = of_namespace(api, request).await?;
    tell(request, &policy, object::metadata(template).get("annotations"), spec);
    Ok(())
}

fn tell(request: &Request<'_>, policy: &Policy, annotations: Option<&Value>, spec: &Value) {
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

async fn of_namespace(api: &ApiServer, request: &Request<'_>) -> Result<(Policy, bool), Status> {
    let namespace = lookup::namespace(api, request.cluster.id, request.namespace).await?;
    let found = namespace.is_some();
    Ok((Policy::of(&namespace.unwrap_or_default()).0, found))
}

async fn namespace(
    api: &ApiServer,
    request: &Request<'_>,
    namespace: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let (policy, causes) = Policy::of(namespace);
    let before = old.map(Policy::of);
    let was_as_wrong = before.as_ref().is_some_and(|(_, before)| *before == causes);
    if !causes.is_empty() && !was_as_wrong {
        return Err(Status::invalid(&request.kind.gvk.group_kind(), object::name(namespace), causes));
    }
    let Some((before, _)) = before.filter(|_| request.operation == Operation::Update) else { return Ok(()) };
    let (new, old) = (policy.enforce, before.enforce);
    let not_stricter = new.version == old.version && new.level <= old.level;
    if new == old || new.level == Level::Privileged || not_stricter {
        return Ok(());
    }
    for warning in existing(api, request, object::name(namespace), new).await? {
        request.warn(warning);
    }
    Ok(())
}

/// What pods that are there would be refused for now.
async fn existing(
    api: &ApiServer,
    request: &Request<'_>,
    namespace: &str,
    enforce: Standard,
) -> Result<Vec<String>, Status> {
    let mut found = Existing::default();
    let is_whole = tokio::time::timeout(MAX_TIME, found.read(api, request, namespace, enforce)).await;
    let (mut warnings, is_whole) = (Vec::new(), is_whole.unwrap_or(Ok(false))?);
    let Existing { checked, by_reason } = found;
    if !is_whole {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of the existing pods"
        ));
    }
    if !by_reason.is_empty() {
        let text = "violate the new PodSecurity enforce level";
        warnings.push(format!("existing pods in namespace {namespace:?} {text} \"{enforce}\""));
    }
    let mut lines: Vec<String> = by_reason.iter().map(|(reason, alike)| alike.told(reason)).collect();
    lines.sort();
    warnings.append(&mut lines);
    Ok(warnings)
}

/// What was found out about the pods of a namespace.
#[derive(Default)]
struct Existing {
    checked: usize,
    by_reason: BTreeMap<String, Alike>,
}

/// Pods that would be refused for the same reason.
#[derive(Default)]
struct Alike {
    first: String,
    count: usize,
}

impl Existing {
    /// Reads pods, as many as may be looked at; whether these were all.
    async fn read(
        &mut self,
        api: &ApiServer,
        request: &Request<'_>,
        namespace: &str,
        enforce: Standard,
    ) -> Result<bool, Status> {
        let Ok(namespace) = namespace.parse() else { return Ok(true) };
        let scope = RangeScope::Namespace(request.cluster.id, GroupResource::new("", "pods"), namespace);
        let mut next = Some(RangeRequest::slices(scope));
        while let Some(slice) = next {
            let page = api.store.range(slice.clone()).await.map_err(|e| status_for(&e))?;
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

    fn check(&mut self, pod: &Value, enforce: Standard) {
        self.checked += 1;
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        let found = violations(enforce, object::metadata(pod).get("annotations"), spec);
        if found.is_empty() {
            return;
        }
        let alike = self.by_reason.entry(reasons(&found)).or_default();
        // They come by name.
        if alike.count == 0 {
            object::name(pod).clone_into(&mut alike.first);
        }
        alike.count += 1;
    }
}

impl Alike {
    fn told(&self, reason: &str) -> String {
        let first = &self.first;
        match self.count {
            0 | 1 => format!("{first}: {reason}"),
            2 => format!("{first} (and 1 other pod): {reason}"),
            n => format!("{first} (and {} other pods): {reason}", n - 1),
        }
    }
}

fn reasons(found: &[Violation]) -> String {
    found.iter().map(|violation| violation.reason).collect::<Vec<_>>().join(", ")
}

fn details(found: &[Violation]) -> String {
    let shown = found.iter().map(|violation| match violation.detail.as_str() {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Of an update of a pod only other images are worth another look.
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
