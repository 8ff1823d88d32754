//! Durable creates and updates.

use anyhow::Result;

use super::super::figures::Figure;
use super::super::load::Until;
use super::super::objects::Size;
use super::super::subject::BenchSubject;
use super::MeasureLimits;

const CLIENTS: [usize; 4] = [1, 16, 64, 256];
const SIZES: [(&str, Size); 2] = [("1 KiB", Size(1 << 10)), ("64 KiB", Size(64 << 10))];
/// Objects that are updated, at most.
const UPDATED: usize = 2000;

/// Measures creates and updates. `how` describes the disk in the names of the figures.
pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits, how: &str) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        let mut figures = Vec::new();
        for (what, size) in SIZES {
            for clients in CLIENTS {
                let (namespace, until) = (format!("w{clients}-{}", size.0), Until::Time(limits.time));
                let name = |verb| format!("durable {verb}, {what}, {clients} clients{how}");
                bench.make_namespace(&namespace).await?;
                let made = bench.create(&namespace, clients, size, until).await?;
                figures.extend(made.figures(&name("create")));
                // The load may have ended before the requests with the last numbers were sent.
                let objects = made.operations.saturating_sub(clients).clamp(1, UPDATED);
                let updated = bench.update(&namespace, clients, size, objects, until).await?;
                figures.extend(updated.figures(&name("update")));
            }
        }
        Ok(figures)
    })
}
