//! The stored form of a directory entry.

use portolan_store::StoredObject;
use portolan_types::{
    GroupResource, LogicalClusterId, LogicalClusterPath, ObjectKey, Record, ResourceVersion, Status, object,
};
use serde_json::{Value, json};

use crate::errors::{damaged, log};

use super::{ClusterLifecycle, LogicalCluster, WorkspaceLimits};

/// Phase in the life of a logical cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterPhase {
    /// Its initializers have not ended.
    Initializing,
    /// In use.
    Ready,
    /// Its workspace is being deleted, and waits for its terminators.
    Terminating,
    /// Its workspace is being deleted.
    Deleting,
}

impl ClusterPhase {
    /// Returns its word in objects and in the stored form.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Initializing => "Initializing",
            Self::Ready => "Ready",
            Self::Terminating => "Terminating",
            Self::Deleting => "Deleting",
        }
    }

    /// Parses a phase. An unknown phase may come from a later release, so the logical cluster is not served as if it
    /// were ready.
    fn of(text: &str) -> Option<Self> {
        [Self::Initializing, Self::Ready, Self::Terminating, Self::Deleting].into_iter().find(|own| own.text() == text)
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
    let mut value = json!({
        "apiVersion": "core.kcp.io/v1alpha1",
        "kind": "LogicalCluster",
        "metadata": {"name": cluster.id.to_string(), "creationTimestamp": cluster.created},
        "spec": {
            "path": cluster.path,
            "parent": cluster.parent.map(|id| id.to_string()),
            "workspaceUID": cluster.workspace,
            "maxTotalObjects": cluster.limits.as_ref().and_then(|limits| limits.objects),
            "maxTotalBytes": cluster.limits.as_ref().and_then(|limits| limits.bytes),
            "inactive": cluster.is_inactive().then_some(true),
            "requiredGroups": cluster.required_groups(),
        },
        "status": {"phase": cluster.phase.text()},
    });
    if let Some(lifecycle) = &cluster.lifecycle {
        value["spec"]["lifecycle"] = lifecycle.to_value();
        // A view selects by them.
        value["metadata"]["labels"] = cluster.step_labels().into();
    }
    Record::of(&value)
}

/// Decodes an entry.
pub(crate) fn read(stored: &StoredObject) -> Result<LogicalCluster, Status> {
    let value = stored.record.to_value(stored.revision).map_err(|e| damaged(&stored.key, &e))?;
    parse(&value, stored.created).ok_or_else(|| {
        log(&stored.key, &"a directory entry lacks a required field");
        Status::internal("a directory entry is damaged")
    })
}

fn parse(value: &Value, since: ResourceVersion) -> Option<LogicalCluster> {
    let spec = |key: &str| value.get("spec")?.get(key)?.as_str();
    let number = |key: &str| value.get("spec")?.get(key)?.as_u64();
    let limits = WorkspaceLimits {
        objects: number("maxTotalObjects"),
        bytes: number("maxTotalBytes"),
        inactive: value.pointer("/spec/inactive").and_then(Value::as_bool).unwrap_or_default(),
        required_groups: spec("requiredGroups").map(str::to_owned),
    };
    let lifecycle = value.get("spec")?.get("lifecycle").map(|lifecycle| ClusterLifecycle::of(lifecycle).map(Box::new));
    Some(LogicalCluster {
        id: object::name(value).parse().ok()?,
        path: spec("path")?.parse::<LogicalClusterPath>().ok()?,
        parent: spec("parent").map(str::parse).transpose().ok()?,
        workspace: spec("workspaceUID").map(str::parse).transpose().ok()?,
        created: object::meta_text(value, "creationTimestamp").to_owned(),
        since,
        phase: ClusterPhase::of(value.get("status")?.get("phase")?.as_str()?)?,
        limits: (!limits.is_none()).then(|| Box::new(limits)),
        lifecycle: match lifecycle {
            None => None,
            Some(lifecycle) => Some(lifecycle?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> LogicalCluster {
        LogicalCluster {
            id: LogicalClusterId::new(9),
            path: "root:a".parse().unwrap(),
            parent: Some(LogicalClusterId::ROOT),
            workspace: Some("u-1".parse().unwrap()),
            created: "2026-01-01T00:00:00Z".into(),
            since: ResourceVersion::FIRST,
            phase: ClusterPhase::Deleting,
            limits: Some(Box::new(WorkspaceLimits {
                objects: Some(7),
                bytes: None,
                inactive: true,
                required_groups: Some("a;b".into()),
            })),
            lifecycle: None,
        }
    }

    #[test]
    fn entries_survive_their_stored_form() {
        let lifecycle = ClusterLifecycle {
            initializers: vec!["root:a".into()],
            terminators: vec!["root:b".into()],
            pending: vec!["root:b".into()],
            bindings: vec!["root:widgets".into()],
            owner: "ann".into(),
            owner_groups: vec!["system:authenticated".into()],
            deleted: "2026-01-02T00:00:00Z".into(),
        };
        let (phase, lifecycle) = (ClusterPhase::Terminating, Some(Box::new(lifecycle)));
        for cluster in [cluster(), LogicalCluster { phase, lifecycle, ..cluster() }] {
            let value = of(&cluster).to_value(ResourceVersion::FIRST).unwrap();
            assert_eq!(parse(&value, cluster.since), Some(cluster));
        }
    }

    #[test]
    fn an_entry_in_an_unknown_phase_is_damaged() {
        let mut value = of(&cluster()).to_value(ResourceVersion::FIRST).unwrap();
        for phase in ["Migrating", "ready", ""] {
            value["status"]["phase"] = phase.into();
            assert_eq!(parse(&value, ResourceVersion::FIRST), None, "{phase}");
        }
    }
}
