//! Compiled expressions by the content of what they were compiled from, for all logical clusters, within a bound.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use portolan_cel::policy::{MatchConditions, MutatingPolicy, ValidatingPolicy};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::holding;
use crate::metrics::ExpressionMetrics;

/// About so many bytes of one sort are kept.
const MAX_BYTES: usize = 32 << 20;
/// Compiling a longer source is no matter of a moment.
const LONG: usize = 16 * 1024;

/// What expressions are compiled from.
#[derive(Debug)]
pub(in crate::admission) struct Source {
    spec: Value,
    length: usize,
    digest: [u8; 32],
}

impl Source {
    /// From the part of an object that its expressions are in.
    pub(in crate::admission) fn new(spec: Value) -> Self {
        let text = spec.to_string();
        Self { spec, length: text.len(), digest: Sha256::digest(&text).into() }
    }
}

/// Tells about how many bytes it takes.
pub(super) trait Weighs {
    fn weight(&self) -> usize;
}

impl Weighs for MatchConditions {
    fn weight(&self) -> usize {
        Self::weight(self)
    }
}

impl Weighs for ValidatingPolicy {
    fn weight(&self) -> usize {
        Self::weight(self)
    }
}

impl Weighs for MutatingPolicy {
    fn weight(&self) -> usize {
        Self::weight(self)
    }
}

/// What was compiled and used last.
pub(super) struct Cache<T> {
    entries: Mutex<Entries<T>>,
    metrics: ExpressionMetrics,
}

struct Entries<T> {
    all: HashMap<[u8; 32], Entry<T>>,
    bytes: usize,
    /// Counts uses.
    now: u64,
}

struct Entry<T> {
    compiled: Arc<T>,
    weight: usize,
    used: u64,
}

impl<T: Weighs> Cache<T> {
    pub(super) fn new(metrics: ExpressionMetrics) -> Self {
        Self { entries: Mutex::new(Entries { all: HashMap::new(), bytes: 0, now: 0 }), metrics }
    }

    /// Bytes that are kept, about.
    pub(super) fn bytes(&self) -> usize {
        self.entries.lock().bytes
    }

    /// What was compiled from this content, or is now.
    pub(super) fn get(&self, source: &Source, compile: impl FnOnce(&Value) -> T) -> Arc<T> {
        if let Some(known) = self.entries.lock().known(&source.digest) {
            return known;
        }
        let started = Instant::now();
        let compiled = match source.length > LONG {
            true => holding(|| compile(&source.spec)),
            false => compile(&source.spec),
        };
        self.metrics.compiled(started.elapsed());
        let (compiled, weight) = (Arc::new(compiled), source.length);
        self.entries.lock().keep(source.digest, &compiled, weight);
        compiled
    }
}

impl<T: Weighs> Entries<T> {
    fn known(&mut self, digest: &[u8; 32]) -> Option<Arc<T>> {
        self.now += 1;
        let entry = self.all.get_mut(digest)?;
        entry.used = self.now;
        Some(entry.compiled.clone())
    }

    fn keep(&mut self, digest: [u8; 32], compiled: &Arc<T>, source: usize) {
        let weight = compiled.weight() + source;
        if weight > MAX_BYTES / 4 {
            // One that fills the place of many is compiled again whenever it is needed.
            return;
        }
        if self.bytes + weight > MAX_BYTES {
            self.make_room();
        }
        let entry = Entry { compiled: compiled.clone(), weight, used: self.now };
        self.bytes += weight;
        if let Some(before) = self.all.insert(digest, entry) {
            self.bytes -= before.weight;
        }
    }

    /// The half that was not used for longest goes.
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

    impl Weighs for Block {
        fn weight(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays() {
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new());
        let cache = Cache::new(metrics.expressions());
        let source = |n: usize| Source::new(json!({"n": n}));
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
        assert!(cache.entries.lock().known(&source(1000).digest).is_none(), "one does not drive all others out");
    }
}
