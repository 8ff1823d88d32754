//! YAML as kube-apiserver reads it: Go's `yaml.v2` makes a tree, and `sigs.k8s.io/yaml` makes JSON of the tree.
//!
//! The parser is a library. The meaning of nodes follows Go's rules, which are those of YAML 1.1 with exceptions: plain
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
use reader::YamlReader;

/// Maximum of nodes in a document of YAML or JSON, with keys: one for every four bytes of the largest body, the density
/// of `- 1` and a line break. No object of 1.5 MiB of JSON, the most that is stored, has more. Go has no such limit.
/// A document in which every second node is a map takes 300 MB while it is read, also as JSON.
const MAX_NODES: usize = 3 * 1024 * 1024 / 4;

/// Content of a YAML document.
#[derive(Debug, PartialEq)]
pub(super) struct ParsedYaml {
    /// The JSON that Go makes of it, with whole numbers as integers.
    pub(super) tree: Value,
    /// True if a map has a key more than once, or a merge adds one that it has.
    pub(super) repeats: bool,
}

/// Reads YAML.
///
/// # Errors
/// Go's message for text that it cannot parse or cannot convert to JSON.
pub(super) fn read(body: &[u8]) -> Result<ParsedYaml, String> {
    // Most clients send JSON, which a JSON parser reads far faster. In JSON, long keys, tabs and surrogate pairs are
    // allowed.
    if let Some(read) = json::read(body) {
        return read;
    }
    let document = Document::parse(body)?;
    let mut reader = YamlReader::new(&document, body.len());
    let tree = reader.read()?;
    Ok(ParsedYaml { tree, repeats: reader.repeats() })
}

/// Returns Go's messages for repeated keys, line by line. Empty if the YAML cannot be read.
pub(super) fn repeated(body: &[u8]) -> Vec<String> {
    let Ok(document) = Document::parse(body) else { return Vec::new() };
    let mut reader = YamlReader::strict(&document, body.len());
    // It has been read before, and is read again only to count lines.
    drop(reader.read());
    reader.into_repeated()
}
