//! PEM blocks, as Go's `encoding/pem` finds them.

use base64::Engine as _;

/// One block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// What it says it is.
    pub(super) label: String,
    /// Whether there is more than data in it.
    pub(super) has_headers: bool,
    pub(super) data: Vec<u8>,
}

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// All blocks of a text. What is no block is passed over.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let mut lines = text.lines().map(str::trim_end);
    let mut all = Vec::new();
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(DASHES)) else { continue };
        let end = format!("{END}{label}{DASHES}");
        let mut rest = lines.clone();
        let inside: Vec<&str> = rest.by_ref().take_while(|line| *line != end).collect();
        let headers = inside.iter().take_while(|line| line.contains(':')).count();
        let ended = text.contains(&end) && lines.clone().any(|line| line == end);
        let encoded: String = inside[headers..].concat().split_ascii_whitespace().collect();
        let data = base64::engine::general_purpose::STANDARD.decode(encoded);
        if let (true, Ok(data)) = (ended, data) {
            all.push(Block { label: label.to_owned(), has_headers: headers > 0, data });
            lines = rest;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_among_other_text() {
        let block =
            |label: &str, has_headers, data: &str| Block { label: label.into(), has_headers, data: data.into() };
        for (text, expected) in [
            ("", vec![]),
            ("text\n-----BEGIN A-----\naGk=\n-----END A-----\nmore", vec![block("A", false, "hi")]),
            ("-----BEGIN A B-----\nKey: value\n\naGk=\n-----END A B-----\n", vec![block("A B", true, "hi")]),
            (
                "-----BEGIN A-----\naG\nk=\n-----END A-----\n-----BEGIN B-----\n-----END B-----",
                vec![block("A", false, "hi"), block("B", false, "")],
            ),
            ("-----BEGIN A-----\naGk=\n-----END B-----", vec![]),
            ("-----BEGIN A-----\n!\n-----END A-----", vec![]),
        ] {
            assert_eq!(blocks(text), expected, "{text}");
        }
    }
}
