//! Disk with unreadable sectors: all other data is read and written as usual.

use std::{io, ops::Range, sync::Arc};

use ::redb::{StorageBackend, backends::InMemoryBackend};
use bytes::Bytes;
use parking_lot::Mutex;

use super::super::RedbKv;
use crate::{
    api::open_progress::OpenProgress,
    engine::{Batch, KvResult, OrderedKv as _, read},
};

/// Bytes of a sector, and of a page of redb.
const SECTOR: u64 = 4096;
const KEYS: usize = 300;

#[derive(Clone, Debug, Default)]
struct ScratchedDisk(Arc<ScratchedState>);

#[derive(Debug, Default)]
struct ScratchedState {
    disk: InMemoryBackend,
    scratches: Mutex<Vec<Range<u64>>>,
}

impl StorageBackend for ScratchedDisk {
    fn len(&self) -> io::Result<u64> {
        self.0.disk.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset + out.len() as u64;
        if self.0.scratches.lock().iter().any(|scratch| scratch.start < end && offset < scratch.end) {
            Err(io::Error::other("EIO"))
        } else {
            self.0.disk.read(offset, out)
        }
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.disk.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.disk.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.disk.write(offset, data)
    }
}

impl ScratchedDisk {
    /// Makes the sectors with these bytes unreadable.
    fn scratch(&self, bytes: &[u8]) {
        let mut all = vec![0; usize::try_from(self.len().unwrap()).unwrap()];
        self.0.disk.read(0, &mut all).unwrap();
        let found = (0..all.len()).filter(|at| all[*at..].starts_with(bytes)).map(|at| at as u64 / SECTOR * SECTOR);
        self.0.scratches.lock().extend(found.map(|at| at..at + SECTOR));
        assert!(!self.0.scratches.lock().is_empty());
    }

    fn open(&self) -> RedbKv {
        // Pages read on opening are not cached.
        RedbKv::on(self.clone(), 2 * SECTOR as usize, &OpenProgress::default()).unwrap()
    }
}

fn key(n: usize) -> Vec<u8> {
    format!("k{n:03}").into_bytes()
}

fn value(n: usize, round: usize) -> Bytes {
    format!("{round}-{n:03}-{}", "x".repeat(900)).into()
}

fn got(kv: &RedbKv, n: usize) -> KvResult<Option<Bytes>> {
    read(kv, |view| view.get(&key(n)))?
}

#[test]
fn an_unreadable_page_blocks_only_its_own_objects() {
    let disk = ScratchedDisk::default();
    let kv = disk.open();
    kv.commit((0..KEYS).map(|n| (key(n), Some(value(n, 0)))).collect()).unwrap();
    kv.close();
    let kv = disk.open();
    disk.scratch(b"0-150-");
    let unread = |kv: &RedbKv| (0..KEYS).filter(|n| got(kv, *n).is_err()).collect::<Vec<_>>();
    let lost = unread(&kv);
    assert!(lost.contains(&150) && lost.len() < 8, "those of one page: {lost:?}");
    for n in (0..KEYS).filter(|n| !lost.contains(n)) {
        assert_eq!(got(&kv, n).unwrap(), Some(value(n, 0)), "{n}");
    }
    let scanned = read(&kv, |view| {
        let mut cursor = view.scan(b"k", b"l")?;
        while cursor.key().is_some() {
            cursor.advance()?;
        }
        Ok(())
    });
    assert!(scanned.and_then(|scanned: KvResult<()>| scanned).is_err(), "a read of the page gets an error");

    kv.commit(Batch::from([(key(0), Some(value(0, 1))), (key(299), Some(value(299, 1)))])).unwrap();
    kv.publish();
    assert_eq!((got(&kv, 0).unwrap(), got(&kv, 299).unwrap()), (Some(value(0, 1)), Some(value(299, 1))));
    assert_eq!(unread(&kv), lost);
    assert!(kv.commit(Batch::from([(key(150), Some(value(150, 1)))])).is_err(), "nothing is made of what is unread");
    assert_eq!(got(&kv, 0).unwrap(), Some(value(0, 1)), "nor does that end reading");
    kv.close();

    disk.0.scratches.lock().clear();
    let kv = disk.open();
    for n in 0..KEYS {
        let round = usize::from(matches!(n, 0 | 299));
        assert_eq!(got(&kv, n).unwrap(), Some(value(n, round)), "{n}: nothing was lost by it");
    }
    kv.close();
}
