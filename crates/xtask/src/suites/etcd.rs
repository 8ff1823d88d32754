//! The engine on a real etcd: the contract suite of all engines, and two servers on one etcd of which one is killed.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::cargo::cargo;
use crate::harness::etcd::Etcd;
use crate::harness::kubectl::Kubectl;
use crate::harness::poll;
use crate::harness::portolan::Portolan;
use crate::harness::tools::Tools;
use crate::report::Report;
use crate::torture::{self, Engine, Fault, Plan};

/// After a kill -9 a role is free when its server's lease has ended.
const TAKEOVER: Duration = Duration::from_secs(40);

pub(super) fn run(report: &mut Report, program: &Path, tools: &Tools, dir: &Path) {
    report.check("etcd: the store's contract holds on it", || contract(tools, &dir.join("contract")));
    two_servers(report, program, tools, &dir.join("pair"));
    let faults = vec![Fault::Kill, Fault::Pause, Fault::KillEtcd, Fault::PauseEtcd];
    let plan = Plan { engine: Engine::Etcd, faults, rounds: 6, seed: 1 };
    torture::check(report, &plan, program, tools, &dir.join("torture"));
}

fn contract(tools: &Tools, dir: &Path) -> Result<()> {
    // What is tested is what is said to etcd, not its disk.
    let etcd = Etcd::start_with(tools, dir, &["--unsafe-no-fsync"])?;
    let args = ["test", "--quiet", "--package", "portolan-store", "--test", "contract", "etcd::"];
    let output = cargo()
        .args(args)
        .args(["--", "--ignored", "--test-threads=1"])
        .env("PORTOLAN_ETCD", etcd.url())
        .stdin(Stdio::null())
        .output()
        .context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let end: Vec<&str> = said.lines().rev().take(40).collect();
    ensure!(output.status.success(), "{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"));
    let passed =
        said.lines().filter_map(|line| line.strip_prefix("test result: ok. ")).find(|line| !line.starts_with("0 "));
    println!("      {}", passed.context("no test ran")?);
    Ok(())
}

fn two_servers(report: &mut Report, program: &Path, tools: &Tools, dir: &Path) {
    let mut pair = None;
    let started = report.check("etcd: two servers serve one plane", || {
        let etcd = Etcd::start(tools, &dir.join("etcd"))?;
        let flags = ["--store=etcd", &format!("--etcd-endpoints={}", etcd.url())];
        let one = Portolan::start_with(program, tools, &dir.join("one"), &flags)?;
        let two = Portolan::start_with(program, tools, &dir.join("two"), &flags)?;
        let kubectl =
            |server: &Portolan, name: &str| Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, name);
        let (at_one, at_two) = (kubectl(&one, "at-one")?, kubectl(&two, "at-two")?);
        at_one.run("create configmap seen --from-literal=by=one")?;
        let seen = at_two.run("get configmap seen -o jsonpath={.data.by}")?;
        ensure!(seen.trim() == "one", "the other server says {seen:?}");
        // What one server has signed, the other accepts.
        let crossed =
            Kubectl::new(&tools.kubectl(), &one.kubeconfig().with_server(two.workspace("root").server()), dir, "x")?;
        crossed.run("get configmap seen")?;
        pair = Some((etcd, one, two, at_one, at_two));
        Ok(())
    });
    let Some((_etcd, mut one, two, at_one, at_two)) = pair.filter(|_| started) else { return };
    report.check("etcd: one is killed, and the other one's loops take over", || {
        one.kill()?;
        lives(&at_two, "first")
    });
    report.check("etcd: it comes back, the other one is killed, and it takes over in turn", || {
        one.restart()?;
        two.kill()?;
        lives(&at_one, "second")?;
        at_one.run("get namespace first").map(drop)
    });
}

/// Loops run: a new namespace gets its service account, and a deleted one goes.
fn lives(kubectl: &Kubectl, name: &str) -> Result<()> {
    kubectl.run(&format!("create namespace {name}"))?;
    kubectl.run(&format!("create namespace gone-{name}"))?;
    poll::until("the namespace's service account", TAKEOVER, || {
        kubectl.run(&format!("get serviceaccount default -n {name}"))
    })?;
    kubectl.run(&format!("delete namespace gone-{name} --timeout=60s")).map(drop)
}
