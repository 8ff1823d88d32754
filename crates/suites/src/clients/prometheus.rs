//! Published prometheus-operator, with its ten definitions and 3.5 MB of schemas. The checks are those of its own
//! end-to-end tests that need no answer from a Prometheus: the objects that it creates, reports, changes and deletes.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::ClientStage;
use super::harbour::{Harbour, OperatorCheck, PATIENCE};
use harness::poll;
use harness::ports::free_port;
use harness::process::Process;
use harness::report::CheckReport;

const NAMESPACE: &str = "monitoring";

const PROMETHEUS: &str = r#"
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: tide}
spec:
  replicas: 2
  serviceAccountName: default
  serviceMonitorSelector: {matchLabels: {team: harbour}}
  ruleSelector: {matchLabels: {team: harbour}}
  resources: {requests: {memory: 40Mi}}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: gauges, labels: {team: harbour}}
spec:
  selector: {matchLabels: {app: gauge}}
  endpoints: [{port: web, interval: 15s}]
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: floods, labels: {team: harbour}}
spec:
  groups: [{name: water, rules: [{alert: Flood, expr: "level_metres > 5", for: 1m}]}]
---
apiVersion: monitoring.coreos.com/v1
kind: Alertmanager
metadata: {name: bell}
spec: {replicas: 1}
"#;

/// A word of its definition's enumeration that there is not.
const WRONG: &str = r#"{apiVersion: monitoring.coreos.com/v1, kind: Prometheus, metadata: {name: wrong},
    spec: {logLevel: loud}}"#;

const CHECKS: [OperatorCheck; 8] = [
    ("it finds its kinds and begins to watch", watches),
    ("a Prometheus gets StatefulSet, Service and configuration, and owns them", makes),
    ("its rules and monitors are in what it configures", configures),
    ("a Prometheus and an Alertmanager say that they are available", available),
    ("an object that its schema refuses is not made", refuses),
    ("scaling adds a shard, and takes it away", scales),
    ("another version is rolled out", upgrades),
    ("what is deleted goes with all that it owned", deletes),
];

/// Runs all checks in order. Each builds on those before it.
pub(super) fn run(report: &mut CheckReport, stage: &ClientStage<'_>) {
    let mut harbour = None;
    let ready = report.check("prometheus-operator: its definitions are applied and established, and it starts", || {
        harbour = Some(launch(stage)?);
        Ok(())
    });
    if let Some(harbour) = harbour.filter(|_| ready) {
        harbour.check_all(report, "prometheus-operator", &CHECKS);
        report.check("prometheus-operator: it ends when it is told to, and its kinds go", || ends(stage, harbour));
    }
}

fn launch(stage: &ClientStage<'_>) -> Result<Harbour> {
    let (program, definitions) = stage.clients.prometheus_operator().program();
    let definitions = definitions.to_str().context("the path of the cache is not UTF-8")?;
    stage.kubectl.within(PATIENCE).run(&format!("apply --server-side -f {definitions}"))?;
    stage.kubectl.run("wait crd --all --for=condition=Established --timeout=30s")?;
    stage.kubectl.run(&format!("create namespace {NAMESPACE}"))?;
    let flags = [
        format!("KUBECONFIG={}", stage.kubectl.kubeconfig_file().display()),
        format!("HOME={}", stage.dir.display()),
        program.display().to_string(),
        format!("--web.listen-address=127.0.0.1:{}", free_port()?),
        format!("--namespaces={NAMESPACE}"),
        "--kubelet-endpoints=false".to_owned(),
    ];
    // `env` becomes the operator.
    let operator = Process::spawn("prometheus-operator", Path::new("env"), flags, stage.dir)?;
    Ok(Harbour { kubectl: stage.kubectl.in_namespace(NAMESPACE), programs: vec![operator] })
}

fn watches(harbour: &Harbour) -> Result<()> {
    poll::until("its caches are filled", PATIENCE, || {
        harbour.check_alive()?;
        let log = harbour.programs.first().context("no operator")?.log()?;
        ensure!(log.contains("successfully synced all caches"), "it has not said so");
        Ok(())
    })
}

fn makes(harbour: &Harbour) -> Result<()> {
    harbour.kubectl.run_with("apply -f -", PROMETHEUS)?;
    let owner = "{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}";
    harbour.is("statefulset/prometheus-tide", owner, "Prometheus tide")?;
    harbour.is("statefulset/prometheus-tide", "{.spec.replicas}", "2")?;
    harbour.is("service/prometheus-operated", "{.spec.clusterIP}", "None")?;
    harbour.is("secret/prometheus-tide", owner, "Prometheus tide")?;
    harbour.is("statefulset/alertmanager-bell", "{.metadata.ownerReferences[0].kind}", "Alertmanager")
}

fn configures(harbour: &Harbour) -> Result<()> {
    let rules = "{.data.*}";
    poll::until("the rules are in a ConfigMap", PATIENCE, || {
        let found = harbour.seen("configmap/prometheus-tide-rulefiles-0", rules)?;
        ensure!(found.contains("alert: Flood"), "{found}");
        Ok(())
    })?;
    // The configuration is compressed, so the check sees only that it changes with the monitor.
    let packed = || harbour.seen("secret/prometheus-tide", "{.data}");
    let before = packed()?;
    harbour.kubectl.run_args(&[
        "patch",
        "servicemonitor/gauges",
        "--type=merge",
        "-p",
        r#"{"spec":{"endpoints":[{"port":"web","interval":"30s","path":"/levels"}]}}"#,
    ])?;
    poll::until("the configuration changes", PATIENCE, || {
        ensure!(packed()? != before, "it is the same");
        Ok(())
    })
}

fn available(harbour: &Harbour) -> Result<()> {
    for object in ["prometheus/tide", "alertmanager/bell"] {
        harbour.is_true(object, "Reconciled")?;
        harbour.is_true(object, "Available")?;
    }
    harbour.is("prometheus/tide", "{.status.availableReplicas}", "2")?;
    let table = harbour.kubectl.run("get prometheus tide")?;
    let words: Vec<&str> = table.split_whitespace().collect();
    ensure!(words.starts_with(&["NAME", "VERSION", "DESIRED", "READY", "RECONCILED", "AVAILABLE"]), "{table}");
    Ok(())
}

fn refuses(harbour: &Harbour) -> Result<()> {
    let said = harbour.kubectl.call("apply -f -", WRONG)?.to_string();
    ensure!(said.contains("spec.logLevel: Unsupported value: \"loud\""), "{said}");
    Ok(())
}

fn scales(harbour: &Harbour) -> Result<()> {
    harbour.kubectl.run("scale prometheus/tide --replicas=2")?;
    harbour.is("prometheus/tide", "{.spec.shards}", "2")?;
    harbour.is("statefulset/prometheus-tide-shard-1", "{.spec.replicas}", "2")?;
    harbour.is("prometheus/tide", "{.status.shards}", "2")?;
    harbour.kubectl.run("scale prometheus/tide --replicas=1")?;
    harbour.gone("statefulset/prometheus-tide-shard-1")
}

fn upgrades(harbour: &Harbour) -> Result<()> {
    harbour.kubectl.run_args(&[
        "patch",
        "prometheus/tide",
        "--type=merge",
        "-p",
        r#"{"spec":{"version":"v3.4.0"}}"#,
    ])?;
    let image = "{.spec.template.spec.containers[?(@.name==\"prometheus\")].image}";
    harbour.is("statefulset/prometheus-tide", image, "quay.io/prometheus/prometheus:v3.4.0")?;
    harbour.is_true("prometheus/tide", "Available")
}

fn deletes(harbour: &Harbour) -> Result<()> {
    harbour
        .kubectl
        .within(PATIENCE)
        .run("delete prometheus/tide alertmanager/bell servicemonitor/gauges --timeout=50s")?;
    harbour.gone("statefulsets")?;
    harbour.gone("configmap/prometheus-tide-rulefiles-0")?;
    harbour.gone("pods")
}

fn ends(stage: &ClientStage<'_>, harbour: Harbour) -> Result<()> {
    harbour.stop()?;
    let kubectl = stage.kubectl.within(PATIENCE * 2);
    let definitions = kubectl.run("get crd -o name")?;
    kubectl.run(&format!("delete {} --timeout=60s", definitions.split_whitespace().collect::<Vec<_>>().join(" ")))?;
    kubectl.run(&format!("delete namespace {NAMESPACE} --timeout=110s")).map(drop)
}
