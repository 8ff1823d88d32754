//! Information about the server, and namespaces.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{KubectlCheck, KubectlContext, NAMESPACE, contains};
use harness::poll;

pub(super) const CHECKS: &[KubectlCheck] = &[
    ("version: the server is a Kubernetes 1.36", version),
    ("get --raw: health endpoints say ok", health),
    ("cluster-info names the control plane", cluster_info),
    ("api-versions lists the built-in groups", api_versions),
    ("api-resources has names, short names, scope and kind", api_resources),
    ("api-resources filters by scope and verb", api_resources_filtered),
    ("explain prints a field with its type and text", explain),
    ("explain --recursive prints the tree", explain_recursive),
    ("explain refuses a field that is not there", explain_unknown),
    ("get namespaces: the initial ones are Active", initial_namespaces),
    ("create namespace: it becomes Active and gets its defaults", create_namespace),
];

fn version(context: &KubectlContext) -> Result<()> {
    let output = context.anywhere.call("version", "")?;
    contains("version", &output.stdout, &["Client Version: v1.36.3", "Server Version: v1.36."])?;
    ensure!(output.stderr.is_empty(), "a warning: {output}");
    Ok(())
}

fn health(context: &KubectlContext) -> Result<()> {
    for path in ["/healthz", "/livez", "/readyz"] {
        // The API server itself answers these, not the logical cluster.
        let out = context.anywhere.run(&format!("get --raw {path}"))?;
        ensure!(out.trim() == "ok", "{path} says {out:?}");
    }
    contains("/version", &context.anywhere.run("get --raw /version")?, &["\"major\"", "\"1\"", "gitVersion"])
}

fn cluster_info(context: &KubectlContext) -> Result<()> {
    contains("cluster-info", &context.anywhere.run("cluster-info")?, &["Kubernetes control plane", "is running at"])
}

fn api_versions(context: &KubectlContext) -> Result<()> {
    let out = context.anywhere.run("api-versions")?;
    for version in [
        "apps/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "autoscaling/v2",
        "batch/v1",
        "coordination.k8s.io/v1",
        "discovery.k8s.io/v1",
        "events.k8s.io/v1",
        "networking.k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "storage.k8s.io/v1",
        "v1",
    ] {
        ensure!(out.lines().any(|line| line == version), "{version} is not in {out}");
    }
    Ok(())
}

fn api_resources(context: &KubectlContext) -> Result<()> {
    let out = context.anywhere.run("api-resources --no-headers")?;
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        &["configmaps", "cm", "v1", "true", "ConfigMap"][..],
        &["namespaces", "ns", "v1", "false", "Namespace"],
        &["pods", "po", "v1", "true", "Pod"],
        &["secrets", "v1", "true", "Secret"],
        &["serviceaccounts", "sa", "v1", "true", "ServiceAccount"],
        &["services", "svc", "v1", "true", "Service"],
        &["persistentvolumeclaims", "pvc", "v1", "true", "PersistentVolumeClaim"],
        &["deployments", "deploy", "apps/v1", "true", "Deployment"],
        &["statefulsets", "sts", "apps/v1", "true", "StatefulSet"],
        &["daemonsets", "ds", "apps/v1", "true", "DaemonSet"],
        &["horizontalpodautoscalers", "hpa", "autoscaling/v2", "true", "HorizontalPodAutoscaler"],
        &["cronjobs", "cj", "batch/v1", "true", "CronJob"],
        &["jobs", "batch/v1", "true", "Job"],
        &["ingresses", "ing", "networking.k8s.io/v1", "true", "Ingress"],
        &["networkpolicies", "netpol", "networking.k8s.io/v1", "true", "NetworkPolicy"],
        &["poddisruptionbudgets", "pdb", "policy/v1", "true", "PodDisruptionBudget"],
        &["clusterroles", "rbac.authorization.k8s.io/v1", "false", "ClusterRole"],
        &["leases", "coordination.k8s.io/v1", "true", "Lease"],
        &["endpointslices", "discovery.k8s.io/v1", "true", "EndpointSlice"],
        &["storageclasses", "sc", "storage.k8s.io/v1", "false", "StorageClass"],
    ] {
        ensure!(rows.iter().any(|found| found == row), "no row {row:?} in\n{out}");
    }
    Ok(())
}

fn api_resources_filtered(context: &KubectlContext) -> Result<()> {
    let out = context.anywhere.run("api-resources --namespaced=false --verbs=list,create -o name")?;
    let names: Vec<&str> = out.lines().collect();
    for (name, expected) in [
        ("namespaces", true),
        ("clusterroles.rbac.authorization.k8s.io", true),
        ("pods", false),
        ("selfsubjectaccessreviews.authorization.k8s.io", false),
    ] {
        ensure!(names.contains(&name) == expected, "{name}: expected {expected} in {names:?}");
    }
    Ok(())
}

fn explain(context: &KubectlContext) -> Result<()> {
    let out = context.anywhere.run("explain deployment.spec.replicas")?;
    contains(
        "explain",
        &out,
        &["GROUP:", "apps", "KIND:", "Deployment", "FIELD: replicas", "integer", "desired pods"],
    )?;
    let out = context.anywhere.run("explain pod.spec.containers.image")?;
    contains("explain", &out, &["VERSION:", "v1", "FIELD: image", "string", "Container image name"])
}

fn explain_recursive(context: &KubectlContext) -> Result<()> {
    let out = context.anywhere.run("explain ingress --recursive")?;
    contains("explain", &out, &["ingressClassName", "pathType", "-required-", "metadata", "ObjectMeta"])
}

fn explain_unknown(context: &KubectlContext) -> Result<()> {
    context.refuses("explain pod.spec.nope", "", &["field \"nope\" does not exist"])
}

fn initial_namespaces(context: &KubectlContext) -> Result<()> {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        context.path_becomes(&format!("namespace/{name}"), "{.status.phase}", "Active")?;
    }
    Ok(())
}

fn create_namespace(context: &KubectlContext) -> Result<()> {
    let out = context.anywhere.run(&format!("create namespace {NAMESPACE}"))?;
    contains("create", &out, &["namespace/verbs created"])?;
    context.path_is("namespace/verbs", "{.status.phase}", "Active")?;
    context.path_is("namespace/verbs", "{.metadata.labels.kubernetes\\.io/metadata\\.name}", NAMESPACE)?;
    poll::until("the default service account", Duration::from_secs(30), || context.kubectl.run("get sa/default"))?;
    poll::until("the root CA", Duration::from_secs(30), || {
        let certificate = context.path("cm/kube-root-ca.crt", "{.data.ca\\.crt}")?;
        contains("kube-root-ca.crt", &certificate, &["BEGIN CERTIFICATE"])
    })
}
