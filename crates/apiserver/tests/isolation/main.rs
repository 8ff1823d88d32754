//! Differential isolation: two equal servers get the same requests of one tenant, and one of them also those of other
//! tenants. The answers must be equal apart from revisions, uids, ids and times: any other difference reveals the other
//! tenants. A short run is a test; a long one is `cargo xtask isolation`. The nth request of a seed is always the same.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "one crate of tests has no outside")]

mod answer;
mod catalog;
mod generator;
#[path = "../fuzz/random.rs"]
mod random;
mod server;
mod views;

use answer::Answer;
use generator::{Generator, TenantRequest};
use random::Random;
use server::Server;

/// Compared requests of a short run.
const SHORT: u64 = 3_000;
/// Compared requests after which both servers start again, so that histories stay small and states differ.
const EPOCH: u64 = 5_000;
/// Most leaks that a run reports.
const MAX_LEAKS: usize = 10;

/// Length and seed of a run.
struct Run {
    requests: u64,
    seed: u64,
}

impl Run {
    fn of_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        Self { requests: number("ISOLATION_REQUESTS").unwrap_or(SHORT), seed: number("ISOLATION_SEED").unwrap_or(1) }
    }
}

/// Counts of a run.
#[derive(Default)]
struct Tally {
    compared: u64,
    accepted: u64,
    neighbors: u64,
    neighbors_accepted: u64,
    leaks: Vec<String>,
}

#[tokio::test(start_paused = true)]
async fn no_answer_depends_on_other_tenants() {
    let run = Run::of_environment();
    let mut tally = Tally::default();
    let mut epoch = 0;
    while tally.compared < run.requests && tally.leaks.len() < MAX_LEAKS {
        let length = EPOCH.min(run.requests - tally.compared);
        compare(run.seed, epoch, length, &mut tally).await;
        epoch += 1;
    }
    let Tally { compared, accepted, neighbors, neighbors_accepted, leaks } = tally;
    println!(
        "{compared} requests compared, {accepted} accepted; {neighbors} of other tenants, {neighbors_accepted} accepted"
    );
    assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.join("\n\n"));
    assert!(accepted * 4 > compared, "too few requests are accepted to prove anything");
    assert!(neighbors_accepted * 4 > neighbors, "other tenants have too few objects to prove anything");
}

/// Compares the answers of a pair of new servers.
async fn compare(seed: u64, epoch: u64, length: u64, tally: &mut Tally) {
    let (alone, shared) = (Server::new(seed).await, Server::new(seed).await);
    for server in [&alone, &shared] {
        server.add_neighbors().await;
    }
    // Their ids are used on both servers, so that no later workspace of the tenant has one of them.
    alone.remove_neighbors().await;
    let foreign_id = shared.id_of("root:v");
    for number in 0..length {
        let mut random = Random::of(seed.wrapping_mul(1 << 32).wrapping_add(epoch), number);
        for _ in 0..random.few() {
            let request = Generator::Others.next(&mut random, &foreign_id);
            let answer = shared.send(&request).await;
            tally.neighbors += 1;
            tally.neighbors_accepted += u64::from(answer.code < 400);
        }
        let request = Generator::Observed.next(&mut random, &foreign_id);
        let answers = [alone.send_of_tenant(&request).await, shared.send_of_tenant(&request).await];
        tally.compared += 1;
        tally.accepted += u64::from(answers[0].code < 400);
        if let Some(difference) = answer::difference(&answers[0], &answers[1]) {
            tally.leaks.push(describe(seed, epoch, number, &request, &difference));
            // The servers may differ from here on for this reason alone.
            return;
        }
    }
}

fn describe(seed: u64, epoch: u64, number: u64, request: &TenantRequest, difference: &str) -> String {
    format!("seed {seed}, epoch {epoch}, request {number}: {request}\n{difference}")
}

#[test]
fn planted_leaks_are_found() {
    let answer = |body: &str, warning: &str| Answer::of(200, &[("warning", warning)], body);
    let answered = r#"{"metadata":{"name":"n0","uid":"0e4d1c9c-8f0b-4b7e-9f5e-111111111111","resourceVersion":"7"}}"#;
    let same = r#"{"metadata":{"name":"n0","uid":"0e4d1c9c-8f0b-4b7e-9f5e-222222222222","resourceVersion":"9"}}"#;
    let other = r#"{"metadata":{"name":"n0","uid":"0e4d1c9c-8f0b-4b7e-9f5e-222222222222","generation":2}}"#;
    assert_eq!(answer::difference(&answer(answered, ""), &answer(same, "")), None);
    assert!(answer::difference(&answer(answered, ""), &answer(other, "")).is_some(), "another generation is a leak");
    assert!(answer::difference(&answer(answered, ""), &answer(same, "299 - \"used\"")).is_some(), "so is a warning");
    let missing = Answer::of(404, &[], answered);
    assert!(answer::difference(&answer(answered, ""), &missing).is_some(), "so is a code");
}
