//! Tests of servers that compete for a leadership.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record, Seams};
use serde_json::json;
use tokio::{sync::oneshot, time::timeout};

use super::*;
use crate::{
    api::{DynStore, Expect, StoreError, Transaction},
    etcd::{EtcdConfig, open_etcd},
    open::{Engine, StoreConfig},
};

/// Time limit of a test, including a lease.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_server_alone_has_every_role_until_it_gives_it_up() {
    let roles = LeaderElection::standalone();
    let (one, other) = (roles.take("scheduler").await, roles.take("scheduler").await);
    assert!(!one.lost().is_cancelled());
    let lost = one.lost().clone();
    drop(one);
    assert!(lost.is_cancelled() && !other.lost().is_cancelled());
}

fn an_etcd() -> EtcdConfig {
    let urls = std::env::var("PORTOLAN_ETCD").expect("PORTOLAN_ETCD names a running etcd");
    let mut etcd = EtcdConfig::new(urls.split(',').map(str::to_owned).collect());
    etcd.prefix = format!("/roles/{}/", Seams::system().uid());
    etcd
}

async fn server(etcd: &EtcdConfig) -> (DynStore, Arc<LeaderElection>) {
    open_etcd(etcd, &StoreConfig::new(Engine::Memory, None), &Seams::system()).await.unwrap()
}

fn key() -> ObjectKey {
    ObjectKey::cluster_scoped(LogicalClusterId::ROOT, GroupResource::new("", "things"), "led".parse().unwrap())
}

/// Runs one round of a controller: it reads, and then writes on the condition that nothing has changed.
async fn round(store: &DynStore, who: &str) -> Result<(), StoreError> {
    let found = store.get(&key()).await?;
    let expect = found.map_or(Expect::Absent, |found| Expect::At(found.revision));
    let record = Record::of(&json!({"metadata": {}, "by": who}));
    store.commit(Transaction::one(key(), expect, Some(record))).await.map(drop)
}

async fn written_by(store: &DynStore) -> String {
    let found = store.get(&key()).await.unwrap().unwrap();
    found.record.to_value(found.revision).unwrap()["by"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn of_two_servers_one_has_a_role_and_the_other_one_waits_until_it_is_given_up() {
    let etcd = an_etcd();
    let ((one_store, one), (other_store, other)) = (server(&etcd).await, server(&etcd).await);
    let term = one.take("scheduler").await;
    let mut waiting = Box::pin(other.take("scheduler"));
    // Longer than a lease: it is kept alive.
    assert!(timeout(TIME_TO_LIVE + SAFETY_MARGIN, &mut waiting).await.is_err(), "it has the role of another");
    assert!(!term.lost().is_cancelled());
    let free = timeout(SOON, other.take("controllers")).await.expect("another role is free");
    drop(term);
    let term = timeout(RECHECK_INTERVAL, waiting).await.expect("what is given up is free at once");
    assert!(!term.lost().is_cancelled());
    one_store.close().await;
    other_store.close().await;
    drop((term, free));
}

/// Server with a thread of its own that can be suspended.
struct SuspendableServer {
    sleep: oneshot::Sender<Duration>,
    /// Times at which it became the leader, and noticed the end of its term.
    told: mpsc::Receiver<Instant>,
    thread: thread::JoinHandle<()>,
}

impl SuspendableServer {
    fn start(etcd: EtcdConfig) -> Self {
        let (sleep, told_to_sleep) = oneshot::channel::<Duration>();
        let (tell, told) = mpsc::channel();
        let run = async move {
            let (store, roles) = server(&etcd).await;
            let term = roles.take("scheduler").await;
            round(&store, "sleeper").await.unwrap();
            tell.send(Instant::now()).unwrap();
            let lost = term.lost().clone();
            let led = tokio::spawn(async move {
                let rounds = async {
                    loop {
                        // After a conflict it reads again.
                        let _ = round(&store, "sleeper").await;
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                lost.run_until_cancelled(rounds).await;
                tell.send(Instant::now()).unwrap();
                store.close().await;
            });
            let still = told_to_sleep.await.unwrap();
            // The server is suspended while the clock advances.
            thread::sleep(still);
            led.await.unwrap();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { sleep, told, thread: thread::spawn(move || runtime.block_on(run)) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd: cargo xtask e2e --suite etcd"]
async fn a_server_that_stands_still_beyond_its_lease_notices_before_it_writes_again() {
    let etcd = an_etcd();
    let (store, roles) = server(&etcd).await;
    let SuspendableServer { sleep, told, thread } = SuspendableServer::start(etcd);
    told.recv_timeout(SOON).expect("it has the role");
    let waking = Instant::now() + TIME_TO_LIVE + 2 * SAFETY_MARGIN;
    sleep.send(waking - Instant::now()).unwrap();
    let term = timeout(SOON, roles.take("scheduler")).await.expect("the role is free after the lease");
    assert!(Instant::now() < waking, "the lease ended while it stood still");
    assert_eq!(written_by(&store).await, "sleeper");
    round(&store, "next").await.unwrap();
    let noticed = tokio::task::spawn_blocking(move || told.recv_timeout(SOON).expect("it notices")).await.unwrap();
    assert!(noticed >= waking && noticed < waking + Duration::from_secs(1), "{:?} after it woke", noticed - waking);
    thread.join().unwrap();
    assert_eq!(written_by(&store).await, "next", "nothing was written by who had lost the role");
    assert!(!term.lost().is_cancelled());
    store.close().await;
}
