//! Tests of fairness: the delay of one tenant by a flood of reads of another.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use portolan_types::LogicalClusterId;
use tokio::task::JoinSet;

use super::*;
use crate::{api::open_progress::OpenProgress, engine::RedbKv, write::core::StoreCore};

const PATIENCE: Duration = Duration::from_secs(20);

fn core() -> Arc<StoreCore> {
    let kv = RedbKv::on(::redb::backends::InMemoryBackend::new(), 1 << 20, &OpenProgress::default()).unwrap();
    Arc::new(StoreCore::on(kv))
}

/// Flood of reads that end on a signal.
struct ReadFlood {
    core: Arc<StoreCore>,
    go: crossbeam_channel::Sender<()>,
    told: crossbeam_channel::Receiver<()>,
    reads: JoinSet<()>,
}

impl ReadFlood {
    fn new() -> Self {
        let (go, told) = crossbeam_channel::unbounded();
        Self { core: core(), go, told, reads: JoinSet::new() }
    }

    fn begin(&mut self, party: ReadTenant, count: usize) {
        for _ in 0..count {
            let (core, party, told) = (self.core.clone(), party.clone(), self.told.clone());
            self.reads.spawn(async move {
                let waiting = move |_: &StoreCore| told.recv().map_err(|_| StoreError::Unknown);
                run(&core, party, ReadWeight::Heavy, waiting).await.unwrap();
            });
        }
    }

    /// Waits until a number of reads wait for a thread.
    async fn until_waiting(&self, count: i64) {
        let seen = async {
            while self.core.metrics.waiting_reads.get() != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("the threads are taken");
    }
}

const A: ReadTenant = ReadTenant::Cluster(LogicalClusterId::ROOT);

fn b() -> ReadTenant {
    ReadTenant::Cluster(LogicalClusterId::new(7))
}

#[tokio::test]
async fn one_read_waits_for_few_of_the_hundred_of_another_logical_cluster() {
    let mut flood = ReadFlood::new();
    flood.begin(A, 100);
    flood.until_waiting(97).await;
    let read = run(&flood.core, b(), ReadWeight::Heavy, |_| Ok("read"));
    let read = tokio::time::timeout(PATIENCE, read).await.expect("it waits for none while a thread is free");
    assert_eq!(read.unwrap(), "read");

    flood.begin(ReadTenant::Everybody, 50);
    flood.until_waiting(97 + 49).await;
    let (core, ended) = (flood.core.clone(), Arc::new(AtomicI64::new(0)));
    let then = ended.clone();
    let read = tokio::spawn(async move {
        // Reads that had ended at its turn.
        run(&core, b(), ReadWeight::Heavy, move |_| Ok(then.load(Ordering::Acquire))).await
    });
    flood.until_waiting(97 + 49 + 1).await;
    while !read.is_finished() {
        flood.go.send(()).unwrap();
        flood.reads.join_next().await.unwrap().unwrap();
        let ended = ended.fetch_add(1, Ordering::AcqRel) + 1;
        // The free thread takes the next read of any tenant.
        let taken = async {
            while flood.core.metrics.waiting_reads.get() > 97 + 49 + 1 - ended {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.expect("the next one is taken");
    }
    let ended = read.await.unwrap().unwrap();
    // 97 reads of one tenant wait, and 49 of the other.
    assert!(ended < 10, "it waited for {ended}");
    (0..200).for_each(|_| flood.go.send(()).unwrap());
    while let Some(ended) = flood.reads.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn the_loops_wait_for_no_physical_cluster() {
    let mut flood = ReadFlood::new();
    flood.begin(ReadTenant::PhysicalCluster("east".into()), 100);
    flood.until_waiting(97).await;
    let read = run(&flood.core, ReadTenant::Everybody, ReadWeight::Heavy, |_| Ok("read"));
    let read = tokio::time::timeout(PATIENCE, read).await.expect("it waits for none while a thread is free");
    assert_eq!(read.unwrap(), "read");
    (0..100).for_each(|_| flood.go.send(()).unwrap());
    while let Some(ended) = flood.reads.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_cancelled_reader_leaves_the_queue() {
    let mut flood = ReadFlood::new();
    flood.begin(A, 100);
    flood.until_waiting(97).await;
    flood.reads.abort_all();
    while flood.reads.join_next().await.is_some() {}
    flood.until_waiting(0).await;
    assert_eq!(flood.core.readers.0.state.lock().turns.waiting(), 0);
    (0..THREADS_PER_TENANT).for_each(|_| flood.go.send(()).unwrap());
    run(&flood.core, A, ReadWeight::Heavy, |_| Ok(())).await.unwrap();
}

#[tokio::test]
async fn a_read_that_panics_fails_alone() {
    let core = core();
    for _ in 0..2 * THREADS {
        let failed = run::<_, ()>(&core, A, ReadWeight::Heavy, |_| panic!("a damaged file")).await;
        assert!(matches!(failed, Err(StoreError::Backend(_))), "{failed:?}");
    }
    assert_eq!(run(&core, A, ReadWeight::Heavy, |_| Ok(1)).await.unwrap(), 1);
}
