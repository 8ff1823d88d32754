//! The engine on a real etcd: the contract suite of all engines, certificates, snapshots, two servers on one etcd of
//! which one is killed again and again, and faults of etcd itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubectl;
use super::scene::{self, Scene};
use harness::cargo::cargo;
use harness::cluster;
use harness::etcd::Etcd;
use harness::kubectl::Kubectl;
use harness::pair::ServerPair;
use harness::poll;
use harness::portolan::Portolan;
use harness::ports::free_port;
use harness::process;
use harness::report::CheckReport;
use harness::tools::Tools;
use torture::{self, InjectedFault, TorturePlan, TorturedEngine};

/// After a kill -9 a role is free when its server's lease has ended.
const TAKEOVER: Duration = Duration::from_secs(40);
/// A probe, and the start of kubectl.
const PROBE: Duration = Duration::from_secs(4);
/// Lifetime of an unused token of etcd.
const TOKEN: Duration = Duration::from_secs(3);

pub(super) fn run(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
    report.check("etcd: the store's contract holds on it", || contract(tools, &dir.join("contract")));
    two_servers(report, program, tools, &dir.join("pair"));
    report.check("etcd: it is reached with a certificate, and not without", || {
        certificates(program, tools, &dir.join("certificates"))
    });
    report.check("etcd: it is reached with a password, as long as it is the right one", || {
        passwords(program, tools, &dir.join("passwords"))
    });
    report
        .check("etcd: a snapshot goes into etcd and out of it again", || snapshots(program, tools, &dir.join("moved")));
    report.check("etcd: a server starts where it has no room, reads, and writes once there is some", || {
        without_room(program, tools, &dir.join("full"))
    });
    report.check("etcd: while it is down, health is told at once and a backup says why", || {
        down(program, tools, &dir.join("down"))
    });
    survivor(report, program, tools, &dir.join("survivor"));
    let few = vec![
        InjectedFault::Kill,
        InjectedFault::Pause,
        InjectedFault::KillEtcd,
        InjectedFault::PauseEtcd,
        InjectedFault::Clock,
    ];
    for (name, faults) in [("torture", few), ("members", torture::MEMBERS.to_vec())] {
        let plan = TorturePlan { engine: TorturedEngine::Etcd, rounds: faults.len() + 1, faults, seed: 1 };
        torture::check(report, &plan, program, tools, &dir.join(name));
    }
}

fn certificates(program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let (etcd, certificates) = Etcd::start_with_certificates(tools, &dir.join("etcd"))?;
    let endpoints = format!("--etcd-endpoints={}", etcd.url());
    let authority = format!("--etcd-cafile={}", certificates.authority.display());
    let certificate = format!("--etcd-certfile={}", certificates.certificate.display());
    let key = format!("--etcd-keyfile={}", certificates.key.display());
    let flags = ["--store=etcd", &endpoints, &authority, &certificate, &key];
    let mut server = Portolan::start_with(program, tools, &dir.join("server"), &flags)?;
    let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "kubectl")?;
    kubectl.run("create configmap sealed --from-literal=by=tls")?;
    server.kill()?;
    server.restart()?;
    kubectl.run("get configmap sealed")?;
    for (case, flags) in [("no certificate", &flags[..3]), ("no authority", &flags[..2])] {
        refused(program, dir, flags).context(case)?;
    }
    Ok(())
}

/// A server that etcd refuses exits with an error.
fn refused(program: &Path, dir: &Path, flags: &[&str]) -> Result<()> {
    let (data, address) = (dir.join("stranger"), format!("--bind-address=127.0.0.1:{}", free_port()?));
    let mut stranger = Command::new(program);
    stranger.args(["server", &address]).arg(format!("--data-dir={}", data.display())).args(flags);
    let ended = process::run(&mut stranger, "", Duration::from_secs(120))?;
    let said = ended.stdout + &ended.stderr;
    ensure!(!ended.status.success() && said.contains("etcd"), "{:?}: {said}", ended.status.code());
    Ok(())
}

/// A user of etcd logs in. Its token expires while the server is suspended and whenever etcd restarts; the server then
/// gets a new one.
fn passwords(program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let mut etcd = Etcd::start_with(tools, &dir.join("etcd"), &[&format!("--auth-token-ttl={}", TOKEN.as_secs())])?;
    let gateway = etcd.gateway();
    for (call, body) in [
        ("user/add", json!({"name": "root", "password": "right"})),
        ("role/add", json!({"name": "root"})),
        ("user/grant", json!({"user": "root", "role": "root"})),
        ("enable", json!({})),
    ] {
        gateway.call(&format!("/v3/auth/{call}"), &body)?;
    }
    let password = |text: &str| -> Result<String> {
        let file = dir.join(text);
        fs::write(&file, text)?;
        Ok(format!("--etcd-password-file={}", file.display()))
    };
    let (right, wrong) = (password("right")?, password("wrong")?);
    let endpoints = format!("--etcd-endpoints={}", etcd.url());
    let flags = ["--store=etcd", &endpoints, "--etcd-user=root", &right];
    let server = Portolan::start_with(program, tools, &dir.join("server"), &flags)?;
    let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "kubectl")?;
    kubectl.run("create configmap first --from-literal=by=password")?;
    torture::still_for(server.pid(), 2 * TOKEN)?;
    let written = |name: &str| -> Result<()> {
        let create = format!("create configmap {name} --from-literal=by=password");
        // One that got no answer may have been done.
        poll::until(&create, TAKEOVER, || {
            kubectl.run(&format!("get configmap {name}")).or_else(|_| kubectl.run(&create)).map(drop)
        })
    };
    written("second")?;
    etcd.kill_and_restart(0)?;
    written("third")?;
    kubectl.run("get configmap first second third")?;
    server.stop()?;
    for (case, flags) in
        [("a wrong password", &["--store=etcd", &endpoints, "--etcd-user=root", &wrong][..]), ("no user", &flags[..2])]
    {
        refused(program, dir, flags).context(case)?;
    }
    Ok(())
}

/// Moves snapshots from redb to etcd, and from etcd to sled: objects and revisions must survive.
fn snapshots(program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let snapshot = |args: &[&str]| {
        let mut command = Command::new(program);
        let ended = process::run(command.arg("snapshot").args(args), "", Duration::from_secs(120))?;
        ensure!(ended.status.success(), "snapshot {}: {}", args.join(" "), ended.stderr);
        Ok(())
    };
    let (first, second) =
        (dir.join("first.snapshot").display().to_string(), dir.join("second.snapshot").display().to_string());
    let version = |kubectl: &Kubectl| -> Result<u64> {
        let found = kubectl.run("get configmap moved -o jsonpath={.metadata.resourceVersion}{.data.by}")?;
        found.trim().trim_end_matches("redb").parse().with_context(|| format!("the object says {found}"))
    };
    let (before, keys) = {
        let server = Portolan::start_with(program, tools, &dir.join("redb"), &["--store=redb"])?;
        let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "of-redb")?;
        kubectl.run("create configmap moved --from-literal=by=redb")?;
        snapshot(&["save", "--data-dir", &server.data().display().to_string(), &first])?;
        (version(&kubectl)?, server.data().join("pki"))
    };
    let etcd = Etcd::start(tools, &dir.join("etcd"))?;
    let url = etcd.url();
    let into = ["restore", "--store", "etcd", "--etcd-endpoints", &url, &first];
    snapshot(&into)?;
    ensure!(snapshot(&into).is_err(), "a second restore is not refused");
    let between = {
        let flags = ["--store=etcd", &format!("--etcd-endpoints={url}")];
        refused(program, dir, &flags).context("a server without the keys of before")?;
        let data = dir.join("on-etcd/data");
        fs::create_dir_all(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        fs::rename(keys, data.join("pki"))?;
        let server = Portolan::start_with(program, tools, &dir.join("on-etcd"), &flags)?;
        let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "of-etcd")?;
        kubectl.run("create configmap late --from-literal=by=etcd")?;
        snapshot(&["save", "--data-dir", &server.data().display().to_string(), &second])?;
        version(&kubectl)?
    };
    let data = dir.join("sled/data");
    snapshot(&["restore", "--store", "sled", "--data-dir", &data.display().to_string(), &second])?;
    let server = Portolan::start_with(program, tools, &dir.join("sled"), &["--store=sled"])?;
    let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "of-sled")?;
    kubectl.run("get configmap late")?;
    let after = version(&kubectl)?;
    kubectl.run("create configmap later --from-literal=by=sled")?;
    ensure!(before < between, "{before} became {between} in etcd");
    println!("      resourceVersions: {before} on redb, {between} in etcd, {after} on sled");
    Ok(())
}

/// Checks that a start does not write if the store exists already.
fn without_room(program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let etcd = Etcd::start_with(tools, &dir.join("etcd"), &["--quota-backend-bytes=33554432"])?;
    let flags = ["--store=etcd", &format!("--etcd-endpoints={}", etcd.url())];
    let mut server = Portolan::start_with(program, tools, &dir.join("server"), &flags)?;
    let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "kubectl")?;
    let create = |name: &str| format!("create configmap {name} --from-literal=by=hand");
    kubectl.run(&create("before"))?;
    server.kill()?;
    etcd.fill()?;
    server.restart_unready()?;
    poll::until("a server on an etcd without room reads", TAKEOVER, || {
        server.check_alive()?;
        kubectl.run("get configmap before").map(drop)
    })?;
    let refused = kubectl.call(&create("during"), "")?;
    ensure!(refused.code != Some(0) && refused.stderr.contains("disk"), "a write was answered {refused}");
    etcd.make_room()?;
    poll::until("it writes once there is room", TAKEOVER, || kubectl.run(&create("after")).map(drop))?;
    kubectl.run("get configmap before after").map(drop)
}

fn down(program: &Path, tools: &Tools, dir: &Path) -> Result<()> {
    let mut etcd = Etcd::start(tools, &dir.join("etcd"))?;
    let flags = ["--store=etcd", &format!("--etcd-endpoints={}", etcd.url())];
    let server = Portolan::start_with(program, tools, &dir.join("server"), &flags)?;
    let kubectl = Kubectl::new(&tools.kubectl(), &server.workspace("root"), dir, "kubectl")?;
    ensure!(kubectl.run("get --raw /livez?verbose")?.contains("[+]etcd ok"), "etcd is not among the checks");
    etcd.kill()?;
    let patient = kubectl.within(PROBE);
    poll::until("/livez tells of etcd within the time of a probe", TAKEOVER, || {
        let said = patient.call("get --raw /livez", "")?.stderr;
        ensure!(said.contains("[-]etcd failed"), "it says {said}");
        Ok(())
    })?;
    let mut save = Command::new(program);
    save.args(["snapshot", "save", "--data-dir"]).arg(server.data()).arg(dir.join("backup"));
    let saved = process::run(&mut save, "", Duration::from_secs(60))?;
    ensure!(!saved.status.success() && saved.stderr.contains("its store does not answer"), "{}", saved.stderr);
    etcd.restart()?;
    poll::until("/livez is well again", TAKEOVER, || patient.run("get --raw /livez").map(drop))
}

/// The kubectl suite at one server, while the other one is killed and started again and again.
fn survivor(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
    let mut stage = None;
    let set = report.check("etcd: two servers with two physical clusters", || {
        let (pair, server) = ServerPair::start(program, tools, dir, &["--stored-nodes"])?;
        let clusters = cluster::start_all(tools, dir, &[scene::EAST, scene::WEST].map(str::to_owned))?;
        let scene = Scene::new(tools, dir, clusters, server)?;
        scene.join_clusters()?;
        let kubectl = scene.workspace("verbs")?;
        stage = Some((pair, scene, kubectl));
        Ok(())
    });
    let Some((mut pair, scene, kubectl)) = stage.filter(|_| set) else { return };
    let ((), kills) = pair.while_one_is_killed(|| kubectl::run(report, &kubectl));
    was_killed(report, "etcd", kills);
    report.check("etcd: the suite's workspace leaves nothing below", || scene.delete_workspace("verbs"));
}

/// Checks that the other server was killed more than once, and came back each time.
pub(super) fn was_killed(report: &mut CheckReport, suite: &str, kills: Result<usize>) {
    report.check(&format!("{suite}: meanwhile the other server was killed again and again, and came back"), || {
        let kills = kills?;
        println!("      killed {kills} times");
        ensure!(kills > 1, "it was killed {kills} times");
        Ok(())
    });
}

fn contract(tools: &Tools, dir: &Path) -> Result<()> {
    // The requests to etcd are tested, not its disk.
    let etcd = Etcd::start_with(tools, dir, &["--unsafe-no-fsync"])?;
    let args = ["test", "--quiet", "--package", "portolan-store", "--lib", "--test", "contract", "etcd::"];
    let output = cargo()
        .args(args)
        .args(["--", "--ignored", "--test-threads=1"])
        .env("PORTOLAN_ETCD", etcd.url())
        // Only the end of the output is shown, which must have the reason.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .output()
        .context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let end: Vec<&str> = said.lines().rev().take(40).collect();
    ensure!(output.status.success(), "{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"));
    let passed: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("test result: ok. ")).collect();
    ensure!(
        passed.len() == 2 && passed.iter().all(|line| !line.starts_with("0 ")),
        "some tests did not run: {passed:?}"
    );
    passed.iter().for_each(|line| println!("      {line}"));
    Ok(())
}

fn two_servers(report: &mut CheckReport, program: &Path, tools: &Tools, dir: &Path) {
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
        // Each server accepts the signatures of the other.
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

/// Checks that controllers run: a new namespace gets its ServiceAccount, and a deleted one is removed.
fn lives(kubectl: &Kubectl, name: &str) -> Result<()> {
    kubectl.run(&format!("create namespace {name}"))?;
    kubectl.run(&format!("create namespace gone-{name}"))?;
    poll::until("the namespace's service account", TAKEOVER, || {
        kubectl.run(&format!("get serviceaccount default -n {name}"))
    })?;
    kubectl.run(&format!("delete namespace gone-{name} --timeout=60s")).map(drop)
}
