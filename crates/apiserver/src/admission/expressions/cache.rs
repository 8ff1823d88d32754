//! Cache of compiled expressions, keyed by a digest of their source, shared by all logical clusters and bounded in
//! bytes.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use portolan_cel::policy::{MatchConditions, MutatingPolicy, ValidatingPolicy};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::run_blocking;
use crate::metrics::ExpressionMetrics;

/// Approximate limit of cached bytes per kind of expression.
const MAX_BYTES: usize = 32 << 20;
/// Source length from which compiling runs on a blocking thread.
const LONG: usize = 16 * 1024;

/// Source text of a set of expressions.
#[derive(Debug)]
pub(in crate::admission) struct ExpressionSource {
    spec: Value,
    length: usize,
    digest: [u8; 32],
}

impl ExpressionSource {
    /// Creates a source from the part of an object that holds its expressions.
    pub(in crate::admission) fn new(spec: Value) -> Self {
        let text = spec.to_string();
        Self { spec, length: text.len(), digest: Sha256::digest(&text).into() }
    }
}

/// Estimate of the bytes that a cached value takes.
pub(super) trait CacheWeight {
    fn weight(&self) -> usize;
}

impl CacheWeight for MatchConditions {
    fn weight(&self) -> usize {
        Self::weight(self)
    }
}

impl CacheWeight for ValidatingPolicy {
    fn weight(&self) -> usize {
        Self::weight(self)
    }
}

impl CacheWeight for MutatingPolicy {
    fn weight(&self) -> usize {
        Self::weight(self)
    }
}

/// Cache that evicts the least recently used half when it is full.
pub(super) struct CompiledCache<T> {
    entries: Mutex<CompiledEntries<T>>,
    metrics: ExpressionMetrics,
}

struct CompiledEntries<T> {
    all: HashMap<[u8; 32], CompiledEntry<T>>,
    bytes: usize,
    /// Use counter.
    now: u64,
}

struct CompiledEntry<T> {
    compiled: Arc<T>,
    weight: usize,
    used: u64,
}

impl<T: CacheWeight> CompiledCache<T> {
    pub(super) fn new(metrics: ExpressionMetrics) -> Self {
        Self { entries: Mutex::new(CompiledEntries { all: HashMap::new(), bytes: 0, now: 0 }), metrics }
    }

    /// Returns the approximate number of cached bytes.
    pub(super) fn bytes(&self) -> usize {
        self.entries.lock().bytes
    }

    /// Returns the compiled form of a source, compiling it if it is not cached.
    pub(super) fn get(&self, source: &ExpressionSource, compile: impl FnOnce(&Value) -> T) -> Arc<T> {
        if let Some(compiled) = self.entries.lock().lookup(&source.digest) {
            return compiled;
        }
        let started = Instant::now();
        let compiled =
            if source.length > LONG { run_blocking(|| compile(&source.spec)) } else { compile(&source.spec) };
        self.metrics.compiled(started.elapsed());
        let (compiled, weight) = (Arc::new(compiled), source.length);
        self.entries.lock().insert(source.digest, &compiled, weight);
        compiled
    }
}

impl<T: CacheWeight> CompiledEntries<T> {
    fn lookup(&mut self, digest: &[u8; 32]) -> Option<Arc<T>> {
        self.now += 1;
        let entry = self.all.get_mut(digest)?;
        entry.used = self.now;
        Some(entry.compiled.clone())
    }

    fn insert(&mut self, digest: [u8; 32], compiled: &Arc<T>, source: usize) {
        let weight = compiled.weight() + source;
        if weight > MAX_BYTES / 4 {
            // A value that would displace most others is compiled again each time.
            return;
        }
        if self.bytes + weight > MAX_BYTES {
            self.make_room();
        }
        let entry = CompiledEntry { compiled: compiled.clone(), weight, used: self.now };
        self.bytes += weight;
        if let Some(before) = self.all.insert(digest, entry) {
            self.bytes -= before.weight;
        }
    }

    /// Evicts the half that was used least recently.
    fn make_room(&mut self) {
        let mut uses: Vec<(u64, usize)> = self.all.values().map(|entry| (entry.used, entry.weight)).collect();
        uses.sort_unstable();
        let (mut oldest, mut freed) = (0, 0);
        for (used, weight) in uses {
            if freed * 2 >= self.bytes {
                break;
            }
            (oldest, freed) = (used, freed + weight);
        }
        self.all.retain(|_, entry| entry.used > oldest);
        self.bytes = self.all.values().map(|entry| entry.weight).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Block(usize);

    impl CacheWeight for Block {
        fn weight(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_recently_used_entries() {
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let cache = CompiledCache::new(metrics.expressions());
        let source = |n: usize| ExpressionSource::new(json!({"n": n}));
        let mut compiled = 0;
        let mut get = |n: usize| {
            cache.get(&source(n), |_| {
                compiled += 1;
                Block(MAX_BYTES / 16)
            })
        };
        for n in 0..200 {
            get(n);
            get(0);
        }
        assert_eq!(compiled, 200, "the one that is used all the time is compiled once");
        assert!(cache.entries.lock().bytes <= MAX_BYTES);
        cache.get(&source(1000), |_| Block(MAX_BYTES));
        assert!(cache.entries.lock().lookup(&source(1000).digest).is_none(), "one does not drive all others out");
    }
}
