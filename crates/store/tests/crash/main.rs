//! Crash tests on real files from one recording: a process works on a store while a preloaded library records every
//! operation on its files and folders. The disk is then rebuilt as a crash at any step could leave it, opened, and
//! compared with the process's acknowledgements: everything acknowledged, and writes in flight entirely or not at all.
//! Then the opening itself is recorded and crashed in the same way. Half of these times the first process was only
//! killed, so that its unsynced data can still be lost.
//!
//! The tests cover the engines together with Portolan's own steps: locks, high-water marks, new stores that are moved
//! in place. redb's disk alone is crashed at finer steps in `src/engine/redb/tests/crash_many.rs`.
//!
//! A test run takes few of the steps. `PORTOLAN_CRASH_STRIDE` sets the stride (1 for all steps).
//! `PORTOLAN_CRASH_IMAGES` repeats passes with other random parts until so many different disks were opened,
//! `PORTOLAN_CRASH_MINUTES` limits the time, and `PORTOLAN_CRASH_WORKERS` sets the number of threads. `cargo xtask
//! torture --crash-images` does so, and reports progress. Only on platforms where a library can be preloaded.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod digest;
mod disk;
mod faults;
mod many;
mod numbers;
mod old;
mod run;
mod shim;
mod verdict;
mod workload;

use std::path::Path;

use portolan_store::engine_in;
use tempfile::TempDir;

use crate::{
    disk::{CrashableDisk, DiskImage, SurvivingOperations},
    many::crash_many,
    run::WorkloadRun,
    shim::{DIR, ENGINE, record},
    verdict::CrashTally,
};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// In memory if the system has a memory-backed folder: the recording contains the syncs.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Child process: the recorded one. Not a test of its own.
#[test]
fn child_that_works() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::run(&engine, Path::new(&root)));
    }
}

/// Child process that compacts right after deletions. Not a test of its own.
#[test]
fn child_that_compacts_at_deletions() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::compact_at_deletions(&engine, Path::new(&root)));
    }
}

/// Child process with large transactions. Not a test of its own.
#[test]
fn child_that_writes_much() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::write_much(&engine, Path::new(&root)));
    }
}

/// Child process that restores a snapshot. Not a test of its own.
#[test]
fn child_that_restores() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::restore(&engine, Path::new(&root)));
    }
}

/// Child process whose recovery is recorded. Not a test of its own.
#[test]
fn child_that_recovers() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(workload::recover(&engine, Path::new(&root))).unwrap();
    }
}

#[test]
fn a_crash_at_any_step_of_redb_and_its_files_loses_nothing() {
    assert!(crash_many("Redb") > 100);
}

#[test]
fn a_crash_at_any_step_of_sled_and_its_files_loses_nothing() {
    assert!(crash_many("Sled") > 100);
}

/// New files have no durable name yet, whichever process continues.
#[test]
fn a_store_that_was_killed_whenever_it_made_a_name_and_opened_again_outlives_a_crash() {
    for engine in ["Redb", "Sled"] {
        let run = WorkloadRun::new(engine, "child_that_works");
        let (made, _) = run.acknowledged[0];
        let tally = CrashTally::new(engine, made, false);
        let after = (1..=made).filter(|at| run.recorded.steps[at - 1].is_of_a_name());
        let ends: Vec<usize> = after.collect();
        for at in &ends {
            tally.took(*at, 1);
            runtime().block_on(run.crash_recovery(*at, run.killed(*at), 1, &tally));
        }
        assert!(tally.conclude() > ends.len(), "{engine}: {ends:?}");
    }
}

/// Case of etcd #19179: the last write of the store is a deletion and is compacted; a crash must not assign its
/// revision again.
#[test]
fn a_crash_in_a_compaction_at_a_deletion_turns_no_revision_back() {
    for engine in ["Redb", "Sled"] {
        let run = WorkloadRun::new(engine, "child_that_compacts_at_deletions");
        let ((made, _), steps) = (run.acknowledged[0], &run.recorded.steps);
        let tally = CrashTally::new(engine, steps.len() - made, false);
        for (at, left, image) in CrashableDisk::of(run.recorded.start.clone()).crashes(steps, |at| at >= made, 1) {
            tally.took(at, 1);
            if tally.is_new(&image, (run.done(at), 0)) {
                let checked = runtime().block_on(run.check(at, 0, &image));
                tally.note(&format!("after step {at}, {left:?} left"), &image, checked);
            }
        }
        assert!(tally.conclude() > 30, "{engine}");
    }
}

/// During a transaction of several log segments, sled reuses segments whose content it has moved.
#[test]
fn a_crash_in_a_large_transaction_loses_nothing_that_was_before() {
    let stride = many::told("PORTOLAN_CRASH_STRIDE").unwrap_or(7);
    for engine in ["Redb", "Sled"] {
        let run = WorkloadRun::new(engine, "child_that_writes_much");
        let ((made, _), steps) = (run.acknowledged[0], &run.recorded.steps);
        let tally = CrashTally::new(engine, steps.len() - made, false);
        let is_taken = |at: usize| at >= made && at.is_multiple_of(stride);
        for (at, left, image) in CrashableDisk::of(run.recorded.start.clone()).crashes(steps, is_taken, 1) {
            tally.took(at, 1);
            if tally.is_new(&image, (run.done(at), 0)) {
                let checked = runtime().block_on(run.check(at, 0, &image));
                tally.note(&format!("after step {at}, {left:?} left"), &image, checked);
            }
        }
        assert!(tally.conclude() > 30, "{engine}");
    }
}

/// The recovery after such a transaction is crashed: sled then renames a snapshot of its log, and clears the log before
/// it. The state alternates between a crash and a killed process.
#[test]
fn a_crash_while_a_large_transaction_is_recovered_loses_nothing() {
    let stride = many::told("PORTOLAN_CRASH_STRIDE").unwrap_or(19);
    let run = WorkloadRun::new("Sled", "child_that_writes_much");
    let ((made, _), steps) = (run.acknowledged[0], &run.recorded.steps);
    let tally = CrashTally::new("Sled", steps.len() - made, false);
    let is_taken = |at: usize| at >= made && at.is_multiple_of(stride);
    for (at, left, image) in CrashableDisk::of(run.recorded.start.clone()).crashes(steps, is_taken, 1) {
        let first = match left {
            SurvivingOperations::All => run.killed(at),
            SurvivingOperations::SomeSectors => CrashableDisk::of(image),
            SurvivingOperations::Nothing | SurvivingOperations::SomeSteps => continue,
        };
        tally.took(at, 1);
        runtime().block_on(run.crash_recovery(at, first, 1, &tally));
    }
    assert!(tally.conclude() > 30);
}

/// The file is copied, with checksums, and moved in place: before and after that, everything is there.
#[test]
fn a_crash_while_a_file_of_an_older_format_gets_checksums_loses_nothing() {
    let dir = folder();
    let (root, mut before) = (dir.path().join("root"), DiskImage::default());
    std::fs::create_dir(&root).unwrap();
    old::unpack(&mut before);
    before.write(&root);
    let recorded = record("child_that_recovers", "Redb", &root, before, None);
    assert!(recorded.output.status.success(), "{}", String::from_utf8_lossy(&recorded.output.stderr));
    let (mut images, mut converted) = (0, 0);
    for (at, left, image) in CrashableDisk::of(recorded.start.clone()).crashes(&recorded.steps, |_| true, 1) {
        let dir = folder();
        image.write(dir.path());
        let case = format!("after step {at} of {}, {left:?} left", recorded.steps.len());
        images += 1;
        converted += usize::from(old::has_checksums(dir.path()));
        runtime().block_on(old::check(dir.path())).unwrap_or_else(|what| panic!("{case}: {what}"));
    }
    println!("{images} crashes, {converted} of them after it was moved in place");
    assert!(images > 100 && converted > 0 && converted < images, "{images}, {converted}");
}

#[test]
fn a_crash_while_a_snapshot_is_restored_leaves_no_store_or_all_of_it() {
    for engine in ["Redb", "Sled"] {
        let run = WorkloadRun::new(engine, "child_that_restores");
        let (mut images, mut there) = (0, 0);
        for (at, left, image) in CrashableDisk::of(run.recorded.start.clone()).crashes(&run.recorded.steps, |_| true, 1)
        {
            images += 1;
            let dir = folder();
            image.write(dir.path());
            let done = run.acknowledged.iter().any(|(steps, _)| *steps <= at);
            if engine_in(&dir.path().join("data")).is_none() {
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
