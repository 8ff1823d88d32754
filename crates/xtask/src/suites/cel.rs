//! The crate `cel` beside Kubernetes' own: expressions, and the rules of published CRDs, read from their Go modules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::cargo::cargo;
use crate::harness::process;
use crate::harness::tools::repository;
use crate::report::Report;

/// Modules with CRDs, and the folder of each that they are in.
const MODULES: [(&str, &str); 4] = [
    ("sigs.k8s.io/gateway-api@v1.6.0", "config/crd"),
    ("github.com/cert-manager/cert-manager@v1.21.2", "deploy"),
    ("sigs.k8s.io/cluster-api@v1.14.2", ""),
    ("github.com/prometheus-operator/prometheus-operator@v0.85.0", "example"),
];
const LIMIT: Duration = Duration::from_secs(1200);

pub(super) fn run(report: &mut Report, work: &Path) {
    let program = work.join("celcases");
    let built = report.check("cel: Kubernetes' own CEL is built", || {
        run_go(&["build", "-o", path(&program)?, "./celcases"]).map(drop)
    });
    if !built {
        return;
    }
    report.check("cel: expressions compile, cost and say what they do upstream", || {
        compare(&program, work, &["-expressions", "celcases/expressions.txt"])
    });
    for (module, folder) in MODULES {
        report.check(&format!("cel: the rules of {module}"), || {
            let folder = fetched(module)?.join(folder);
            compare(&program, work, &[path(&folder)?])
        });
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

fn run_go(args: &[&str]) -> Result<String> {
    let mut command = Command::new("go");
    command.args(args).env("GOTOOLCHAIN", "local").current_dir(repository().join("e2e"));
    output(&mut command)
}

fn output(command: &mut Command) -> Result<String> {
    let ended = process::run(command, "", LIMIT)?;
    ensure!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    Ok(ended.stdout)
}

/// Where Go keeps a module, which it fetches if it has to.
fn fetched(module: &str) -> Result<PathBuf> {
    let answer: Value = serde_json::from_str(&run_go(&["mod", "download", "-json", module])?)?;
    Ok(answer["Dir"].as_str().context("go names no folder")?.into())
}

/// Asks upstream, and then the crate.
fn compare(program: &Path, work: &Path, args: &[&str]) -> Result<()> {
    let mut upstream = Command::new(program);
    let cases = output(upstream.args(args).current_dir(repository().join("e2e")))?;
    let file = work.join("cases.jsonl");
    fs::write(&file, cases)?;
    let mut ours = cargo();
    ours.args(["run", "--quiet", "-p", "portolan-cel", "--example", "compare", "--", path(&file)?]);
    let told = output(&mut ours)?;
    println!("      {}", told.lines().last().unwrap_or_default());
    Ok(())
}
