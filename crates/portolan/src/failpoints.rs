//! In debug builds `PORTOLAN_FAILPOINT=NAME` or `NAME:N` ends the process where that place is passed for the first or Nth
//! time, at once and without a word to anybody, as SIGKILL would.

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_types::failpoint;

const VARIABLE: &str = "PORTOLAN_FAILPOINT";

/// Does as the environment says.
pub(crate) fn arm() {
    let Ok(told) = std::env::var(VARIABLE) else { return };
    let (wanted, turn) = parse(&told);
    let passed = AtomicU64::new(0);
    failpoint::arm(Box::new(move |name| {
        if name == wanted && passed.fetch_add(1, Ordering::Relaxed) + 1 == turn {
            std::process::abort();
        }
    }));
}

fn parse(told: &str) -> (String, u64) {
    match told.rsplit_once(':').and_then(|(name, turn)| Some((name, turn.parse().ok()?))) {
        Some((name, turn)) => (name.to_owned(), turn),
        None => (told.to_owned(), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_with_or_without_its_turn() {
        assert_eq!(parse("store/idle"), ("store/idle".into(), 1));
        assert_eq!(parse("store/idle:7"), ("store/idle".into(), 7));
    }
}
