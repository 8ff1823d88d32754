//! A run of the workload that was recorded, and what a crashed disk must hold by it.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    path::Path,
    time::{Duration, Instant},
};

use portolan_store::{DynStore, Expect, OpenError, StoreConfig, Transaction, found_in, open, verify};
use portolan_types::{Record, ResourceVersion, Seams};
use serde_json::json;

use crate::{
    disk::Disk,
    folder,
    shim::{Recorded, record},
    verdict::Wrong,
    workload::{Watches, config, digest, digest_of, digest_of_event, lasting_key},
};

/// How long a lock may be held after its store was closed, and how often it is tried.
const RELEASED: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// Whether all of a store that was closed is sound. A process that another test of this one is just starting may hold its lock
/// until it has begun.
pub(crate) async fn whole(config: StoreConfig) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match verify(config.clone(), Seams::system()) {
            Err(OpenError::InUse(_)) if start.elapsed() < RELEASED => tokio::time::sleep(PAUSE).await,
            other => return other.map(drop).map_err(|error| error.to_string()),
        }
    }
}

/// What a run of the workload left to compare with.
pub(crate) struct Run {
    pub(crate) engine: &'static str,
    pub(crate) recorded: Recorded,
    /// After how many steps which revision was acknowledged.
    pub(crate) acknowledged: Vec<(usize, u64)>,
    /// The objects at each revision that a transaction ended with.
    states: HashMap<u64, u64>,
    /// What a watch brought at each revision that has an event.
    events: BTreeMap<u64, u64>,
}

impl Run {
    pub(crate) fn new(engine: &'static str, child: &str) -> Self {
        let dir = folder();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let recorded = record(child, engine, &root, Disk::default(), None);
        assert!(recorded.output.status.success(), "{}", String::from_utf8_lossy(&recorded.output.stderr));
        let (mut acknowledged, mut states, mut events) = (Vec::new(), HashMap::new(), BTreeMap::new());
        for (steps, text) in &recorded.said {
            let mut words = text.split(' ');
            let (what, revision) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            match what {
                "acknowledged" => acknowledged.push((*steps, revision)),
                "event" => {
                    let twice = events.insert(revision, words.next().unwrap().parse().unwrap());
                    assert_eq!(twice, None, "{engine}: revision {revision} has two events");
                }
                _ => drop(states.insert(revision, words.next().unwrap().parse().unwrap())),
            }
        }
        Self { engine, recorded, acknowledged, states, events }
    }

    /// How many acknowledgments there were when so many steps were done.
    pub(crate) fn done(&self, at: usize) -> usize {
        self.acknowledged.partition_point(|(steps, _)| *steps <= at)
    }

    /// The last revision that was acknowledged when so many steps were done.
    fn acknowledged_at(&self, at: usize) -> u64 {
        self.done(at).checked_sub(1).map_or(0, |last| self.acknowledged[last].1)
    }

    /// Opens a crashed disk, and compares what it holds with what it must. `at` is the step of the recorded run at which it,
    /// or what it was recovered from, was crashed; `recovered` is where it had been recovered to, if it was.
    ///
    /// # Errors
    /// What was lost, or is wrong.
    pub(crate) async fn check(&self, at: usize, recovered: u64, image: &Disk) -> Result<(), Wrong> {
        let dir = folder();
        image.write(dir.path());
        let config = config(self.engine, dir.path());
        let told = self.acknowledged_at(at).max(recovered);
        // A new one would look as one to which nothing was written.
        if told > 0 && found_in(&dir.path().join("data")).is_none() {
            return Err(Wrong::Lost(format!("there is no store, {told} was acknowledged")));
        }
        let store = open(config.clone(), Seams::system()).map_err(|error| Wrong::Lost(error.to_string()))?;
        let current = self.check_state(at, told, &store).await?;
        self.check_watch(&store).await.map_err(Wrong::Watch)?;
        let record = Record::of(&json!({"metadata": {"name": "n"}}));
        let write = Transaction::one(lasting_key(), Expect::Anything, Some(record));
        match store.commit(write).await.map(|committed| committed.into_inner().first.get()) {
            Ok(next) if next == current + 1 => {}
            other => return Err(Wrong::Reused(format!("the write after revision {current}: {other:?}"))),
        }
        store.close().await;
        whole(config).await.map_err(Wrong::Torn)
    }

    /// Returns the revision at which it is.
    async fn check_state(&self, at: usize, told: u64, store: &DynStore) -> Result<u64, Wrong> {
        let in_flight = self.acknowledged.get(self.done(at)).map_or(told, |(_, revision)| *revision);
        let current = store.current().get();
        if current < told {
            return Err(Wrong::Lost(format!("it is at {current}, {told} was acknowledged")));
        }
        if current > in_flight {
            return Err(Wrong::Torn(format!("it is at {current}, the highest that was asked for is {in_flight}")));
        }
        if self.states.get(&current) != Some(&digest(store, None).await) {
            return Err(Wrong::Torn(format!("revision {current} has other objects")));
        }
        let kept = store.oldest().get()..current;
        if let Some(old) = self.states.keys().filter(|revision| kept.contains(revision)).min()
            && digest(store, ResourceVersion::new(*old)).await != self.states[old]
        {
            return Err(Wrong::Torn(format!("as it was at revision {old}, it has other objects")));
        }
        Ok(current)
    }

    /// Compares what watches from the oldest revision bring with what those brought that followed the run.
    async fn check_watch(&self, store: &DynStore) -> Result<(), String> {
        let (floor, current) = (store.oldest(), store.current());
        let mut watches = Watches::after(store, floor).await.map_err(|error| format!("from {floor}: {error}"))?;
        let brought = watches.upto(current).await?;
        let brought = brought.iter().map(|event| (event.revision.get(), digest_of_event(event)));
        let kept = (Bound::Excluded(floor.get()), Bound::Included(current.get()));
        let expected = self.events.range(kept).map(|(revision, event)| (*revision, *event));
        match brought.clone().eq(expected.clone()) {
            true => Ok(()),
            false => {
                let other = expected.clone().zip(brought.clone()).find(|(expected, brought)| expected != brought);
                let counts = (expected.count(), brought.count());
                Err(format!(
                    "from {floor} to {current}: of {} events {} came, first other: {other:?}",
                    counts.0, counts.1
                ))
            }
        }
    }

    pub(crate) async fn check_restored(&self, root: &Path) -> Result<(), String> {
        let config = config(self.engine, root);
        let store = open(config.clone(), Seams::system()).map_err(|error| error.to_string())?;
        let expected = self.states.values().next();
        if expected != Some(&digest_of(&store).await) {
            return Err("it has other objects".into());
        }
        store.close().await;
        whole(config).await
    }
}
