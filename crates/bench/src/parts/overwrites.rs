//! Disk space after everything was overwritten many times.

use std::time::Duration;

use anyhow::Result;

use super::super::figures::{Figure, Unit};
use super::super::load::Until;
use super::super::objects::Size;
use super::super::subject::{BenchSubject, Lab, Recipe, allocated_mib, text};
use super::MeasureLimits;

const TIMES: usize = 10;
/// Time after which a server with one second of history has compacted it and freed the space.
const COMPACTED: Duration = Duration::from_secs(10);

pub(super) fn measure(subject: &mut BenchSubject, lab: &Lab, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let (bench, objects) = (subject.bench(), limits.objects);
    let runtime = super::runtime()?;
    runtime.block_on(async {
        bench.make_namespace("overwritten").await?;
        bench.create("overwritten", 64, Size::SMALL, Until::Count(objects)).await
    })?;
    let figure = |what: &str, mib| Figure::new(format!("disk for {objects} objects of 1 KiB{what}"), mib, Unit::MiB);
    let mut figures = vec![figure("", subject.disk_mib()?)];
    let until = Until::Count(objects * TIMES);
    runtime.block_on(bench.update("overwritten", 64, Size::SMALL, objects, until))?;
    figures.push(figure(", each overwritten 10 times", subject.disk_mib()?));
    compact(subject, lab)?;
    figures.push(figure(", then compacted", subject.disk_mib()?));
    figures.push(figure(", then made small offline", offline(subject, lab)?));
    Ok(figures)
}

/// Compacts the history: through etcd's API, or by the server's own limit of one second of history.
fn compact(subject: &mut BenchSubject, lab: &Lab) -> Result<()> {
    if let Some(gateway) = subject.gateway() {
        return gateway.compact();
    }
    subject.stop()?;
    *subject = lab.start(subject.which(), subject.dir(), &Recipe { flags: &["--history=1"], ..Recipe::default() })?;
    std::thread::sleep(COMPACTED);
    Ok(())
}

/// Returns the disk space in MiB after etcd's defragmentation, or after a snapshot and its restore.
fn offline(subject: &mut BenchSubject, lab: &Lab) -> Result<f64> {
    if let Some(gateway) = subject.gateway() {
        gateway.defragment()?;
        return subject.disk_mib();
    }
    let (file, dir) = (subject.dir().join("snapshot"), subject.dir().join("restored"));
    subject.stop()?;
    lab.save(&subject.data(), &file)?;
    lab.restore(&["--data-dir", text(&dir)?, "--store", subject.which().id(), text(&file)?])?;
    subject.start_again()?;
    allocated_mib(&dir.join("store"))
}
