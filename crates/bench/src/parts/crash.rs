//! Start to ready after kill -9 in the middle of writes.

use std::time::Duration;

use anyhow::Result;

use super::super::figures::{Figure, Unit};
use super::super::load::Until;
use super::super::objects::Size;
use super::super::subject::BenchSubject;
use super::{MeasureLimits, start};

/// Time limit of the load, longer than any run: the kill ends it.
const FOREVER: Duration = Duration::from_secs(3600);

pub(super) fn measure(subject: &mut BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let runtime = super::runtime()?;
    let mut round = 0;
    let taken = start::median(subject, |subject| {
        let bench = subject.bench();
        round += 1;
        let namespace = format!("crash-{round}");
        runtime.block_on(bench.make_namespace(&namespace))?;
        let load = runtime.spawn(async move { bench.create(&namespace, 64, Size::SMALL, Until::Time(FOREVER)).await });
        std::thread::sleep(limits.time);
        subject.kill()?;
        load.abort();
        Ok(())
    })?;
    Ok(vec![
        Figure::millis("start to ready after kill -9 under creates by 64 clients", taken),
        Figure::new("disk after three kills under creates", subject.disk_mib()?, Unit::MiB),
    ])
}
