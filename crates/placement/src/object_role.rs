//! Role of an object in placement: workload, follower, or neither.

use portolan_types::{
    annotations, object,
    placement::{PlacementRecord, is_governing_group},
};
use serde_json::Value;

/// Role of an object in placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Runs pods, and shares the default decision of its namespace.
    Workload,
    /// ConfigMap, Secret, ServiceAccount: follows the pod templates that name it.
    Content,
    /// PersistentVolumeClaim: follows as content does, but its data does not leave by following.
    Claim,
    /// Service, Ingress, NetworkPolicy, PodDisruptionBudget: wherever the namespace has a workload.
    Network,
    /// HorizontalPodAutoscaler: follows the workload that its `scaleTargetRef` names.
    Autoscaler,
    /// Placed only by a policy that selects it; its controllers run upstream.
    Explicit,
    /// Never placed, for this reason.
    Never(&'static str),
}

impl Role {
    /// Returns true for objects that follow others.
    pub fn follows(self) -> bool {
        matches!(self, Self::Content | Self::Claim | Self::Network | Self::Autoscaler)
    }
}

/// Returns true for kinds whose controllers run on the physical cluster.
pub fn is_workload_kind(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "Pod" | "ReplicationController")
            | ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
            | ("batch", "Job" | "CronJob")
    )
}

/// Returns the role of an object of a kind. The kind of its controller counts, the placement of that does not.
pub fn role_of(group: &str, kind: &str, object: &Value) -> Role {
    if object::label(object, annotations::PROJECTED_FROM).is_some()
        || PlacementRecord::of(object).is_some_and(|r| r.is_projected())
    {
        return Role::Never("it is shown from a physical cluster");
    }
    let name = object::name(object);
    match (group, kind) {
        ("batch", "Job") if is_managed_elsewhere(object.get("spec")) => {
            Role::Never("its spec.managedBy names another controller than that of Jobs")
        }
        _ if is_workload_kind(group, kind) => {
            if controller_runs_downstream(object) {
                Role::Never("its controller is synced in its place")
            } else {
                Role::Workload
            }
        }
        ("", "ConfigMap") if name == "kube-root-ca.crt" => Role::Never("every namespace has its own"),
        ("", "ServiceAccount") if name == "default" => Role::Never("every namespace has its own"),
        ("", "Service") if name == "kubernetes" && object::namespace(object) == "default" => {
            Role::Never("it is the address of the API server")
        }
        ("", "Secret") if is_token(object) => Role::Never("it is a token for this API server"),
        ("", "ConfigMap" | "Secret" | "ServiceAccount") => Role::Content,
        ("", "PersistentVolumeClaim") => Role::Claim,
        ("", "Service") | ("networking.k8s.io", "Ingress" | "NetworkPolicy") | ("policy", "PodDisruptionBudget") => {
            Role::Network
        }
        ("autoscaling", "HorizontalPodAutoscaler") => Role::Autoscaler,
        ("portolan.dev" | "tenancy.kcp.io" | "core.kcp.io", _) => Role::Never("it belongs to the control plane"),
        _ if is_governing_group(group) => Role::Never("it governs a cluster rather than runs in one"),
        ("", "Event") | ("events.k8s.io", "Event") => Role::Never("it is a report"),
        _ => Role::Explicit,
    }
}

/// Value of `spec.managedBy` of a Job that Kubernetes' own controller runs; also when it is left out.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// Returns true for the spec of a Job whose Pods are made by another controller than Kubernetes' own, which runs
/// upstream or not at all (KEP-4368).
pub fn is_managed_elsewhere(job_spec: Option<&Value>) -> bool {
    let manager = job_spec.and_then(|spec| spec.get("managedBy")).and_then(Value::as_str);
    manager.is_some_and(|manager| !manager.is_empty() && manager != JOB_CONTROLLER)
}

/// Annotation that kubectl sets on a Job that is made of a CronJob by hand.
const INSTANTIATED: &str = "cronjob.kubernetes.io/instantiate";

/// Returns true if a user made the object although it names a controller, as `kubectl create job --from` does.
pub fn is_made_by_hand(object: &Value) -> bool {
    object::annotation(object, INSTANTIATED).is_some()
}

fn controller_runs_downstream(object: &Value) -> bool {
    if is_made_by_hand(object) {
        return false;
    }
    let Some(owner) = object::controller_of(object) else { return false };
    let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    is_workload_kind(group, text("kind"))
}

fn is_token(secret: &Value) -> bool {
    let kind = secret.get("type").and_then(Value::as_str).unwrap_or_default();
    matches!(kind, "kubernetes.io/service-account-token" | "bootstrap.kubernetes.io/token")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_of_objects_in_placement() {
        let owned = json!({"metadata": {"name": "web-1", "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]}});
        let made_by_operator = json!({"metadata": {"name": "db-0", "ownerReferences": [{"apiVersion": "db.io/v1", "kind": "Cluster", "name": "db", "uid": "u", "controller": true}]}});
        let named = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}});
        let projected = json!({"metadata": {"name": "web-1", "labels": {"portolan.dev/cluster": "east"}}});
        let never = |role: Role| matches!(role, Role::Never(_));
        assert_eq!(role_of("apps", "Deployment", &named("web")), Role::Workload);
        assert_eq!(role_of("", "Pod", &made_by_operator), Role::Workload, "what operators make runs");
        assert!(never(role_of("", "Pod", &owned)), "what controllers below make is theirs");
        let cron = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "u", "controller": true}]);
        let by_hand =
            json!({"metadata": {"name": "j", "ownerReferences": cron, "annotations": {INSTANTIATED: "manual"}}});
        assert_eq!(role_of("batch", "Job", &by_hand), Role::Workload, "what a user makes of a CronJob runs");
        assert!(never(role_of("", "Pod", &projected)));
        let managed = |by: &str| json!({"metadata": {"name": "j"}, "spec": {"managedBy": by}});
        assert_eq!(role_of("batch", "Job", &managed("kubernetes.io/job-controller")), Role::Workload);
        assert!(never(role_of("batch", "Job", &managed("kueue.x-k8s.io/multikueue"))));
        assert_eq!(role_of("", "ConfigMap", &named("web")), Role::Content);
        assert!(never(role_of("", "ConfigMap", &named("kube-root-ca.crt"))));
        assert!(never(role_of("", "ServiceAccount", &named("default"))));
        assert!(never(role_of("", "Service", &named("kubernetes"))));
        assert!(never(role_of("", "Secret", &json!({"type": "kubernetes.io/service-account-token"}))));
        assert_eq!(role_of("", "Service", &named("web")), Role::Network);
        assert_eq!(role_of("", "PersistentVolumeClaim", &named("data")), Role::Claim);
        assert_eq!(role_of("coordination.k8s.io", "Lease", &named("x")), Role::Explicit);
        assert_eq!(role_of("db.io", "Cluster", &named("x")), Role::Explicit);
        assert!(never(role_of("rbac.authorization.k8s.io", "Role", &named("x"))), "whatever a policy says");
    }
}
