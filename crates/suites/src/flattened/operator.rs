//! cert-manager: its chart, its export, and its controller.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use harness::clients::Clients;
use harness::kubeconfig::UserKubeconfig;
use harness::kubectl::Kubectl;
use harness::ports::free_port;
use harness::process::{self, Process};
use harness::{go, poll};

use super::super::workspaces::WorkspaceChecks;
use super::PROVIDER;

/// Namespace of the operator.
const NAMESPACE: &str = "cert-manager";
/// Name of the export.
pub(super) const EXPORT: &str = "cert-manager";
const PATIENCE: Duration = Duration::from_secs(60);
/// Built-in resources that the operator claims, with their verbs.
pub(super) const CLAIMS: [&str; 2] = ["secrets", "events"];

/// Programs and folders of the operator.
pub(super) struct OperatorPlace<'a> {
    pub(super) scene: &'a WorkspaceChecks,
    pub(super) clients: &'a Clients,
    pub(super) dir: &'a Path,
}

/// Running controller.
pub(super) struct CertManager(Process);

impl CertManager {
    pub(super) fn check_alive(&self) -> Result<()> {
        self.0.check_alive().with_context(|| self.0.log_tail())
    }

    pub(super) fn terminate(&self) -> Result<()> {
        self.0.terminate()
    }
}

/// Returns the anonymous memory of a controller, in MiB.
pub(super) fn memory_of(running: &CertManager) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", running.0.pid())).context("it has ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kib: f64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kib / 1024.0)
}

/// Returns the name of the workspace of a copy.
pub(super) fn copy_name(number: usize) -> String {
    format!("copy-{number}")
}

/// Returns the schema of an export that describes the resource of a definition.
fn schema_of(definition: &Value) -> Value {
    let spec = &definition["spec"];
    let version = |own: &Value| {
        json!({
            "name": own["name"], "served": own["served"], "storage": own["storage"],
            "schema": own["schema"]["openAPIV3Schema"], "subresources": own.get("subresources").unwrap_or(&json!({})),
            "additionalPrinterColumns": own.get("additionalPrinterColumns").unwrap_or(&json!([])),
        })
    };
    let versions: Vec<_> = spec["versions"].as_array().into_iter().flatten().map(version).collect();
    json!({
        "apiVersion": "apis.kcp.io/v1alpha1", "kind": "APIResourceSchema",
        "metadata": {"name": format!("v1.{}", definition["metadata"]["name"].as_str().unwrap_or_default())},
        "spec": {"group": spec["group"], "names": spec["names"], "scope": spec["scope"], "versions": versions},
    })
}

fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

impl OperatorPlace<'_> {
    /// Installs the chart in the provider's workspace, and exports its definitions. Returns the id of the workspace.
    pub(super) fn export(&self) -> Result<String> {
        let kubectl = self.scene.make(PROVIDER)?;
        self.install(&kubectl)?;
        let definitions = kubectl.json("get crd")?;
        let mut definitions = definitions["items"].as_array().cloned().unwrap_or_default();
        definitions.retain(|own| own["spec"]["group"].as_str().is_some_and(|group| group.ends_with("cert-manager.io")));
        ensure!(definitions.len() >= 6, "the chart has {} definitions", definitions.len());
        let schemas: Vec<_> = definitions.iter().map(schema_of).collect();
        let offered = schemas.iter().map(|schema| {
            json!({
                "name": schema["spec"]["names"]["plural"], "group": schema["spec"]["group"],
                "schema": schema["metadata"]["name"], "storage": {"crd": {}},
            })
        });
        let claims = CLAIMS.map(|resource| json!({"group": "", "resource": resource, "verbs": ["*"]}));
        let export = json!({
            "apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": {"name": EXPORT},
            "spec": {"resources": offered.collect::<Vec<_>>(), "permissionClaims": claims},
        });
        let group = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "content"},
            "rules": [{"apiGroups": ["apis.kcp.io"], "resources": ["apiexports/content"], "verbs": ["*"]}],
        });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "content"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "content"},
            "subjects": [{"kind": "ServiceAccount", "name": "cert-manager", "namespace": NAMESPACE}],
        });
        kubectl.run_with("create -f -", &list([schemas, vec![export, role, binding]].concat()))?;
        poll::until("the export has an identity", PATIENCE, || {
            let found = kubectl.run(&format!("get apiexport {EXPORT} -o jsonpath={{.status.identityHash}}"))?;
            ensure!(!found.is_empty(), "it has none");
            Ok(())
        })?;
        let id = self.scene.root().run(&format!("get workspace {PROVIDER} -o jsonpath={{.spec.cluster}}"))?;
        Ok(id.trim().to_owned())
    }

    /// Installs the chart. Its programs run here and not in pods, and its webhooks do not run.
    fn install(&self, kubectl: &Kubectl) -> Result<()> {
        let chart = self.clients.cert_manager("chart");
        let mut command = Command::new(self.clients.helm());
        let values = "replicaCount=0,cainjector.replicaCount=0,webhook.replicaCount=0,startupapicheck.enabled=false,\
                      installCRDs=true,global.leaderElection.namespace=cert-manager";
        command.args(["install", "cert-manager", go::text(&chart)?, "--set", values]);
        command.args(["--namespace", NAMESPACE, "--create-namespace"]);
        command.env("KUBECONFIG", kubectl.kubeconfig_file()).env("HOME", self.dir);
        let ended = process::run(&mut command, "", PATIENCE)?;
        ensure!(ended.status.success(), "helm: {}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
        kubectl.run("delete validatingwebhookconfigurations,mutatingwebhookconfigurations --all")?;
        kubectl.run("wait crd --all --for=condition=Established --timeout=60s").map(drop)
    }

    /// Returns the address of the flattened view.
    fn flattened(&self, id: &str) -> UserKubeconfig {
        let config = self.scene.server().workspace(&format!("root:{PROVIDER}"));
        let host = format!("https://127.0.0.1:{}", self.scene.server().port());
        config.with_server(&format!("{host}/services/flattened/{id}/{EXPORT}"))
    }

    /// Starts the controller as the service account of its chart, at the flattened view.
    pub(super) fn start_flattened(&self, id: &str) -> Result<CertManager> {
        let provider = self.provider("tokens")?.in_namespace(NAMESPACE);
        let token = provider.run("create token cert-manager --duration=2h")?;
        self.start("one", &self.flattened(id).with_token(token.trim()))
    }

    /// Starts a copy for a single workspace, which has the definitions but is not part of the view.
    pub(super) fn start_copy(&self, number: usize) -> Result<CertManager> {
        let name = copy_name(number);
        let kubectl = self.scene.make(&name)?;
        self.install(&kubectl)?;
        self.start(&name, kubectl.config())
    }

    fn start(&self, name: &str, config: &UserKubeconfig) -> Result<CertManager> {
        let config: PathBuf = config.write(&self.dir.join(format!("{name}-operator.kubeconfig")))?;
        let flags = [
            format!("--kubeconfig={}", config.display()),
            format!("--leader-election-namespace={NAMESPACE}"),
            format!("--cluster-resource-namespace={NAMESPACE}"),
            format!("--metrics-listen-address=127.0.0.1:{}", free_port()?),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        let program = self.clients.cert_manager("controller");
        Process::spawn(&format!("cert-manager-{name}"), &program, flags, self.dir).map(CertManager)
    }

    fn provider(&self, name: &str) -> Result<Kubectl> {
        let config = self.scene.server().workspace(&format!("root:{PROVIDER}"));
        self.scene.root().with_config(&config, name)
    }

    /// Checks that the controller holds its lease, in the namespace of the operator.
    pub(super) fn is_leader(&self) -> Result<()> {
        let kubectl = self.provider("leases")?.in_namespace(NAMESPACE);
        let holder = kubectl.run("get leases -o jsonpath={.items[*].spec.holderIdentity}")?;
        ensure!(!holder.trim().is_empty(), "it has none");
        Ok(())
    }

    /// Checks the output of kubectl in the view.
    pub(super) fn is_one_cluster(&self, id: &str, count: usize) -> Result<()> {
        let kubectl = self.scene.root().with_config(&self.flattened(id), "flattened")?;
        let all = kubectl.json("get certificates -A")?;
        let items = all["items"].as_array().context("no list")?;
        let names: Vec<_> = items.iter().filter_map(|item| item["metadata"]["namespace"].as_str()).collect();
        ensure!(names.len() >= count && names.iter().all(|name| name.ends_with("--default")), "{names:?}");
        let table = kubectl.run(&format!("get certificate quay -n {}", names[0]))?;
        ensure!(table.contains("quay") && table.contains("True"), "{table}");
        let resources = kubectl.run("api-resources --api-group=cert-manager.io -o name")?;
        ensure!(resources.contains("clusterissuers.cert-manager.io"), "{resources}");
        let explained = kubectl.run("explain certificate.spec.issuerRef")?;
        ensure!(explained.contains("issuerRef"), "{explained}");
        let class = r#"{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast}, provisioner: x}"#;
        let said = kubectl.call("create -f -", class)?.to_string();
        ensure!(said.contains("read-only"), "{said}");
        Ok(())
    }
}
