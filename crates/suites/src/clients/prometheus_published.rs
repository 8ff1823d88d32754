//! prometheus-operator's own published end-to-end tests, unmodified: their framework deploys the operator, a physical
//! cluster says that its pod is ready, and the operator itself runs here with what its Deployment gives it.
//! `e2e/operators/prometheus-operator.yaml` says which cases run, and why the others do not.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;

use super::ClientStage;
use super::deployed::Deployed;
use super::go_tests::{GoTests, LeftOut, pattern};
use super::harbour::PATIENCE;
use harness::go;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::ports::free_port;
use harness::process::Process;
use harness::report::CheckReport;
use harness::tools::repository;
use harness::tunnel;
use harness::webhook::{self, WebhookReply};

/// Time limit of a run, with a margin for Go's report of an unfinished one.
const LIMIT: Duration = Duration::from_secs(600);
const REPORTED: Duration = Duration::from_secs(30);
/// Interval between searches for deleted Deployments.
const LOOKED: Duration = Duration::from_secs(1);
/// Number of concurrent tests, which mostly wait. The operator of a run handles the changes of all its tests one by
/// one, and some tests expect results soon; the project itself runs about as many as there are processors.
const PARALLEL: usize = 8;

/// Host from which the tests load the previous version of the operator.
const FILES: &str = "raw.githubusercontent.com";
/// Previous version, according to the change log of the tested version.
const PREVIOUS: &str = "0.84.1";

/// Label of the namespaces of the tests.
const OF_TESTS: &str = "app.kubernetes.io/created-by=e2e-test";

/// The tests want a node to be there.
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: quay}}";

/// Selection of cases, as the data file has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrometheusCases {
    runs: Vec<TestRun>,
    left_out: Vec<LeftOut>,
}

/// Cases that run in one process. With several such groups, each has its own logical cluster.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestRun {
    name: String,
    /// Value of Go's `-run`.
    run: String,
    /// Those that another run has.
    #[serde(default)]
    but: Vec<String>,
    /// So many pass, tests without tests in them.
    cases: usize,
}

/// State that all runs share.
struct PublishedTests {
    program: PathBuf,
    module: PathBuf,
    operator: PathBuf,
    /// The proxy that serves [`FILES`], and its certificate.
    proxy: String,
    authority: PathBuf,
    left_out: Vec<String>,
}

/// Runs all of them. Where there are several logical clusters they run side by side.
pub(super) fn run(report: &mut CheckReport, stage: &ClientStage<'_>) {
    let mut ready = None;
    report.check("prometheus-operator: its own end-to-end tests can be run", || {
        ready = Some(prepare(stage)?);
        Ok(())
    });
    let Some((published, runs)) = &ready else { return };
    let ended: Vec<_> = match stage.workspaces {
        Some(_) => thread::scope(|scope| {
            let begun: Vec<_> =
                runs.iter().map(|run| scope.spawn(move || run_in_own_cluster(published, stage, run))).collect();
            begun.into_iter().map(|run| run.join().unwrap_or_else(|_| (0.0, Err(anyhow!("it panicked"))))).collect()
        }),
        None => runs.iter().map(|run| timed(|| published.run(stage.kubectl, stage.dir, run))).collect(),
    };
    for (run, (seconds, outcome)) in runs.iter().zip(ended) {
        let name = format!("prometheus-operator's own tests: {}, {} cases", run.name, run.cases);
        report.record(&name, seconds, outcome);
    }
    if stage.workspaces.is_none() {
        report.check("prometheus-operator: what its own tests have made goes", || clean(stage.kubectl));
    }
}

fn timed(work: impl FnOnce() -> Result<()>) -> (f64, Result<()>) {
    let start = Instant::now();
    let outcome = work();
    (start.elapsed().as_secs_f64(), outcome)
}

/// Runs in a logical cluster of its own.
fn run_in_own_cluster(published: &PublishedTests, stage: &ClientStage<'_>, run: &TestRun) -> (f64, Result<()>) {
    timed(|| {
        let workspaces = stage.workspaces.context("no further logical clusters")?;
        let name = format!("prometheus-operator-{}", run.name);
        let kubectl = workspaces.make(&name)?;
        kubectl.run_with("create -f -", NODE)?;
        published.run(&kubectl, stage.dir, run)?;
        workspaces.delete(&name)
    })
}

fn prepare(stage: &ClientStage<'_>) -> Result<(PublishedTests, Vec<TestRun>)> {
    let published = stage.clients.prometheus_operator();
    let (program, module) = published.tests()?;
    let text = fs::read_to_string(repository().join("e2e/operators/prometheus-operator.yaml"))?;
    let selection: PrometheusCases = serde_saphyr::from_str(&text).context("the selection of cases")?;
    selection.left_out.iter().try_for_each(LeftOut::check)?;
    let changes = fs::read_to_string(module.join("CHANGELOG.md")).context("no change log")?;
    ensure!(changes.contains(&format!("## {PREVIOUS} ")), "the change log has no {PREVIOUS}");
    let (proxy, authority) = stand_in(stage.dir)?;
    let (operator, _) = published.program();
    let left_out = selection.left_out.into_iter().flat_map(|group| group.cases).collect();
    Ok((PublishedTests { program, module, operator, proxy, authority, left_out }, selection.runs))
}

/// Answers in place of [`FILES`].
fn stand_in(dir: &Path) -> Result<(String, PathBuf)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port for files")?;
    let port = listener.local_addr()?.port();
    let authority = dir.join("files.crt");
    let certificate = webhook::serve_with(listener, FILES, previous_version)?;
    fs::write(&authority, STANDARD.decode(certificate)?).context("cannot write a certificate")?;
    Ok((format!("http://127.0.0.1:{}", tunnel::to(port)?), authority))
}

fn previous_version(path: &str, _: &Value) -> WebhookReply {
    let is_version = path == "/prometheus-operator/prometheus-operator/release-0.84/VERSION";
    let (status, body) = if is_version { (200, PREVIOUS) } else { (404, "") };
    WebhookReply { status, body: body.to_owned(), after: Duration::ZERO }
}

impl PublishedTests {
    /// Runs the tests, and meanwhile the operators that they deploy.
    fn run(&self, kubectl: &Kubectl, dir: &Path, run: &TestRun) -> Result<()> {
        let dir = dir.join(format!("prometheus-operator-{}", run.name));
        let deployed = Deployed::new(kubectl, &self.operator, &dir)?;
        let tests = Process::spawn("tests", Path::new("env"), self.command(kubectl, &dir, run)?, &dir)?;
        let start = Instant::now();
        while tests.ended()?.is_none() {
            ensure!(start.elapsed() < LIMIT + REPORTED, "they did not end:\n{}", tests.log_tail());
            deployed.follow();
            thread::sleep(LOOKED);
        }
        let complaints = || format!("operators: {:?}; all is in {}", deployed.complaints(), dir.display());
        let printed = tests.log()?;
        GoTests::read(&printed).outcome(run.cases).with_context(complaints)?;
        ensure!(deployed.lived(), "{}", complaints());
        deployed.end()?;
        self.finish(kubectl, &dir)
    }

    /// Waits until the namespaces of the tests are gone. In some, the operator's finalizer holds a Prometheus, and the
    /// operator ends before it could remove it: its ServiceAccount is deleted with the namespace, and its pod first
    /// (KEP-5080). A kube-apiserver behaves in the same way. In both cases another operator, that of the cluster's
    /// administrator, removes it.
    fn finish(&self, kubectl: &Kubectl, dir: &Path) -> Result<()> {
        let left = kubectl.json("get prometheuses.monitoring.coreos.com -A")?;
        let mut left = left["items"].as_array().into_iter().flatten();
        let is_held = left.any(|prometheus| prometheus["metadata"]["finalizers"].is_array());
        let heir = is_held.then(|| self.heir(kubectl, dir)).transpose()?;
        poll::until("the namespaces of the tests are gone", PATIENCE, || {
            let told = "{range .items[*]}{.metadata.name}: {.status.conditions[*].message}{\"\\n\"}{end}";
            let found = kubectl.run_args(&["get", "namespaces", "-l", OF_TESTS, "-o", &format!("jsonpath={told}")])?;
            ensure!(found.is_empty(), "{found}");
            Ok(())
        })?;
        heir.map_or(Ok(()), |heir| heir.terminate())
    }

    /// An operator for all namespaces, with the rights of the administrator.
    fn heir(&self, kubectl: &Kubectl, dir: &Path) -> Result<Process> {
        let words = [
            format!("KUBECONFIG={}", kubectl.kubeconfig_file().display()),
            format!("HOME={}", dir.display()),
            self.operator.display().to_string(),
            format!("--web.listen-address=127.0.0.1:{}", free_port()?),
            "--feature-gates=StatusForConfigurationResources=true".to_owned(),
            "--kubelet-endpoints=false".to_owned(),
        ];
        Process::spawn("heir", Path::new("env"), words, dir)
    }

    /// Returns the arguments of `env`: the tests read files beside their working directory.
    fn command(&self, kubectl: &Kubectl, dir: &Path, run: &TestRun) -> Result<Vec<String>> {
        // Go uses the first pattern that matches, even in part: so tests that are skipped as a whole come before single
        // cases.
        let skipped: Vec<String> = run.but.iter().chain(&self.left_out).map(|case| pattern(case)).collect();
        Ok(vec![
            "--chdir".to_owned(),
            go::text(&self.module.join("test/e2e"))?.to_owned(),
            format!("HTTPS_PROXY={}", self.proxy),
            format!("SSL_CERT_FILE={}", self.authority.display()),
            format!("E2E_DIAGNOSTIC_DIRECTORY={}", dir.join("diagnostics").display()),
            format!("HOME={}", dir.display()),
            self.program.display().to_string(),
            "-test.v".to_owned(),
            "-test.count=1".to_owned(),
            format!("-test.parallel={PARALLEL}"),
            format!("-test.timeout={}s", LIMIT.as_secs()),
            format!("-test.run={}", run.run),
            format!("-test.skip={}", skipped.join("|")),
            format!("-kubeconfig={}", kubectl.kubeconfig_file().display()),
        ])
    }
}

/// The tests leave the definitions behind.
fn clean(kubectl: &Kubectl) -> Result<()> {
    let kubectl = kubectl.within(PATIENCE * 2);
    let definitions = kubectl.run("get crd -o name")?;
    let own: Vec<&str> =
        definitions.split_whitespace().filter(|name| name.ends_with("monitoring.coreos.com")).collect();
    ensure!(!own.is_empty(), "no definitions: {definitions}");
    kubectl.run(&format!("delete {} --timeout=100s", own.join(" "))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selection_can_be_read_and_names_each_case_once() {
        let text = fs::read_to_string(repository().join("e2e/operators/prometheus-operator.yaml")).unwrap();
        let selection: PrometheusCases = serde_saphyr::from_str(&text).unwrap();
        let mut cases: Vec<&String> = selection.left_out.iter().flat_map(|group| &group.cases).collect();
        let all = cases.len();
        cases.sort();
        cases.dedup();
        assert_eq!(cases.len(), all, "one is left out twice");
        let others = cases.iter().map(|case| pattern(case)).collect::<Vec<_>>().join("");
        assert!(others.chars().all(|c| c.is_ascii_alphanumeric() || "^$/_-\\.".contains(c)), "{others}");
    }
}
