//! Events to many watchers.

use anyhow::Result;

use super::super::figures::Figure;
use super::super::load::Until;
use super::super::objects::Size;
use super::super::subject::BenchSubject;
use super::MeasureLimits;

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        for namespace in ["unwatched", "watched", "crowded"] {
            bench.make_namespace(namespace).await?;
        }
        let alone = bench.create("unwatched", 16, Size::SMALL, Until::Time(limits.time)).await?;
        let mut figures = bench.watch("watched", 100, limits.time, &alone).await?;
        figures.extend(bench.watch("crowded", 1000, limits.time, &alone).await?);
        Ok(figures)
    })
}
