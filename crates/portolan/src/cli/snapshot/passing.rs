//! A snapshot on its way to where nothing can be taken back, such as standard output.

use std::{
    io::{self, BufReader, PipeWriter, Write},
    thread::JoinHandle,
};

use anyhow::Context as _;
use portolan_store::{Snapshot, SnapshotError};

use crate::cli::workspaces::inspect_named;

/// Looks at what passes, and keeps its last byte until all of it is found to be as it should: without that nothing restores it.
pub(super) struct Passing<'a, W> {
    out: &'a mut W,
    last: Option<u8>,
    shown: PipeWriter,
    looking: JoinHandle<Result<Snapshot, SnapshotError>>,
}

impl<'a, W: Write> Passing<'a, W> {
    pub(super) fn new(out: &'a mut W) -> io::Result<Self> {
        let (seen, shown) = io::pipe()?;
        let looking = std::thread::spawn(|| inspect_named(BufReader::new(seen)));
        Ok(Self { out, last: None, shown, looking })
    }

    /// Lets the end pass as well, when `accept` takes what came.
    pub(super) fn finish(self, accept: impl FnOnce(Snapshot) -> anyhow::Result<Snapshot>) -> anyhow::Result<Snapshot> {
        let Self { out, last, shown, looking } = self;
        drop(shown);
        let looked = looking.join().ok().context("the snapshot could not be looked at")?;
        let summary = accept(looked?)?;
        out.write_all(last.as_slice()).and_then(|()| out.flush()).context("the snapshot cannot be written")?;
        Ok(summary)
    }
}

impl<W: Write> Write for Passing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((last, before)) = bytes.split_last() else { return Ok(0) };
        // An error means that this is no snapshot, which is told at the end.
        let _ = self.shown.write_all(bytes);
        if let Some(held) = self.last.take() {
            self.out.write_all(&[held])?;
        }
        self.out.write_all(before)?;
        self.last = Some(*last);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
