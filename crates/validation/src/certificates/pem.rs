//! PEM blocks, as Go's `encoding/pem` finds them.

use portolan_gocompat::base64;

/// One block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Label of the block, such as `CERTIFICATE`.
    pub(super) label: String,
    /// True if the block has headers.
    pub(super) has_headers: bool,
    pub(super) data: Vec<u8>,
}

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// Returns all blocks of a text. Other text is ignored; a block ends at the next `END` line of any type.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let ends = next_ends(&lines);
    let (mut all, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let end = ends[at];
        match block(&lines[at..=end.min(lines.len() - 1)]) {
            Some(block) => {
                all.push(block);
                at = end + 1;
            }
            None => at += 1,
        }
    }
    all
}

/// Returns for each line the next line that ends a block, or the number of lines if none does.
fn next_ends(lines: &[&str]) -> Vec<usize> {
    let mut next = lines.len();
    let mut ends: Vec<usize> = (0..lines.len())
        .rev()
        .map(|at| {
            if lines[at].starts_with(END) {
                next = at;
            }
            next
        })
        .collect();
    ends.reverse();
    ends
}

/// Returns the block that `lines` hold from the first to the last.
fn block(lines: &[&str]) -> Option<Block> {
    let (first, rest) = lines.split_first()?;
    let label = first.strip_prefix(BEGIN)?.strip_suffix(DASHES)?;
    let (last, inside) = rest.split_last()?;
    if last.strip_prefix(END)?.strip_suffix(DASHES)? != label {
        return None;
    }
    let headers = inside.iter().take_while(|line| line.contains(':')).count();
    let encoded: String = inside[headers..].concat().split_ascii_whitespace().collect();
    let data = base64::read(&encoded).ok()?;
    Some(Block { label: label.to_owned(), has_headers: headers > 0, data })
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
            (
                "-----BEGIN A-----\naGk=\n-----END B-----\n-----BEGIN C-----\naGk=\n-----END C-----",
                vec![block("C", false, "hi")],
            ),
            ("-----BEGIN A-----\n-----BEGIN B-----\naGk=\n-----END B-----", vec![block("B", false, "hi")]),
        ] {
            assert_eq!(blocks(text), expected, "{text}");
        }
    }
}
