//! Recorded run of the workload, and the checks of a crashed disk against it.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    path::Path,
    time::Duration,
};

use portolan_store::{DynStore, Expect, OpenError, StoreConfig, Transaction, engine_in, open, verify};
use portolan_types::{MonotonicInstant, Record, ResourceVersion, Seams};
use serde_json::json;

use crate::{
    disk::DiskImage,
    folder,
    shim::{RecordedProcess, record},
    verdict::CrashViolation,
    workload::{Watches, config, digest, digest_of, digest_of_event, lasting_key},
};

/// Pause and retries while the lock of a closed store may be held.
const RELEASED: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// Verifies a closed store. A process that another test is just starting may hold its lock briefly.
pub(crate) async fn whole(config: StoreConfig) -> Result<(), String> {
    let start = MonotonicInstant::now();
    loop {
        match verify(config.clone(), Seams::system()) {
            Err(OpenError::InUse(_)) if start.elapsed() < RELEASED => tokio::time::sleep(PAUSE).await,
            other => return other.map(drop).map_err(|error| error.to_string()),
        }
    }
}

/// Expected results of a run of the workload.
pub(crate) struct WorkloadRun {
    pub(crate) engine: &'static str,
    pub(crate) recorded: RecordedProcess,
    /// Acknowledged revisions by the number of steps.
    pub(crate) acknowledged: Vec<(usize, u64)>,
    /// Objects at each revision that ends a transaction.
    states: HashMap<u64, u64>,
    /// Event at each revision that has one.
    events: BTreeMap<u64, u64>,
}

impl WorkloadRun {
    pub(crate) fn new(engine: &'static str, child: &str) -> Self {
        let dir = folder();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let recorded = record(child, engine, &root, DiskImage::default(), None);
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

    /// Returns the number of acknowledgements after a number of steps.
    pub(crate) fn done(&self, at: usize) -> usize {
        self.acknowledged.partition_point(|(steps, _)| *steps <= at)
    }

    /// Returns the last acknowledged revision after a number of steps.
    fn acknowledged_at(&self, at: usize) -> u64 {
        self.done(at).checked_sub(1).map_or(0, |last| self.acknowledged[last].1)
    }

    /// Opens a crashed disk, and compares its content with the expected one. `at` is the step of the recorded run at
    /// which it, or the disk that it was recovered from, was crashed; `recovered` is the revision of an earlier
    /// recovery.
    ///
    /// # Errors
    /// Describes lost or wrong data.
    pub(crate) async fn check(&self, at: usize, recovered: u64, image: &DiskImage) -> Result<(), CrashViolation> {
        let dir = folder();
        image.write(dir.path());
        let config = config(self.engine, dir.path());
        let told = self.acknowledged_at(at).max(recovered);
        // A new store would look like one without writes.
        if told > 0 && engine_in(&dir.path().join("data")).is_none() {
            return Err(CrashViolation::Lost(format!("there is no store, {told} was acknowledged")));
        }
        let store = open(config.clone(), Seams::system()).map_err(|error| CrashViolation::Lost(error.to_string()))?;
        let current = self.check_state(at, told, &store).await?;
        self.check_watch(&store).await.map_err(CrashViolation::Watch)?;
        let record = Record::of(&json!({"metadata": {"name": "n"}}));
        let write = Transaction::one(lasting_key(), Expect::Anything, Some(record));
        match store.commit(write).await.map(|committed| committed.into_inner().first.get()) {
            Ok(next) if next == current + 1 => {}
            other => return Err(CrashViolation::Reused(format!("the write after revision {current}: {other:?}"))),
        }
        store.close().await;
        whole(config).await.map_err(CrashViolation::Torn)
    }

    /// Returns the present revision.
    async fn check_state(&self, at: usize, told: u64, store: &DynStore) -> Result<u64, CrashViolation> {
        let in_flight = self.acknowledged.get(self.done(at)).map_or(told, |(_, revision)| *revision);
        let current = store.current().get();
        if current < told {
            return Err(CrashViolation::Lost(format!("it is at {current}, {told} was acknowledged")));
        }
        if current > in_flight {
            return Err(CrashViolation::Torn(format!(
                "it is at {current}, the highest that was asked for is {in_flight}"
            )));
        }
        if self.states.get(&current) != Some(&digest(store, None).await) {
            return Err(CrashViolation::Torn(format!("revision {current} has other objects")));
        }
        let kept = store.oldest().get()..current;
        if let Some(old) = self.states.keys().filter(|revision| kept.contains(revision)).min()
            && digest(store, ResourceVersion::new(*old)).await != self.states[old]
        {
            return Err(CrashViolation::Torn(format!("as it was at revision {old}, it has other objects")));
        }
        Ok(current)
    }

    /// Compares the events of watches from the oldest revision with those recorded during the run.
    async fn check_watch(&self, store: &DynStore) -> Result<(), String> {
        let (floor, current) = (store.oldest(), store.current());
        let mut watches = Watches::after(store, floor).await.map_err(|error| format!("from {floor}: {error}"))?;
        let brought = watches.upto(current).await?;
        let brought = brought.iter().map(|event| (event.revision.get(), digest_of_event(event)));
        let kept = (Bound::Excluded(floor.get()), Bound::Included(current.get()));
        let expected = self.events.range(kept).map(|(revision, event)| (*revision, *event));
        if brought.clone().eq(expected.clone()) {
            Ok(())
        } else {
            let other = expected.clone().zip(brought.clone()).find(|(expected, brought)| expected != brought);
            let counts = (expected.count(), brought.count());
            Err(format!("from {floor} to {current}: of {} events {} came, first other: {other:?}", counts.0, counts.1))
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
