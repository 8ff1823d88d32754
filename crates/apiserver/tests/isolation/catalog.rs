//! Resources that the requests are about, with objects of them.

use serde_json::{Value, json};

use crate::random::Random;

/// Resource of the catalog.
pub struct CatalogEntry {
    /// Path prefix: `/api/v1` or `/apis/<group>/<version>`.
    pub prefix: &'static str,
    pub resource: &'static str,
    pub kind: &'static str,
    pub is_namespaced: bool,
    /// Makes the fields of an object beside its metadata.
    pub fields: fn(&mut Random) -> Value,
}

type Fields = fn(&mut Random) -> Value;

const fn namespaced(prefix: &'static str, resource: &'static str, kind: &'static str, fields: Fields) -> CatalogEntry {
    CatalogEntry { prefix, resource, kind, is_namespaced: true, fields }
}

const fn global(prefix: &'static str, resource: &'static str, kind: &'static str, fields: Fields) -> CatalogEntry {
    CatalogEntry { prefix, resource, kind, is_namespaced: false, fields }
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Every resource of the requests.
pub const CATALOG: &[CatalogEntry] = &[
    namespaced("/api/v1", "configmaps", "ConfigMap", map),
    namespaced("/api/v1", "secrets", "Secret", secret),
    namespaced("/api/v1", "services", "Service", service),
    namespaced("/api/v1", "serviceaccounts", "ServiceAccount", nothing),
    namespaced("/api/v1", "persistentvolumeclaims", "PersistentVolumeClaim", claim),
    namespaced("/api/v1", "resourcequotas", "ResourceQuota", quota),
    namespaced("/api/v1", "limitranges", "LimitRange", limits),
    namespaced("/api/v1", "pods", "Pod", pod),
    namespaced("/api/v1", "endpoints", "Endpoints", nothing),
    namespaced("/apis/apps/v1", "deployments", "Deployment", deployment),
    namespaced("/apis/batch/v1", "jobs", "Job", job),
    namespaced("/apis/coordination.k8s.io/v1", "leases", "Lease", lease),
    namespaced("/apis/networking.k8s.io/v1", "ingresses", "Ingress", ingress),
    namespaced("/apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", budget),
    namespaced(RBAC, "roles", "Role", role),
    namespaced(RBAC, "rolebindings", "RoleBinding", binding),
    namespaced("/apis/portolan.dev/v1alpha1", "placementpolicies", "PlacementPolicy", placement),
    namespaced("/apis/example.com/v1", "widgets", "Widget", widget),
    global("/api/v1", "namespaces", "Namespace", nothing),
    global("/api/v1", "persistentvolumes", "PersistentVolume", volume),
    global("/api/v1", "nodes", "Node", nothing),
    global(RBAC, "clusterroles", "ClusterRole", role),
    global(RBAC, "clusterrolebindings", "ClusterRoleBinding", binding),
    global("/apis/scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", priority),
    global("/apis/storage.k8s.io/v1", "storageclasses", "StorageClass", storage),
    global("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", definition),
    global(
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        admission,
    ),
    global("/apis/tenancy.kcp.io/v1alpha1", "workspaces", "Workspace", nothing),
    global("/apis/tenancy.kcp.io/v1alpha1", "workspacetypes", "WorkspaceType", nothing),
    global("/apis/core.kcp.io/v1alpha1", "logicalclusters", "LogicalCluster", nothing),
    global("/apis/apis.kcp.io/v1alpha1", "apiexports", "APIExport", nothing),
    global("/apis/apis.kcp.io/v1alpha1", "apibindings", "APIBinding", api_binding),
    global("/apis/portolan.dev/v1alpha1", "clusterplacementpolicies", "ClusterPlacementPolicy", placement),
    global("/apis/portolan.dev/v1alpha1", "placements", "Placement", nothing),
    global("/apis/portolan.dev/v1alpha1", "physicalclusters", "PhysicalCluster", physical),
];

/// Reviews: an answer to the caller, nothing is stored.
pub const REVIEWS: [(&str, &str); 3] = [
    ("/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    ("/apis/authorization.k8s.io/v1", "selfsubjectrulesreviews"),
    ("/apis/authentication.k8s.io/v1", "selfsubjectreviews"),
];

fn nothing(_: &mut Random) -> Value {
    json!({})
}

fn map(random: &mut Random) -> Value {
    json!({"data": {"k": random.below(5).to_string()}})
}

fn secret(random: &mut Random) -> Value {
    json!({"stringData": {"password": random.below(5).to_string()}})
}

/// Addresses and ports are fixed, since a server draws others at random; few, so that all tenants want the same.
fn service(random: &mut Random) -> Value {
    let address = format!("10.96.0.{}", 100 + random.below(4));
    let mut port = json!({"port": 80 + random.below(3)});
    let kind = random.pick(&["ClusterIP", "NodePort", "LoadBalancer"]);
    if *kind != "ClusterIP" {
        port["nodePort"] = json!(30_000 + random.below(4));
    }
    json!({"spec": {"type": kind, "clusterIP": address, "selector": {"app": "a"}, "ports": [port]}})
}

fn claim(random: &mut Random) -> Value {
    let size = format!("{}Gi", 1 + random.below(3));
    json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
}

fn quota(random: &mut Random) -> Value {
    json!({"spec": {"hard": {"configmaps": (1 + random.below(6)).to_string(), "pods": "3", "services.nodeports": "1"}}})
}

fn limits(random: &mut Random) -> Value {
    let memory = format!("{}Mi", 64 << random.below(3));
    json!({"spec": {"limits": [{"type": "Container", "defaultRequest": {"memory": memory}}]}})
}

fn pod(random: &mut Random) -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": format!("app:{}", random.below(3))}]}})
}

fn deployment(random: &mut Random) -> Value {
    json!({"spec": {"replicas": random.below(4), "selector": {"matchLabels": {"app": "a"}},
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "app"}]}}}})
}

fn job(random: &mut Random) -> Value {
    json!({"spec": {"parallelism": 1 + random.below(3),
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "app"}]}}}})
}

fn lease(random: &mut Random) -> Value {
    json!({"spec": {"holderIdentity": random.below(3).to_string(), "leaseDurationSeconds": 15}})
}

fn ingress(random: &mut Random) -> Value {
    let host = format!("{}.example.com", random.below(3));
    json!({"spec": {"rules": [{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix",
        "backend": {"service": {"name": "n0", "port": {"number": 80}}}}]}}]}})
}

fn budget(random: &mut Random) -> Value {
    json!({"spec": {"minAvailable": random.below(3), "selector": {"matchLabels": {"app": "a"}}}})
}

fn role(random: &mut Random) -> Value {
    let resource = random.pick(&["pods", "secrets", "configmaps"]);
    json!({"rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get", "list"]}]})
}

fn binding(random: &mut Random) -> Value {
    let user = random.pick(&["bob", "ann", "carl", "dora", "system:anonymous"]);
    let role = random.pick(&["view", "edit", "n0"]);
    json!({"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}})
}

fn placement(random: &mut Random) -> Value {
    json!({"spec": {"resources": [{"apiGroup": "apps", "kinds": ["Deployment"]}], "count": random.below(3)}})
}

fn widget(random: &mut Random) -> Value {
    json!({"spec": {"size": random.below(5)}})
}

fn volume(random: &mut Random) -> Value {
    json!({"spec": {"capacity": {"storage": format!("{}Gi", 1 + random.below(3))}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/data"}}})
}

fn priority(random: &mut Random) -> Value {
    json!({"value": random.below(1000)})
}

fn storage(random: &mut Random) -> Value {
    json!({"provisioner": random.pick(&["example.com/a", "example.com/b"])})
}

fn admission(random: &mut Random) -> Value {
    json!({"spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
        "operations": ["CREATE"], "resources": ["configmaps"]}]},
        "validations": [{"expression": format!("size(object.metadata.name) > {}", random.below(3))}]}})
}

fn api_binding(random: &mut Random) -> Value {
    let path = random.pick(&["root:t", "root:v", "root:w", "root:t:team", "root:missing"]);
    json!({"spec": {"reference": {"export": {"path": path, "name": format!("n{}", random.below(3))}}}})
}

fn physical(_: &mut Random) -> Value {
    json!({"spec": {"connection": {"tunnel": {}}}})
}

fn definition(random: &mut Random) -> Value {
    let size: &&str = random.pick(&["integer", "number"]);
    widget_definition(size)
}

/// Makes the definition of a custom kind whose field has this type.
pub fn widget_definition(size: &str) -> Value {
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                "properties": {"size": {"type": size}}}}}}}]}})
}
