//! Record once, crash many, on real files: a process works on a store while a preloaded library writes down all that reaches its
//! files and folders. From that, the disk is made as a crash at any step could leave it, opened, and compared with what the
//! process was told: all that was acknowledged, and of what was in flight all or nothing. Then opening itself is written down
//! and crashed in the same way.
//!
//! It holds the engines with all that Portolan does around them: locks, marks, new stores that are moved in place. redb's disk
//! alone is crashed at finer steps in `src/kv/redb/crash_many.rs`.
//!
//! Every `PORTOLAN_CRASH_STRIDE`th step is taken, 1 for all of them; a test run takes few. Only where a library can be preloaded.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod disk;
mod faults;
mod numbers;
mod shim;
mod workload;

use std::{
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

use portolan_store::{Expect, OpenError, StoreConfig, StoreError, Transaction, found_in, open, verify};
use portolan_types::{Record, ResourceVersion, Seams};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    disk::{Disk, crashes},
    numbers::Numbers,
    shim::{DIR, ENGINE, Recorded, record},
    workload::{config, digest, digest_of, key},
};

/// Steps between those that a test run takes.
const STRIDE: usize = 61;
/// Of so many images one has its recovery crashed as well.
const RECOVERIES: usize = 9;
/// How long a lock may be held after its store was closed, and how often it is tried.
const RELEASED: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// In memory, where the system has such a folder: what is synced is known from the notes.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Not a test of its own: the process that is recorded.
#[test]
fn child_that_works() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::run(&engine, Path::new(&root)));
    }
}

/// Not a test of its own: the process that makes a store of a snapshot.
#[test]
fn child_that_restores() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::restore(&engine, Path::new(&root)));
    }
}

/// Not a test of its own: the process whose recovery is recorded.
#[test]
fn child_that_recovers() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::recover(&engine, Path::new(&root))).unwrap();
    }
}

/// Whether all of a store that was closed is sound. A process that another test of this one is just starting may hold its lock
/// until it has begun.
async fn whole(config: StoreConfig) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match verify(config.clone(), Seams::system()) {
            Err(OpenError::InUse(_)) if start.elapsed() < RELEASED => tokio::time::sleep(PAUSE).await,
            other => return other.map(drop).map_err(|error| error.to_string()),
        }
    }
}

/// What a run of the workload left to compare with.
struct Run {
    engine: &'static str,
    recorded: Recorded,
    /// After how many steps which revision was acknowledged.
    acknowledged: Vec<(usize, u64)>,
    /// The objects at each revision that a transaction ended with.
    states: HashMap<u64, u64>,
}

impl Run {
    fn new(engine: &'static str, child: &str) -> Self {
        let dir = folder();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let recorded = record(child, engine, &root, None);
        assert!(recorded.output.status.success(), "{}", String::from_utf8_lossy(&recorded.output.stderr));
        let (mut acknowledged, mut states) = (Vec::new(), HashMap::new());
        for (steps, text) in &recorded.said {
            let mut words = text.split(' ');
            let (what, revision) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            match what {
                "acknowledged" => acknowledged.push((*steps, revision)),
                _ => drop(states.insert(revision, words.next().unwrap().parse().unwrap())),
            }
        }
        Self { engine, recorded, acknowledged, states }
    }

    /// Opens a crashed disk, and compares what it holds with what it must. `at` is the step of the recorded run at which it,
    /// or what it was recovered from, was crashed.
    ///
    /// # Errors
    /// What was lost, or is wrong.
    async fn check(&self, at: usize, image: &Disk) -> Result<(), String> {
        let dir = folder();
        image.write(dir.path());
        let config = config(self.engine, dir.path());
        let done = self.acknowledged.partition_point(|(steps, _)| *steps <= at);
        let acknowledged = done.checked_sub(1).map_or(0, |done| self.acknowledged[done].1);
        let in_flight = self.acknowledged.get(done).map_or(acknowledged, |(_, revision)| *revision);
        let store = open(config.clone(), Seams::system()).map_err(|error| error.to_string())?;
        let current = store.current().get();
        if !(acknowledged..=in_flight).contains(&current) {
            return Err(format!("it is at {current}, {acknowledged} was acknowledged"));
        }
        if self.states.get(&current) != Some(&digest(&store, None).await) {
            return Err(format!("revision {current} has other objects"));
        }
        let kept = store.oldest().get()..current;
        if let Some(old) = self.states.keys().filter(|revision| kept.contains(revision)).min()
            && digest(&store, ResourceVersion::new(*old)).await != self.states[old]
        {
            return Err(format!("as it was at revision {old}, it has other objects"));
        }
        let record = Record::of(&json!({"metadata": {"name": "n"}}));
        let write = Transaction::one(key(&mut Numbers::from(7)), Expect::Anything, Some(record));
        match store.commit(write).await.map(|committed| committed.into_inner().first.get()) {
            Ok(next) if next == current + 1 => {}
            // The first key of the sequence lies in a logical cluster that the run may have deleted.
            Err(StoreError::ClusterGone { .. }) => {}
            other => return Err(format!("the write after revision {current}: {other:?}")),
        }
        store.close().await;
        whole(config).await
    }

    async fn check_restored(&self, root: &Path) -> Result<(), String> {
        let config = config(self.engine, root);
        let store = open(config.clone(), Seams::system()).map_err(|error| error.to_string())?;
        let expected = self.states.values().next();
        if expected != Some(&digest_of(&store).await) {
            return Err("it has other objects".into());
        }
        store.close().await;
        whole(config).await
    }

    /// Records how a crashed disk is recovered, and crashes that; returns how many disks were opened.
    async fn crash_recovery(&self, at: usize, image: &Disk, wrong: &mut Vec<String>) -> usize {
        let dir = folder();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        image.write(&root);
        let recovery = record("child_that_recovers", self.engine, &root, None);
        let (steps, mut images) = (&recovery.steps, 0);
        for (twice, left, image) in crashes(&recovery.start, steps, steps.len().div_ceil(3).max(1), at as u64) {
            images += 1;
            if let Err(what) = self.check(at, &image).await {
                wrong.push(format!("after step {at}, and {twice} of recovering, {left:?} left: {what}"));
            }
        }
        images
    }
}

fn told(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Crashes steps of the run, and of some recoveries, and returns how many disks were opened.
async fn crash_many(engine: &'static str) -> usize {
    let (stride, seed) = (told("PORTOLAN_CRASH_STRIDE").unwrap_or(STRIDE), told("PORTOLAN_CRASH_SEED").unwrap_or(1));
    let (run, mut images, mut wrong) = (Run::new(engine, "child_that_works"), 0, Vec::new());
    for (at, left, image) in crashes(&run.recorded.start, &run.recorded.steps, stride, seed as u64) {
        images += 1;
        if let Err(what) = run.check(at, &image).await {
            wrong.push(format!("after step {at}, {left:?} left: {what}"));
        }
        if images % RECOVERIES == 0 {
            images += run.crash_recovery(at, &image, &mut wrong).await;
        }
    }
    println!("{engine}, seed {seed}: {} steps, {images} crashes, {} wrong", run.recorded.steps.len(), wrong.len());
    wrong.truncate(20);
    assert!(wrong.is_empty(), "{engine}:\n{}", wrong.join("\n"));
    images
}

#[test]
fn a_crash_at_any_step_of_redb_and_its_files_loses_nothing() {
    assert!(runtime().block_on(crash_many("Redb")) > 100);
}

#[test]
fn a_crash_at_any_step_of_sled_and_its_files_loses_nothing() {
    assert!(runtime().block_on(crash_many("Sled")) > 100);
}

#[test]
fn a_crash_while_a_snapshot_is_restored_leaves_no_store_or_all_of_it() {
    for engine in ["Redb", "Sled"] {
        let run = Run::new(engine, "child_that_restores");
        let (mut images, mut there) = (0, 0);
        for (at, left, image) in crashes(&run.recorded.start, &run.recorded.steps, 1, 1) {
            images += 1;
            let dir = folder();
            image.write(dir.path());
            let done = run.acknowledged.iter().any(|(steps, _)| *steps <= at);
            if found_in(&dir.path().join("data")).is_none() {
                assert!(!done, "{engine}: after step {at}, {left:?} left: what was restored is gone");
                continue;
            }
            there += 1;
            let checked = runtime().block_on(run.check_restored(dir.path()));
            checked.unwrap_or_else(|what| panic!("{engine}: after step {at}, {left:?} left: {what}"));
        }
        println!("{engine}: {images} crashes, a store in {there}");
        assert!(there > 0 && there < images, "{engine}: {images} crashes, a store in {there}");
    }
}
