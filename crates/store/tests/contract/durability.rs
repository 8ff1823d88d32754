//! Data that survives the process, and stores that are refused.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use portolan_store::{DynStore, Engine, Expect, OpenError, RangeScope, StoreConfig, StoreError, Transaction, open};
use portolan_types::Seams;

use crate::scene::{ContractScene, cluster, pod, pods, record, role, text};

const ON_DISK: [Engine; 2] = [Engine::Redb, Engine::Sled];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_comes_back_whole_and_gives_no_revision_twice() {
    for engine in ON_DISK {
        let mut scene = ContractScene::new(engine);
        for round in 0..3u64 {
            for n in 0..20 {
                scene.put(&pod(1, &format!("p{n}")), &format!("{round}.{n}")).await;
            }
            scene.put(&role(round + 1, "r"), &"x".repeat(100_000)).await;
            let last = scene.delete(&pod(1, "p0")).await;
            if round > 0 {
                scene.store.compact(last).await.unwrap();
            }
            let (pods_before, floor) = (scene.list(RangeScope::AllClusters(pods())).await, scene.store.oldest());
            if round == 1 {
                scene.store.close().await;
            }
            scene.reopen();
            assert_eq!((scene.store.current(), scene.store.oldest()), (last, floor), "{engine:?} {round}");
            assert_eq!(scene.list(RangeScope::AllClusters(pods())).await, pods_before);
            let large = scene.store.get(&role(round + 1, "r")).await.unwrap().unwrap();
            assert_eq!(text(&large.record).len(), 100_000);
            assert_eq!(scene.put(&pod(1, "p0"), "again").await, last.plus(1));
        }
    }
}

#[tokio::test]
async fn a_directory_in_use_or_of_another_engine_is_refused() {
    for (engine, other) in [(Engine::Redb, Engine::Sled), (Engine::Sled, Engine::Redb)] {
        let mut scene = ContractScene::new(engine);
        let refused = scene.try_open_again().err().unwrap();
        assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
        assert!(refused.to_string().contains("in use by another process"));
        scene.reopen();
        scene.store.close().await;
        scene.config.engine = other;
        let refused = scene.try_open_again().err().unwrap();
        assert!(matches!(refused, OpenError::OtherEngine { found, .. } if found == engine), "{refused}");
    }
    let nowhere = open(StoreConfig::new(Engine::Redb, None), Seams::system()).err().unwrap();
    assert!(matches!(nowhere, OpenError::NoDirectory(Engine::Redb)));
}

#[cfg(unix)]
#[tokio::test]
async fn files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = ContractScene::new(Engine::Redb);
    for (path, mode) in [("", 0o700), ("store.redb", 0o600), ("store.lock", 0o600)] {
        let permissions = std::fs::metadata(scene.data().join(path)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, mode, "{path}");
    }
}

#[tokio::test]
async fn a_store_without_room_refuses_writes_and_serves_reads() {
    for engine in ON_DISK {
        let mut scene = ContractScene::new(engine);
        let there = scene.put(&pod(1, "there"), "x").await;
        scene.store.close().await;
        scene.config.disk_reserve = u64::MAX;
        scene.reopen();
        let write = Transaction::one(pod(1, "new"), Expect::Absent, Some(record(&pod(1, "new"), "x")));
        assert!(matches!(scene.commit(write).await, Err(StoreError::Full(_))), "{engine:?}");
        assert!(matches!(scene.store.health(), Err(StoreError::Full(_))), "{engine:?}");
        assert_eq!(scene.list(RangeScope::Cluster(cluster(1), pods())).await[0].revision, there, "{engine:?}");
        scene.store.close().await;
        scene.config.disk_reserve = 1;
        scene.reopen();
        assert_eq!(scene.put(&pod(1, "new"), "x").await, there.plus(1), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_compacted_does_not_grow_by_its_history() {
    for engine in ON_DISK {
        let scene = ContractScene::new(engine);
        let mut sizes = Vec::new();
        for round in 0..32 {
            for _ in 0..4 {
                let txn = (0..100).fold(Transaction::default(), |txn, n| {
                    let key = pod(1, &format!("p{n}"));
                    let record = record(&key, &format!("{round}").repeat(1000));
                    txn.and(key, Expect::Anything, Some(record))
                });
                scene.commit(txn).await.unwrap();
            }
            scene.store.compact(scene.store.current()).await.unwrap();
            sizes.push(std::fs::metadata(scene.data().join("store.redb")).map_or(0, |file| file.len()));
        }
        // The file size varies, as free pages at its end are released.
        let (early, late) = (sizes[..8].iter().max(), sizes[24..].iter().max());
        assert!(late.unwrap() <= &(early.unwrap() * 2), "what was compacted is used again: {sizes:?}");
        scene.store.close().await;
        let audit = portolan_store::verify(scene.config.clone(), Seams::system()).unwrap();
        let kept = (audit.objects, audit.superseded, audit.writes, audit.last - audit.oldest);
        assert_eq!(kept, (100, 0, 0, 0), "{engine:?}");
    }
}

const CHILD_DIR: &str = "PORTOLAN_STORE_TEST_DIR";
const CHILD_ENGINE: &str = "PORTOLAN_STORE_TEST_ENGINE";

/// Child process that the next test kills. Reports acknowledgements. Not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_writes_until_it_is_killed() {
    let (Ok(dir), Ok(engine)) = (std::env::var(CHILD_DIR), std::env::var(CHILD_ENGINE)) else { return };
    let engine = if engine == "Sled" { Engine::Sled } else { Engine::Redb };
    let store = open(StoreConfig::new(engine, Some(dir.into())), Seams::system()).unwrap();
    let first = store.current().get();
    let write = |writer: u64, store: DynStore| async move {
        for n in 0.. {
            let key = pod(1, &format!("p{first}.{writer}.{n}"));
            let both = role(1, &format!("r{first}.{writer}.{n}"));
            let (pod_record, role_record) = (record(&key, "x"), record(&both, "y"));
            let txn = Transaction::one(key.clone(), Expect::Absent, Some(pod_record));
            let committed = store.commit(txn.and(both, Expect::Absent, Some(role_record))).await.unwrap().into_inner();
            println!("\nacked {} {}", key.name, committed.first);
        }
    };
    let writers: Vec<_> = (0..8).map(|writer| tokio::spawn(write(writer, store.clone()))).collect();
    futures::future::join_all(writers).await;
}

/// Runs the child until it has acknowledged a number of writes, kills it during the next ones, and returns all
/// acknowledgements.
fn run_and_kill(dir: &Path, engine: Engine, acks: usize) -> Vec<(String, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::child_that_writes_until_it_is_killed", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_ENGINE, format!("{engine:?}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut told = lines.filter_map(|line| {
        let (name, revision) = line.strip_prefix("acked ")?.split_once(' ')?;
        Some((name.to_owned(), revision.parse().ok()?))
    });
    let mut acked: Vec<_> = told.by_ref().take(acks).collect();
    assert_eq!(acked.len(), acks, "{engine:?}: it ended by itself");
    child.kill().unwrap();
    acked.extend(told);
    child.wait().unwrap();
    acked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_a_kill_at_any_moment() {
    for engine in ON_DISK {
        let dir = tempfile::tempdir().unwrap();
        let data: PathBuf = dir.path().join("data");
        let (mut acked, mut highest) = (Vec::new(), 0);
        // Kills before the start, at the first write, and later and later.
        for acks in [0, 1, 8, 300, 2, 60, 150, 0, 25] {
            acked.extend(run_and_kill(&data, engine, acks));
            let store = open(StoreConfig::new(engine, Some(data.clone())), Seams::system()).unwrap();
            for (name, revision) in &acked {
                let found = store.get(&pod(1, name)).await.unwrap().unwrap_or_else(|| panic!("{name} is lost"));
                assert_eq!(found.revision.get(), *revision, "{engine:?} {name}");
            }
            let all = |resource| portolan_store::RangeRequest::all(RangeScope::Cluster(cluster(1), resource));
            let pods_there = store.range(all(pods())).await.unwrap().objects;
            let roles_there = store.range(all(crate::scene::roles())).await.unwrap().objects;
            assert_eq!(pods_there.len(), roles_there.len(), "transactions are whole");
            let last = pods_there.iter().chain(&roles_there).map(|object| object.revision.get()).max().unwrap_or(1);
            assert_eq!(store.current().get(), last, "the last revision is that of the last write");
            assert!(last >= highest, "revisions never go back");
            highest = last;
        }
    }
}
