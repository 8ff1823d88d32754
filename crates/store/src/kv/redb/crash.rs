//! Crashes and failures of the disk at every step: what was acknowledged is there afterwards, batches are whole, and views go
//! on after a failure.

use std::{io, sync::Arc};

use ::redb::StorageBackend;
use bytes::Bytes;
use parking_lot::Mutex;

use super::RedbKv;
use crate::{
    kv::{Batch, OrderedKv, read},
    opening::Opening,
};

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// The parts of `data`, written at `at`, that a disk writes whole or not at all.
pub(super) fn sectors(at: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let (head, rest) = data.split_at((SECTOR - at % SECTOR).min(data.len()));
    let next = at + head.len();
    let rest = rest.chunks(SECTOR).enumerate().map(move |(number, part)| (next + number * SECTOR, part));
    [(at, head)].into_iter().chain(rest)
}

/// A disk that loses what was not synced.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    now: Vec<u8>,
    synced: Vec<u8>,
    pending: Vec<Pending>,
    /// Changes and syncs so far.
    steps: usize,
    /// At which step it fails, once.
    fails_at: Option<usize>,
    /// From which step on it has no room for what is written.
    full_from: Option<usize>,
}

#[derive(Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Resize(usize),
}

impl Disk {
    fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(DiskState { synced: bytes.clone(), now: bytes, ..DiskState::default() })))
    }

    fn steps(&self) -> usize {
        self.0.lock().steps
    }

    /// What a power loss leaves: the synced bytes, and any part of the rest, sector by sector.
    fn after_power_loss(&self, mut seed: u64) -> Self {
        let mut survives = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 62 != 0 && (seed >> 40) & 1 == 0
        };
        let state = self.0.lock();
        let mut bytes = state.synced.clone();
        for pending in &state.pending {
            match pending {
                Pending::Resize(len) if survives() => bytes.resize(*len, 0),
                Pending::Resize(_) => {}
                Pending::Write(at, data) => {
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

impl DiskState {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match self.fails_at == Some(self.steps) {
            true => Err(io::Error::other("the disk failed")),
            false => Ok(()),
        }
    }

    fn step_with_room(&mut self) -> io::Result<()> {
        self.step()?;
        match self.full_from.is_some_and(|from| self.steps >= from) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Disk {
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
        state.pending.push(Pending::Resize(len as usize));
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
        state.pending.push(Pending::Write(from, data.to_vec()));
        Ok(())
    }
}

/// Batch `n` writes its number under `last` and under three other keys, one of them large.
fn batch(n: u64) -> Batch {
    let value = |len: usize| Some(Bytes::from(n.to_le_bytes().repeat(len)));
    let slot = |at: u64| format!("k{}", at % 7).into_bytes();
    Batch::from([(b"last".to_vec(), value(1)), (slot(n), value(20)), (slot(n + 2), value(2000)), (slot(n + 3), None)])
}

/// Commits up to six batches and returns how many were acknowledged.
fn commit_until_it_fails(kv: &RedbKv) -> u64 {
    for n in 1..=6 {
        if kv.commit(batch(n)).is_err() {
            return n - 1;
        }
        kv.publish();
    }
    6
}

/// The number of the last batch of a state, after checking that the state is what all batches up to it leave.
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

fn opened(disk: &Disk) -> RedbKv {
    RedbKv::on(disk.clone(), 1 << 20, &Opening::default()).unwrap()
}

#[test]
fn after_a_power_loss_the_store_is_at_its_last_commit_or_the_one_in_flight() {
    // A disk that also keeps the moments at which power is lost.
    #[derive(Debug)]
    struct Losing {
        disk: Disk,
        losses: Arc<Mutex<Vec<Disk>>>,
    }
    impl Losing {
        fn lose(&self) {
            let seed = self.disk.steps() as u64;
            self.losses.lock().extend([seed, seed + 1_000_003].map(|seed| self.disk.after_power_loss(seed)));
        }
    }
    impl StorageBackend for Losing {
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
    let (disk, losses) = (Disk::default(), Arc::new(Mutex::new(Vec::new())));
    drop(opened(&disk));
    let kv = RedbKv::on(Losing { disk, losses: losses.clone() }, 1 << 20, &Opening::default()).unwrap();
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
    let made = Disk::default();
    drop(opened(&made));
    let image = made.0.lock().now.clone();
    let (mut failing_step, mut failures) = (1, 0);
    loop {
        let disk = Disk::of(image.clone());
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
        for found in [disk.after_power_loss(failing_step as u64), Disk::of(disk.0.lock().now.clone())] {
            let last = last_batch(&opened(&found));
            assert!((acknowledged..=acknowledged + 1).contains(&last), "{last} after {acknowledged}");
        }
        (failing_step, failures) = (failing_step + 1, failures + 1);
    }
    assert!(failures > 20, "{failures}");
}

#[test]
fn a_disk_that_ran_full_at_any_step_goes_on_where_it_was_once_there_is_room() {
    let made = Disk::default();
    drop(opened(&made));
    let image = made.0.lock().now.clone();
    let (mut full_step, mut failures) = (1, 0);
    loop {
        let disk = Disk::of(image.clone());
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
    let disk = Disk::default();
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
