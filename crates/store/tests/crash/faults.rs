//! Disk that fails or runs full at a step: a process continues as long as it may, and its acknowledgements are checked.

use std::{fs::File, path::Path, time::Duration};

use portolan_store::{DynStore, RangeRequest, RangeScope, StoreError, engine_in, open};
use portolan_types::Seams;

use crate::{
    DIR, ENGINE,
    disk::DiskImage,
    folder,
    numbers::NumberStream,
    run::whole,
    runtime,
    shim::{InjectedFault, SAID, record},
    workload::{AcknowledgementLog, config, digest, transaction},
};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// Operations of the workload.
const OPERATIONS: usize = 60;
/// Time limit for accepting writes again once there is disk space.
const RECOVERED: Duration = Duration::from_secs(30);

/// Child process whose disk fails. Not a test of its own.
#[test]
fn child_that_suffers() {
    if let (Ok(engine), Ok(root)) = (std::env::var(ENGINE), std::env::var(DIR)) {
        runtime().block_on(suffer(&engine, Path::new(&root)));
    }
}

async fn suffer(engine: &str, root: &Path) {
    let mut said = AcknowledgementLog::new(File::create(root.join(SAID)).unwrap());
    let store = match open(config(engine, root), Seams::system()) {
        Ok(store) => store,
        Err(error) => return said.say(&format!("refused {error}")),
    };
    said.acknowledged(store.current().get());
    said.state(&store, store.current()).await;
    let mut numbers = NumberStream::from(5);
    for _ in 0..OPERATIONS {
        match store.commit(transaction(&mut numbers)).await {
            Ok(committed) => {
                let last = committed.into_inner().last;
                said.acknowledged(last.get());
                said.state(&store, last).await;
            }
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => {
                said.say(&format!("failed {error}"));
                // Reads continue; only sled needs disk space for that, since it must be reopened.
                let read = || store.range(RangeRequest::all(RangeScope::All));
                assert!(read().await.is_ok() || engine == "Sled" && matches!(store.health(), Err(StoreError::Full(_))));
                File::create(root.with_extension("room")).unwrap();
                if writes_are_taken_again(&store).await {
                    said.say("recovered");
                }
                read().await.unwrap();
            }
        }
    }
    store.close().await;
}

/// Returns true if a store accepts writes again after its disk got space; fails at once if it never will.
async fn writes_are_taken_again(store: &DynStore) -> bool {
    let taken = async {
        loop {
            match store.health() {
                Ok(()) => return true,
                Err(StoreError::Backend(_)) => return false,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::time::timeout(RECOVERED, taken).await.expect("a store with room takes writes or never will")
}

/// Output of a process whose disk failed.
#[derive(Debug, Default, PartialEq, Eq)]
struct FaultCourse {
    failed: bool,
    recovered: bool,
}

/// Runs a process with a fault, opens its store, and compares; `None` if it ended before the fault.
fn survives(engine: &str, fault: InjectedFault) -> Option<FaultCourse> {
    let dir = folder();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let recorded = record("faults::child_that_suffers", engine, &root, DiskImage::default(), Some(fault));
    let errors = String::from_utf8_lossy(&recorded.output.stderr);
    assert!(recorded.output.status.success(), "{engine}, {fault:?}: {errors}");
    let (mut course, mut acknowledged, mut state) = (FaultCourse::default(), 0, None);
    for (_, text) in &recorded.said {
        let words: Vec<&str> = text.split(' ').collect();
        match words[0] {
            "acknowledged" => {
                let lies = course.failed && !course.recovered;
                assert!(
                    !lies,
                    "{engine}, {fault:?}: something was acknowledged after the failure: {:?}",
                    recorded.said
                );
                acknowledged = words[1].parse::<u64>().unwrap();
            }
            "state" => state = words[2].parse().ok(),
            "recovered" => course.recovered = true,
            _ => course.failed = true,
        }
    }
    runtime().block_on(async {
        let config = config(engine, &root);
        if acknowledged == 0 && engine_in(&root.join("data")).is_none() {
            return;
        }
        let store =
            open(config.clone(), Seams::system()).unwrap_or_else(|error| panic!("{engine}, {fault:?}: {error}"));
        let current = store.current();
        assert!(current.get() >= acknowledged, "{engine}, {fault:?}: {acknowledged} is lost, it is at {current}");
        if acknowledged > 0 {
            let then = digest(&store, portolan_types::ResourceVersion::new(acknowledged)).await;
            assert_eq!(Some(then), state, "{engine}, {fault:?}: at revision {acknowledged}");
        }
        store.close().await;
        whole(config).await.unwrap_or_else(|what| panic!("{engine}, {fault:?}: {what}"));
    });
    // A failure may stay unnoticed: if a mark cannot be written, the earlier one stays.
    (recorded.faults > 0).then_some(course)
}

/// Makes some steps of a kind fail, and returns the resulting courses.
fn each_step(engine: &str, fault: impl Fn(usize) -> InjectedFault) -> Vec<FaultCourse> {
    let thorough = crate::many::told("PORTOLAN_CRASH_STRIDE").is_some();
    let steps = (0..).map(|n: usize| 1 + n * if thorough { 1 } else { 1 + n * 4 });
    steps.map_while(|at| survives(engine, fault(at))).collect()
}

#[test]
fn a_failed_sync_at_any_step_ends_writing_and_loses_nothing() {
    for engine in ["Redb", "Sled"] {
        // Missing space at a sync (thin volumes, quotas, NFS) is not a full disk that can be waited for.
        for errno in [EIO, ENOSPC] {
            let courses = each_step(engine, |at| InjectedFault { kind: 's', at, errno, once: true });
            assert!(courses.iter().filter(|course| course.failed).count() > 3, "{engine}, {errno}: {courses:?}");
            assert!(courses.iter().all(|course| !course.recovered), "{engine}, {errno}: {courses:?}");
        }
    }
}

/// Linux reports it to one call only, the next one to sync the file.
#[test]
fn a_disk_that_does_not_empty_its_cache_ends_writing_and_loses_nothing() {
    for engine in ["Redb", "Sled"] {
        let courses = each_step(engine, |at| InjectedFault { kind: 'c', at, errno: EIO, once: true });
        assert!(courses.iter().filter(|course| course.failed).count() > 3, "{engine}: {courses:?}");
        assert!(courses.iter().all(|course| !course.recovered), "{engine}: {courses:?}");
    }
}

#[test]
fn a_disk_whose_syncs_go_on_failing_can_still_be_read() {
    for engine in ["Redb", "Sled"] {
        let courses = each_step(engine, |at| InjectedFault { kind: 's', at, errno: EIO, once: false });
        assert!(courses.iter().filter(|course| course.failed).count() > 3, "{engine}: {courses:?}");
        assert!(courses.iter().all(|course| !course.recovered), "{engine}: {courses:?}");
    }
}

#[test]
fn a_failed_write_at_any_step_ends_writing_and_loses_nothing() {
    for engine in ["Redb", "Sled"] {
        let courses = each_step(engine, |at| InjectedFault { kind: 'w', at, errno: EIO, once: true });
        assert!(courses.iter().filter(|course| course.failed).count() > 3, "{engine}: {courses:?}");
    }
}

#[test]
fn a_disk_that_runs_full_at_any_step_loses_nothing_and_goes_on_when_there_is_room() {
    for engine in ["Redb", "Sled"] {
        let courses = each_step(engine, |at| InjectedFault { kind: 'w', at, errno: ENOSPC, once: false });
        assert!(courses.len() > 3, "{engine}: {courses:?}");
        let recovered = courses.iter().filter(|course| course.recovered).count();
        println!("{engine}: {} full disks, {recovered} times it went on by itself", courses.len());
        assert!(recovered > 0, "{courses:?}");
    }
}

#[test]
fn a_name_that_cannot_be_made_or_changed_loses_nothing() {
    for engine in ["Redb", "Sled"] {
        for errno in [EIO, ENOSPC] {
            let courses = each_step(engine, |at| InjectedFault { kind: 'n', at, errno, once: true });
            assert!(courses.iter().any(|course| course.failed), "{engine}, {errno}: {courses:?}");
        }
    }
}

#[test]
fn a_write_of_which_half_is_taken_is_completed() {
    for engine in ["Redb", "Sled"] {
        let courses = each_step(engine, |at| InjectedFault { kind: 'p', at, errno: 0, once: true });
        assert!(courses.len() > 3, "{engine}: {courses:?}");
        assert!(courses.iter().all(|course| !course.failed), "{engine}: {courses:?}");
    }
}
