//! The built-in resources that are placed.

use portolan_types::{GroupResource, placement::GROUP};

/// A resource that is placed without a policy.
pub(crate) struct Placeable {
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) kind: &'static str,
    /// It goes where others go.
    pub(crate) follows: bool,
}

impl Placeable {
    pub(crate) fn resource(&self) -> GroupResource {
        GroupResource::new(self.group, self.resource)
    }
}

const fn runs(group: &'static str, resource: &'static str, kind: &'static str) -> Placeable {
    Placeable { group, resource, kind, follows: false }
}

const fn follows(group: &'static str, resource: &'static str, kind: &'static str) -> Placeable {
    Placeable { group, resource, kind, follows: true }
}

/// All of them.
pub(crate) static PLACEABLE: [Placeable; 17] = [
    runs("apps", "deployments", "Deployment"),
    runs("apps", "statefulsets", "StatefulSet"),
    runs("apps", "daemonsets", "DaemonSet"),
    runs("apps", "replicasets", "ReplicaSet"),
    runs("batch", "jobs", "Job"),
    runs("batch", "cronjobs", "CronJob"),
    runs("", "pods", "Pod"),
    runs("", "replicationcontrollers", "ReplicationController"),
    follows("", "configmaps", "ConfigMap"),
    follows("", "secrets", "Secret"),
    follows("", "serviceaccounts", "ServiceAccount"),
    follows("", "persistentvolumeclaims", "PersistentVolumeClaim"),
    follows("", "services", "Service"),
    follows("networking.k8s.io", "ingresses", "Ingress"),
    follows("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
    follows("policy", "poddisruptionbudgets", "PodDisruptionBudget"),
    follows("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
];

/// A resource by which pods may be refused, beside namespaces and accounts.
pub(crate) struct Cause {
    group: &'static str,
    resource: &'static str,
}

impl Cause {
    pub(crate) fn resource(&self) -> GroupResource {
        GroupResource::new(self.group, self.resource)
    }
}

const fn cause(group: &'static str, resource: &'static str) -> Cause {
    Cause { group, resource }
}

const POLICIES: &str = "admissionregistration.k8s.io";

/// All of them. What policies and webhooks look at besides is nowhere told: after a while they are asked again.
pub(crate) static CAUSES: [Cause; 10] = [
    cause("", "resourcequotas"),
    cause("", "limitranges"),
    cause("scheduling.k8s.io", "priorityclasses"),
    cause("node.k8s.io", "runtimeclasses"),
    cause(POLICIES, "validatingadmissionpolicies"),
    cause(POLICIES, "validatingadmissionpolicybindings"),
    cause(POLICIES, "mutatingadmissionpolicies"),
    cause(POLICIES, "mutatingadmissionpolicybindings"),
    cause(POLICIES, "validatingwebhookconfigurations"),
    cause(POLICIES, "mutatingwebhookconfigurations"),
];

/// Whether pods may be refused by objects of a resource.
pub(crate) fn is_cause(resource: &GroupResource) -> bool {
    CAUSES.iter().any(|cause| cause.group == &*resource.group && cause.resource == &*resource.resource)
}

/// What is placed without a policy of a resource.
pub(crate) fn placeable(resource: &GroupResource) -> Option<&'static Placeable> {
    PLACEABLE.iter().find(|p| p.resource == &*resource.resource && p.group == &*resource.group)
}

/// Whether objects of a resource go where others go.
pub(crate) fn is_follower(resource: &GroupResource) -> bool {
    placeable(resource).is_some_and(|placeable| placeable.follows)
}

/// Returns true for followers that count the pods of workloads: their copies get parts of their numbers.
pub(crate) fn is_divided_with_its_target(resource: &GroupResource) -> bool {
    matches!(
        (&*resource.group, &*resource.resource),
        ("autoscaling", "horizontalpodautoscalers") | ("policy", "poddisruptionbudgets")
    )
}

/// The built-in resources that follow.
pub(crate) fn followers() -> impl Iterator<Item = GroupResource> {
    PLACEABLE.iter().filter(|p| p.follows).map(Placeable::resource)
}

/// Followers that name objects themselves.
pub(crate) fn referrers() -> impl Iterator<Item = &'static Placeable> {
    PLACEABLE.iter().filter(|p| matches!(p.kind, "ServiceAccount" | "Ingress" | "PersistentVolumeClaim"))
}

/// Returns true for workloads of which no older template is kept downstream that is shown upstream.
pub(crate) fn keeps_no_history(resource: &GroupResource) -> bool {
    matches!((&*resource.group, &*resource.resource), ("batch", "cronjobs") | ("", "replicationcontrollers"))
}

/// Templates of StatefulSets and DaemonSets that are kept downstream.
pub(crate) fn revisions() -> GroupResource {
    GroupResource::new("apps", "controllerrevisions")
}

pub(crate) fn jobs() -> GroupResource {
    GroupResource::new("batch", "jobs")
}

pub(crate) fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

pub(crate) fn physical_clusters() -> GroupResource {
    GroupResource::new(GROUP, "physicalclusters")
}

pub(crate) fn placements() -> GroupResource {
    GroupResource::new(GROUP, "placements")
}

pub(crate) fn policies() -> [GroupResource; 2] {
    [GroupResource::new(GROUP, "placementpolicies"), GroupResource::new(GROUP, "clusterplacementpolicies")]
}

pub(crate) fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

pub(crate) fn accounts() -> GroupResource {
    GroupResource::new("", "serviceaccounts")
}

/// Where the default decision of a namespace is kept, among Portolan's own bookkeeping.
pub(crate) fn decisions() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "decisions")
}
