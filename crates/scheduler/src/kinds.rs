//! Returns the built-in resources that follow others.

use portolan_types::{GroupResource, placement::GROUP};

/// Resource that is placed without a policy.
pub(crate) struct Placeable {
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) kind: &'static str,
    /// True for objects that follow others.
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

/// Placeable resources. Workloads come first, then their followers.
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

/// Resource whose objects may refuse pods, besides namespaces and accounts.
pub(crate) struct RefusalSource {
    group: &'static str,
    resource: &'static str,
}

impl RefusalSource {
    pub(crate) fn resource(&self) -> GroupResource {
        GroupResource::new(self.group, self.resource)
    }
}

const fn cause(group: &'static str, resource: &'static str) -> RefusalSource {
    RefusalSource { group, resource }
}

const POLICIES: &str = "admissionregistration.k8s.io";

/// Resources by which pods may be refused. Objects that policies and webhooks read besides are unknown: they are asked
/// again after a while.
pub(crate) static REFUSAL_SOURCES: [RefusalSource; 10] = [
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

/// Returns true for a resource whose objects may refuse pods.
pub(crate) fn is_refusal_source(resource: &GroupResource) -> bool {
    REFUSAL_SOURCES.iter().any(|cause| cause.group == &*resource.group && cause.resource == &*resource.resource)
}

/// Returns the entry of a resource that is placed without a policy.
pub(crate) fn placeable(resource: &GroupResource) -> Option<&'static Placeable> {
    PLACEABLE.iter().find(|p| p.resource == &*resource.resource && p.group == &*resource.group)
}

/// Returns true for a resource whose objects follow others.
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

/// Returns the followers that name other objects.
pub(crate) fn referrers() -> impl Iterator<Item = &'static Placeable> {
    PLACEABLE.iter().filter(|p| matches!(p.kind, "ServiceAccount" | "Ingress" | "PersistentVolumeClaim"))
}

/// Returns true for workloads of which no older template that is shown upstream is kept downstream.
pub(crate) fn keeps_no_history(resource: &GroupResource) -> bool {
    matches!((&*resource.group, &*resource.resource), ("batch", "cronjobs") | ("", "replicationcontrollers"))
}

/// Returns the resource of the templates that StatefulSets and DaemonSets keep downstream.
pub(crate) fn revisions() -> GroupResource {
    GroupResource::new("apps", "controllerrevisions")
}

/// Returns true for workloads whose pods a PodDisruptionBudget counts by the number that the workload wants.
pub(crate) fn is_budgeted(placeable: &Placeable) -> bool {
    matches!(placeable.kind, "Deployment" | "StatefulSet" | "ReplicaSet" | "ReplicationController" | "Pod")
}

pub(crate) fn services() -> GroupResource {
    GroupResource::new("", "services")
}

/// Returns the resource by which Services are exported to other physical clusters.
pub(crate) fn exports() -> GroupResource {
    GroupResource::new("multicluster.x-k8s.io", "serviceexports")
}

pub(crate) fn endpoint_slices() -> GroupResource {
    GroupResource::new("discovery.k8s.io", "endpointslices")
}

pub(crate) fn ingresses() -> GroupResource {
    GroupResource::new("networking.k8s.io", "ingresses")
}

pub(crate) fn disruption_budgets() -> GroupResource {
    GroupResource::new("policy", "poddisruptionbudgets")
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

pub(crate) fn drains() -> GroupResource {
    GroupResource::new(GROUP, "drains")
}

pub(crate) fn placements() -> GroupResource {
    GroupResource::new(GROUP, "placements")
}

pub(crate) fn policies() -> [GroupResource; 2] {
    [GroupResource::new(GROUP, "placementpolicies"), GroupResource::new(GROUP, "clusterplacementpolicies")]
}

/// Returns true if decisions depend on the feed of a resource.
pub(crate) fn is_fact(resource: &GroupResource) -> bool {
    [physical_clusters(), drains()].contains(resource) || policies().contains(resource)
}

/// Returns the resource of definitions of custom resources.
pub(crate) fn definitions() -> GroupResource {
    GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions")
}

pub(crate) fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

pub(crate) fn accounts() -> GroupResource {
    GroupResource::new("", "serviceaccounts")
}

/// Returns the resource of the heartbeats of physical clusters, in Portolan's own bookkeeping: an object for each,
/// named by its uid, with `unbroken`, the number of its answers since its last silence. Each write is a heartbeat.
pub fn heartbeats() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "heartbeats")
}

/// Returns the resource of the default decisions of namespaces, in Portolan's own bookkeeping.
pub(crate) fn decisions() -> GroupResource {
    GroupResource::new("internal.portolan.dev", "decisions")
}
