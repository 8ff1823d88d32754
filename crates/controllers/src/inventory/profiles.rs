//! `ClusterProfile`: a physical cluster as other tools read it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use portolan_kinds::Kind;
use portolan_types::object;
use serde_json::{Value, json};

use super::{InventoryController, MANAGER, MANAGER_LABEL, condition, owner_of};
use crate::{
    plane::{PlaneError, PlaneObject},
    remaining_content::set_conditions,
};

/// Fields of a profile's status that this controller writes, beside its conditions.
const STATUS_FIELDS: [&str; 3] = ["version", "properties", "accessProviders"];

impl InventoryController {
    /// Writes the profile of a physical cluster.
    pub(super) async fn write_profile(&self, kind: &Kind, source: &PlaneObject) -> Result<(), PlaneError> {
        let cluster = source.key.cluster;
        let namespace = self.profiles_namespace(cluster).await?;
        let (now, status) = (self.plane.seams().now_text(), profile_status(&source.object, &self.ca));
        let set_status = |profile: &mut Value| {
            set_conditions(profile, conditions(&source.object), &now);
            for field in STATUS_FIELDS {
                profile["status"][field] = status[field].clone();
            }
        };
        let mut wanted = profile(kind, &source.object, &namespace);
        set_status(&mut wanted);
        self.put(kind, cluster, &wanted, |profile| {
            object::metadata_mut(profile).insert("ownerReferences".into(), owner_of(&source.object));
            let labels = object::child_mut(object::metadata_mut(profile), "labels");
            labels.insert(MANAGER_LABEL.into(), MANAGER.into());
            profile["spec"]["displayName"] = wanted["spec"]["displayName"].clone();
        })
        .await?;
        let subresource = kind.subresources.iter().any(|own| &*own.name == "status").then_some("status");
        self.update(kind, &self.plane.key_of(kind, cluster, &wanted)?, subresource, set_status).await
    }
}

fn profile(kind: &Kind, source: &Value, namespace: &str) -> Value {
    let name = object::name(source);
    json!({
        "apiVersion": kind.gvk.group_version().to_string(),
        "kind": &*kind.gvk.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {MANAGER_LABEL: MANAGER},
            "ownerReferences": owner_of(source),
        },
        "spec": {"displayName": name, "clusterManager": {"name": MANAGER}},
    })
}

/// Returns the conditions of a profile. A physical cluster is healthy if its API server answers.
fn conditions(source: &Value) -> [Value; 2] {
    let ready = condition(source, "Ready");
    let text = |field: &str, default: &str| {
        let text = ready.and_then(|ready| ready.get(field)?.as_str());
        text.filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
    };
    let healthy = json!({
        "type": "ControlPlaneHealthy",
        "status": text("status", "Unknown"),
        "reason": text("reason", "NotReported"),
        "message": text("message", "the physical cluster has not been reached yet"),
    });
    let joined =
        json!({"type": "Joined", "status": "True", "reason": "Registered", "message": "registered as PhysicalCluster"});
    [healthy, joined]
}

/// Returns the other fields of a profile's status: the version, a property per label and per allocatable resource, and
/// the address of the proxy, where the consumer's own credential for this server is valid.
fn profile_status(source: &Value, ca: &str) -> Value {
    let text = |path: &str| source.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let labels = source.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let labels = labels.filter(|(_, value)| value.as_str().is_some_and(|value| !value.is_empty()));
    let amounts = source.pointer("/status/allocatable").and_then(Value::as_object).into_iter().flatten();
    let amounts = amounts.map(|(name, amount)| (format!("allocatable.portolan.dev/{name}"), amount));
    let properties = labels.map(|(name, value)| (name.clone(), value)).chain(amounts);
    let properties: Vec<Value> = properties.map(|(name, value)| json!({"name": name, "value": value})).collect();
    let url = text("/status/URL");
    let access =
        json!({"name": MANAGER, "cluster": {"server": url, "certificate-authority-data": STANDARD.encode(ca)}});
    json!({
        "version": {"kubernetes": text("/status/version")},
        "properties": properties,
        "accessProviders": if url.is_empty() { json!([]) } else { json!([access]) },
    })
}
