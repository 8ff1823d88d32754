//! Streams to real containers by unmodified kubectl, over a direct connection and through the agent.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};

use super::stage::{InClusterStage, LIMIT};
use super::{EAST, WEST};
use harness::kubectl::Kubectl;
use harness::{poll, ports::free_port};

/// Variables that make kubectl speak SPDY, as older clients do.
const SPDY: [(&str, &str); 2] =
    [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// Runs all kinds of streams on both clusters.
pub(super) fn reach_containers(stage: &InClusterStage<'_>) -> Result<()> {
    for place in [EAST, WEST] {
        let checks: [(&str, &dyn Fn() -> Result<()>); 6] = [
            ("logs", &|| logs(&stage.shop, place)),
            ("exec", &|| exec(&stage.shop, place)),
            ("cp", &|| cp(stage, place)),
            ("attach", &|| attach(&stage.shop, place)),
            ("port-forward", &|| port_forward(&stage.shop, place)),
            ("debug", &|| debug(&stage.shop, place)),
        ];
        for (name, check) in checks {
            check().with_context(|| format!("{place}: {name}"))?;
        }
    }
    Ok(())
}

fn pod_of(kubectl: &Kubectl, app: &str) -> Result<String> {
    kubectl.run(&format!("get pods -l app={app} -o jsonpath={{.items[0].metadata.name}}"))
}

fn logs(kubectl: &Kubectl, place: &str) -> Result<()> {
    let log = kubectl.run(&format!("logs deploy/looker-{place} --tail=1"))?;
    ensure!(log.starts_with("asked 200 "), "{log}");
    let following = kubectl.start(&format!("logs-{place}"), &format!("logs -f deploy/looker-{place} --tail=1"))?;
    poll::until("the log goes on", LIMIT, || {
        ensure!(following.log()?.lines().count() > 3, "few lines");
        Ok(())
    })
}

fn exec(kubectl: &Kubectl, place: &str) -> Result<()> {
    let target = format!("deploy/looker-{place}");
    for env in [&[][..], &SPDY] {
        let args = ["exec", "-i", &target, "--", "bash", "-c", "cat; echo no >&2; exit 7"];
        let ended = kubectl.call_with(&args, "some input", env)?;
        ensure!(ended.code == Some(7) && ended.stdout == "some input" && ended.stderr.contains("no\n"), "{ended}");
    }
    Ok(())
}

fn cp(stage: &InClusterStage<'_>, place: &str) -> Result<()> {
    let (there, back) = (stage.dir.join(format!("{place}-there")), stage.dir.join(format!("{place}-back")));
    let text: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
    fs::write(&there, &text).context("cannot write a file")?;
    let pod = pod_of(&stage.shop, &format!("looker-{place}"))?;
    stage.shop.run(&format!("cp {} {pod}:/root/copied", there.display()))?;
    stage.shop.run(&format!("cp {pod}:/root/copied {}", back.display()))?;
    ensure!(fs::read_to_string(&back)? == text, "the file is another one");
    Ok(())
}

fn attach(kubectl: &Kubectl, place: &str) -> Result<()> {
    let pod = pod_of(kubectl, &format!("looker-{place}"))?;
    let attached = kubectl.start(&format!("attach-{place}"), &format!("attach {pod}"))?;
    poll::until("the container is heard", LIMIT, || {
        ensure!(attached.log()?.contains("asked 200"), "{}", attached.log()?);
        Ok(())
    })
}

fn port_forward(kubectl: &Kubectl, place: &str) -> Result<()> {
    let port = free_port()?;
    let forwarding =
        kubectl.start(&format!("forward-{place}"), &format!("port-forward service/web-{place} {port}:80"))?;
    let answer = poll::until("an answer", LIMIT, || {
        forwarding.check_alive()?;
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        ensure!(!answer.is_empty(), "no answer");
        Ok(answer)
    })?;
    ensure!(answer.ends_with(&format!("hello from {place}")), "{answer}");
    Ok(())
}

/// An ephemeral container runs in the network of its pod.
fn debug(kubectl: &Kubectl, place: &str) -> Result<()> {
    let pod = pod_of(kubectl, &format!("web-{place}"))?;
    kubectl
        .run(&format!("debug {pod} --image=debugger -c debugger --profile=baseline -- curl -sf http://127.0.0.1/"))?;
    poll::until("the container has ended", LIMIT, || {
        let log = kubectl.run(&format!("logs {pod} -c debugger"))?;
        ensure!(log.trim() == format!("hello from {place}"), "{log:?}");
        Ok(())
    })
}
