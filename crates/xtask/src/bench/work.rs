//! The requests that are measured, one after the other, on a server of their own.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::figures::{Figure, Unit};
use super::lists::Form;
use super::load::{Bench, Until};
use super::proc;
use super::subject::Subject;

/// Objects of the list that is read in every way.
const MANY: usize = 10_000;

/// How much is measured.
pub(super) struct Limits {
    pub(super) time: Duration,
    pub(super) objects: usize,
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
    let bench = Bench { config: subject.kubeconfig().clone(), pids: subject.pids() };
    runtime.block_on(requests(&bench, limits, &progress, &mut figures))?;

    progress("start to ready, with data");
    figures.push(mib("resident memory after the load", proc::resident_mib(&subject.pids())?));
    figures.push(millis("start to ready, with the data above", start_to_ready(&mut subject)?));
    subject.stop()?;
    Ok(figures)
}

/// Every kind of request.
async fn requests(bench: &Bench, limits: &Limits, progress: &impl Fn(&str), out: &mut Vec<Figure>) -> Result<()> {
    let time = limits.time;
    for namespace in ["warm", "one", "many", "typed", "applied", "listed", "large", "watched", "crowded"] {
        bench.make_namespace(namespace).await?;
    }
    // Whatever a server does only once is done before anything is measured.
    bench.create("warm", 16, Until::Time(Duration::from_secs(2))).await?;

    progress("create");
    out.extend(bench.create("one", 1, Until::Time(time)).await?.figures("durable create, 1 KiB, 1 client"));
    let many = bench.create("many", 64, Until::Time(time)).await?;
    out.extend(many.figures("durable create, 1 KiB, 64 clients"));
    out.extend(bench.create_in_protobuf("typed", time).await?.figures("durable create from protobuf, 64 clients"));

    progress("get, update, apply");
    let made = many.operations.min(1000);
    out.extend(bench.get("many", made, time).await?.figures("get, 16 clients"));
    out.extend(bench.update("many", made, time).await?.figures("update, 16 clients"));
    bench.apply("applied", Until::Count(500), false).await?;
    out.extend(
        bench.apply("applied", Until::Time(time), false).await?.figures("apply that changes nothing, 16 clients"),
    );
    out.extend(
        bench.apply("applied", Until::Time(time), true).await?.figures("apply that changes a field, 16 clients"),
    );

    progress("list");
    lists(bench, limits.objects, out).await?;

    progress("watch");
    out.extend(bench.watch("watched", 100, time, &many).await?);
    out.extend(bench.watch("crowded", 1000, time, &many).await?);
    Ok(())
}

async fn lists(bench: &Bench, objects: usize, out: &mut Vec<Figure>) -> Result<()> {
    bench.create("listed", 64, Until::Count(objects)).await?;
    let whole = Form::json(objects * 1024);
    out.push(bench.list("listed", whole).await?.cpu_millis(&format!("list of {objects} objects")));
    // Only a plain answer can be counted without a decoder.
    let packed = Form { encoding: "gzip", at_least: 0, ..whole };
    out.push(bench.list("listed", packed).await?.cpu_millis(&format!("list of {objects} objects, gzip")));

    bench.create("large", 64, Until::Count(MANY)).await?;
    let name = |how: &str| format!("list of {MANY} objects{how}");
    out.push(bench.list("large", Form::json(MANY * 1024)).await?.cpu_millis(&name("")));
    out.push(bench.pages("large", MANY).await?.cpu_millis(&name(", in pages of 500")));
    let few = Form { query: "?labelSelector=part%3D7", ..Form::json(MANY / 100 * 1024) };
    out.push(bench.list("large", few).await?.cpu_millis(&name(", of which a selector takes 100")));
    out.push(bench.list("large", Form::table(MANY * 100)).await?.cpu_millis(&name(" as a table")));
    out.push(bench.list("large", Form::protobuf(MANY * 1024)).await?.cpu_millis(&name(" in protobuf")));
    Ok(())
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
