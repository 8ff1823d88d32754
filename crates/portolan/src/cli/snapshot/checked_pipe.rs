//! Output of a snapshot that cannot be undone, such as standard output.

use std::{
    io::{self, BufReader, PipeWriter, Write},
    thread::JoinHandle,
};

use anyhow::Context as _;
use portolan_store::{SnapshotError, SnapshotSummary};

use crate::cli::workspaces::inspect_named;

/// Writer that checks a snapshot while it is written, and withholds the last byte until all of it is valid. Without
/// that byte it cannot be restored.
pub(super) struct CheckedPipe<'a, W> {
    out: &'a mut W,
    last: Option<u8>,
    shown: PipeWriter,
    looking: JoinHandle<Result<SnapshotSummary, SnapshotError>>,
}

impl<'a, W: Write> CheckedPipe<'a, W> {
    pub(super) fn new(out: &'a mut W) -> io::Result<Self> {
        let (seen, shown) = io::pipe()?;
        let looking = std::thread::spawn(|| inspect_named(BufReader::new(seen)));
        Ok(Self { out, last: None, shown, looking })
    }

    /// Writes the last byte if `accept` accepts the snapshot.
    pub(super) fn finish(
        self,
        accept: impl FnOnce(SnapshotSummary) -> anyhow::Result<SnapshotSummary>,
    ) -> anyhow::Result<SnapshotSummary> {
        let Self { out, last, shown, looking } = self;
        drop(shown);
        let looked = looking.join().ok().context("the snapshot could not be looked at")?;
        let summary = accept(looked?)?;
        out.write_all(last.as_slice()).and_then(|()| out.flush()).context("the snapshot cannot be written")?;
        Ok(summary)
    }
}

impl<W: Write> Write for CheckedPipe<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((last, before)) = bytes.split_last() else { return Ok(0) };
        // An error means that this is not a snapshot, which is reported at the end.
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
