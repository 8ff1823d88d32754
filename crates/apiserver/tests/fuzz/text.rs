//! Mutations of bytes of any format.

use crate::random::Random;

/// Fragments that often break parsers.
const PIECES: [&str; 48] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "-0",
    "1e999",
    "-1",
    "4294967296",
    "9223372036854775808",
    "0.1",
    "\n",
    "\r\n",
    "\t",
    " ",
    "\0",
    "\u{feff}",
    "é",
    "\u{1f600}",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "!!int ",
    "- ",
    "? ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "#",
    "%25",
    "%00",
    "%2f",
    "%c3%28",
    "/",
    "..",
    "=",
    "!=",
    "~1",
    "~0",
];
/// The longest input that repeating makes.
const LONGEST: usize = 64 * 1024;

/// Changes a few places. `others` lends parts of itself.
pub fn change(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.few() {
        once(bytes, others, random);
    }
}

fn once(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let end = (at + 1 + random.below(16)).min(bytes.len()).max(at);
    match random.below(9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.next() as u8,
        2 => drop(bytes.drain(at..end)),
        3 => insert(bytes, at, random.pick(&PIECES).as_bytes()),
        4 => replace(bytes, at, end, random.pick(&PIECES).as_bytes()),
        5 => {
            let (from, part) = (random.below(bytes.len() + 1), bytes[at..end].to_vec());
            insert(bytes, from, &part);
        }
        6 => {
            let part = bytes[at..end].to_vec();
            let times = 1 << random.below(13);
            let times = times.min(LONGEST.saturating_sub(bytes.len()) / part.len().max(1));
            insert(bytes, at, &part.repeat(times));
        }
        7 if !others.is_empty() => {
            let other = random.pick(others);
            let from = random.below(other.len() + 1);
            let to = (from + 1 + random.below(64)).min(other.len()).max(from);
            replace(bytes, at, end, &other[from..to]);
        }
        _ => bytes.truncate(at),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    replace(bytes, at, at, part);
}

fn replace(bytes: &mut Vec<u8>, start: usize, end: usize, part: &[u8]) {
    bytes.splice(start..end, part.iter().copied());
}
