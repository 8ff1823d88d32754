//! Objects that are computed and never stored: the logical cluster's view of itself (`logicalclusters.core.kcp.io`),
//! the server as a shard (`shards.core.kcp.io`) and the health of its components (`componentstatuses`).

use std::sync::Arc;

use portolan_store::StoredObject;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, ResourceVersion, lifecycle::LifecycleStage};
use serde_json::{Value, json};

use crate::{
    directory::{LogicalCluster, records},
    request::ResourceTarget,
};

use super::{ComputedResource, hooks_of_resource};

/// Name of the only LogicalCluster object.
const LOGICAL_CLUSTER_NAME: &str = "cluster";
/// Name of the only Shard.
const SHARD_NAME: &str = "root";
/// Annotation with the user who created the workspace.
const OWNER_ANNOTATION: &str = "experimental.tenancy.kcp.io/owner";
/// Components that clients expect. All run in this process, which ends when one of them fails.
const COMPONENTS: [&str; 3] = ["controller-manager", "etcd-0", "scheduler"];

fn computed(resource: &GroupResource) -> Option<ComputedResource> {
    hooks_of_resource(&resource.group, &resource.resource).computed
}

/// Returns the uid of a LogicalCluster object. Components have none.
pub(crate) fn computed_uid(key: &ObjectKey) -> Option<String> {
    let is_face = matches!(computed(&key.resource), Some(ComputedResource::LogicalCluster))
        && key.name.as_str() == LOGICAL_CLUSTER_NAME;
    is_face.then(|| logical_cluster_uid(key.cluster))
}

fn logical_cluster_uid(cluster: LogicalClusterId) -> String {
    cluster.to_string()
}

/// Returns the computed objects of a resource, or the one with a name; `None` when the resource is stored. `url` is
/// that of the server.
pub(crate) fn computed_objects(
    cluster: &LogicalCluster,
    target: &ResourceTarget,
    name: Option<&str>,
    url: &str,
) -> Option<Vec<StoredObject>> {
    let storage = &target.kind.storage;
    let all = match hooks_of_resource(&storage.group, &storage.resource).computed? {
        ComputedResource::LogicalCluster => vec![(LOGICAL_CLUSTER_NAME, logical_cluster_object(cluster, url))],
        ComputedResource::Shards if cluster.id == LogicalClusterId::ROOT => vec![(SHARD_NAME, shard(cluster, url))],
        ComputedResource::Shards => Vec::new(),
        ComputedResource::Components => COMPONENTS.map(|name| (name, component(name))).to_vec(),
    };
    let wanted = all.into_iter().filter(|(own, _)| name.is_none_or(|name| name == *own));
    Some(wanted.map(|(own, object)| to_stored(cluster, target, own, &object)).collect())
}

/// Returns the LogicalCluster object of a logical cluster with the revision of its record.
pub(crate) fn stored_logical_cluster(cluster: &LogicalCluster, revision: ResourceVersion, url: &str) -> StoredObject {
    let name = LOGICAL_CLUSTER_NAME.parse().expect("the name is a constant");
    StoredObject {
        key: ObjectKey::cluster_scoped(cluster.id, records(), name),
        revision,
        created: cluster.since,
        record: Arc::new(Record::of(&logical_cluster_object(cluster, url))),
    }
}

fn to_stored(cluster: &LogicalCluster, target: &ResourceTarget, name: &str, object: &Value) -> StoredObject {
    let name = name.parse().expect("the names are constants");
    StoredObject {
        key: ObjectKey::cluster_scoped(cluster.id, target.stored_as(), name),
        revision: ResourceVersion::FIRST,
        created: ResourceVersion::FIRST,
        record: Arc::new(Record::of(object)),
    }
}

fn component(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ComponentStatus",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": "True", "message": "ok"}],
    })
}

fn shard(root: &LogicalCluster, url: &str) -> Value {
    json!({
        "apiVersion": "core.kcp.io/v1alpha1",
        "kind": "Shard",
        "metadata": {"name": SHARD_NAME, "creationTimestamp": root.created},
        "spec": {"baseURL": url, "externalURL": url, "virtualWorkspaceURL": url},
    })
}

fn logical_cluster_object(cluster: &LogicalCluster, url: &str) -> Value {
    let mut object = json!({
        "apiVersion": "core.kcp.io/v1alpha1",
        "kind": "LogicalCluster",
        "metadata": {
            "name": LOGICAL_CLUSTER_NAME,
            "uid": logical_cluster_uid(cluster.id),
            "creationTimestamp": cluster.created,
            "annotations": {"kcp.io/cluster": cluster.id.to_string(), "kcp.io/path": cluster.path},
        },
        "spec": {},
        "status": {"URL": format!("{url}/clusters/{}", cluster.path)},
    });
    cluster.show_stage(&mut object);
    if let Some(lifecycle) = &cluster.lifecycle {
        for stage in LifecycleStage::ALL.into_iter().filter(|stage| !lifecycle.steps(*stage).is_empty()) {
            object["spec"][stage.steps()] = lifecycle.steps(stage).into();
        }
        let owner = json!({"username": lifecycle.owner, "groups": lifecycle.owner_groups}).to_string();
        object["metadata"]["annotations"][OWNER_ANNOTATION] = owner.into();
        if !lifecycle.deleted.is_empty() {
            object["metadata"]["deletionTimestamp"] = lifecycle.deleted.as_str().into();
        }
    }
    if let Some(limits) = &cluster.limits {
        let annotations = &mut object["metadata"]["annotations"];
        for (key, value) in limits.annotations() {
            annotations[key] = value.into();
        }
    }
    if let Some((parent, uid)) = cluster.parent.zip(cluster.workspace.as_ref()) {
        object["spec"]["owner"] = json!({
            "apiVersion": "tenancy.kcp.io/v1alpha1",
            "resource": "workspaces",
            "cluster": parent.to_string(),
            "name": cluster.path.rsplit(':').next().unwrap_or_default(),
            "uid": uid,
        });
    }
    object
}
