//! Standard output, whose reader may leave before the end, as `head` does.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// Nobody reads what a command prints any more. It is no failure: the command just ends.
#[derive(Debug)]
pub(super) struct ReaderLeft;

impl std::fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for ReaderLeft {}

/// Prints `text` and the end of the line.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Prints `text`.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    explained(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn explained(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderLeft.into()),
        other => other.context("standard output cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_failure() {
        let of = |kind: io::ErrorKind| explained(Err(kind.into())).unwrap_err();
        assert!(of(io::ErrorKind::BrokenPipe).is::<ReaderLeft>());
        assert!(!of(io::ErrorKind::StorageFull).is::<ReaderLeft>());
    }
}
