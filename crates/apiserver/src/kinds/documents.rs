//! Cache of OpenAPI and discovery documents. Each takes some megabytes, so only the most recently used are kept.

use std::{collections::VecDeque, sync::Arc};

use crate::kinds::ApiDocuments;

/// Maximum bytes of cached documents, without those of the built-in kinds.
const MAX_BYTES: usize = 128 * 1024 * 1024;

/// Documents, the most recently used last.
#[derive(Default)]
pub(super) struct RecentDocuments(VecDeque<Arc<ApiDocuments>>);

impl RecentDocuments {
    /// Returns the bytes of the documents.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|own| own.bytes()).sum()
    }

    /// Caches documents that were requested.
    pub(super) fn keep(&mut self, documents: &Arc<ApiDocuments>) {
        self.0.retain(|own| !Arc::ptr_eq(own, documents));
        self.0.push_back(documents.clone());
        let mut bytes = self.bytes();
        while bytes > MAX_BYTES && self.0.len() > 1 {
            let Some(oldest) = self.0.pop_front() else { return };
            bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_documents_are_evicted() {
        let mut recent = RecentDocuments::default();
        let all: Vec<_> = (0..100).map(|_| Arc::new(ApiDocuments::of_size(8 * 1024 * 1024))).collect();
        for documents in &all {
            recent.keep(&all[0]);
            recent.keep(documents);
        }
        let is_kept = |documents: &Arc<ApiDocuments>| recent.0.iter().any(|own| Arc::ptr_eq(own, documents));
        assert_eq!(all.iter().filter(|documents| is_kept(documents)).count(), 16);
        assert!(is_kept(&all[0]) && is_kept(&all[99]) && !is_kept(&all[50]));
    }
}
