//! Cases of a workload's followers: the objects that its template references, and their removal once nothing needs
//! them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::super::downstream::{items, name};
use super::super::scene::EAST;
use super::Case;
use super::stage::{CaseStage, apply, clusters, deployment, downstream_namespace, eventually};

pub(super) const CASES: [Case; 4] = [
    ("everything that a pod template references follows it", references),
    ("a TLS Secret follows an Ingress that comes last", late_ingress),
    ("content that nothing names or selects leaves", unselected),
    ("a label of a projected pod reaches the pod", pod_label),
];

const REFERENCES: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: r}
spec:
  replicas: 0
  selector: {matchLabels: {app: r}}
  template:
    metadata: {labels: {app: r}}
    spec:
      serviceAccountName: robot
      imagePullSecrets: [{name: s-pull}]
      initContainers: [{name: i, image: i, envFrom: [{secretRef: {name: s-init}}, {configMapRef: {name: c-init}}]}]
      containers:
      - name: c
        image: i
        env:
        - {name: A, valueFrom: {secretKeyRef: {name: s-env, key: k}}}
        - {name: B, valueFrom: {configMapKeyRef: {name: c-env, key: k}}}
        envFrom:
        - {secretRef: {name: s-efrom}}
        - {configMapRef: {name: c-efrom}}
        - {configMapRef: {name: c-later, optional: true}}
      volumes:
      - {name: v1, secret: {secretName: s-vol}}
      - {name: v2, configMap: {name: c-vol}}
      - {name: v3, projected: {sources: [{secret: {name: s-proj}}, {configMap: {name: c-proj}}]}}
      - {name: v4, csi: {driver: d.example, nodePublishSecretRef: {name: s-csi}}}
      - {name: v5, azureFile: {secretName: s-azure, shareName: x}}
      - {name: v6, rbd: {monitors: [m], image: x, secretRef: {name: s-rbd}}}
";

fn references(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("references", EAST)?;
    let secrets = ["env", "efrom", "vol", "proj", "pull", "csi", "init", "azure", "rbd"];
    let maps = ["env", "efrom", "vol", "proj", "init"];
    secrets.iter().try_for_each(|one| secret(&kubectl, &format!("s-{one}")))?;
    maps.iter().try_for_each(|one| config_map(&kubectl, &format!("c-{one}")))?;
    secret(&kubectl, "unnamed")?;
    apply(
        &kubectl,
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot}, imagePullSecrets: [{name: s-sapull}]}",
    )?;
    apply(&kubectl, REFERENCES)?;
    // Objects that are created after the Deployment follow it, too.
    config_map(&kubectl, "c-later")?;
    secret(&kubectl, "s-sapull")?;
    let wanted: BTreeSet<String> = secrets
        .iter()
        .map(|one| format!("s-{one}"))
        .chain(maps.iter().map(|one| format!("c-{one}")))
        .chain(["c-later".to_owned(), "s-sapull".to_owned()])
        .collect();
    eventually("all references downstream", || {
        let namespace = downstream_namespace(stage.east()?, "references")?;
        let list = stage.east()?.kubectl().json(&format!("get configmaps,secrets -n {namespace}"))?;
        let found: BTreeSet<String> =
            items(&list).iter().map(name).map(str::to_owned).filter(|name| name != "kube-root-ca.crt").collect();
        ensure!(found == wanted, "downstream {:?}", found.symmetric_difference(&wanted).collect::<Vec<_>>());
        let account = stage.east()?.kubectl().json(&format!("get serviceaccount robot -n {namespace}"))?;
        ensure!(account["imagePullSecrets"][0]["name"] == "s-sapull", "{}", account["imagePullSecrets"]);
        Ok(())
    })?;
    stage.discard(&["references"])
}

fn late_ingress(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("ingress", EAST)?;
    secret(&kubectl, "certificate")?;
    apply(&kubectl, &deployment("web", 1))?;
    apply(
        &kubectl,
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}",
    )?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    apply(
        &kubectl,
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web}, spec: {
           tls: [{hosts: [shop.example], secretName: certificate}],
           rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}",
    )?;
    eventually("the certificate downstream", || {
        let namespace = downstream_namespace(stage.east()?, "ingress")?;
        stage.east()?.kubectl().run(&format!("get secret certificate -n {namespace}"))
    })?;
    stage.discard(&["ingress"])
}

fn unselected(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("unselected", EAST)?;
    apply(
        &kubectl,
        "{apiVersion: portolan.dev/v1alpha1, kind: PlacementPolicy, metadata: {name: content}, spec: {
           resources: [{kinds: [ConfigMap, Secret], selector: {matchLabels: {send: 'yes'}}}], clusters: {names: [east]}}}",
    )?;
    apply(&kubectl, &deployment("web", 1))?;
    config_map(&kubectl, "a")?;
    secret(&kubectl, "b")?;
    config_map(&kubectl, "named")?;
    kubectl.run("label configmap/a send=yes")?;
    kubectl.run("label secret/b send=yes")?;
    let named =
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","envFrom":[{"configMapRef":{"name":"named"}}]}]}}}}"#;
    kubectl.run_args(&["patch", "deployment", "web", "-p", named])?;
    let all = ["configmaps-a", "secrets-b", "configmaps-named"];
    eventually("the content is placed", || {
        all.iter().try_for_each(|placement| {
            ensure!(clusters(&kubectl, placement)? == [EAST], "{placement} is not placed");
            Ok(())
        })
    })?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    kubectl.run("label configmap/a send-")?;
    kubectl.run("delete placementpolicy content")?;
    // Old ReplicaSets name their content, too.
    let unnamed = r#"[{"op":"remove","path":"/spec/template/spec/containers/0/envFrom"},
                      {"op":"replace","path":"/spec/revisionHistoryLimit","value":0}]"#;
    kubectl.run_args(&["patch", "deployment", "web", "--type=json", "-p", unnamed])?;
    kubectl.run("rollout status deployment/web --timeout=60s")?;
    eventually("the content leaves", || {
        all.iter().try_for_each(|placement| {
            let found = clusters(&kubectl, placement)?;
            ensure!(found.is_empty(), "{placement} is still on {found:?}");
            Ok(())
        })
    })?;
    stage.discard(&["unselected"])
}

fn pod_label(stage: &CaseStage<'_>) -> Result<()> {
    let kubectl = stage.pinned("labels", EAST)?;
    apply(&kubectl, &deployment("w", 2))?;
    apply(
        &kubectl,
        "{apiVersion: v1, kind: Service, metadata: {name: primary}, spec: {selector: {app: w, role: primary}, ports: [{port: 80}]}}",
    )?;
    kubectl.run("rollout status deployment/w --timeout=60s")?;
    let pods = eventually("pods", || {
        let list = kubectl.json("get pods")?;
        ensure!(!items(&list).is_empty(), "no pods");
        Ok(list)
    })?;
    let pod = name(&items(&pods)[0]).to_owned();
    kubectl.run(&format!("label pod {pod} role=primary"))?;
    let namespace = downstream_namespace(stage.east()?, "labels")?;
    let member = stage.east()?.kubectl().in_namespace(&namespace);
    eventually("the label downstream", || {
        let label = member.json(&format!("get pod {pod}"))?["metadata"]["labels"]["role"].clone();
        ensure!(label == "primary", "{label}");
        let slices = member.json("get endpointslices -l kubernetes.io/service-name=primary")?;
        let endpoints: usize = items(&slices).iter().map(|one| one["endpoints"].as_array().map_or(0, Vec::len)).sum();
        ensure!(endpoints == 1, "{endpoints} endpoints of the Service");
        Ok(())
    })?;
    stage.discard(&["labels"])
}

fn secret(kubectl: &harness::kubectl::Kubectl, name: &str) -> Result<()> {
    kubectl.run(&format!("create secret generic {name} --from-literal=k=v")).map(drop)
}

fn config_map(kubectl: &harness::kubectl::Kubectl, name: &str) -> Result<()> {
    kubectl.run(&format!("create configmap {name} --from-literal=k=v")).map(drop)
}
