//! Crashes and disk failures at every step: acknowledged writes survive, batches are atomic, and views continue after a
//! failure.

use std::{io, sync::Arc};

use ::redb::StorageBackend;
use bytes::Bytes;
use parking_lot::Mutex;

use super::super::RedbKv;
use crate::{
    api::open_progress::OpenProgress,
    engine::{Batch, OrderedKv, read},
};

/// Bytes that a disk writes entirely or not at all.
const SECTOR: usize = 512;

/// Splits `data`, written at `at`, into the parts that a disk writes entirely or not at all.
pub(super) fn sectors(at: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let (head, rest) = data.split_at((SECTOR - at % SECTOR).min(data.len()));
    let next = at + head.len();
    let rest = rest.chunks(SECTOR).enumerate().map(move |(number, part)| (next + number * SECTOR, part));
    [(at, head)].into_iter().chain(rest)
}

/// Disk that loses unsynced data.
#[derive(Clone, Debug, Default)]
struct LossyDisk(Arc<Mutex<LossyDiskState>>);

#[derive(Debug, Default)]
struct LossyDiskState {
    now: Vec<u8>,
    synced: Vec<u8>,
    pending: Vec<PendingStep>,
    /// Number of changes and syncs so far.
    steps: usize,
    /// Step at which it fails, once.
    fails_at: Option<usize>,
    /// Step from which on the disk is full.
    full_from: Option<usize>,
}

#[derive(Debug)]
enum PendingStep {
    Write(usize, Vec<u8>),
    Resize(usize),
}

impl LossyDisk {
    fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(LossyDiskState { synced: bytes.clone(), now: bytes, ..LossyDiskState::default() })))
    }

    fn steps(&self) -> usize {
        self.0.lock().steps
    }

    /// Returns the bytes after a power loss: the synced ones, and any part of the rest, sector by sector.
    fn after_power_loss(&self, mut seed: u64) -> Self {
        let mut survives = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 62 != 0 && (seed >> 40) & 1 == 0
        };
        let state = self.0.lock();
        let mut bytes = state.synced.clone();
        for pending in &state.pending {
            match pending {
                PendingStep::Resize(len) if survives() => bytes.resize(*len, 0),
                PendingStep::Resize(_) => {}
                PendingStep::Write(at, data) => {
                    for (from, sector) in sectors(*at, data) {
                        if survives() && from + sector.len() <= bytes.len() {
                            bytes[from..from + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        Self::of(bytes)
    }
}

impl LossyDiskState {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        if self.fails_at == Some(self.steps) { Err(io::Error::other("the disk failed")) } else { Ok(()) }
    }

    fn step_with_room(&mut self) -> io::Result<()> {
        self.step()?;
        if self.full_from.is_some_and(|from| self.steps >= from) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }
}

impl StorageBackend for LossyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, from) = (self.0.lock(), offset as usize);
        let bytes = state.now.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step_with_room()?;
        state.now.resize(len as usize, 0);
        state.pending.push(PendingStep::Resize(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        state.synced = state.now.clone();
        state.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut state, from) = (self.0.lock(), offset as usize);
        state.step_with_room()?;
        state.now.get_mut(from..from + data.len()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        state.pending.push(PendingStep::Write(from, data.to_vec()));
        Ok(())
    }
}

/// Builds batch `n`, which writes its number under `last` and under three other keys, one of them large.
fn batch(n: u64) -> Batch {
    let value = |len: usize| Some(Bytes::from(n.to_le_bytes().repeat(len)));
    let slot = |at: u64| format!("k{}", at % 7).into_bytes();
    Batch::from([(b"last".to_vec(), value(1)), (slot(n), value(20)), (slot(n + 2), value(2000)), (slot(n + 3), None)])
}

/// Commits up to six batches; returns the number of acknowledged ones.
fn commit_until_it_fails(kv: &RedbKv) -> u64 {
    for n in 1..=6 {
        if kv.commit(batch(n)).is_err() {
            return n - 1;
        }
        kv.publish();
    }
    6
}

/// Returns the number of the last batch of a state, after checking that the state is the result of all batches up to
/// it.
fn last_batch(kv: &RedbKv) -> u64 {
    read(kv, |view| {
        let number = |value: Bytes| u64::from_le_bytes(value[..8].try_into().unwrap());
        let last = view.get(b"last").unwrap().map_or(0, number);
        let mut expected = Batch::new();
        (1..=last).for_each(|n| expected.extend(batch(n)));
        for (key, value) in expected {
            assert_eq!(view.get(&key).unwrap(), value, "after batch {last}");
        }
        last
    })
    .unwrap()
}

fn opened(disk: &LossyDisk) -> RedbKv {
    RedbKv::on(disk.clone(), 1 << 20, &OpenProgress::default()).unwrap()
}

#[test]
fn after_a_power_loss_the_store_is_at_its_last_commit_or_the_one_in_flight() {
    // Disk that also records the moments of power losses.
    #[derive(Debug)]
    struct LosingDisk {
        disk: LossyDisk,
        losses: Arc<Mutex<Vec<LossyDisk>>>,
    }
    impl LosingDisk {
        fn lose(&self) {
            let seed = self.disk.steps() as u64;
            self.losses.lock().extend([seed, seed + 1_000_003].map(|seed| self.disk.after_power_loss(seed)));
        }
    }
    impl StorageBackend for LosingDisk {
        fn len(&self) -> io::Result<u64> {
            self.disk.len()
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.disk.read(offset, out)
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.disk.set_len(len)?;
            self.lose();
            Ok(())
        }
        fn sync_data(&self) -> io::Result<()> {
            self.lose();
            self.disk.sync_data()?;
            self.lose();
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.disk.write(offset, data)?;
            self.lose();
            Ok(())
        }
    }
    let (disk, losses) = (LossyDisk::default(), Arc::new(Mutex::new(Vec::new())));
    drop(opened(&disk));
    let kv = RedbKv::on(LosingDisk { disk, losses: losses.clone() }, 1 << 20, &OpenProgress::default()).unwrap();
    let (mut acknowledged, mut checked) = (0, 0);
    let mut check = |acknowledged: u64, in_flight: u64| {
        for lost in std::mem::take(&mut *losses.lock()) {
            let last = last_batch(&opened(&lost));
            assert!((acknowledged..=in_flight).contains(&last), "{last} is not in {acknowledged}..={in_flight}");
            checked += 1;
        }
    };
    for n in 1..=12 {
        kv.commit(batch(n)).unwrap();
        check(acknowledged, n);
        acknowledged = n;
        kv.publish();
        if n % 4 == 0 {
            kv.tidy().unwrap();
            check(acknowledged, acknowledged);
        }
    }
    kv.close();
    check(acknowledged, acknowledged);
    assert!(checked > 100, "{checked}");
}

#[test]
fn after_a_failed_step_nothing_is_acknowledged_and_views_go_on() {
    let made = LossyDisk::default();
    drop(opened(&made));
    let image = made.0.lock().now.clone();
    let (mut failing_step, mut failures) = (1, 0);
    loop {
        let disk = LossyDisk::of(image.clone());
        let kv = opened(&disk);
        let opening = disk.steps();
        disk.0.lock().fails_at = Some(opening + failing_step);
        let acknowledged = commit_until_it_fails(&kv);
        if acknowledged == 6 {
            break;
        }
        assert_eq!(last_batch(&kv), acknowledged, "views go on at the last acknowledged batch");
        assert!(kv.commit(batch(acknowledged + 1)).is_err(), "no write is taken any more");
        assert!(!kv.recover(&mut |_| Ok(())).unwrap_err().is_full(), "and none ever again");
        let steps = disk.steps();
        kv.close();
        assert_eq!(disk.steps(), steps, "the disk is left as it was");
        for found in [disk.after_power_loss(failing_step as u64), LossyDisk::of(disk.0.lock().now.clone())] {
            let last = last_batch(&opened(&found));
            assert!((acknowledged..=acknowledged + 1).contains(&last), "{last} after {acknowledged}");
        }
        (failing_step, failures) = (failing_step + 1, failures + 1);
    }
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_disk_that_ran_full_at_any_step_goes_on_where_it_was_once_there_is_room() {
    let made = LossyDisk::default();
    drop(opened(&made));
    let image = made.0.lock().now.clone();
    let (mut full_step, mut failures) = (1, 0);
    loop {
        let disk = LossyDisk::of(image.clone());
        let kv = opened(&disk);
        let opening = disk.steps();
        disk.0.lock().full_from = Some(opening + full_step);
        let acknowledged = commit_until_it_fails(&kv);
        if acknowledged == 6 {
            break;
        }
        for _ in 0..2 {
            assert_eq!(last_batch(&kv), acknowledged, "views go on at the last acknowledged batch");
            assert!(kv.recover(&mut |_| Ok(())).unwrap_err().is_full(), "there is still no room");
        }
        disk.0.lock().full_from = None;
        let mut first = None;
        kv.recover(&mut |view| {
            assert_eq!(last_batch(&kv), acknowledged, "others see the frozen state until this is over");
            first = view.get(b"last")?.map_or(Some(0), |last| last.first().copied());
            Ok(())
        })
        .unwrap();
        let last = last_batch(&kv);
        assert_eq!(first.map(u64::from), Some(last), "what comes was seen first");
        assert!((acknowledged..=acknowledged + 1).contains(&last), "{last} after {acknowledged}");
        for n in last + 1..last + 4 {
            kv.commit(batch(n)).unwrap();
            kv.publish();
            assert_eq!(last_batch(&kv), n);
            assert_eq!(last_batch(&opened(&disk.after_power_loss(n))), n, "it is durable as before");
        }
        (full_step, failures) = (full_step + 1, failures + 1);
    }
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_view_of_a_frozen_store_ends_before_its_pages_are_written_again() {
    let disk = LossyDisk::default();
    let kv = opened(&disk);
    assert_eq!(commit_until_it_fails(&kv), 6);
    disk.0.lock().full_from = Some(0);
    assert!(kv.commit(batch(7)).is_err());
    disk.0.lock().full_from = None;
    let (entered, inside) = std::sync::mpsc::channel();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let read = read(&kv, |view| {
                entered.send(()).unwrap();
                (0..2000).for_each(|_| assert_eq!(view.get(b"last").unwrap().unwrap()[0], 6));
                over.store(true, std::sync::atomic::Ordering::Release);
            });
            read.unwrap();
        });
        inside.recv().unwrap();
        kv.recover(&mut |_| Ok(())).unwrap();
        assert!(over.load(std::sync::atomic::Ordering::Acquire), "the view was waited for");
    });
    kv.commit(batch(7)).unwrap();
    kv.publish();
    assert_eq!(last_batch(&kv), 7);
}
