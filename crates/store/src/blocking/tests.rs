//! Whom a flood of reads delays.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use portolan_types::LogicalClusterId;
use tokio::task::JoinSet;

use super::*;
use crate::{Opening, kv::RedbKv};

const PATIENCE: Duration = Duration::from_secs(20);

fn core() -> Arc<Core> {
    let kv = RedbKv::on(::redb::backends::InMemoryBackend::new(), 1 << 20, &Opening::default()).unwrap();
    Arc::new(Core::on(kv))
}

/// Reads that end only when they are told.
struct Flood {
    core: Arc<Core>,
    go: crossbeam_channel::Sender<()>,
    told: crossbeam_channel::Receiver<()>,
    reads: JoinSet<()>,
}

impl Flood {
    fn new() -> Self {
        let (go, told) = crossbeam_channel::unbounded();
        Self { core: core(), go, told, reads: JoinSet::new() }
    }

    fn begin(&mut self, party: Party, count: usize) {
        for _ in 0..count {
            let (core, party, told) = (self.core.clone(), party.clone(), self.told.clone());
            self.reads.spawn(async move {
                let waiting = move |_: &Core| told.recv().map_err(|_| StoreError::Unknown);
                run(&core, party, Weight::Heavy, waiting).await.unwrap();
            });
        }
    }

    /// Waits until so many reads wait for a thread.
    async fn until_waiting(&self, count: i64) {
        let seen = async {
            while self.core.metrics.waiting_reads.get() != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("the threads are taken");
    }
}

const A: Party = Party::Cluster(LogicalClusterId::ROOT);

fn b() -> Party {
    Party::Cluster(LogicalClusterId::new(7))
}

#[tokio::test]
async fn one_read_waits_for_few_of_the_hundred_of_another_logical_cluster() {
    let mut flood = Flood::new();
    flood.begin(A, 100);
    flood.until_waiting(97).await;
    let read = run(&flood.core, b(), Weight::Heavy, |_| Ok("read"));
    let read = tokio::time::timeout(PATIENCE, read).await.expect("it waits for none while a thread is free");
    assert_eq!(read.unwrap(), "read");

    flood.begin(Party::Everybody, 50);
    flood.until_waiting(97 + 49).await;
    let (core, ended) = (flood.core.clone(), Arc::new(AtomicI64::new(0)));
    let then = ended.clone();
    let read = tokio::spawn(async move {
        // How many had ended when it was its turn.
        run(&core, b(), Weight::Heavy, move |_| Ok(then.load(Ordering::Acquire))).await
    });
    flood.until_waiting(97 + 49 + 1).await;
    while !read.is_finished() {
        flood.go.send(()).unwrap();
        flood.reads.join_next().await.unwrap().unwrap();
        let ended = ended.fetch_add(1, Ordering::AcqRel) + 1;
        // The thread that has become free takes the next one, of whichever party.
        let taken = async {
            while flood.core.metrics.waiting_reads.get() > 97 + 49 + 1 - ended {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.expect("the next one is taken");
    }
    let ended = read.await.unwrap().unwrap();
    // 97 wait in the one line, and 49 in the other.
    assert!(ended < 10, "it waited for {ended}");
    (0..200).for_each(|_| flood.go.send(()).unwrap());
    while let Some(ended) = flood.reads.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn the_loops_wait_for_no_physical_cluster() {
    let mut flood = Flood::new();
    flood.begin(Party::PhysicalCluster("east".into()), 100);
    flood.until_waiting(97).await;
    let read = run(&flood.core, Party::Everybody, Weight::Heavy, |_| Ok("read"));
    let read = tokio::time::timeout(PATIENCE, read).await.expect("it waits for none while a thread is free");
    assert_eq!(read.unwrap(), "read");
    (0..100).for_each(|_| flood.go.send(()).unwrap());
    while let Some(ended) = flood.reads.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn who_does_not_wait_any_more_leaves_the_line() {
    let mut flood = Flood::new();
    flood.begin(A, 100);
    flood.until_waiting(97).await;
    flood.reads.abort_all();
    while flood.reads.join_next().await.is_some() {}
    flood.until_waiting(0).await;
    assert_eq!(flood.core.readers.0.state.lock().turns.waiting(), 0);
    (0..SHARE).for_each(|_| flood.go.send(()).unwrap());
    run(&flood.core, A, Weight::Heavy, |_| Ok(())).await.unwrap();
}

#[tokio::test]
async fn a_read_that_panics_fails_alone() {
    let core = core();
    for _ in 0..2 * READERS {
        let failed = run::<()>(&core, A, Weight::Heavy, |_| panic!("a damaged file")).await;
        assert!(matches!(failed, Err(StoreError::Backend(_))), "{failed:?}");
    }
    assert_eq!(run(&core, A, Weight::Heavy, |_| Ok(1)).await.unwrap(), 1);
}
