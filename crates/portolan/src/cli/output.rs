//! Standard output, whose reader may close it early, as `head` does.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write as _},
};

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

/// Prints `text`, made [`visible`].
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    explained(out.write_all(visible(text).as_bytes()).and_then(|()| out.flush()))
}

/// Prints a line to standard error, made [`visible`]. A failure is ignored, because it cannot be reported.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible(text));
}

/// Returns `text` without characters that control a terminal, since texts of other servers and users are printed.
/// Escape is written `^[` and a carriage return `\r`, as kubectl writes them; other control characters are written
/// `\u0007`, which is the same character in JSON. Lines and tabs stay.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\u{1b}' => shown.push_str("^["),
            '\r' => shown.push_str("\\r"),
            c if is_control(c) => {
                let _ = write!(shown, "\\u{:04x}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Returns true for characters that control a terminal, and for those that reorder the text around them.
fn is_control(c: char) -> bool {
    let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || (c.is_control() && !matches!(c, '\n' | '\t'))
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
    fn no_text_controls_the_terminal() {
        for (text, expected) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\u{1b}[2Jgone", "^[[2Jgone"),
            ("no\rok", "no\\rok"),
            ("bell\u{7} delete\u{7f} csi\u{9b}31m", "bell\\u0007 delete\\u007f csi\\u009b31m"),
            ("name\u{202e}gpj.exe", "name\\u202egpj.exe"),
            ("größe 東", "größe 東"),
        ] {
            assert_eq!(visible(text), expected, "{text:?}");
        }
        let json = serde_json::to_string(&serde_json::json!("a\u{9b}\u{1b}b\r")).unwrap();
        let read: String = serde_json::from_str(&visible(&json)).unwrap();
        assert_eq!(read, "a\u{9b}\u{1b}b\r", "JSON has the same value");
    }

    #[test]
    fn only_a_reader_that_left_is_no_failure() {
        let of = |kind: io::ErrorKind| explained(Err(kind.into())).unwrap_err();
        assert!(of(io::ErrorKind::BrokenPipe).is::<OutputClosed>());
        assert!(!of(io::ErrorKind::StorageFull).is::<OutputClosed>());
    }
}
