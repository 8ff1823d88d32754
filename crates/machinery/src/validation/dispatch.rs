//! Which rules hold for which kind.

use std::collections::HashSet;

use serde_json::Value;

use super::{Errors, batch, config, network, pods, policy, portolan, services, storage, view::At, workloads};
use crate::kinds::{Kind, KindTable};

fn of(kind: &Kind) -> (&str, &str) {
    (&kind.gvk.group, &kind.gvk.kind)
}

/// The rules of a kind for new objects.
pub(super) fn create(table: &KindTable, kind: &Kind, object: &Value, errors: &mut Errors) {
    let object = At::root(object);
    match of(kind) {
        ("batch", "CronJob") => batch::new_cron_job(&object, errors),
        ("apps", "StatefulSet") => workloads::new_stateful_set(&object, errors),
        ("", "Pod") => pods::new(&object, errors),
        _ => always(table, kind, &object, errors),
    }
}

/// The rules that hold for new and changed objects.
fn always(table: &KindTable, kind: &Kind, object: &At<'_>, errors: &mut Errors) {
    match of(kind) {
        ("", "ConfigMap") => config::config_map(object, errors),
        ("", "Namespace") => config::namespace(object, errors),
        ("", "Secret") => config::secret(object, errors),
        ("", "Pod") => pods::spec(&object.child("spec"), &HashSet::new(), errors),
        ("", "PodTemplate") => pods::template(&object.child("template"), &HashSet::new(), errors),
        ("", "ReplicationController") => workloads::replication_controller(object, errors),
        ("", "Service") => services::service(object, errors),
        ("", "PersistentVolumeClaim") => storage::claim(object, errors),
        ("", "PersistentVolume") => storage::volume(object, errors),
        ("", "ResourceQuota") => policy::quota(object, errors),
        ("", "LimitRange") => policy::limit_range(object, errors),
        ("", "Event") => config::event(object, errors),
        ("apps", "Deployment") => workloads::deployment(object, errors),
        ("apps", "ReplicaSet") => workloads::replica_set(object, errors),
        ("apps", "StatefulSet") => workloads::stateful_set(object, errors),
        ("apps", "DaemonSet") => workloads::daemon_set(object, errors),
        ("batch", "Job") => batch::job(object, errors),
        ("batch", "CronJob") => batch::cron_job(object, errors),
        ("networking.k8s.io", "Ingress") => network::ingress(object, errors),
        ("networking.k8s.io", "IngressClass") => network::ingress_class(object, errors),
        ("networking.k8s.io", "NetworkPolicy") => network::network_policy(object, errors),
        ("discovery.k8s.io", "EndpointSlice") => services::endpoint_slice(object, errors),
        ("autoscaling", "HorizontalPodAutoscaler") => policy::autoscaler(object, errors),
        ("policy", "PodDisruptionBudget") => policy::disruption_budget(object, errors),
        ("rbac.authorization.k8s.io", "Role") => policy::role(object, true, errors),
        ("rbac.authorization.k8s.io", "ClusterRole") => policy::role(object, false, errors),
        ("rbac.authorization.k8s.io", "RoleBinding") => policy::role_binding(object, true, errors),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => policy::role_binding(object, false, errors),
        ("storage.k8s.io", "StorageClass") => storage::class(object, errors),
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class(object, errors),
        ("coordination.k8s.io", "Lease") => policy::lease(object, errors),
        ("node.k8s.io", "RuntimeClass") => policy::runtime_class(object, errors),
        ("portolan.dev", name) => {
            portolan::enumerations(table, kind, object, errors);
            match name {
                "PhysicalCluster" => portolan::physical_cluster(object, errors),
                "PlacementPolicy" | "ClusterPlacementPolicy" => portolan::placement_policy(object, errors),
                "Placement" | "PlacementExplanation" => portolan::reference(object, errors),
                _ => {}
            }
        }
        ("core.kcp.io", "LogicalCluster") => portolan::logical_cluster(object, errors),
        _ => {}
    }
}

/// The rules of a kind for changed objects.
pub(super) fn update(
    table: &KindTable,
    kind: &Kind,
    subresource: Option<&str>,
    old: &Value,
    new: &Value,
    errors: &mut Errors,
) {
    if matches!(subresource, Some("finalize" | "approval" | "binding" | "ephemeralcontainers" | "resize")) {
        return;
    }
    let (old, new) = (At::root(old), At::root(new));
    always(table, kind, &new, errors);
    match of(kind) {
        ("", "ConfigMap") => config::fixed(&old, &new, &["data", "binaryData"], errors),
        ("", "Secret") => config::secret_update(&old, &new, errors),
        ("", "Pod") => pods::update(&old.child("spec"), &new.child("spec"), errors),
        ("", "Service") => services::service_update(&old, &new, errors),
        ("", "PersistentVolumeClaim") => storage::claim_update(&old, &new, errors),
        ("", "PersistentVolume") => storage::volume_update(&old, &new, errors),
        ("", "ResourceQuota") => policy::quota_update(&old, &new, errors),
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => workloads::same_selector(&old, &new, errors),
        ("apps", "StatefulSet") => workloads::stateful_set_update(&old, &new, errors),
        ("apps", "ControllerRevision") => workloads::controller_revision_update(&old, &new, errors),
        ("batch", "Job") => batch::job_update(&old, &new, errors),
        ("networking.k8s.io", "IngressClass") => network::ingress_class_update(&old, &new, errors),
        ("discovery.k8s.io", "EndpointSlice") => new.immutable(&old, "addressType", errors),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            policy::role_binding_update(&old, &new, errors);
        }
        ("storage.k8s.io", "StorageClass") => storage::class_update(&old, &new, errors),
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class_update(&old, &new, errors),
        ("node.k8s.io", "RuntimeClass") => policy::runtime_class_update(&old, &new, errors),
        ("portolan.dev", "PhysicalCluster") => portolan::physical_cluster_update(&old, &new, errors),
        ("tenancy.kcp.io", "Workspace") => portolan::workspace_update(&old, &new, errors),
        _ => {}
    }
}
