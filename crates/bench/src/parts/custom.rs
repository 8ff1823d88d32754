//! Objects of one definition with a large schema and rules in CEL.

use anyhow::Result;

use http::Method;

use super::super::custom::{SchemaSize, object, objects};
use super::super::figures::{Figure, Unit};
use super::super::load::{LoadOutcome, LoadTarget, Until};
use super::super::subject::BenchSubject;
use super::MeasureLimits;

pub(super) fn measure(subject: &BenchSubject, limits: &MeasureLimits) -> Result<Vec<Figure>> {
    let bench = subject.bench();
    super::runtime()?.block_on(async {
        bench.warm_up().await?;
        let mut figures = Vec::new();
        let made = bench.define(1, 1, SchemaSize::Large, true, |_| String::new()).await?;
        figures.push(made.cpu_millis("definition with a schema of 400 fields and 50 rules: made and served"));
        // The server has compiled the schema, which it does at first use.
        create(&bench, 0, Until::Count(16)).await?;
        let created = create(&bench, 1 << 20, Until::Time(limits.time)).await?;
        figures.extend(created.figures("create of its objects, 10 KiB, 16 clients"));
        let replaced = replace(&bench, limits).await?;
        figures.push(Figure::new("update of its objects: server", replaced.cpu_micros(), Unit::MicrosOfCpu));
        Ok(figures)
    })
}

async fn create(bench: &LoadTarget, first: usize, until: Until) -> Result<LoadOutcome> {
    bench
        .load(16, until, move |client, number| async move {
            let body = object(0, SchemaSize::Large, "default", first + number);
            client.send(Method::POST, &objects("", 0, "default"), body).await?.success().map(drop)
        })
        .await
}

/// Measures merge patches of one field, for which transition rules compare the old and the new value.
async fn replace(bench: &LoadTarget, limits: &MeasureLimits) -> Result<LoadOutcome> {
    bench
        .load(16, Until::Time(limits.time), move |client, number| async move {
            let url = format!("{}/object-{}", objects("", 0, "default"), number % 16);
            let body = format!(r#"{{"spec":{{"group0":{{"field0":"name-{number}"}}}}}}"#);
            let headers = [("content-type", "application/merge-patch+json")];
            client.send_with(Method::PATCH, &url, &headers, body.into()).await?.success().map(drop)
        })
        .await
}
