//! Start to ready with a gibibyte stored.

use anyhow::Result;

use super::super::figures::{Figure, Unit};
use super::super::load::Until;
use super::super::objects::Size;
use super::super::proc::ProcessMemory;
use super::super::subject::BenchSubject;
use super::start;

const OBJECTS: usize = 16 << 10;
const SIZE: Size = Size(64 << 10);

pub(super) fn measure(subject: &mut BenchSubject) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    let runtime = super::runtime()?;
    runtime.block_on(async {
        bench.make_namespace("large").await?;
        bench.create("large", 64, SIZE, Until::Count(OBJECTS)).await
    })?;
    let written = ProcessMemory::of(&subject.pids())?;
    let clean = start::to_ready(subject)?;
    let killed = start::median(subject, |subject| subject.kill())?;
    let [resident, anonymous] = written.figures("1 GiB in 16384 objects: resident memory when written");
    Ok(vec![
        resident,
        anonymous,
        Figure::new("1 GiB in 16384 objects: disk", subject.disk_mib()?, Unit::MiB),
        Figure::millis("1 GiB in 16384 objects: start to ready", clean),
        Figure::millis("1 GiB in 16384 objects: start to ready after kill -9", killed),
    ])
}
