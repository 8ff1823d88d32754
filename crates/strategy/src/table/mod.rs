//! Tables: objects as rows of cells, made on the server so that `kubectl get` need not know kinds.
//!
//! Columns and cells are those of kube-apiserver's printers. Kinds that Portolan places have one more wide column,
//! `Clusters`.

mod age;
mod autoscaling;
mod column;
mod config;
mod control;
mod custom;
mod events;
mod format;
mod network;
mod nodes;
mod pods;
mod portolan;
mod storage;
#[cfg(test)]
mod tests;
mod workloads;

use jiff::Timestamp;
use portolan_types::{
    GroupVersionKind,
    object::{self, Object},
};
use serde_json::{Value, json};

use self::column::{CREATED_AT, Column, NAME, Row};
use portolan_codec::conversion;
use portolan_kinds::Kind;

/// Content of a row besides its cells (`includeObject` of `TableOptions`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// `PartialObjectMetadata`.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Reads the query parameter; `None` where it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "None" => Some(Self::None),
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// Objects of a kind as a `meta.k8s.io/v1` `Table`.
///
/// `list_metadata` becomes its `metadata`. In a watch only the first table has columns. Ages are relative to `now`.
pub fn table(
    kind: &Kind,
    objects: Vec<Value>,
    list_metadata: Value,
    include: IncludeObject,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let Some(content) = &kind.content else {
        let rows = objects.into_iter().map(|object| typed_row(kind, object, include, now)).collect();
        return framed(columns_of(&kind.gvk), rows, list_metadata, with_columns);
    };
    let columns = content.columns();
    let definitions = with_columns.then(|| {
        let definitions = [NAME.definition()].into_iter().chain(columns.iter().map(|column| column.definition.clone()));
        definitions.collect::<Value>()
    });
    let rows = objects.into_iter().map(|object| {
        let name = object::name(&object).into();
        let cells: Value =
            std::iter::once(name).chain(columns.iter().map(|column| custom::cell(column, &object, now))).collect();
        json!({"cells": cells, "object": included(object, include)})
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata,
        "columnDefinitions": definitions, "rows": rows.collect::<Value>(),
    })
}

/// Returns a table like [`table`] for a type that is not a resource of its own, such as an `autoscaling/v1` `Scale`.
pub fn table_of(
    gvk: &GroupVersionKind,
    objects: Vec<Value>,
    list_metadata: Value,
    include: IncludeObject,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let rows = objects.into_iter().map(|object| row(gvk, object, None, include, now)).collect();
    framed(columns_of(gvk), rows, list_metadata, with_columns)
}

/// Returns a row with cells and metadata from the internal form of the object, as in kube-apiserver.
fn typed_row(kind: &Kind, object: Value, include: IncludeObject, now: Timestamp) -> Value {
    let shown = (include == IncludeObject::Object).then(|| conversion::served(kind, object.clone()));
    row(&kind.gvk, conversion::internal(kind, object), shown, include, now)
}

/// Returns a row; `shown` replaces the object in it.
fn row(gvk: &GroupVersionKind, object: Value, shown: Option<Value>, include: IncludeObject, now: Timestamp) -> Value {
    let mut row = printed(gvk, &object, now);
    row.insert("object".into(), included(shown.unwrap_or(object), include));
    Value::Object(row)
}

/// Returns the row of an object in its internal form, without the object itself.
pub fn printed(gvk: &GroupVersionKind, object: &Value, now: Timestamp) -> Object {
    let mut row = Object::new();
    row.insert("cells".into(), cells(columns_of(gvk), object, now));
    let is_pod = gvk.group.is_empty() && &*gvk.kind == "Pod";
    if let Some(conditions) = is_pod.then(|| pods::row_conditions(object)).flatten() {
        row.insert("conditions".into(), conditions);
    }
    row
}

fn cells(columns: &[Column], object: &Value, now: Timestamp) -> Value {
    let printed = Row { object, now };
    columns.iter().map(|column| column.cell(&printed)).collect()
}

fn framed(columns: &[Column], rows: Vec<Value>, list_metadata: Value, with_columns: bool) -> Value {
    let definitions = if with_columns {
        columns.iter().filter(|column| !column.is_hidden()).map(Column::definition).collect()
    } else {
        Value::Null
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn included(object: Value, include: IncludeObject) -> Value {
    match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => partial(object),
        IncludeObject::Object => object,
    }
}

/// Returns the `PartialObjectMetadata` of an object.
pub fn partial(mut object: Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get_mut("metadata").map(Value::take).unwrap_or_else(|| Value::Object(Object::new())),
    })
}

const DEFAULT: &[Column] = &[NAME, CREATED_AT];

/// Returns true if a kind is printed by name and age alone. kube-apiserver's empty table of such a kind has no list of
/// rows.
pub fn is_plain(kind: &Kind) -> bool {
    kind.is_typed() && own_columns(&kind.gvk).is_none()
}

fn columns_of(gvk: &GroupVersionKind) -> &'static [Column] {
    own_columns(gvk).unwrap_or(DEFAULT)
}

fn own_columns(gvk: &GroupVersionKind) -> Option<&'static [Column]> {
    match &*gvk.group {
        "" => core_columns(&gvk.kind),
        "apps" | "batch" | "autoscaling" | "policy" => workload_columns(&gvk.kind),
        "networking.k8s.io" | "discovery.k8s.io" => network_columns(&gvk.kind),
        "storage.k8s.io" => storage_columns(&gvk.kind),
        "portolan.dev" | "tenancy.kcp.io" | "core.kcp.io" => portolan_columns(&gvk.kind),
        group => other_columns(group, &gvk.kind),
    }
}

fn core_columns(kind: &str) -> Option<&'static [Column]> {
    Some(match kind {
        "ComponentStatus" => config::COMPONENT_STATUS,
        "ConfigMap" => config::CONFIG_MAP,
        "Endpoints" => network::ENDPOINTS,
        "Event" => events::EVENT,
        "Namespace" => config::NAMESPACE,
        "Node" => nodes::NODE,
        "PersistentVolume" => storage::PERSISTENT_VOLUME,
        "PersistentVolumeClaim" => storage::PERSISTENT_VOLUME_CLAIM,
        "Pod" => pods::POD,
        "PodTemplate" => workloads::POD_TEMPLATE,
        "ReplicationController" => workloads::REPLICATION_CONTROLLER,
        "ResourceQuota" => config::RESOURCE_QUOTA,
        "Secret" => config::SECRET,
        "Service" => network::SERVICE,
        "ServiceAccount" => config::SERVICE_ACCOUNT,
        _ => return None,
    })
}

fn workload_columns(kind: &str) -> Option<&'static [Column]> {
    Some(match kind {
        "ControllerRevision" => workloads::CONTROLLER_REVISION,
        "CronJob" => workloads::CRON_JOB,
        "DaemonSet" => workloads::DAEMON_SET,
        "Deployment" => workloads::DEPLOYMENT,
        "HorizontalPodAutoscaler" => autoscaling::AUTOSCALER,
        "Job" => workloads::JOB,
        "PodDisruptionBudget" => config::DISRUPTION_BUDGET,
        "ReplicaSet" => workloads::REPLICA_SET,
        "Scale" => autoscaling::SCALE,
        "StatefulSet" => workloads::STATEFUL_SET,
        _ => return None,
    })
}

fn network_columns(kind: &str) -> Option<&'static [Column]> {
    Some(match kind {
        "EndpointSlice" => network::ENDPOINT_SLICE,
        "IPAddress" => network::IP_ADDRESS,
        "Ingress" => network::INGRESS,
        "IngressClass" => network::INGRESS_CLASS,
        "NetworkPolicy" => network::NETWORK_POLICY,
        "ServiceCIDR" => network::SERVICE_CIDR,
        _ => return None,
    })
}

fn storage_columns(kind: &str) -> Option<&'static [Column]> {
    Some(match kind {
        "CSIDriver" => storage::CSI_DRIVER,
        "CSINode" => storage::CSI_NODE,
        "StorageClass" => storage::STORAGE_CLASS,
        "VolumeAttachment" => storage::VOLUME_ATTACHMENT,
        "VolumeAttributesClass" => storage::VOLUME_ATTRIBUTES_CLASS,
        _ => return None,
    })
}

fn portolan_columns(kind: &str) -> Option<&'static [Column]> {
    Some(match kind {
        "ClusterPlacementPolicy" | "PlacementPolicy" => portolan::PLACEMENT_POLICY,
        "Drain" => portolan::DRAIN,
        "LogicalCluster" => portolan::LOGICAL_CLUSTER,
        "PhysicalCluster" => portolan::PHYSICAL_CLUSTER,
        "Placement" => portolan::PLACEMENT,
        "Workspace" => portolan::WORKSPACE,
        _ => return None,
    })
}

fn other_columns(group: &str, kind: &str) -> Option<&'static [Column]> {
    Some(match (group, kind) {
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
            config::WEBHOOKS
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => control::VALIDATING_POLICY,
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => control::MUTATING_POLICY,
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding" | "ValidatingAdmissionPolicyBinding") => {
            control::POLICY_BINDING
        }
        ("apiregistration.k8s.io", "APIService") => config::API_SERVICE,
        ("certificates.k8s.io", "CertificateSigningRequest") => control::SIGNING_REQUEST,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => control::FLOW_SCHEMA,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => control::PRIORITY_LEVEL,
        ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") => control::ONLY_AGE,
        ("resource.k8s.io", "ResourceClaim") => control::RESOURCE_CLAIM,
        ("resource.k8s.io", "ResourceSlice") => control::RESOURCE_SLICE,
        ("coordination.k8s.io", "Lease") => nodes::LEASE,
        ("events.k8s.io", "Event") => events::EVENT,
        ("node.k8s.io", "RuntimeClass") => nodes::RUNTIME_CLASS,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding" | "RoleBinding") => config::BINDING,
        ("scheduling.k8s.io", "PriorityClass") => nodes::PRIORITY_CLASS,
        _ => return None,
    })
}

/// Returns the time from an RFC 3339 timestamp to `now`, as columns show it.
fn age_of(timestamp: &str, now: Timestamp) -> String {
    age::since(timestamp, now)
}
