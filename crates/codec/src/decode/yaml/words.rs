//! Syntax errors of YAML in the words of Go's parser.

use std::str::Utf8Error;

use granit_parser::{ErrorKind, ScanError};

use super::{MAX_NODES, document::MAX_ANCHORS};
use crate::decode::MAX_READ_DEPTH;

/// Error for a document that only tag directives expand.
pub(super) const LONG_TAGS: &str = "yaml: document contains excessively long tags";

/// Error for a document that only aliases expand.
pub(super) const EXCESSIVE: &str = "yaml: document contains excessive aliasing";

/// Error for a merge of anything but maps.
pub(super) const NO_MAP: &str = "yaml: map merge requires map or sequence of maps as the value";

pub(super) fn unknown_anchor(name: &str) -> String {
    format!("yaml: unknown anchor '{name}' referenced")
}

pub(super) fn contains_itself(anchor: &str) -> String {
    format!("yaml: anchor '{anchor}' value contains itself")
}

/// Returns the error for too many levels. Go allows more than can be stored.
pub(super) fn too_deep() -> String {
    format!("yaml: exceeded max depth of {MAX_READ_DEPTH}")
}

/// Returns the error for too many nodes. Go reads as many as fit into the body.
pub(super) fn too_many_nodes() -> String {
    format!("yaml: document has more than {MAX_NODES} nodes")
}

pub(super) fn too_many_anchors() -> String {
    format!("yaml: document has more than {MAX_ANCHORS} anchors")
}

/// Returns the error for bytes that are not UTF-8.
pub(super) fn no_text(body: &[u8], error: Utf8Error) -> String {
    let first = body.get(error.valid_up_to()).copied().unwrap_or_default();
    let said = match (error.error_len(), first) {
        (None, _) => "incomplete UTF-8 octet sequence",
        (Some(_), 0xc0..=0xf7) => "invalid trailing UTF-8 octet",
        (Some(_), _) => "invalid leading UTF-8 octet",
    };
    format!("yaml: {said}")
}

/// Returns the error for malformed YAML.
pub(super) fn broken(body: &[u8], error: &ScanError) -> String {
    let line = error.marker().line();
    // Go reports the line of the opening bracket, counted from 0. For a bracket on the first line it reports the last
    // line.
    let opened = match line {
        0 | 1 => body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(),
        line => line - 1,
    };
    match error.kind() {
        ErrorKind::UnclosedFlowCollection { open: '[' } => {
            format!("yaml: line {opened}: did not find expected ',' or ']'")
        }
        ErrorKind::UnclosedFlowCollection { .. } => format!("yaml: line {opened}: did not find expected ',' or '}}'"),
        ErrorKind::RecursionLimitExceeded => too_deep(),
        kind => format!("yaml: line {line}: {kind}"),
    }
}
