//! Fuzzing of requests: the server answers any bytes, and a failure is never its own. A short run is a test; a long one
//! is `cargo xtask fuzz`. The nth input of a seed is always the same.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "one crate of tests has no outside")]

#[path = "../measure/cpu.rs"]
mod cpu;
mod plane;
mod random;
mod seeds;
mod target;
mod text;
mod tree;

use std::{
    io::{Seek as _, Write as _},
    path::PathBuf,
    sync::Mutex,
    time::Duration,
};

use portolan_types::MonotonicInstant;

use plane::Plane;
use random::Random;
use seeds::Seeds;
use target::{Input, Target};

/// Inputs per target in a short run.
const SHORT: u64 = 60;
/// Processor time limit of one input in an unoptimized build.
const SLOW: Duration = Duration::from_secs(5);
/// Time limit of an answer that waits for nothing, on a shared machine.
const STUCK: Duration = Duration::from_secs(60);
/// Most findings that a run reports.
const MAX_FINDINGS: usize = 20;

/// Messages of panics, with their location.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Length of a run.
struct Run {
    seconds: Option<Duration>,
    seed: u64,
    wanted: String,
}

impl Run {
    fn of_environment() -> Self {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        Self {
            seconds: text("FUZZ_SECONDS").parse().ok().map(Duration::from_secs),
            seed: text("FUZZ_SEED").parse().unwrap_or(1),
            wanted: text("FUZZ_TARGET"),
        }
    }

    fn goes_on(&self, done: u64, started: MonotonicInstant) -> bool {
        match self.seconds {
            Some(seconds) => started.elapsed() < seconds,
            None => done < SHORT,
        }
    }
}

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn no_input_is_the_servers_fault() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        PANICS.lock().unwrap().push(panic.to_string());
    }));
    let run = Run::of_environment();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let findings = runtime.block_on(async {
        let plane = Plane::new().await;
        let seeds = Seeds::new(&plane).await;
        println!("{}", seeds.summary());
        let mut findings = again(&plane).await;
        for target in Target::ALL.into_iter().filter(|target| run.wanted.is_empty() || target.name() == run.wanted) {
            findings.extend(fuzz(target, &run, &plane, &seeds).await);
        }
        findings
    });
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

/// Repeats inputs of bugs that were fixed.
async fn again(plane: &Plane) -> Vec<String> {
    let mut findings = Vec::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/kept")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some() {
            continue;
        }
        let Some(input) = Input::from_file(&std::fs::read(&path).unwrap()) else { continue };
        findings.extend(complaint(plane, &input).await.err().map(|why| format!("{}: {why}", path.display())));
    }
    findings
}

async fn fuzz(target: Target, run: &Run, plane: &Plane, seeds: &Seeds) -> Vec<String> {
    let (started, mut number, mut findings) = (MonotonicInstant::now(), 0, Vec::new());
    let mut last = std::fs::File::create(folder().join(format!("{}.last", target.name()))).unwrap();
    let mut accepted = 0_u64;
    while run.goes_on(number, started) && findings.len() < MAX_FINDINGS {
        let input = target::input(target, seeds, &mut Random::of(run.seed, number));
        if run.seconds.is_some() {
            // If the process crashes, this file names the input. It is overwritten, because a new file would be synced.
            let file = input.to_file();
            last.rewind().and_then(|()| last.write_all(&file)).and_then(|()| last.set_len(file.len() as u64)).unwrap();
        }
        match complaint(plane, &input).await {
            Ok(code) => accepted += u64::from(code < 400),
            Err(why) => {
                let kept = folder().join(format!("{}-{}-{number}", target.name(), run.seed));
                std::fs::write(&kept, input.to_file()).unwrap();
                eprintln!("{}: {why}", kept.display());
                findings.push(format!("{}: {why}", kept.display()));
            }
        }
        number += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    let (name, found) = (target.name(), findings.len());
    println!("{name}: {number} inputs in {seconds:.0} s, {accepted} accepted, {found} findings");
    findings
}

/// Returns the code of the answer, or the violation that the input caused.
async fn complaint(plane: &Plane, input: &Input) -> Result<u16, String> {
    let (started, spent) = (MonotonicInstant::now(), cpu::spent());
    let answer = plane.send(input).await;
    let mut code = answer.code;
    if input.method == "POST" && code == 201 && !input.url.contains("dryRun=All") {
        code = code.max(plane.make_use_of(input, &answer.json()).await);
    }
    let panicked = std::mem::take(&mut *PANICS.lock().unwrap()).join("; ");
    let reason = answer.json()["reason"].as_str().unwrap_or_default().to_owned();
    // 500 without a reason is kube-apiserver's answer to some values; 504 is the answer to a future revision.
    let own_fault = code >= 500 && (reason == "InternalError" || code != answer.code);
    if !panicked.is_empty() {
        return Err(panicked);
    }
    if own_fault {
        return Err(format!("{code} {}", String::from_utf8_lossy(&answer.body).chars().take(300).collect::<String>()));
    }
    match (cpu::spent().saturating_sub(spent), started.elapsed()) {
        (spent, _) if spent > SLOW => Err(format!("took {spent:?} of processor time")),
        (_, waited) if waited > STUCK => Err(format!("took {waited:?}")),
        (..) => Ok(answer.code),
    }
}
