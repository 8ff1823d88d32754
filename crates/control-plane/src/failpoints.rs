//! Failpoints of debug builds: `PORTOLAN_FAILPOINT=NAME` or `NAME:N` aborts the process, as SIGKILL would, when the
//! failpoint is reached for the first or Nth time.

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_types::failpoint;

const VARIABLE: &str = "PORTOLAN_FAILPOINT";

/// Arms the failpoint that the environment names.
pub fn arm() {
    let Ok(setting) = std::env::var(VARIABLE) else { return };
    let (wanted, turn) = parse(&setting);
    let reached = AtomicU64::new(0);
    failpoint::arm(Box::new(move |name| {
        if name == wanted && reached.fetch_add(1, Ordering::Relaxed) + 1 == turn {
            std::process::abort();
        }
    }));
}

fn parse(setting: &str) -> (String, u64) {
    match setting.rsplit_once(':').and_then(|(name, turn)| Some((name, turn.parse().ok()?))) {
        Some((name, turn)) => (name.to_owned(), turn),
        None => (setting.to_owned(), 1),
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
