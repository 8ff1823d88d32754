//! Secrets, ConfigMaps and claims that a pod references, and the missing ones among them.

use portolan_controllers::{Plane, PlaneError};
use portolan_types::{GroupResource, ObjectKey};
use serde_json::Value;

use crate::fields::{list, text};

/// Object that a pod references.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodReference {
    kind: &'static str,
    name: String,
    /// Key that the pod needs in it.
    key: Option<String>,
}

/// Missing objects of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MissingReferences {
    /// Volumes that cannot be mounted: name and reason. No container starts.
    pub(super) volumes: Vec<(String, String)>,
    /// Containers whose environment cannot be made: name and reason.
    pub(super) environments: Vec<(String, String)>,
}

impl PodReference {
    fn of(kind: &'static str, source: &Value) -> Option<Self> {
        let is_optional = source.get("optional").and_then(Value::as_bool) == Some(true);
        let name = ["name", "secretName"].iter().find_map(|field| source.get(*field)?.as_str())?;
        let key = source.get("key").and_then(Value::as_str).map(str::to_owned);
        (!is_optional && !name.is_empty()).then(|| Self { kind, name: name.to_owned(), key })
    }

    /// Returns why it is missing; `None` if it exists.
    async fn fault(&self, plane: &Plane, pod: &ObjectKey) -> Result<Option<String>, PlaneError> {
        let (Some(namespace), Ok(name)) = (pod.namespace(), self.name.parse()) else { return Ok(None) };
        let resource = GroupResource::new("", format!("{}s", self.kind));
        let key = ObjectKey::namespaced(pod.cluster, resource, namespace.clone(), name);
        let Some(found) = plane.get(&key).await? else {
            return Ok(Some(format!("{} {:?} not found", self.kind, self.name)));
        };
        let has = |key: &str| ["data", "binaryData"].iter().any(|map| found.object[*map].get(key).is_some());
        let kind = if self.kind == "secret" { "Secret" } else { "ConfigMap" };
        let lacks = self.key.as_deref().filter(|key| !has(key));
        Ok(lacks.map(|key| format!("couldn't find key {key} in {kind} {namespace}/{}", self.name)))
    }
}

/// The references of one volume.
fn of_volume(volume: &Value) -> Vec<PodReference> {
    let mut sources: Vec<(&'static str, &Value)> = Vec::new();
    for (field, kind) in [("secret", "secret"), ("configMap", "configmap")] {
        sources.extend(volume.get(field).map(|source| (kind, source)));
        let projected = list(volume, "/projected/sources").iter();
        sources.extend(projected.filter_map(|source| Some((kind, source.get(field)?))));
    }
    sources.into_iter().filter_map(|(kind, source)| PodReference::of(kind, source)).collect()
}

/// The references of one container's environment.
fn of_environment(container: &Value) -> Vec<PodReference> {
    let mut found = Vec::new();
    for (from, key, kind) in [("secretRef", "secretKeyRef", "secret"), ("configMapRef", "configMapKeyRef", "configmap")]
    {
        let whole = list(container, "/envFrom").iter().filter_map(|source| source.get(from));
        let keys = list(container, "/env").iter().filter_map(|variable| variable.get("valueFrom")?.get(key));
        found.extend(whole.chain(keys).filter_map(|source| PodReference::of(kind, source)));
    }
    found
}

/// Looks up the references of a pod.
pub(super) async fn missing(plane: &Plane, key: &ObjectKey, pod: &Value) -> Result<MissingReferences, PlaneError> {
    let mut missing = MissingReferences::default();
    for volume in list(pod, "/spec/volumes") {
        for reference in of_volume(volume) {
            let fault = reference.fault(plane, key).await?;
            missing.volumes.extend(fault.map(|why| (text(volume, "/name").to_owned(), why)));
        }
    }
    for container in list(pod, "/spec/initContainers").iter().chain(list(pod, "/spec/containers")) {
        for reference in of_environment(container) {
            let fault = reference.fault(plane, key).await?;
            missing.environments.extend(fault.map(|why| (text(container, "/name").to_owned(), why)));
        }
    }
    Ok(missing)
}

/// Returns the first missing claim of a pod.
pub(super) async fn missing_claim(plane: &Plane, key: &ObjectKey, pod: &Value) -> Result<Option<String>, PlaneError> {
    let claims = list(pod, "/spec/volumes").iter().map(|volume| text(volume, "/persistentVolumeClaim/claimName"));
    for claim in claims.filter(|claim| !claim.is_empty()) {
        let (Some(namespace), Ok(name)) = (key.namespace(), claim.parse()) else { continue };
        let resource = GroupResource::new("", "persistentvolumeclaims");
        let place = ObjectKey::namespaced(key.cluster, resource, namespace.clone(), name);
        if plane.get(&place).await?.is_none() {
            return Ok(Some(claim.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_found_unless_they_are_optional() {
        let reference = |kind: &'static str, name: &str, key: Option<&str>| PodReference {
            kind,
            name: name.into(),
            key: key.map(Into::into),
        };
        let volume = json!({"name": "v", "projected": {"sources": [{"secret": {"name": "a"}}, {"configMap": {"name": "b"}},
            {"secret": {"name": "c", "optional": true}}]}});
        assert_eq!(of_volume(&volume), [reference("secret", "a", None), reference("configmap", "b", None)]);
        assert_eq!(of_volume(&json!({"secret": {"secretName": "s"}})), [reference("secret", "s", None)]);
        let container = json!({
            "envFrom": [{"configMapRef": {"name": "c"}}],
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, {"name": "B", "value": "b"}],
        });
        assert_eq!(
            of_environment(&container),
            [reference("secret", "s", Some("k")), reference("configmap", "c", None)]
        );
    }
}
