//! The Helm program, over a chart with every kind that charts are made of, hooks and a test.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::ClientStage;
use harness::clients::Clients;
use harness::kubectl::Kubectl;
use harness::process;
use harness::report::CheckReport;

const NAMESPACE: &str = "helm";
const RELEASE: &str = "ship";
const LIMIT: Duration = Duration::from_secs(150);
/// Everything is there and has run, or the command fails.
const WAIT: &str = "--wait --wait-for-jobs --timeout 120s";

/// Helm and kubectl in the namespace of the release.
pub(super) struct Helm<'a> {
    stage: &'a ClientStage<'a>,
    kubectl: Kubectl,
    namespace: &'static str,
    chart: PathBuf,
}

type HelmCheck = (&'static str, fn(&Helm<'_>) -> Result<()>);

const CHECKS: [HelmCheck; 13] = [
    ("lint finds the chart good", |helm| helm.says("lint CHART --strict", &["0 chart(s) failed"])),
    ("template --validate asks the server", validates),
    ("install creates the namespace, runs its hook and waits", installs),
    ("install --atomic undoes what the server refused in part", undoes),
    ("list, status and get tell of the release", tells),
    ("a second install of the name is refused", |helm| {
        helm.refuses("install ship CHART", "cannot re-use a name that is still in use")
    }),
    ("test runs the test pod to its end", |helm| {
        helm.says("test ship --timeout 90s", &["TEST SUITE:     ship-look", "Phase:          Succeeded"])
    }),
    ("upgrade changes what changed, and removes its hook", upgrades),
    ("an upgrade of what cannot change fails, and says why", fails),
    ("rollback brings the first revision back", rolls_back),
    ("history has each revision with its fate", history),
    ("upgrade --install makes a release that is not there", makes_another),
    ("uninstall leaves nothing", uninstalls),
];

/// Runs all checks in order. Each builds on those before it.
pub(super) fn run(report: &mut CheckReport, stage: &ClientStage<'_>) {
    let helm = Helm::new(stage, NAMESPACE, Clients::chart());
    for (name, check) in CHECKS {
        report.check(&format!("helm: {name}"), || check(&helm));
    }
}

impl<'a> Helm<'a> {
    /// `CHART` in arguments stands for the chart.
    pub(super) fn new(stage: &'a ClientStage<'a>, namespace: &'static str, chart: PathBuf) -> Self {
        Self { stage, kubectl: stage.kubectl.in_namespace(namespace), namespace, chart }
    }

    pub(super) fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    fn call(&self, args: &str) -> Result<process::ProcessOutput> {
        let chart = self.chart.to_str().context("the path of the clone is not UTF-8")?;
        let mut command = Command::new(self.stage.clients.helm());
        command
            .args(args.split_whitespace().map(|word| if word == "CHART" { chart } else { word }))
            .args(["--namespace", self.namespace])
            .env("KUBECONFIG", self.stage.kubectl.kubeconfig_file())
            .env("HOME", self.stage.dir);
        process::run(&mut command, "", LIMIT).with_context(|| format!("helm {args}"))
    }

    /// Wants exit code 0, and gives stdout.
    fn run(&self, args: &str) -> Result<String> {
        let ended = self.call(args)?;
        ensure!(ended.status.success(), "helm {args}: {}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
        Ok(ended.stdout)
    }

    /// Wants exit code 0 and all of `texts` in stdout.
    pub(super) fn says(&self, args: &str, texts: &[&str]) -> Result<()> {
        let out = self.run(args)?;
        let missing = texts.iter().find(|text| !out.contains(**text));
        ensure!(missing.is_none(), "helm {args}: {missing:?} is not in\n{out}");
        Ok(())
    }

    /// Wants another exit code, and `text` in stderr.
    pub(super) fn refuses(&self, args: &str, text: &str) -> Result<()> {
        let ended = self.call(args)?;
        ensure!(!ended.status.success(), "helm {args} succeeded:\n{}", ended.stdout);
        ensure!(ended.stderr.contains(text), "helm {args}: {text:?} is not in\n{}", ended.stderr);
        Ok(())
    }

    fn json(&self, args: &str) -> Result<Value> {
        let text = self.run(&format!("{args} --output json"))?;
        serde_json::from_str(&text).with_context(|| format!("helm {args} printed no JSON"))
    }

    /// One JSONPath of one object.
    pub(super) fn path_is(&self, object: &str, path: &str, expected: &str) -> Result<()> {
        let found = self.kubectl.run_args(&["get", object, "-o", &format!("jsonpath={path}")])?;
        ensure!(found == expected, "{object} {path} is {found:?}, expected {expected:?}");
        Ok(())
    }

    pub(super) fn absent(&self, object: &str) -> Result<()> {
        let found = self.kubectl.run(&format!("get {object} --ignore-not-found -o name"))?;
        ensure!(found.is_empty(), "{found} is there");
        Ok(())
    }
}

fn validates(helm: &Helm<'_>) -> Result<()> {
    helm.says("template ship CHART --validate", &["kind: StatefulSet", "minor: \"36\"", "apps: \"true\""])
}

fn undoes(helm: &Helm<'_>) -> Result<()> {
    helm.refuses(
        "install bad CHART --set replicas=many --skip-schema-validation --no-hooks --atomic --timeout 60s",
        "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct \
         field DeploymentSpec.spec.replicas of type int32",
    )?;
    ensure!(helm.json("list --all --filter bad")? == Value::Array(Vec::new()), "the release is there");
    helm.absent("configmap/bad-config")
}

fn installs(helm: &Helm<'_>) -> Result<()> {
    let out = helm.run(&format!("install ship CHART --create-namespace {WAIT}"))?;
    ensure!(out.contains("STATUS: deployed") && out.contains("ship is at revision 1 and says ahoy."), "{out}");
    helm.path_is(
        "deployment/ship",
        "{.status.readyReplicas} {.metadata.labels.app\\.kubernetes\\.io/managed-by}",
        "2 Helm",
    )?;
    helm.path_is("statefulset/ship-log", "{.status.readyReplicas}", "1")?;
    helm.path_is("job/ship-load-1", "{.status.succeeded}", "1")?;
    helm.path_is("job/ship-pre-install", "{.status.succeeded}", "1")?;
    helm.path_is("configmap/ship-config", "{.data.minor} {.data.apps} {.data.found}", "36 true kube-system")?;
    helm.path_is("secret/ship-secret", "{.data.password}", "Y2hhbmdlLW1l")
}

fn tells(helm: &Helm<'_>) -> Result<()> {
    let list = helm.json("list")?;
    ensure!(
        list[0]["name"] == RELEASE && list[0]["chart"] == "ship-1.2.3" && list[0]["status"] == "deployed",
        "{list}"
    );
    helm.says("status ship --show-resources", &["==> v1/Deployment", "==> v1/StatefulSet", "2/2"])?;
    helm.says("get manifest ship", &["kind: RoleBinding"])?;
    helm.says("get hooks ship", &["helm.sh/hook: pre-delete"])?;
    helm.says("get notes ship", &["says ahoy"])
}

fn upgrades(helm: &Helm<'_>) -> Result<()> {
    let args = "upgrade ship CHART --set replicas=3,greeting=hello,image=registry.example/ship:2";
    helm.says(&format!("{args} {WAIT}"), &["STATUS: deployed", "ship is at revision 2 and says hello."])?;
    helm.path_is(
        "deployment/ship",
        "{.status.readyReplicas} {.spec.template.spec.containers[0].image}",
        "3 registry.example/ship:2",
    )?;
    helm.path_is("configmap/ship-order", "{.data.revision}", "2")?;
    helm.absent("job/ship-load-1")?;
    helm.absent("job/ship-post-upgrade")?;
    let values = helm.json("get values ship")?;
    ensure!(values["replicas"] == 3 && values["greeting"] == "hello", "{values}");
    Ok(())
}

fn fails(helm: &Helm<'_>) -> Result<()> {
    helm.refuses(
        "upgrade ship CHART --reuse-values --set crew=other",
        "UPGRADE FAILED: cannot patch \"ship\" with kind Deployment: Deployment.apps \"ship\" is invalid: spec.selector: \
         Invalid value: {\"matchLabels\":{\"app.kubernetes.io/instance\":\"ship\",\"crew\":\"other\"}}: field is immutable",
    )?;
    helm.says("status ship", &["STATUS: failed"])
}

fn rolls_back(helm: &Helm<'_>) -> Result<()> {
    helm.says(&format!("rollback ship 1 {WAIT}"), &["Rollback was a success"])?;
    helm.path_is(
        "deployment/ship",
        "{.status.readyReplicas} {.spec.template.spec.containers[0].image}",
        "2 registry.example/ship:1",
    )?;
    helm.path_is("configmap/ship-config", "{.data.greeting}", "ahoy")
}

fn history(helm: &Helm<'_>) -> Result<()> {
    let history = helm.json("history ship")?;
    let fates: Vec<&str> =
        history.as_array().context("no list")?.iter().filter_map(|one| one["status"].as_str()).collect();
    ensure!(fates == ["superseded", "superseded", "failed", "deployed"], "{fates:?}");
    Ok(())
}

fn makes_another(helm: &Helm<'_>) -> Result<()> {
    let args = "upgrade boat CHART --install --set replicas=0 --no-hooks --atomic --timeout 90s";
    helm.says(args, &["Release \"boat\" does not exist. Installing it now.", "STATUS: deployed"])?;
    helm.says("list --short", &["boat\nship"])
}

fn uninstalls(helm: &Helm<'_>) -> Result<()> {
    helm.says("uninstall boat --no-hooks --wait", &["release \"boat\" uninstalled"])?;
    helm.says("uninstall ship --wait --keep-history --timeout 90s", &["release \"ship\" uninstalled"])?;
    helm.says("status ship", &["STATUS: uninstalled"])?;
    helm.says("uninstall ship", &["release \"ship\" uninstalled"])?;
    for object in ["deployments", "statefulsets", "services", "roles", "secrets", "jobs/ship-pre-delete"] {
        helm.absent(object)?;
    }
    helm.kubectl.run("delete configmap,job,pod --all --timeout=60s")?;
    helm.stage.kubectl.within(LIMIT).run(&format!("delete namespace {NAMESPACE} --timeout=120s")).map(drop)
}
