//! A file that is only read: what redb writes to it, to recover or to keep its books, stays in memory.

use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt as _, path::Path};

use ::redb::StorageBackend;
use parking_lot::Mutex;

/// Bytes that are kept together.
const BLOCK: u64 = 4096;
/// Most bytes that may be kept. To recover a store, redb writes a small part of it.
const MOST: usize = 256 << 20;

/// A file as it lies on its disk, and over it what was written since it was opened.
#[derive(Debug)]
pub(super) struct Unwritten {
    file: File,
    over: Mutex<Over>,
}

#[derive(Debug)]
struct Over {
    len: u64,
    /// How much of the file still counts: what was cut off once is zero from then on.
    below: u64,
    blocks: HashMap<u64, Box<[u8]>>,
}

impl Unwritten {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, over: Mutex::new(Over { len, below: len, blocks: HashMap::new() }) })
    }

    /// A block of the file, with zeros behind its end.
    fn below(&self, number: u64, end: u64) -> io::Result<Box<[u8]>> {
        let mut block = vec![0; BLOCK as usize].into_boxed_slice();
        let (from, len) = (number * BLOCK, end.saturating_sub(number * BLOCK).min(BLOCK));
        self.file.read_exact_at(&mut block[..len as usize], from)?;
        Ok(block)
    }

    /// Does `each` to the part of every block between `offset` and so many bytes behind it: number, place in the block, place in all.
    fn parts(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let part = (BLOCK as usize - within).min(len - done);
            each(at / BLOCK, within, done..done + part)?;
            done += part;
        }
        Ok(())
    }
}

impl StorageBackend for Unwritten {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over.lock();
        if offset.saturating_add(out.len() as u64) > over.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::parts(offset, out.len(), |number, within, part| {
            let len = part.len();
            let block = match over.blocks.get(&number) {
                Some(block) => &block[within..within + len],
                None => &self.below(number, over.below)?[within..within + len],
            };
            out[part].copy_from_slice(block);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut over = self.over.lock();
        if len < over.len {
            over.blocks.retain(|number, _| *number * BLOCK < len);
            if let Some(last) = over.blocks.get_mut(&(len / BLOCK)) {
                last[(len % BLOCK) as usize..].fill(0);
            }
            over.below = over.below.min(len);
        }
        over.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut over = self.over.lock();
        if offset.saturating_add(data.len() as u64) > over.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::parts(offset, data.len(), |number, within, part| {
            let Over { below, blocks, .. } = &mut *over;
            if !blocks.contains_key(&number) {
                if blocks.len() * BLOCK as usize >= MOST {
                    return Err(io::Error::other("a store that can only be read must not be changed so much: copy it"));
                }
                blocks.insert(number, self.below(number, *below)?);
            }
            if let Some(block) = blocks.get_mut(&number) {
                block[within..within + part.len()].copy_from_slice(&data[part]);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_never_reaches_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let lies: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        fs::write(&path, &lies).unwrap();
        let file = Unwritten::open(&path).unwrap();
        let mut model = lies.clone();
        let check = |model: &[u8]| {
            assert_eq!(file.len().unwrap(), model.len() as u64);
            let mut all = vec![1; model.len()];
            file.read(0, &mut all).unwrap();
            assert_eq!(all, model);
        };
        check(&model);
        for (offset, len) in [(0, 3), (4_095, 2), (100, 9_000), (9_999, 1)] {
            let data = vec![0xee; len];
            file.write(offset as u64, &data).unwrap();
            model[offset..offset + len].copy_from_slice(&data);
            check(&model);
        }
        for len in [5_000, 20_000, 4_096, 4_097, 0, 9_000] {
            file.set_len(len as u64).unwrap();
            model.resize(len, 0);
            check(&model);
        }
        assert!(file.read(8_999, &mut [0; 2]).is_err() && file.write(8_999, &[0; 2]).is_err(), "behind the end");
        assert_eq!(fs::read(&path).unwrap(), lies);
    }
}
