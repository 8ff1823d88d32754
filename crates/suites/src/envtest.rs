//! controller-runtime's own integration tests, as published: its expectations of a kube-apiserver. Each package is a
//! program that runs in a workspace of its own, where it would otherwise start a kube-apiserver. Like that one, the
//! server has no physical cluster: pods and Deployments stay unchanged.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::ginkgo::Specs;
use super::workspaces::WorkspaceChecks;
use harness::envtest::Envtests;
use harness::kubectl::Kubectl;
use harness::report::CheckReport;
use harness::{portolan::Portolan, process, tools::Tools};

/// Time limit of the tests of one package, with a margin for the report of unfinished ones.
const LIMIT: Duration = Duration::from_secs(900);
const REPORTED: Duration = Duration::from_secs(30);

/// A package of tests.
struct Package {
    name: &'static str,
    /// Least number of cases that must run.
    cases: usize,
    /// Those that are left out, each with its reason.
    left_out: &'static [&'static str],
}

const fn all(name: &'static str, cases: usize) -> Package {
    Package { name, cases, left_out: &[] }
}

const PACKAGES: [Package; 14] = [
    all("builder", 72),
    Package {
        name: "cache",
        cases: 263,
        left_out: &[
            // These tests require a slow server: a cache that is filled immediately has nothing to cancel.
            "should return an error when context is cancelled|should allow for get informer to be cancelled",
            // It wants a namespace without ServiceAccounts, and here each has its own.
            "Cache with selectors Should list serviceaccounts and find exactly one",
        ],
    },
    Package {
        name: "client",
        cases: 288,
        left_out: &[
            // They want a namespace without ConfigMaps: here, as in every cluster with its controllers, each has
            // kube-root-ca.crt.
            "ConsistentClient .* write then read",
            // They remove the finalizer from namespaces that they have deleted, which may no longer exist.
            "Client List .* should filter results by namespace selector",
            "NamespacedClient List",
            "NamespacedClient .* (any object from other namespace|an object from a different namespace|in other namespaces)",
            "WarningHandler should log warnings with config.WarningHandler, if one is defined",
        ],
    },
    all("cluster", 15),
    all("controller", 32),
    all("controller/controllerutil", 60),
    all("handler", 96),
    all("internal/controller", 75),
    all("internal/recorder", 5),
    all("manager", 107),
    all("metrics/filters", 2),
    all("reconcile", 9),
    all("source", 19),
    all("webhook", 8),
];

/// Runs all packages, each outermost group of their cases a check.
pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let server = Portolan::start(program, tools, &dir.join("portolan"))?;
    let workspaces = WorkspaceChecks::new(tools, dir, server)?;
    let mut tests = None;
    report.check("envtest: controller-runtime's own tests are compiled", || {
        tests = Some(Envtests::build(&PACKAGES.map(|package| package.name))?);
        Ok(())
    });
    let Some(tests) = tests else { return Ok(()) };
    for package in &PACKAGES {
        let mut specs = None;
        report.check(&format!("envtest: the tests of {} run to their end", package.name), || {
            specs = Some(run_package(&tests, package, &workspaces, dir)?);
            Ok(())
        });
        for group in specs.iter().flat_map(Specs::groups) {
            let says = format!("envtest: {}: {}, {} cases", package.name, group.name, group.ran);
            report.record(&says, group.seconds, group.outcome());
        }
    }
    report.check("envtest: the server is still the process that was started", || workspaces.server().check_alive());
    Ok(())
}

fn run_package(tests: &Envtests, package: &Package, workspaces: &WorkspaceChecks, dir: &Path) -> Result<Specs> {
    let name = format!("envtest-{}", package.name.replace('/', "-"));
    let kubectl = workspaces.make(&name)?;
    furnish(&kubectl)?;
    let told = dir.join(format!("{name}.json"));
    let mut command = tests.tests(package.name);
    command
        .arg(format!("-test.timeout={}s", (LIMIT + REPORTED).as_secs()))
        .args([format!("-ginkgo.timeout={}s", LIMIT.as_secs()), "-ginkgo.no-color".to_owned()])
        .arg(format!("-ginkgo.json-report={}", told.display()))
        .args(package.left_out.iter().map(|cases| format!("-ginkgo.skip={cases}")))
        .env("USE_EXISTING_CLUSTER", "true")
        .env("KUBECONFIG", kubectl.kubeconfig_file())
        .env("HOME", dir);
    let ended = process::run(&mut command, "", LIMIT + REPORTED)?;
    let report = std::fs::read(&told).with_context(|| format!("no report: {}\n{}", ended.stdout, ended.stderr))?;
    let specs = Specs::read(&serde_json::from_slice::<Value>(&report)?, package.cases)?;
    workspaces.delete(&name)?;
    Ok(specs)
}

/// Creates objects that a kube-apiserver makes for itself and many tests read.
fn furnish(kubectl: &Kubectl) -> Result<()> {
    kubectl.run("create service clusterip kubernetes --tcp=443 --namespace=default").map(drop)?;
    kubectl.run("label service kubernetes component=apiserver provider=kubernetes --overwrite").map(drop)
}
