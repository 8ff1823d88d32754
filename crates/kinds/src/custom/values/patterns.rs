//! Patterns, compiled on first use. Their memory is bounded here, and the time of their matching by the effort that one
//! object may cost.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use portolan_gocompat::regexp::{BadPattern, Matcher};

use super::validate::Effort;
use crate::custom::schema::Pattern;

/// Bytes that a pattern is tried to be compiled to, one after the other: most are small.
const SIZES: [usize; 3] = [32 << 10, 256 << 10, 2 << 20];
/// Bytes that all patterns of one definition may take: those of several are kept at the same time.
const MAX_OF_DEFINITION: usize = 8 << 20;
/// Bytes of compiled patterns that are kept for the next time, of all definitions.
const MAX_KEPT: usize = 64 << 20;

/// Compiles a pattern, and returns the most memory that it takes before its first match.
fn compile(text: &str) -> Result<(Matcher, usize), BadPattern> {
    let mut fault = BadPattern::TooLarge(0);
    for size in SIZES {
        match Matcher::new(text, size) {
            Ok(found) => return Ok((found, size)),
            Err(other @ BadPattern::Syntax(_)) => return Err(other),
            Err(large) => fault = large,
        }
    }
    Err(fault)
}

/// Budget for the patterns of one definition.
pub struct Budget {
    seen: HashSet<Box<str>>,
    left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { seen: HashSet::new(), left: MAX_OF_DEFINITION }
    }
}

impl Budget {
    /// Checks a pattern of a definition.
    ///
    /// # Errors
    /// Reason why the pattern is invalid.
    pub fn check(&mut self, text: &str) -> Result<(), String> {
        if self.seen.contains(text) {
            return Ok(());
        }
        let invalid =
            |why: BadPattern| format!("must be a valid regular expression, but isn't: error parsing regexp: {why}");
        let (_, size) = compile(text).map_err(invalid)?;
        self.left =
            self.left.checked_sub(size).ok_or("the patterns of the definition take too much memory together")?;
        self.seen.insert(text.into());
        Ok(())
    }
}

/// Cache of compiled patterns with their sizes, in two generations. A pattern that is unused for a whole generation is
/// dropped.
#[derive(Default)]
struct PatternCache {
    young: HashMap<Box<str>, (Arc<Matcher>, usize)>,
    old: HashMap<Box<str>, (Arc<Matcher>, usize)>,
    weight: usize,
}

static KEPT: LazyLock<Mutex<PatternCache>> = LazyLock::new(Mutex::default);

impl PatternCache {
    /// Returns a pattern with the size that it was charged.
    fn get(&mut self, text: &str) -> Option<(Arc<Matcher>, usize)> {
        if let Some(known) = self.young.get(text) {
            return Some(known.clone());
        }
        let (known, size) = self.old.remove(text)?;
        self.put(text, known.clone(), size);
        Some((known, size))
    }

    /// Keeps a pattern, which may be there already and weigh something else now.
    fn put(&mut self, text: &str, compiled: Arc<Matcher>, size: usize) {
        if let Some((_, before)) = self.young.remove(text) {
            self.weight -= before;
        }
        if self.weight + size > MAX_KEPT / 2 {
            self.old = std::mem::take(&mut self.young);
            self.weight = 0;
        }
        self.weight += size;
        self.young.insert(text.into(), (compiled, size));
    }
}

impl Pattern {
    /// Returns true if a text matches, or `None` if the match exceeds the rest of `effort`, which is then spent.
    ///
    /// # Errors
    /// Reason why the pattern cannot be evaluated; the validation of definitions refuses such patterns.
    pub(super) fn matches(&self, text: &str, effort: &Effort) -> Result<Option<bool>, BadPattern> {
        let known = KEPT.lock().get(&self.0);
        let (compiled, before) = match known {
            Some(known) => known,
            None => (Arc::new(compile(&self.0)?.0), 0),
        };
        let found = effort.spend(|steps| compiled.is_match(text, steps));
        // It grows while it matches.
        let weight = compiled.weight();
        if weight > before {
            KEPT.lock().put(&self.0, compiled, weight);
        }
        Ok(found.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_a_definition_are_bounded_together() {
        let mut budget = Budget::default();
        assert_eq!(budget.check("^[a-z]+$"), Ok(()));
        let why = budget.check("(").unwrap_err();
        assert!(why.starts_with("must be a valid regular expression, but isn't: error parsing regexp: "), "{why}");
        assert!(budget.check(r"\pL{1000}\pL{1000}\pL{1000}").unwrap_err().contains("compiles to more than"));
        let refused = (0..1000).find_map(|n| budget.check(&format!(r"^{n}\pL{{20}}$")).err());
        assert!(refused.unwrap().contains("too much memory together"));
    }

    #[test]
    fn unused_patterns_are_dropped() {
        let mut kept = PatternCache::default();
        let pattern = Arc::new(Matcher::new("a", SIZES[0]).unwrap());
        for n in 0..1000 {
            kept.put(&n.to_string(), pattern.clone(), MAX_KEPT / 100);
            assert!(kept.get("0").is_some(), "what is needed stays");
        }
        assert!(kept.young.len() + kept.old.len() <= 101, "{}", kept.young.len());
        assert!(kept.get("500").is_none());
        let all = |kept: &PatternCache| kept.young.values().map(|(_, size)| size).sum::<usize>();
        kept.put("0", pattern.clone(), 1000);
        kept.put("0", pattern, 2000);
        assert_eq!(
            (kept.weight, kept.get("0").map(|(_, size)| size)),
            (all(&kept), Some(2000)),
            "a growing entry is weighed again"
        );
    }
}
