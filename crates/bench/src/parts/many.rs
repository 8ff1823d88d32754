//! One namespace of a store of very many small objects.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::figures::{Figure, Unit};
use super::super::lists::ListForm;
use super::super::load::Until;
use super::super::objects::Size;
use super::super::proc::ProcessMemory;
use super::super::subject::{BenchSubject, Lab, Recipe, Which, text};
use super::{MeasureLimits, start};
use harness::gateway::{Gateway, base64};

/// Objects of one namespace.
const EACH: usize = 1000;
const SIZE: Size = Size(100);
/// Maximum number of writes in one transaction of etcd.
const BATCH: usize = 100;
const WRITERS: usize = 4;
/// Snapshot that fills all servers but kube-apiserver, made once per run.
pub(super) const SNAPSHOT: &str = "many.snapshot";

pub(super) fn measure(subject: &mut BenchSubject, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let (namespaces, begun) = (limits.many / EACH, Instant::now());
    match subject.which() {
        Which::Kube => fill_etcd(subject, namespaces)?,
        _ => restore(subject, lab, &snapshot(lab, namespaces)?)?,
    }
    eprintln!("    filled in {} s", begun.elapsed().as_secs());
    let name = |what: &str| format!("{} objects of 100 bytes: {what}", namespaces * EACH);
    let ready = start::to_ready(subject)?;
    let [resident, anonymous] = ProcessMemory::of(&subject.pids())?.figures(&name("resident memory after the start"));
    let (bench, middle) = (subject.bench(), namespace(namespaces / 2));
    let runtime = super::runtime()?;
    let listed = runtime.block_on(bench.list(&middle, ListForm::json(EACH * SIZE.0)))?;
    let read = runtime.block_on(bench.get(&middle, EACH, limits.time))?;
    Ok(vec![
        Figure::new(name("disk"), subject.disk_mib()?, Unit::MiB),
        Figure::millis(name("start to ready"), ready),
        resident,
        anonymous,
        Figure::millis(name("list of a namespace of 1000"), listed.wall / u32::try_from(listed.operations)?),
        listed.cpu_millis(&name("list of a namespace of 1000")),
        Figure::new(name("get, 16 clients"), read.rate(), Unit::PerSecond),
        Figure::new(name("get, 16 clients: server"), read.cpu_micros(), Unit::MicrosOfCpu),
    ])
}

/// Returns the name of an object. All names have the same length, so that a name can be replaced in encoded objects.
fn namespace(number: usize) -> String {
    format!("many-{number:04}")
}

/// Writes objects directly into etcd, in the form that kube-apiserver stores: the bytes of one stored object, with
/// other names.
fn fill_etcd(subject: &BenchSubject, namespaces: usize) -> Result<()> {
    let bench = subject.bench();
    let first = namespace(0);
    super::runtime()?.block_on(async {
        bench.make_namespace(&first).await?;
        bench.create(&first, 1, SIZE, Until::Count(EACH)).await
    })?;
    let gateway = subject.gateway().context("kube-apiserver has no etcd")?;
    let key = |namespace: &str, number| format!("/registry/configmaps/{namespace}/object-{number}");
    let next = AtomicUsize::new(1);
    let patterns = (0..EACH).map(|number| gateway.get(&key(&first, number))).collect::<Result<Vec<_>>>()?;
    let fill = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= namespaces {
                return Ok(());
            }
            let namespace = namespace(number);
            for (start, batch) in patterns.chunks(BATCH).enumerate() {
                let puts = batch.iter().enumerate().map(|(at, pattern)| {
                    let value = replaced(pattern, first.as_bytes(), namespace.as_bytes());
                    json!({"requestPut": {"key": base64(key(&namespace, start * BATCH + at)), "value": base64(value)}})
                });
                put(&gateway, puts.collect())?;
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(fill)).collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| anyhow::bail!("a writer panicked")))
    })
}

fn put(gateway: &Gateway, puts: Vec<Value>) -> Result<()> {
    let answer = gateway.call("/v3/kv/txn", &json!({"success": puts}))?;
    ensure!(answer["succeeded"] == true, "etcd answered {answer}");
    Ok(())
}

/// Returns `bytes` with every `from` replaced by `to`, which has the same length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for at in 0..=bytes.len().saturating_sub(from.len()) {
        if bytes[at..].starts_with(from) {
            out[at..at + from.len()].copy_from_slice(to);
        }
    }
    out
}

/// Returns a snapshot with namespaces full of objects, which a server creates once per run.
fn snapshot(lab: &Lab, namespaces: usize) -> Result<PathBuf> {
    let (file, dir) = (lab.dir().join(SNAPSHOT), lab.dir().join("many"));
    if file.exists() {
        return Ok(file);
    }
    let made = make_snapshot(lab, namespaces, &dir, &file);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    made.map(|()| file)
}

fn make_snapshot(lab: &Lab, namespaces: usize, dir: &Path, file: &Path) -> Result<()> {
    let subject = lab.start(Which::Redb, dir, &Recipe::default())?;
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        for number in 0..namespaces {
            bench.make_namespace(&namespace(number)).await?;
        }
        bench.create_in(namespaces, EACH, SIZE, namespace).await
    })?;
    subject.stop()?;
    lab.save(&subject.data(), file)
}

/// Replaces the data of a server by a snapshot.
fn restore(subject: &mut BenchSubject, lab: &Lab, file: &Path) -> Result<()> {
    let data = subject.data();
    let mut args = vec!["--store", subject.which().id(), text(file)?];
    let endpoint = subject.gateway().map(|gateway| format!("--etcd-endpoints=http://{}", gateway.address()));
    match (&endpoint, subject.gateway()) {
        (Some(endpoint), Some(gateway)) => {
            subject.stop_server()?;
            gateway.call("/v3/kv/deleterange", &json!({"key": base64([0]), "range_end": base64([0])}))?;
            args.push(endpoint);
        }
        _ => {
            subject.stop()?;
            fs::remove_dir_all(data.join("store"))?;
            args.extend(["--data-dir", text(&data)?]);
        }
    }
    lab.restore(&args)?;
    match endpoint {
        Some(_) => subject.start_server(),
        None => subject.start_again(),
    }
}
