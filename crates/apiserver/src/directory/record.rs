//! The stored form of a directory entry.

use portolan_store::StoredObject;
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, ResourceVersion, Status, object,
};
use serde_json::{Value, json};

use crate::errors::{damaged, log};

use super::{LogicalCluster, WorkspaceLimits};

/// Phase in the life of a logical cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterPhase {
    /// In use.
    Ready,
    /// Its workspace is being deleted.
    Deleting,
}

impl ClusterPhase {
    fn text(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Deleting => "Deleting",
        }
    }
}

/// Group of the records, and of the virtual object in which a logical cluster shows itself.
pub(crate) const GROUP: &str = "core.kcp.io";

/// Returns the resource `logicalclusters.core.kcp.io`.
pub(crate) fn resource() -> GroupResource {
    GroupResource::new(GROUP, "logicalclusters")
}

/// Returns the key of a directory entry.
pub(crate) fn key_of(id: LogicalClusterId) -> ObjectKey {
    let name = id.to_string().parse().expect("the text of an id is a path segment");
    ObjectKey::cluster_scoped(LogicalClusterId::SYSTEM, resource(), name)
}

/// Encodes an entry.
pub(super) fn of(cluster: &LogicalCluster) -> Record {
    Record::of(&json!({
        "apiVersion": "core.kcp.io/v1alpha1",
        "kind": "LogicalCluster",
        "metadata": {"name": cluster.id.to_string(), "creationTimestamp": cluster.created},
        "spec": {
            "path": cluster.path,
            "parent": cluster.parent.map(|id| id.to_string()),
            "workspaceUID": cluster.workspace,
            "maxTotalObjects": cluster.limits.as_ref().and_then(|limits| limits.objects),
            "maxTotalBytes": cluster.limits.as_ref().and_then(|limits| limits.bytes),
        },
        "status": {"phase": cluster.phase.text()},
    }))
}

/// Decodes an entry.
pub(super) fn read(stored: &StoredObject) -> Result<LogicalCluster, Status> {
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    parse(&value, stored.created).ok_or_else(|| {
        log(&stored.key, &"a directory entry lacks what it must have");
        Status::internal("a directory entry is damaged")
    })
}

fn parse(value: &Value, since: ResourceVersion) -> Option<LogicalCluster> {
    let spec = |key: &str| value.get("spec")?.get(key)?.as_str();
    let number = |key: &str| value.get("spec")?.get(key)?.as_u64();
    let limits = WorkspaceLimits { objects: number("maxTotalObjects"), bytes: number("maxTotalBytes") };
    Some(LogicalCluster {
        id: object::name(value).parse().ok()?,
        path: spec("path")?.parse::<LogicalClusterPath>().ok()?,
        parent: spec("parent").map(str::parse).transpose().ok()?,
        workspace: spec("workspaceUID").map(str::parse).transpose().ok()?,
        created: object::meta_text(value, "creationTimestamp").to_owned(),
        since,
        phase: match value.get("status")?.get("phase")?.as_str()? {
            "Deleting" => ClusterPhase::Deleting,
            _ => ClusterPhase::Ready,
        },
        limits: (!limits.is_none()).then(|| Box::new(limits)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_stored_form() {
        let cluster = LogicalCluster {
            id: LogicalClusterId::new(9),
            path: "root:a".parse().unwrap(),
            parent: Some(LogicalClusterId::ROOT),
            workspace: Some("u-1".parse().unwrap()),
            created: "2026-01-01T00:00:00Z".into(),
            since: ResourceVersion::FIRST,
            phase: ClusterPhase::Deleting,
            limits: Some(Box::new(WorkspaceLimits { objects: Some(7), bytes: None })),
        };
        let value = of(&cluster).to_value(ResourceVersion::FIRST).unwrap();
        assert_eq!(parse(&value, cluster.since), Some(cluster));
    }
}
