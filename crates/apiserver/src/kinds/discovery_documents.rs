//! Aggregated discovery documents of a surface.

use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Aggregated documents, shared by logical clusters that serve the same kinds and built on first use.
#[derive(Default)]
pub(crate) struct DiscoveryDocuments {
    pub(crate) core: OnceLock<DiscoveryDocument>,
    pub(crate) groups: OnceLock<DiscoveryDocument>,
}

impl DiscoveryDocuments {
    /// Estimates the bytes of the documents; trees take several times their text.
    pub(super) fn bytes(&self) -> usize {
        const GROWTH: usize = 5;
        let made = [&self.core, &self.groups].into_iter().filter_map(OnceLock::get);
        made.map(|document| GROWTH * document.bytes.len()).sum()
    }
}

/// Document that is built once, with its hash.
pub(crate) struct DiscoveryDocument {
    pub(crate) value: Value,
    pub(crate) bytes: Bytes,
    pub(crate) etag: String,
}

impl DiscoveryDocument {
    pub(crate) fn new(value: Value) -> Self {
        let bytes = Bytes::from(format!("{value}\n"));
        let hash: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02X}")).collect();
        Self { etag: format!("\"{hash}\""), bytes, value }
    }
}
