//! Standard output, whose reader may close it early, as `head` does.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Error of a write to a closed output. It is not a failure: the command ends with exit code 0.
#[derive(Debug)]
pub(super) struct OutputClosed;

impl std::fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reader has closed the output")
    }
}

impl std::error::Error for OutputClosed {}

/// Prints a line.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Prints `text`.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    explained(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Returns the error of a failed write: [`OutputClosed`] if the reader has left.
pub(super) fn explained(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        other => other.context("standard output cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_failure() {
        let of = |kind: io::ErrorKind| explained(Err(kind.into())).unwrap_err();
        assert!(of(io::ErrorKind::BrokenPipe).is::<OutputClosed>());
        assert!(!of(io::ErrorKind::StorageFull).is::<OutputClosed>());
    }
}
