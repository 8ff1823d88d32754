//! The requests that are measured, one after the other, on a server of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::figures::{Figure, Unit};
use super::proc;
use super::subject::Subject;
use super::watchers::Crowd;
use crate::client::Client;
use crate::harness::kubeconfig::Kubeconfig;

const WATCHERS: usize = 100;
const LISTS: usize = 20;

/// How much is measured.
pub(super) struct Limits {
    pub(super) time: Duration,
    pub(super) objects: usize,
}

/// What a piece of work took: operations, wall time, CPU time of the server.
struct Taken {
    operations: usize,
    wall: Duration,
    cpu: Duration,
}

impl Taken {
    fn rate(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64()
    }

    fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.operations.max(1) as f64
    }

    fn figures(&self, name: &str) -> [Figure; 2] {
        [
            Figure { name: name.to_owned(), value: self.rate(), unit: Unit::PerSecond },
            Figure { name: format!("{name}: server"), value: self.cpu_micros(), unit: Unit::MicrosOfCpu },
        ]
    }
}

/// Measures a server that has just become ready, and stops it.
pub(super) fn measure(mut subject: Subject, limits: &Limits) -> Result<Vec<Figure>> {
    let name = subject.name();
    let progress = |what: &str| eprintln!("{name}: {what}");
    let mut figures = Vec::new();

    progress("start to ready, and at rest");
    figures.push(millis("start to ready, empty", start_to_ready(&mut subject)?));
    std::thread::sleep(Duration::from_secs(5));
    figures.push(mib("idle resident memory", proc::resident_mib(&subject.pids())?));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let bench = Bench { config: subject.kubeconfig().clone(), pids: subject.pids() };
        for namespace in ["warm", "one", "many", "listed", "watched"] {
            bench.make_namespace(namespace).await?;
        }
        // Whatever a server does only once is done before anything is measured.
        bench.create("warm", 16, Until::Time(Duration::from_secs(2))).await?;

        progress("create");
        let one = bench.create("one", 1, Until::Time(limits.time)).await?;
        figures.extend(one.figures("durable create, 1 KiB, 1 client"));
        let many = bench.create("many", 64, Until::Time(limits.time)).await?;
        figures.extend(many.figures("durable create, 1 KiB, 64 clients"));

        progress("get");
        let made = many.operations.min(1000);
        figures.extend(bench.get("many", made, 16, limits.time).await?.figures("get, 16 clients"));

        progress("list");
        bench.create("listed", 64, Until::Count(limits.objects)).await?;
        for (name, encoding) in [("", "identity"), (", gzip", "gzip")] {
            let taken = bench.list("listed", encoding, limits.objects).await?;
            let name = format!("list of {} objects{name}: server", limits.objects);
            figures.push(Figure { name, value: taken.cpu_micros() / 1000.0, unit: Unit::MillisOfCpu });
        }

        progress("watch");
        figures.extend(bench.watch("watched", limits.time, &many).await?);
        anyhow::Ok(())
    })?;

    progress("start to ready, with data");
    figures.push(mib("resident memory after the load", proc::resident_mib(&subject.pids())?));
    figures.push(millis("start to ready, with the data above", start_to_ready(&mut subject)?));
    subject.stop()?;
    Ok(figures)
}

fn millis(name: &str, value: Duration) -> Figure {
    Figure { name: name.to_owned(), value: value.as_secs_f64() * 1000.0, unit: Unit::Millis }
}

fn mib(name: &str, value: f64) -> Figure {
    Figure { name: name.to_owned(), value, unit: Unit::MiB }
}

/// From the start of the process to the first 200 of `/readyz`, after a clean stop: the middle one of three.
fn start_to_ready(subject: &mut Subject) -> Result<Duration> {
    let mut taken = Vec::new();
    for _ in 0..3 {
        subject.stop()?;
        let start = Instant::now();
        subject.start_again()?;
        taken.push(start.elapsed());
    }
    taken.sort_unstable();
    Ok(taken[1])
}

/// When a piece of work ends.
#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Count(usize),
}

struct Bench {
    config: Kubeconfig,
    pids: Vec<u32>,
}

impl Bench {
    async fn make_namespace(&self, name: &str) -> Result<()> {
        let client = Client::connect(&self.config, 1).await?;
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).to_string();
        client.send(Method::POST, "/api/v1/namespaces", body.into()).await?.success().map(drop)
    }

    /// A connection for each of so many clients, open and used once.
    async fn clients(&self, count: usize) -> Result<Vec<Client>> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            let client = Client::connect(&self.config, 1).await?;
            client.get("/api/v1/namespaces/default").await?;
            clients.push(client);
        }
        Ok(clients)
    }

    /// Each client sends one request after the other: `request(client, n)` is the nth of all, counted from 0.
    async fn load<R, F>(&self, clients: usize, until: Until, request: R) -> Result<Taken>
    where
        R: Fn(Arc<Client>, usize) -> F + Clone + Send + 'static,
        F: Future<Output = Result<()>> + Send,
    {
        let clients = self.clients(clients).await?;
        let (issued, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (start, cpu) = (Instant::now(), proc::cpu_time(&self.pids)?);
        let mut loops = JoinSet::new();
        for client in clients.into_iter().map(Arc::new) {
            let (request, issued, done) = (request.clone(), issued.clone(), done.clone());
            loops.spawn(async move {
                loop {
                    let number = issued.fetch_add(1, Ordering::Relaxed);
                    match until {
                        Until::Time(limit) if start.elapsed() >= limit => return Ok(()),
                        Until::Count(count) if number >= count => return Ok(()),
                        Until::Time(_) | Until::Count(_) => {}
                    }
                    request(client.clone(), number).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        loops.join_all().await.into_iter().collect::<Result<()>>()?;
        let (wall, cpu) = (start.elapsed(), proc::cpu_time(&self.pids)? - cpu);
        Ok(Taken { operations: done.load(Ordering::Relaxed), wall, cpu })
    }

    async fn create(&self, namespace: &str, clients: usize, until: Until) -> Result<Taken> {
        let path: Arc<str> = format!("/api/v1/namespaces/{namespace}/configmaps").into();
        let namespace: Arc<str> = namespace.into();
        self.load(clients, until, move |client, number| {
            let (path, body) = (path.clone(), config_map(&namespace, number));
            async move { client.send(Method::POST, &path, body).await?.success().map(drop) }
        })
        .await
    }

    async fn get(&self, namespace: &str, objects: usize, clients: usize, time: Duration) -> Result<Taken> {
        let path: Arc<str> = format!("/api/v1/namespaces/{namespace}/configmaps").into();
        self.load(clients, Until::Time(time), move |client, number| {
            // Coprime with any round number, so that neighbours in time are no neighbours in the store.
            let url = format!("{path}/object-{}", number.wrapping_mul(7919) % objects);
            async move { client.get(&url).await.map(drop) }
        })
        .await
    }

    async fn list(&self, namespace: &str, encoding: &'static str, objects: usize) -> Result<Taken> {
        let url: Arc<str> = format!("/api/v1/namespaces/{namespace}/configmaps").into();
        self.load(1, Until::Count(LISTS), move |client, _| {
            let url = url.clone();
            async move {
                let headers = [("accept-encoding", encoding)];
                let body = client.send_with(Method::GET, &url, &headers, Bytes::new()).await?.success()?;
                // Only a plain answer can be counted without a decoder.
                let plain = encoding == "identity";
                ensure!(!plain || body.len() > objects * 1024, "a list of {} bytes is not whole", body.len());
                Ok(())
            }
        })
        .await
    }

    /// Watchers of one namespace while it fills. `create` is what a create costs with nobody watching.
    async fn watch(&self, namespace: &str, time: Duration, create: &Taken) -> Result<Vec<Figure>> {
        let crowd = Crowd::start(self.clients(WATCHERS).await?, namespace).await?;
        let (start, cpu) = (Instant::now(), proc::cpu_time(&self.pids)?);
        let written = self.create(namespace, 16, Until::Time(time)).await?.operations;
        let expected = written * WATCHERS;
        crowd.wait_for(expected, time * 10).await?;
        let (wall, cpu) = (start.elapsed(), proc::cpu_time(&self.pids)? - cpu);

        let name = format!("watch fan-out, {WATCHERS} watchers");
        let rate = |count: usize| count as f64 / wall.as_secs_f64();
        let per_event = |cpu: f64| (cpu * 1e6 / expected.max(1) as f64).max(0.0);
        let writes = create.cpu_micros() * written as f64 / 1e6;
        let figure = |what: &str, value, unit| Figure { name: format!("{name}: {what}"), value, unit };
        Ok(vec![
            figure("writes", rate(written), Unit::PerSecond),
            figure("events", rate(expected), Unit::PerSecond),
            figure("server, per event, the writes included", per_event(cpu.as_secs_f64()), Unit::MicrosOfCpu),
            figure(
                "server, per event, less the cost of the writes",
                per_event(cpu.as_secs_f64() - writes),
                Unit::MicrosOfCpu,
            ),
            figure("watches cut off and resumed", crowd.resumed() as f64, Unit::Count),
        ])
    }
}

fn config_map(namespace: &str, number: usize) -> Bytes {
    let metadata = json!({"name": format!("object-{number}"), "namespace": namespace, "labels": {"bench": "yes"}});
    let data = json!({"payload": "p".repeat(1024)});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).to_string().into()
}
