//! Requests for single objects of 1 KiB.

use anyhow::Result;

use super::super::figures::Figure;
use super::super::load::Until;
use super::super::objects::Size;
use super::super::subject::BenchSubject;
use super::MeasureLimits;

/// Objects that are read.
const OBJECTS: usize = 2000;

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        for namespace in ["typed", "read", "applied"] {
            bench.make_namespace(namespace).await?;
        }
        let mut figures = Vec::new();
        let typed = bench.create_in_protobuf("typed", limits.time).await?;
        figures.extend(typed.figures("durable create from protobuf, 1 KiB, 64 clients"));
        bench.create("read", 64, Size::SMALL, Until::Count(OBJECTS)).await?;
        figures.extend(bench.get("read", OBJECTS, limits.time).await?.figures("get, 16 clients"));
        bench.apply("applied", Until::Count(500), false).await?;
        for (changes, name) in [(false, "apply that changes nothing"), (true, "apply that changes a field")] {
            let applied = bench.apply("applied", Until::Time(limits.time), changes).await?;
            figures.extend(applied.figures(&format!("{name}, 16 clients")));
        }
        Ok(figures)
    })
}
