//! Tests of `portolan snapshot save` with a power loss after each step that reaches its files: a file with the final
//! name is a complete snapshot, a finished one lasts, and an interrupted one is no obstacle. The recorder and its disks
//! are those of the store's tests.
//!
//! Only on systems where a library can be preloaded.
#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../../store/tests/crash/digest.rs"]
mod digest;
#[allow(dead_code, reason = "the store's tests need more of it")]
#[path = "../../store/tests/crash/disk.rs"]
mod disk;
#[allow(dead_code, reason = "the store's tests need more of it")]
#[path = "../../store/tests/crash/numbers.rs"]
mod numbers;
#[allow(dead_code, reason = "the store's tests need more of it")]
#[path = "../../store/tests/crash/shim.rs"]
mod shim;

use std::{fs, io::Cursor, path::Path, process::Command};

use portolan_store::{Engine, Expect, SnapshotSummary, StoreConfig, Transaction, inspect, open};
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::json;

use crate::{
    disk::{CrashableDisk, DiskImage},
    shim::record_command,
};

/// Objects in the store, each of about 4 KB.
const OBJECTS: u64 = 200;

async fn make_store(data: &Path) {
    let config = StoreConfig::new(Engine::Redb, Some(data.join("store")));
    let store = open(config, Seams::system()).unwrap();
    for n in 0..OBJECTS {
        let name = format!("n{n}");
        let resource = GroupResource::new("", "configmaps");
        let key = ObjectKey::cluster_scoped(LogicalClusterId::ROOT, resource, name.parse().unwrap());
        let record = Record::of(&json!({"metadata": {"name": name}, "data": format!("{n} ").repeat(1000)}));
        store.commit(Transaction::one(key, Expect::Absent, Some(record))).await.unwrap();
    }
    store.close().await;
}

fn save(data: &Path, file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command.args(["snapshot", "save", "--data-dir"]).arg(data).arg(file);
    command
}

/// Returns the contents of a snapshot, if the file exists.
fn snapshot_summary(file: &Path) -> Option<SnapshotSummary> {
    let bytes = fs::read(file).ok()?;
    Some(inspect(Cursor::new(bytes)).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

#[tokio::test]
async fn a_crash_at_any_step_of_saving_a_snapshot_leaves_none_or_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (data, root) = (dir.path().join("data"), dir.path().join("root"));
    fs::create_dir(&root).unwrap();
    make_store(&data).await;
    let recorded = record_command(save(&data, &root.join("backup")), &root, DiskImage::default(), None);
    assert!(recorded.output.status.success(), "{}", String::from_utf8_lossy(&recorded.output.stderr));
    let whole = snapshot_summary(&root.join("backup")).expect("it was saved");
    assert_eq!(whole.objects, OBJECTS);

    let steps = &recorded.steps;
    let (mut images, mut there, mut gone_on) = (0, 0, 0);
    for (at, left, image) in CrashableDisk::of(recorded.start.clone()).crashes(steps, |_| true, 1) {
        images += 1;
        let case = format!("after step {at} of {}, {left:?} left", steps.len());
        let crashed = tempfile::tempdir().unwrap();
        image.write(crashed.path());
        let file = crashed.path().join("backup");
        match snapshot_summary(&file) {
            Some(found) => assert_eq!((found.objects, found.revision), (OBJECTS, whole.revision), "{case}"),
            None => assert!(at < steps.len(), "{case}: it was told that it is saved"),
        }
        there += usize::from(file.exists());
        if !file.exists() {
            gone_on += 1;
            let again = save(&data, &file).output().unwrap();
            assert!(again.status.success(), "{case}: {}", String::from_utf8_lossy(&again.stderr));
            assert_eq!(
                snapshot_summary(&file).map(|found| found.objects),
                Some(OBJECTS),
                "{case}: the same command goes on"
            );
        }
    }
    println!("{} steps, {images} crashes, a snapshot in {there}, {gone_on} gone on with", steps.len());
    assert!(there > 0 && there < images && gone_on > 0, "{images} crashes, a snapshot in {there}");
}
