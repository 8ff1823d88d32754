//! YAML as kube-apiserver reads it: Go's `yaml.v2` makes a tree of it, and `sigs.k8s.io/yaml` of that one JSON.
//!
//! The parser is a library; what nodes mean is said here by Go's rules, which are those of YAML 1.1 with exceptions: plain
//! scalars ([`scalar`]), keys ([`key`]), aliases and merges ([`reader`]). Of several documents the first is read.

mod document;
mod json;
mod key;
mod reader;
mod scalar;
#[cfg(test)]
mod tests;
mod times;
mod words;

use serde_json::Value;

use document::Document;
use reader::Reader;

/// Most nodes of a document, keys among them, also of one in JSON: one for every four bytes of the largest body, as `- 1` and a
/// line break are. No object of 1.5 MiB of JSON, the most that is stored, has more of them. Go counts none. Where every second one
/// is a map of its own they take 300 MB when they are read, as they do in JSON.
const MAX_NODES: usize = 3 * 1024 * 1024 / 4;

/// What YAML says.
#[derive(Debug, PartialEq)]
pub(super) struct Read {
    /// The JSON that Go makes of it, whole numbers as such.
    pub(super) tree: Value,
    /// Whether a key stands more than once in a map, or is merged into one that has it.
    pub(super) repeats: bool,
}

/// Reads YAML.
///
/// # Errors
/// What Go says of what it cannot read, or can make no JSON of.
pub(super) fn read(body: &[u8]) -> Result<Read, String> {
    // Most clients send JSON, which is read far faster as such; in it long keys, tabs and pairs of surrogates are fine.
    if let Some(read) = json::read(body) {
        return read;
    }
    let document = Document::parse(body)?;
    let mut reader = Reader::new(&document, body.len());
    let tree = reader.read()?;
    Ok(Read { tree, repeats: reader.repeats() })
}

/// What Go says of keys that stand more than once, line by line. Nothing where the YAML cannot be read.
pub(super) fn repeated(body: &[u8]) -> Vec<String> {
    let Ok(document) = Document::parse(body) else { return Vec::new() };
    let mut reader = Reader::strict(&document, body.len());
    // It has been read before, and is read again only to count lines.
    drop(reader.read());
    reader.into_repeated()
}
