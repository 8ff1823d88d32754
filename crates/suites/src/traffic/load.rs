//! Load on a Service: 200 requests per second, each to one of the addresses that are published upstream. A client
//! resolves the addresses four times per second, so what it uses is up to a quarter of a second old.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::addresses::{AddressBook, PublishedAddress};

const PER_SECOND: u32 = 200;
/// Interval in which addresses are resolved.
const RESOLVED: Duration = Duration::from_millis(250);
/// Interval in which ready replicas are counted.
const COUNTED: Duration = Duration::from_millis(100);
/// Most requests that wait for an answer at once.
const IN_FLIGHT: usize = 400;
/// Least share of the requests that a machine under load has to send.
const LEAST_RATE: f64 = 0.9 * PER_SECOND as f64;

/// Request that failed, and when.
#[derive(Clone, Debug)]
pub(crate) struct FailedRequest {
    /// Time since the begin of the load.
    pub(crate) at: Duration,
    pub(crate) why: String,
}

/// Requests and replicas so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadRecord {
    pub(crate) requests: u64,
    pub(crate) failures: Vec<FailedRequest>,
    /// Fewest replicas that were ready upstream at once.
    pub(crate) fewest_ready: Option<u64>,
}

/// Running load. It ends when this is dropped.
pub(crate) struct ServiceLoad {
    begun: Instant,
    stop: Arc<AtomicBool>,
    record: Arc<Mutex<LoadRecord>>,
    thread: Option<JoinHandle<()>>,
}

impl ServiceLoad {
    pub(super) fn start(book: AddressBook) -> Result<Self> {
        let (stop, record) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(LoadRecord::default())));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let begun = Instant::now();
        let client =
            LoadClient { book, addresses: Mutex::default(), record: record.clone(), stop: stop.clone(), begun };
        let thread = thread::spawn(move || runtime.block_on(Arc::new(client).run()));
        Ok(Self { begun, stop, record, thread: Some(thread) })
    }

    /// Returns the time since the begin of the load.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns what happened so far.
    pub(crate) fn record(&self) -> LoadRecord {
        lock(&self.record).clone()
    }

    /// Fails if a request failed, if fewer than `replicas` were ready at any time, or if the load was too small.
    pub(crate) fn check_flawless(&self, replicas: u64) -> Result<()> {
        let record = self.record();
        self.check_rate(&record)?;
        ensure!(record.failures.is_empty(), "{}", record.told_failures());
        let fewest = record.fewest_ready.context("no replica was counted")?;
        ensure!(fewest >= replicas, "only {fewest} of {replicas} replicas were ready at once");
        Ok(())
    }

    /// Fails if a request failed outside of a span of time, or if the load was too small.
    pub(crate) fn check_failures_within(&self, span: std::ops::Range<Duration>) -> Result<()> {
        let record = self.record();
        self.check_rate(&record)?;
        let outside = record.failures.iter().filter(|failure| !span.contains(&failure.at)).cloned();
        let outside = LoadRecord { failures: outside.collect(), ..record };
        ensure!(outside.failures.is_empty(), "outside of {span:?}: {}", outside.told_failures());
        Ok(())
    }

    fn check_rate(&self, record: &LoadRecord) -> Result<()> {
        let rate = record.requests as f64 / self.elapsed().as_secs_f64();
        ensure!(rate >= LEAST_RATE, "only {rate:.0} of {PER_SECOND} requests per second");
        Ok(())
    }
}

impl LoadRecord {
    /// Returns a line for a reader: `7315 requests, none failed; at least 6 replicas ready`.
    pub(crate) fn told(&self) -> String {
        let failed = match self.failures.len() {
            0 => "none".to_owned(),
            some => some.to_string(),
        };
        let ready = self.fewest_ready.map_or("no".to_owned(), |count| count.to_string());
        format!("{} requests, {failed} failed; at least {ready} replicas ready at any time", self.requests)
    }

    fn told_failures(&self) -> String {
        let shown = self.failures.iter().take(8).map(|one| format!("{:.2} s: {}", one.at.as_secs_f64(), one.why));
        let last = self.failures.last().map(|one| format!("the last at {:.2} s", one.at.as_secs_f64()));
        let lines: Vec<String> = shown.chain(last).collect();
        format!("{} of {} requests failed\n{}", self.failures.len(), self.requests, lines.join("\n"))
    }
}

impl Drop for ServiceLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by itself.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Client that sends the requests.
struct LoadClient {
    book: AddressBook,
    addresses: Mutex<Vec<PublishedAddress>>,
    record: Arc<Mutex<LoadRecord>>,
    stop: Arc<AtomicBool>,
    begun: Instant,
}

impl LoadClient {
    async fn run(self: Arc<Self>) {
        self.resolve().await;
        let resolving = tokio::spawn(self.clone().keep_resolving());
        let counting = tokio::spawn(self.clone().count_replicas());
        self.clone().send_all().await;
        resolving.abort();
        counting.abort();
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    async fn send_all(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
        let mut sent = JoinSet::new();
        let mut number = 0_usize;
        while !self.is_over() {
            ticks.tick().await;
            while sent.len() >= IN_FLIGHT {
                sent.join_next().await;
            }
            while sent.try_join_next().is_some() {}
            sent.spawn(self.clone().send_one(number));
            number += 1;
        }
        sent.join_all().await;
    }

    async fn send_one(self: Arc<Self>, number: usize) {
        // A prime factor spreads the requests over all addresses, and over all pods behind each.
        let address = {
            let addresses = lock(&self.addresses);
            (!addresses.is_empty()).then(|| addresses[number.wrapping_mul(7919) % addresses.len()].clone())
        };
        let at = self.begun.elapsed();
        let outcome = match &address {
            Some(address) => self.book.request(address, number / 2).await,
            None => Err(anyhow::anyhow!("no address is published")),
        };
        let mut record = lock(&self.record);
        record.requests += 1;
        if let Err(error) = outcome {
            record.failures.push(FailedRequest { at, why: format!("{error:#}") });
        }
    }

    async fn resolve(&self) {
        match self.book.published().await {
            Ok(found) => *lock(&self.addresses) = found,
            Err(error) => self.fail(format!("resolving: {error:#}")),
        }
    }

    fn fail(&self, why: String) {
        lock(&self.record).failures.push(FailedRequest { at: self.begun.elapsed(), why });
    }

    async fn keep_resolving(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RESOLVED).await;
            self.resolve().await;
        }
    }

    async fn count_replicas(self: Arc<Self>) {
        loop {
            match self.book.ready_replicas().await {
                Ok(ready) => {
                    let mut record = lock(&self.record);
                    record.fewest_ready = Some(record.fewest_ready.map_or(ready, |fewest| fewest.min(ready)));
                }
                Err(error) => self.fail(format!("counting: {error:#}")),
            }
            tokio::time::sleep(COUNTED).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_what_failed() {
        let failure = FailedRequest { at: Duration::from_millis(1500), why: "gone".into() };
        let record = LoadRecord { requests: 400, failures: vec![failure], fewest_ready: Some(6) };
        assert_eq!(record.told(), "400 requests, 1 failed; at least 6 replicas ready at any time");
        assert!(record.told_failures().contains("1.50 s: gone"), "{}", record.told_failures());
        let none = LoadRecord { failures: Vec::new(), ..record };
        assert_eq!(none.told(), "400 requests, none failed; at least 6 replicas ready at any time");
    }
}
