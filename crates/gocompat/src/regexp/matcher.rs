//! Matcher for a Go pattern that bounds its memory and its steps.

use std::sync::{Mutex, PoisonError};

use regex_automata::{
    Input,
    hybrid::dfa::{self, DFA},
    nfa::thompson::{Compiler, Config, NFA, WhichCaptures, pikevm, pikevm::PikeVM},
    util::syntax,
};

use super::rewrite::{BadPattern, MAX_STATES, rewrite};

/// Compiled pattern. Any number of threads may use it; the states computed during matching are kept for one thread
/// only.
#[derive(Debug)]
pub struct Matcher {
    nfa: NFA,
    /// Lazy DFA, which fails if it creates new states for most bytes.
    fast: Option<DFA>,
    /// Simulation of the NFA for patterns on which the DFA fails.
    slow: PikeVM,
    states: Mutex<Option<States>>,
}

#[derive(Debug)]
struct States {
    fast: Option<dfa::Cache>,
    slow: Option<pikevm::Cache>,
}

/// The match takes more steps than are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Matcher {
    /// Compiles a pattern that may take `most` bytes before it matches anything.
    ///
    /// # Errors
    /// The error in it, in Go's words where those are known.
    pub fn new(pattern: &str, most: usize) -> Result<Self, BadPattern> {
        let rewritten = rewrite(pattern).map_err(BadPattern::Syntax)?;
        let parsed = syntax::parse(&rewritten).map_err(|why| BadPattern::of_engine(pattern, &why))?;
        let config = Config::new().nfa_size_limit(Some(most)).which_captures(WhichCaptures::None);
        let compiled = Compiler::new().configure(config).build_from_hir(&parsed);
        let nfa = compiled.map_err(|error| match error.size_limit() {
            Some(most) => BadPattern::TooLarge(most),
            None => BadPattern::of_engine(pattern, &error),
        })?;
        let config = dfa::Config::new().cache_capacity(MAX_STATES).skip_cache_capacity_check(true);
        let config = config.minimum_cache_clear_count(Some(3)).minimum_bytes_per_state(Some(10));
        // Some patterns cannot be executed in this way, such as those with Unicode word boundaries.
        let fast = dfa::Builder::new().configure(config).build_from_nfa(nfa.clone()).ok();
        let slow = PikeVM::new_from_nfa(nfa.clone()).map_err(|error| BadPattern::of_engine(pattern, &error))?;
        Ok(Self { nfa, fast, slow, states: Mutex::new(None) })
    }

    /// Returns true if a text has a match. Subtracts from the budget `steps` one step for each state of the pattern
    /// that is compared with a byte or computed ahead. A step takes about 20 ns.
    ///
    /// # Errors
    /// Fails if the budget is too small.
    pub fn is_match(&self, text: &str, steps: &mut u64) -> Result<bool, TooLong> {
        let kept = self.states.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut states = kept.unwrap_or_else(|| States { fast: self.fast.as_ref().map(DFA::create_cache), slow: None });
        let found = self.search(&Input::new(text).earliest(true), &mut states, steps);
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = Some(states);
        found
    }

    fn search(&self, input: &Input<'_>, states: &mut States, steps: &mut u64) -> Result<bool, TooLong> {
        if let (Some(fast), Some(cache)) = (&self.fast, &mut states.fast) {
            let before = computed_bytes(cache);
            let found = fast.try_search_fwd(cache, input);
            take(steps, computed_bytes(cache).saturating_sub(before) + input.haystack().len() as u64 / 16)?;
            if let Ok(found) = found {
                return Ok(found.is_some());
            }
        }
        take(steps, input.haystack().len() as u64 * self.nfa.states().len() as u64)?;
        let cache = states.slow.get_or_insert_with(|| self.slow.create_cache());
        Ok(self.slow.search_slots(cache, input, &mut []).is_some())
    }

    /// Bytes of memory that it uses now, including the kept states.
    #[must_use]
    pub fn weight(&self) -> usize {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = |states: &States| {
            states.fast.as_ref().map_or(0, dfa::Cache::memory_usage)
                + states.slow.as_ref().map_or(0, pikevm::Cache::memory_usage)
        };
        self.nfa.memory_usage() + self.fast.as_ref().map_or(0, DFA::memory_usage) + states.as_ref().map_or(0, kept)
    }
}

/// Approximate bytes of all states computed so far. Each byte costs one step.
fn computed_bytes(cache: &dfa::Cache) -> u64 {
    (cache.clear_count() * MAX_STATES + cache.memory_usage()) as u64
}

fn take(steps: &mut u64, wanted: u64) -> Result<(), TooLong> {
    let left = steps.checked_sub(wanted);
    *steps = left.unwrap_or_default();
    left.map(drop).ok_or(TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_match(matcher: &Matcher, text: &str) -> bool {
        matcher.is_match(text, &mut u64::MAX.clone()).expect("there are enough steps")
    }

    fn cost(matcher: &Matcher, text: &str) -> u64 {
        let mut left = u64::MAX;
        let _ = matcher.is_match(text, &mut left);
        u64::MAX - left
    }

    #[test]
    fn long_matches_stop_at_their_budget() {
        let text: String = (0..400_000_u64).map(|n| if (n * n / 7) % 3 == 0 { 'a' } else { 'b' }).collect();
        let slow = Matcher::new(&format!("[ab]*a{}$", "[ab]{1000}".repeat(10)), 2 << 20).expect("a pattern");
        let mut left = 100_000_000;
        assert_eq!((slow.is_match(&text, &mut left), left), (Err(TooLong), 0));
        assert_eq!(slow.is_match("b", &mut left), Err(TooLong), "nothing is left");
        let common = Matcher::new("^[^/]{1,253}$", 2 << 20).expect("a pattern");
        assert!(is_match(&common, &"x".repeat(253)));
        let again: u64 = (0..1000).map(|n| cost(&common, &format!("{n}{}", "x".repeat(200)))).sum();
        assert!(again < 300_000, "a thousand texts take {again}");
        // Each of these texts begins with other states.
        let other = |n: usize| text[n * 1000..].chars().rev().take(3000).collect::<String>();
        let many: u64 = (0..20).map(|n| cost(&slow, &other(n))).sum();
        assert!(many > 20 * 3000, "new states for each text take {many}");
    }

    #[test]
    fn states_that_are_kept_are_weighed_and_bounded() {
        let matcher = Matcher::new(r"(a|b)*a(a|b){12}$", 64 << 10).expect("a pattern");
        let before = matcher.weight();
        assert!(is_match(&matcher, "babbbbbbbbbbbb") && !is_match(&matcher, "c"));
        let after = matcher.weight();
        assert!(after > before, "{before} and {after}");
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 63 == 0 { 'a' } else { 'b' }
        };
        for _ in 0..20 {
            let text: String = (0..10_000).map(|_| next()).collect();
            let _ = is_match(&matcher, &text);
        }
        assert!(matcher.weight() < before + 6 * MAX_STATES, "{}", matcher.weight());
    }

    #[test]
    fn errors_are_those_of_expressions() {
        assert_eq!(Matcher::new("[[]", 1 << 20).map(|matcher| is_match(&matcher, "[")).ok(), Some(true));
        let unclosed = "missing closing ): `(`";
        assert!(matches!(Matcher::new("(", 1 << 20), Err(BadPattern::Syntax(why)) if why == unclosed));
        assert!(matches!(Matcher::new("a{1001}", 1 << 20), Err(BadPattern::Syntax(_))));
        assert!(matches!(Matcher::new(r"\pL{1000}\pL{1000}", 32 << 10), Err(BadPattern::TooLarge(_))));
    }
}
