//! Streams of pods: a large transfer by `kubectl port-forward`, and a log that grows fast, each from the physical
//! cluster itself, over a direct connection and through the tunnel.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::super::super::events::EventStream;
use super::super::super::figures::{Figure, Unit};
use super::super::super::objects::post;
use super::super::super::proc;
use super::super::super::subject::Lab;
use super::rollout::deployment;
use super::stage::{CONNECTIONS, MemberStage, NEAR};
use harness::client::HttpClient;
use harness::fake_kubelet::FakeKubelet;
use harness::kubeconfig::UserKubeconfig;
use harness::kubectl::Kubectl;
use harness::poll;
use harness::ports::free_port;

const NAMESPACE: &str = "streams";
/// Bytes that a pod sends.
const BYTES: usize = 100_000_000;
/// Transfers, of which the median counts.
const TRANSFERS: usize = 3;
/// Lines per second and seconds of the log.
const LINES_PER_SECOND: usize = 1_000;
const SECONDS: usize = 10;
const LIMIT: Duration = Duration::from_secs(60);

/// Pod as one server shows it.
struct StreamedPod<'a> {
    config: UserKubeconfig,
    namespace: String,
    name: String,
    kubelet: &'a FakeKubelet,
    how: &'static str,
}

pub(super) fn measure(stage: &MemberStage, lab: &Lab, runtime: &Runtime) -> Result<Vec<Figure>> {
    let pods = runtime.block_on(pods(stage))?;
    let mut figures = Vec::new();
    for pod in &pods {
        figures.extend(forward(stage, lab, pod).with_context(|| format!("port-forward, {}", pod.how))?);
    }
    for pod in &pods {
        figures.extend(runtime.block_on(follow(pod)).with_context(|| format!("logs, {}", pod.how))?);
    }
    Ok(figures)
}

/// Runs a pod on each measured cluster, and returns the views of them.
async fn pods(stage: &MemberStage) -> Result<Vec<StreamedPod<'_>>> {
    stage.bench.make_namespace(NAMESPACE).await?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let (client, mut found) = (stage.bench.client().await?, Vec::new());
    for (place, how) in CONNECTIONS {
        let cluster = stage.cluster(place)?;
        let name = format!("talker-{place}");
        let member = HttpClient::connect(cluster.kubeconfig(), 1).await?;
        let is_running = |pod: &Value| pod["metadata"]["labels"]["app"] == *name && pod["status"]["phase"] == "Running";
        let mut above = EventStream::open(&client, &path).await?;
        let mut below = EventStream::open(&member, "/api/v1/pods").await?;
        post(&client, &format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"), &deployment(&name, place, 1))
            .await?;
        let (_, copy) = below.until(LIMIT, is_running).await.context("no pod below")?;
        let (_, pod) = above.until(LIMIT, is_running).await.context("no pod above")?;
        let seen = |object: &Value, config: &UserKubeconfig, how| -> Result<StreamedPod<'_>> {
            let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned).context("no name");
            let (namespace, name) = (text("namespace")?, text("name")?);
            Ok(StreamedPod { config: config.clone(), namespace, name, kubelet: cluster.kubelet(), how })
        };
        if place == NEAR {
            found.push(seen(&copy, cluster.kubeconfig(), "of the physical cluster itself")?);
        }
        found.push(seen(&pod, &stage.bench.config, how)?);
    }
    Ok(found)
}

/// Receives bytes from the pod by kubectl.
fn forward(stage: &MemberStage, lab: &Lab, pod: &StreamedPod<'_>) -> Result<Vec<Figure>> {
    let listener = TcpListener::bind(("127.0.0.1", pod.kubelet.plain.local)).context("cannot listen")?;
    let port = free_port()?;
    let kubectl = Kubectl::new(&lab.tools().kubectl(), &pod.config, lab.dir(), &format!("forward-{port}"))?;
    let command = format!("port-forward {} {port}:{}", pod.name, pod.kubelet.plain.pod);
    let forwarding = kubectl.in_namespace(&pod.namespace).start("port-forward", &command)?;
    poll::until("kubectl listens", LIMIT, || {
        forwarding.check_alive()?;
        ensure!(forwarding.log()?.contains("Forwarding from"), "it does not yet");
        Ok(())
    })?;
    let agent = [stage.agent.pid()];
    let cpu = (proc::cpu_time(&stage.bench.pids)?, proc::cpu_time(&agent)?);
    let mut times = (0..TRANSFERS).map(|_| transfer(&listener, port)).collect::<Result<Vec<_>>>()?;
    let cpu = (proc::cpu_time(&stage.bench.pids)? - cpu.0, proc::cpu_time(&agent)? - cpu.1);
    forwarding.kill()?;
    times.sort_unstable();
    let name = format!("port-forward of {} MB, {}", BYTES / 1_000_000, pod.how);
    let each = |what: &str, cpu: Duration| {
        let millis = cpu.as_secs_f64() * 1e3 / TRANSFERS as f64;
        Figure::new(format!("{name}: {what}"), millis, Unit::MillisOfCpu)
    };
    Ok(vec![Figure::millis(name.clone(), times[TRANSFERS / 2]), each("server", cpu.0), each("agent", cpu.1)])
}

/// Sends the bytes to one connection of the listener, and returns the time until they have arrived at the port.
fn transfer(listener: &TcpListener, port: u16) -> Result<Duration> {
    thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<()> {
            let (mut connection, _) = listener.accept()?;
            let block = vec![b'p'; 64 << 10];
            let mut left = BYTES;
            while left > 0 {
                let part = left.min(block.len());
                connection.write_all(&block[..part])?;
                left -= part;
            }
            Ok(())
        });
        let begun = Instant::now();
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.set_read_timeout(Some(LIMIT))?;
        let (mut received, mut block) = (0, vec![0; 64 << 10]);
        while received < BYTES {
            let part = connection.read(&mut block)?;
            ensure!(part > 0, "{received} of {BYTES} bytes arrived");
            received += part;
        }
        let taken = begun.elapsed();
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        Ok(taken)
    })
}

/// Reads the log of the pod while it grows, and measures the time from the write of each line to its arrival.
async fn follow(pod: &StreamedPod<'_>) -> Result<Vec<Figure>> {
    let origin = Instant::now();
    let client = HttpClient::connect(&pod.config, 1).await?;
    let path = format!("/api/v1/namespaces/{}/pods/{}/log?follow=true&tailLines=1", pod.namespace, pod.name);
    let response = client.open(Method::GET, &path, &[], Bytes::new()).await?;
    ensure!(response.status().is_success(), "a log was answered {}", response.status());
    let mut body = response.into_body();
    let stop = AtomicBool::new(false);
    let lines = LINES_PER_SECOND * SECONDS;
    let waits = thread::scope(|scope| {
        scope.spawn(|| write_log(pod.kubelet, origin, &stop));
        let reading = async {
            let (mut waits, mut text) = (Vec::with_capacity(lines), Vec::new());
            while waits.len() < lines {
                let frame = body.frame().await.context("the log ended")??;
                text.extend(frame.data_ref().into_iter().flatten());
                let arrived = origin.elapsed();
                waits.extend(take_lines(&mut text, waits.len())?.into_iter().map(|sent| arrived.saturating_sub(sent)));
            }
            anyhow::Ok(waits)
        };
        let waits = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(tokio::time::timeout(LIMIT, reading))
        });
        stop.store(true, Ordering::Relaxed);
        waits
    });
    let mut waits = waits.context("lines are missing")??;
    waits.sort_unstable();
    let name = format!("logs -f at {LINES_PER_SECOND} lines per second, {}", pod.how);
    Ok([50, 99].map(|percent| Figure::millis(format!("{name}: p{percent}"), waits[waits.len() * percent / 100])).into())
}

/// Writes lines with their number and the time since `origin`, at a constant rate, until `stop`.
fn write_log(kubelet: &FakeKubelet, origin: Instant, stop: &AtomicBool) {
    let begun = Instant::now();
    for number in 0..LINES_PER_SECOND * SECONDS {
        let due = Duration::from_secs(1) * u32::try_from(number).unwrap_or(u32::MAX) / LINES_PER_SECOND as u32;
        thread::sleep(due.saturating_sub(begun.elapsed()));
        // A line that is not written is one that the reader misses.
        if stop.load(Ordering::Relaxed)
            || kubelet.log(&format!("line {number} {}", origin.elapsed().as_nanos())).is_err()
        {
            return;
        }
    }
}

/// Takes whole lines off `text`, and returns the times in them. Lines of others are left out.
///
/// # Errors
/// A line is missing: `next` is the number of the one that must come.
fn take_lines(text: &mut Vec<u8>, mut next: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = text.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        let Some((number, nanos)) = line.trim().strip_prefix("line ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        // The last line of an earlier log is shown first.
        if next == 0 && number != "0" {
            continue;
        }
        ensure!(number.parse::<usize>()? == next, "line {number} came in place of {next}");
        times.push(Duration::from_nanos(nanos.parse()?));
        next += 1;
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_log_are_counted_and_none_may_be_missing() {
        let mut text = b"started\nline 9 5\nline 0 7\nline 1 8\nline 2".to_vec();
        assert_eq!(take_lines(&mut text, 0).unwrap(), [7, 8].map(Duration::from_nanos));
        text.extend_from_slice(b" 9\nline 4 10\n");
        assert!(take_lines(&mut text, 2).unwrap_err().to_string().contains("line 4 came in place of 3"));
    }
}
