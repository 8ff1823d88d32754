//! The crate `cel` beside Kubernetes' own: expressions, and the rules of published CRDs, read from their Go modules.

use std::fs;
use std::path::Path;

use anyhow::Result;

use harness::report::CheckReport;
use harness::{cargo::cargo, go, process};

/// Modules with CRDs, and the folder of each that they are in.
const MODULES: [(&str, &str); 4] = [
    ("sigs.k8s.io/gateway-api@v1.6.0", "config/crd"),
    ("github.com/cert-manager/cert-manager@v1.21.2", "deploy"),
    ("sigs.k8s.io/cluster-api@v1.14.2", ""),
    ("github.com/prometheus-operator/prometheus-operator@v0.85.0", "example"),
];

pub(super) fn run(report: &mut CheckReport, work: &Path) {
    let program = work.join("celcases");
    let built = report.check("cel: Kubernetes' own CEL is built", || go::build("codegen/celcases", &program));
    if !built {
        return;
    }
    report.check("cel: expressions compile, cost and say what they do upstream", || {
        compare(&program, work, &["-expressions", "codegen/celcases/expressions.txt"])
    });
    for (module, folder) in MODULES {
        report.check(&format!("cel: the rules of {module}"), || {
            let folder = go::fetched(module)?.join(folder);
            compare(&program, work, &[go::text(&folder)?])
        });
    }
}

/// Asks upstream, and then the crate.
fn compare(program: &Path, work: &Path, args: &[&str]) -> Result<()> {
    let cases = go::printed(program, args)?;
    let file = work.join("cases.jsonl");
    fs::write(&file, cases)?;
    let mut ours = cargo();
    ours.args(["run", "--quiet", "-p", "portolan-cel", "--example", "compare", "--", go::text(&file)?]);
    let told = process::output(&mut ours, go::LIMIT)?;
    println!("      {}", told.lines().last().unwrap_or_default());
    Ok(())
}
