//! A pattern of Go's that texts are matched with, and that knows what it takes in memory.

use std::sync::{Mutex, PoisonError};

use regex_automata::{
    Input,
    meta::{Cache, Config, Regex},
};

use super::go_regex::{BadPattern, MAX_STATES, rewrite};

/// A pattern that compiled. Used by any number of threads; of the states that are computed while it matches, those of one are kept.
#[derive(Debug)]
pub struct Matcher {
    regex: Regex,
    states: Mutex<Option<Cache>>,
}

impl Matcher {
    /// Compiles a pattern that may take `most` bytes before it matches anything.
    ///
    /// # Errors
    /// What is wrong with it, as Go tells where that is known.
    pub fn new(pattern: &str, most: usize) -> Result<Self, BadPattern> {
        let rewritten = rewrite(pattern).map_err(BadPattern::Syntax)?;
        let config = Config::new().nfa_size_limit(Some(most)).hybrid_cache_capacity(MAX_STATES);
        let regex = Regex::builder().configure(config).build(&rewritten).map_err(|error| {
            match (error.size_limit(), error.syntax_error()) {
                (Some(most), _) => BadPattern::TooLarge(most),
                (None, Some(why)) => BadPattern::of_engine(pattern, why),
                (None, None) => BadPattern::of_engine(pattern, &error),
            }
        })?;
        Ok(Self { regex, states: Mutex::new(None) })
    }

    /// Whether a text has a match.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        let kept = self.states.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut states = kept.unwrap_or_else(|| self.regex.create_cache());
        let found = self.regex.search_half_with(&mut states, &Input::new(text).earliest(true)).is_some();
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = Some(states);
        found
    }

    /// Bytes that it takes now, with the states that are kept.
    #[must_use]
    pub fn weight(&self) -> usize {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        self.regex.memory_usage() + states.as_ref().map_or(0, Cache::memory_usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_are_kept_are_weighed_and_bounded() {
        let matcher = Matcher::new(r"(a|b)*a(a|b){12}$", 64 << 10).expect("a pattern");
        let before = matcher.weight();
        assert!(matcher.is_match("babbbbbbbbbbbb") && !matcher.is_match("c"));
        let after = matcher.weight();
        assert!(after > before, "{before} and {after}");
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 63 == 0 { 'a' } else { 'b' }
        };
        for _ in 0..20 {
            let text: String = (0..10_000).map(|_| next()).collect();
            let _ = matcher.is_match(&text);
        }
        assert!(matcher.weight() < before + 6 * MAX_STATES, "{}", matcher.weight());
    }

    #[test]
    fn what_is_wrong_is_told_as_for_expressions() {
        assert_eq!(Matcher::new("[[]", 1 << 20).map(|matcher| matcher.is_match("[")).ok(), Some(true));
        assert!(
            matches!(Matcher::new("(", 1 << 20), Err(BadPattern::Syntax(why)) if why.starts_with("invalid pattern: `(`: "))
        );
        assert!(matches!(Matcher::new("a{1001}", 1 << 20), Err(BadPattern::Syntax(_))));
        assert!(matches!(Matcher::new(r"\pL{1000}\pL{1000}", 32 << 10), Err(BadPattern::TooLarge(_))));
    }
}
