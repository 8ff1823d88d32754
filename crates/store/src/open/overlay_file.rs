//! Read-only file with a writable overlay in memory, for redb's recovery and bookkeeping writes.

use std::{collections::HashMap, fs::File, io, os::unix::fs::FileExt as _, path::Path};

use ::redb::StorageBackend;
use parking_lot::Mutex;

/// Bytes of an overlay block.
const BLOCK: u64 = 4096;
/// Most bytes in the overlay. To recover a store, redb writes a small part of it.
const MAX_BYTES: usize = 256 << 20;

/// File on disk and, over it, the writes since it was opened.
#[derive(Debug)]
pub(super) struct OverlayFile {
    file: File,
    over: Mutex<OverlayState>,
}

#[derive(Debug)]
struct OverlayState {
    len: u64,
    /// Length of the file's part that is still valid. Bytes that were cut off read as zeros.
    below: u64,
    blocks: HashMap<u64, Box<[u8]>>,
}

impl OverlayFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, over: Mutex::new(OverlayState { len, below: len, blocks: HashMap::new() }) })
    }

    /// Reads a block of the file, filled with zeros beyond its end.
    fn below(&self, number: u64, end: u64) -> io::Result<Box<[u8]>> {
        let mut block = vec![0; BLOCK as usize].into_boxed_slice();
        let (from, len) = (number * BLOCK, end.saturating_sub(number * BLOCK).min(BLOCK));
        self.file.read_exact_at(&mut block[..len as usize], from)?;
        Ok(block)
    }

    /// Calls `each` for every block of a range with its number, the offset in the block, and the position in the range.
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

impl StorageBackend for OverlayFile {
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
            let OverlayState { below, blocks, .. } = &mut *over;
            if !blocks.contains_key(&number) {
                if blocks.len() * BLOCK as usize >= MAX_BYTES {
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
    fn writes_to_the_overlay_are_readable_and_never_reach_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let lies: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        fs::write(&path, &lies).unwrap();
        let file = OverlayFile::open(&path).unwrap();
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
