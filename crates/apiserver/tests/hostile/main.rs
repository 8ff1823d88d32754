//! Attacks as data: every file in `rows/` is a row of the threat model. Each of its requests is answered as the file
//! says, within bounds of time and memory, while another tenant is answered as usual.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "one crate of tests has no outside")]

mod bounds;
#[path = "../measure/cpu.rs"]
mod cpu;
mod hooks;
mod neighbour;
mod pace;
mod plane;
mod row;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../api/common/webhook_server.rs"]
mod webhook_server;

use bounds::Usage;
use bytes::Bytes;
use futures::future::join_all;
use plane::Plane;
use row::{Held, Row, Step};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attack_is_answered_within_bounds_and_affects_no_other_tenant() {
    let mut files: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/rows"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let wanted = std::env::var("HOSTILE").unwrap_or_default();
    let (mut requests, mut wrong) = (0, Vec::new());
    for file in files.iter().filter(|file| file.to_string_lossy().contains(&wanted)) {
        let name = file.file_stem().unwrap().to_string_lossy();
        let row: Row = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        wrong.extend(row.held_by.iter().filter_map(Held::complaint).map(|complaint| format!("{name}: {complaint}")));
        if row.requests.is_empty() {
            assert!(!row.held_by.is_empty(), "{name} says nothing");
            continue;
        }
        let mut plane = if row.hooks { Plane::with_hooks().await } else { Plane::new().await };
        for step in row.given.iter().chain(&row.requests) {
            let case = format!("{name}, {}: {}", row.attack, step.case);
            // Last line of output, if the process crashes.
            println!("{case}");
            let complaints = run(&mut plane, step).await;
            wrong.extend(complaints.into_iter().map(|complaint| format!("{case}: {complaint}")));
            requests += 1;
        }
    }
    assert!(requests > 0, "no row has {wanted:?} in its name");
    assert!(wrong.is_empty(), "{} of {requests} requests:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns complaints about the answers to a step that is sent many times concurrently.
async fn race(plane: &Plane, step: &Step, body: &Bytes) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    let bodies = (0..step.times).map(|n| Bytes::from(text.replace("${n}", &n.to_string())));
    let neighbour = plane.neighbour();
    let before = Usage::begin();
    let answers = join_all(bodies.map(|body| plane.send(step, body))).await;
    let used = before.end();
    let meanwhile = neighbour.stop().await;
    let mut wrong = used.complaints(step, body.len() * step.times);
    wrong.extend(meanwhile.err());
    let mut counts = std::collections::BTreeMap::<u16, usize>::new();
    answers.iter().for_each(|answer| *counts.entry(answer.code).or_default() += 1);
    let others = counts.keys().filter(|code| !step.codes.contains_key(code) && !step.or.contains(code)).count();
    if others > 0 || step.codes.iter().any(|(code, count)| counts.get(code) != Some(count)) {
        wrong.push(format!("answers by code: {counts:?}"));
    }
    wrong.extend(plane.neighbour().once().await.err());
    wrong
}

/// Returns complaints about the answer to a step.
async fn run(plane: &mut Plane, step: &Step) -> Vec<String> {
    let body = plane.body(step);
    if step.times > 0 {
        return race(plane, step, &body).await;
    }
    let neighbour = plane.neighbour();
    let before = Usage::begin();
    let answer = plane.send(step, body.clone()).await;
    let used = before.end();
    let meanwhile = neighbour.stop().await;
    let text: String = answer.text.chars().take(400).collect();
    if std::env::var_os("HOSTILE_SHOW").is_some() {
        println!("    {} of {} bytes: {used}: {text}", answer.code, body.len());
    }
    let mut wrong = used.complaints(step, body.len());
    wrong.extend(meanwhile.err());
    if step.code != answer.code {
        wrong.push(format!("{} {text}", answer.code));
    }
    wrong.extend(step.answered.iter().filter_map(|(name, value)| {
        let is = answer.header(name);
        (is != *value).then(|| format!("{name} is {is:?}"))
    }));
    let status = ("Status".into(), answer.code.to_string());
    let is_page = (answer.code, text.as_str()) == (404, "404 page not found\n");
    if answer.code >= 400 && !is_page && (answer.at("/kind"), answer.at("/code")) != status {
        wrong.push(format!("no Status: {text}"));
    }
    if step.reason.as_ref().is_some_and(|reason| answer.at("/reason") != *reason) {
        wrong.push(format!("the reason is {}", answer.at("/reason")));
    }
    let says = step.says.as_deref().unwrap_or_default();
    if !answer.text.contains(says) && !answer.at("/message").contains(says) {
        wrong.push(format!("it says {text}"));
    }
    let said = step.says_not.iter().filter(|text| answer.text.contains(&***text));
    wrong.extend(said.map(|said| format!("it says {said}")));
    let differs = |(pointer, value): &(&String, &String)| answer.at(pointer) != **value;
    wrong.extend(step.is.iter().filter(differs).map(|(pointer, _)| format!("{pointer} is {}", answer.at(pointer))));
    let same = |(pointer, value): &(&String, &String)| answer.at(pointer) == **value;
    wrong.extend(step.is_not.iter().filter(same).map(|(pointer, _)| format!("{pointer} is {}", answer.at(pointer))));
    plane.keep(step, &answer);
    wrong.extend(plane.neighbour().once().await.err());
    wrong
}
