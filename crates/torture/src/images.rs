//! Crash images of the embedded engines' disks, many of each: the long form of `crates/store/tests/crash`.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};

use super::TorturedEngine;
use harness::cargo::cargo;

/// Prefix of the output lines that are rows of the table.
const ROW: &str = "crash images: ";
const HEAD: &str = "\
| engine | steps | images | of these double crashes | lost | reused revisions | torn | watch violations | seeds | time |
|---|---|---|---|---|---|---|---|---|---|";

/// Number of disk images to create and recover.
pub(super) struct ImageExtent {
    /// Minimum number of distinct images per engine.
    pub(super) images: usize,
    /// Time limit per engine.
    pub(super) minutes: Option<usize>,
    pub(super) seed: u64,
}

/// Opens crash images of each of these engines in turn; `false` if one is not as it must be.
pub(super) fn run(engines: &[TorturedEngine], extent: &ImageExtent) -> Result<bool> {
    let (mut rows, mut fine) = (Vec::new(), true);
    for engine in engines.iter().filter(|engine| **engine != TorturedEngine::Etcd) {
        let engine = format!("{engine:?}").to_lowercase();
        let test = format!("a_crash_at_any_step_of_{engine}_and_its_files_loses_nothing");
        let (is_fine, row) = run_one(&test, extent)?;
        ensure!(!is_fine || row.is_some(), "the test {test} told nothing");
        rows.extend(row);
        fine &= is_fine;
    }
    println!("{HEAD}\n{}", rows.join("\n"));
    Ok(fine)
}

/// Runs one test. Returns true if it passed, and its row of the table.
fn run_one(test: &str, extent: &ImageExtent) -> Result<(bool, Option<String>)> {
    // Uses the build of the other tests, with our own arithmetic checks on, for thousands of images.
    let optimized = ["store", "types"].map(|name| format!("--config=profile.dev.package.portolan-{name}.opt-level=1"));
    let mut cargo = cargo();
    cargo.arg("test").args(optimized).args(["--workspace", "--test", "crash", "--", "--nocapture", "--exact", test]);
    cargo
        .env("PORTOLAN_CRASH_IMAGES", extent.images.to_string())
        .env("PORTOLAN_CRASH_SEED", extent.seed.to_string())
        .env("PORTOLAN_CRASH_WORKERS", available_parallelism().map_or(1, usize::from).to_string());
    cargo.envs(extent.minutes.map(|minutes| ("PORTOLAN_CRASH_MINUTES", minutes.to_string())));
    let mut test = cargo.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let row = passed_on(test.stdout.take().context("cargo has no output")?)?;
    Ok((test.wait()?.success(), row))
}

/// Prints the output of a test except its row, which is returned.
fn passed_on(output: ChildStdout) -> Result<Option<String>> {
    let mut row = None;
    for line in BufReader::new(output).lines() {
        let line = line?;
        match line.split_once(ROW) {
            Some((_, found)) => row = Some(found.to_owned()),
            None => println!("{line}"),
        }
    }
    Ok(row)
}
