//! Crash tests from one recording: one run of a fixed workload records every disk operation. The disk is then rebuilt
//! as a crash at any step could leave it, opened, and compared with the store: everything acknowledged, and writes in
//! flight entirely or not at all. Then the opening itself is recorded and crashed in the same way.
//!
//! Every `PORTOLAN_CRASH_STRIDE`th step is tested, 1 for all; a test run takes few.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    sync::Arc,
};

use ::redb::StorageBackend;
use parking_lot::Mutex;
use portolan_types::{GroupResource, LogicalClusterId, ObjectKey, Record};
use serde_json::json;

use super::{super::RedbKv, crash::sectors};
use crate::{
    api::{Expect, Transaction, damage::DamageReport, open_progress::OpenProgress},
    engine::{KvView, read},
    integrity::audit::audit,
    maintenance::queue::delete_cluster,
    write::{core::StoreCore, gate::WritePurpose, transaction::PreparedTransaction},
};

/// Operations of the workload.
const OPERATIONS: usize = 500;
/// Steps between the tested ones in a test run.
const STRIDE: usize = 97;

/// Disk operation.
#[derive(Clone, Debug)]
enum DiskStep {
    Resize(usize),
    Write(usize, Vec<u8>),
    Sync,
}

impl DiskStep {
    /// Applies the operation to `bytes`, for the sectors that `survives` accepts.
    fn apply(&self, bytes: &mut Vec<u8>, mut survives: impl FnMut() -> bool) {
        match self {
            Self::Resize(len) if survives() => bytes.resize(*len, 0),
            Self::Resize(_) | Self::Sync => {}
            Self::Write(at, data) => {
                for (from, sector) in sectors(*at, data) {
                    if survives() && from + sector.len() <= bytes.len() {
                        bytes[from..from + sector.len()].copy_from_slice(sector);
                    }
                }
            }
        }
    }
}

/// Disk that records its operations.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorder(Arc<Mutex<Recording>>);

#[derive(Debug, Default)]
struct Recording {
    bytes: Vec<u8>,
    steps: Vec<DiskStep>,
}

impl Recorder {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Recording { bytes, steps: Vec::new() })))
    }

    /// Flips a bit of its content.
    pub(super) fn flip(&self, bit: usize) {
        self.0.lock().bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// Returns its content.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().bytes.clone()
    }

    fn step(&self, step: DiskStep) {
        let mut recording = self.0.lock();
        step.apply(&mut recording.bytes, || true);
        recording.steps.push(step);
    }

    fn steps(&self) -> usize {
        self.0.lock().steps.len()
    }
}

impl StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (recording, from) = (self.0.lock(), offset as usize);
        let bytes = recording.bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step(DiskStep::Resize(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.step(DiskStep::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.step(DiskStep::Write(offset as usize, data.to_vec()));
        Ok(())
    }
}

/// Deterministic sequence of numbers.
struct NumberSequence(u64);

impl NumberSequence {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Unsynced steps that survive a crash.
#[derive(Clone, Copy, Debug)]
enum UnsyncedSteps {
    All,
    Nothing,
    SomeSteps,
    SomeSectors,
}

impl UnsyncedSteps {
    const EACH: [Self; 4] = [Self::All, Self::Nothing, Self::SomeSteps, Self::SomeSectors];

    fn image(self, synced: &[u8], pending: &[DiskStep], numbers: &mut NumberSequence) -> Vec<u8> {
        let mut bytes = synced.to_vec();
        for step in pending {
            let whole = numbers.below(2) == 0;
            step.apply(&mut bytes, || match self {
                Self::All => true,
                Self::Nothing => false,
                Self::SomeSteps => whole,
                Self::SomeSectors => numbers.below(2) == 0,
            });
        }
        bytes
    }
}

/// Disk: its content after a crash in any case, and the operations since.
#[derive(Clone)]
struct CrashedDisk {
    synced: Vec<u8>,
    pending: Vec<DiskStep>,
}

impl CrashedDisk {
    fn of(bytes: Vec<u8>) -> Self {
        Self { synced: bytes, pending: Vec::new() }
    }

    /// Returns the content that readers see.
    fn seen(&self) -> Vec<u8> {
        UnsyncedSteps::All.image(&self.synced, &self.pending, &mut NumberSequence(0))
    }
}

/// Calls `look` with the disk as a crash after each `stride`th step could leave it, and as the end of the process alone
/// leaves it.
fn crash(
    start: &CrashedDisk,
    steps: &[DiskStep],
    stride: usize,
    seed: u64,
    mut look: impl FnMut(usize, UnsyncedSteps, Vec<u8>, &CrashedDisk),
) {
    let (mut numbers, mut now) = (NumberSequence(seed), start.clone());
    for (at, step) in steps.iter().enumerate() {
        let CrashedDisk { synced, pending } = &mut now;
        match step {
            DiskStep::Sync => {
                std::mem::take(pending).iter().for_each(|step: &DiskStep| step.apply(synced, || true));
            }
            step => pending.push(step.clone()),
        }
        if at % stride == 0 {
            for left in UnsyncedSteps::EACH {
                look(at + 1, left, left.image(&now.synced, &now.pending, &mut numbers), &now);
            }
        }
    }
}

/// Builds a store without a thread, so that every run is the same.
fn core_on(disk: Recorder) -> StoreCore {
    StoreCore::on(RedbKv::on(disk, 1 << 20, &OpenProgress::default()).unwrap())
}

/// Returns a digest of all latest objects.
fn digest(view: &dyn KvView) -> u64 {
    let (mut hasher, mut cursor) = (DefaultHasher::new(), view.scan(b"o", b"p").unwrap());
    while let Some(key) = cursor.key() {
        (key, cursor.value()).hash(&mut hasher);
        cursor.advance().unwrap();
    }
    hasher.finish()
}

fn key(numbers: &mut NumberSequence) -> ObjectKey {
    let resource = GroupResource::new("", if numbers.below(2) == 0 { "pods" } else { "secrets" });
    let name = format!("n{}", numbers.below(24)).parse().unwrap();
    ObjectKey::cluster_scoped(LogicalClusterId::new(1 + numbers.below(4)), resource, name)
}

/// Runs puts, deletions, transactions of several objects, and batches of several transactions.
fn transactions(numbers: &mut NumberSequence) -> Vec<PreparedTransaction> {
    let count = if numbers.below(5) == 0 { 1 + numbers.below(8) } else { 1 };
    let one = |numbers: &mut NumberSequence| {
        let mut txn = Transaction::default();
        for _ in 0..if numbers.below(6) == 0 { 4 } else { 1 } {
            let key = key(numbers);
            if txn.writes.iter().any(|write| write.key == key) {
                continue;
            }
            let text = "x".repeat([20, 300, 3000, 30_000][numbers.below(4) as usize]);
            let record = Record::of(&json!({
                "metadata": {"name": &*key.name, "ownerReferences": [{"uid": format!("o{}", numbers.below(3))}]},
                "data": format!("{}{text}", numbers.below(1000)),
            }));
            txn = txn.and(key, Expect::Anything, (numbers.below(5) > 0).then_some(record));
        }
        PreparedTransaction::new(txn).unwrap()
    };
    (0..count).map(|_| one(numbers)).collect()
}

fn operate(core: &StoreCore, number: usize, numbers: &mut NumberSequence) {
    match number % 50 {
        17 => core.kv.tidy().unwrap(),
        33 => {
            let upto = core.hub.marks().last - numbers.below(20).min(core.hub.marks().last - 1);
            let admitted = core.admit(WritePurpose::Any).unwrap();
            let (_, compacted) = admitted.commit(|plan| (Vec::new(), plan.compact(upto))).unwrap();
            compacted.unwrap();
        }
        49 if number % 150 == 149 => {
            let gone = LogicalClusterId::new(2 + number as u64 / 150 % 3);
            delete_cluster(core, gone).0.unwrap();
        }
        _ => {
            let transactions = transactions(numbers);
            let plan = |plan: &mut crate::write::plan::BatchPlan<'_>| {
                (transactions.into_iter().map(|txn| plan.transaction(txn)).collect(), ())
            };
            // Deletions of absent objects and writes to deleted clusters fail, which is part of the test.
            core.admit(WritePurpose::Any).unwrap().commit(plan).unwrap();
        }
    }
}

/// Expected results of a run of the workload.
struct RecordedRun {
    start: Vec<u8>,
    steps: Vec<DiskStep>,
    /// Acknowledged revisions by the number of steps.
    acknowledged: Vec<(usize, u64)>,
    /// Objects at each of these revisions.
    states: HashMap<u64, u64>,
}

impl RecordedRun {
    fn new(seed: u64) -> Self {
        let made = Recorder::default();
        core_on(made.clone()).kv.close();
        let disk = Recorder::of(made.bytes());
        let start = disk.bytes();
        let (core, mut numbers) = (core_on(disk.clone()), NumberSequence(seed));
        let mut run = Self { start, steps: Vec::new(), acknowledged: vec![(0, 1)], states: HashMap::new() };
        run.states.insert(1, core.view(digest).unwrap());
        for number in 0..OPERATIONS {
            operate(&core, number, &mut numbers);
            let last = core.hub.marks().last;
            run.acknowledged.push((disk.steps(), last));
            let state = core.view(digest).unwrap();
            assert_eq!(*run.states.entry(last).or_insert(state), state, "a state has one revision");
        }
        core.kv.tidy().unwrap();
        core.kv.close();
        run.steps = std::mem::take(&mut disk.0.lock().steps);
        run
    }

    /// Opens a crashed disk, which must show at least `shown`; returns its operations, and the revisions shown by the
    /// number of steps.
    fn check(&self, at: usize, shown: u64, left: UnsyncedSteps, image: Vec<u8>) -> (Recorder, (usize, u64)) {
        let case = format!("after step {at} of {}, {left:?} left", self.steps.len());
        let disk = Recorder::of(image);
        let kv = RedbKv::on(disk.clone(), 1 << 20, &OpenProgress::default())
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let opened = disk.steps();
        let mut found = DamageReport::default();
        let audited = read(&kv, |view| audit(view, &mut found, &mut |_, _| {})).unwrap().unwrap();
        assert!(found.is_empty(), "{case}: {found}");
        let done = self.acknowledged.partition_point(|(steps, _)| *steps <= at);
        let acknowledged = self.acknowledged[done - 1].1;
        let in_flight = self.acknowledged.get(done).map_or(acknowledged, |(_, revision)| *revision);
        assert!(audited.last == acknowledged || audited.last == in_flight, "{case}: {} is lost", acknowledged);
        assert!(audited.last >= shown, "{case}: {shown} was shown after the first crash, it is at {}", audited.last);
        assert_eq!(read(&kv, digest).unwrap(), self.states[&audited.last], "{case}: at revision {}", audited.last);
        (disk, (opened, audited.last))
    }
}

#[test]
fn a_crash_at_any_step_and_another_one_while_recovering_lose_nothing() {
    let stride = std::env::var("PORTOLAN_CRASH_STRIDE").ok().and_then(|text| text.parse().ok()).unwrap_or(STRIDE);
    let seed = 1;
    let (run, mut images) = (RecordedRun::new(seed), 0);
    crash(&CrashedDisk::of(run.start.clone()), &run.steps, stride, seed, |at, left, image, killed| {
        run.check(at, 0, left, image.clone());
        images += 1;
        if images % 9 == 0 {
            // Alternates between a crash and a killed process: unsynced data of the latter can still be lost, unless
            // the recovery has synced it before showing it.
            let first = if images % 2 == 0 { killed.clone() } else { CrashedDisk::of(image) };
            let (recovery, (opened, shown)) = run.check(at, 0, UnsyncedSteps::All, first.seen());
            let steps = std::mem::take(&mut recovery.0.lock().steps);
            let stride = stride.min(steps.len().div_ceil(3).max(1));
            crash(&first, &steps, stride, at as u64, |recovered, twice, image, _| {
                run.check(at, if recovered >= opened { shown } else { 0 }, twice, image);
                images += 1;
            });
        }
    });
    println!("seed {seed}: {} steps, {images} crashes", run.steps.len());
    assert!(images > 100, "{images}");
}
