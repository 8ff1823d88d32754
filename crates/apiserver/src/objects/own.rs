//! `logicalclusters.core.kcp.io`: the one object by which a logical cluster shows itself. It is computed, never stored there.

use std::sync::Arc;

use portolan_store::StoredObject;
use portolan_types::{GroupResource, ObjectKey, Record, ResourceVersion};
use serde_json::json;

use crate::{
    call::Target,
    directory::{LogicalCluster, Phase},
};

/// Its name.
const NAME: &str = "cluster";

/// Whether a resource is computed and not stored.
pub(crate) fn is_face(resource: &GroupResource) -> bool {
    *resource == GroupResource::new("core.kcp.io", "logicalclusters")
}

/// The face of a logical cluster; `None` when another resource is meant. Of another name there is none.
pub(super) fn face(cluster: &LogicalCluster, target: &Target, name: Option<&str>) -> Option<Vec<StoredObject>> {
    if !is_face(&target.stored_as()) {
        return None;
    }
    if name.is_some_and(|name| name != NAME) {
        return Some(Vec::new());
    }
    let phase = match cluster.phase {
        Phase::Ready => "Ready",
        Phase::Deleting => "Unavailable",
    };
    let mut object = json!({
        "apiVersion": "core.kcp.io/v1alpha1",
        "kind": "LogicalCluster",
        "metadata": {
            "name": NAME,
            "uid": cluster.id.to_string(),
            "creationTimestamp": cluster.created,
            "annotations": {"kcp.io/cluster": cluster.id.to_string(), "kcp.io/path": cluster.path},
        },
        "spec": {},
        "status": {"phase": phase},
    });
    if let Some((parent, uid)) = cluster.parent.zip(cluster.workspace.as_ref()) {
        object["spec"]["owner"] = json!({
            "apiVersion": "tenancy.kcp.io/v1alpha1",
            "resource": "workspaces",
            "cluster": parent.to_string(),
            "name": cluster.path.rsplit(':').next().unwrap_or_default(),
            "uid": uid,
        });
    }
    let name = NAME.parse().expect("the name is a constant");
    Some(vec![StoredObject {
        key: ObjectKey::cluster_scoped(cluster.id, target.stored_as(), name),
        revision: ResourceVersion::FIRST,
        created: ResourceVersion::FIRST,
        record: Arc::new(Record::of(&object)),
    }])
}
