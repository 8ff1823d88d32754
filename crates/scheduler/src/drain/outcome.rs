//! Phase, estimate and report of a drain, as functions of its counts.

use portolan_types::placement::{DrainCounts, DrainPhase, DrainSpec};

/// Returns the phase of a drain that has started and is not being undone.
pub(super) fn phase(spec: &DrainSpec, counts: &DrainCounts) -> DrainPhase {
    match counts {
        DrainCounts { moving: 0, .. } if spec.abort => DrainPhase::Aborted,
        _ if spec.abort => DrainPhase::Running,
        DrainCounts { pending: 0, moving: 0, blocked: 0, .. } => DrainPhase::Completed,
        _ if spec.paused => DrainPhase::Paused,
        DrainCounts { pending: 0, moving: 0, .. } => DrainPhase::Blocked,
        _ => DrainPhase::Running,
    }
}

/// Returns the phase of a drain that is being undone. `aborts` is true if it was aborted since the undo began.
pub(super) fn phase_of_undo(spec: &DrainSpec, counts: &DrainCounts, aborts: bool) -> DrainPhase {
    match counts {
        DrainCounts { moving: 0, .. } if aborts => DrainPhase::Aborted,
        DrainCounts { pending: 0, moving: 0, blocked: 0, .. } => DrainPhase::Undone,
        _ if aborts => DrainPhase::Running,
        _ if spec.paused => DrainPhase::Paused,
        DrainCounts { pending: 0, moving: 0, .. } => DrainPhase::Blocked,
        _ => DrainPhase::Running,
    }
}

/// Returns the seconds until all that can move has moved, at the pace of the `seconds` since the start; `None` while
/// there is no pace.
pub(super) fn seconds_left(counts: &DrainCounts, seconds: i64) -> Option<i64> {
    let (done, open) = (counts.moved, counts.pending + counts.moving);
    (done > 0 && open > 0 && seconds > 0).then(|| (seconds.saturating_mul(open) / done).max(1))
}

/// Returns the report in one sentence.
pub(super) fn summary(phase: DrainPhase, counts: &DrainCounts, left: i64) -> String {
    let DrainCounts { moved, skipped, restored, changed, .. } = *counts;
    let objects = |number: i64| if number == 1 { "1 object".to_owned() } else { format!("{number} objects") };
    match phase {
        DrainPhase::Completed if left == 0 => format!("{} moved; nothing that Portolan placed is left", objects(moved)),
        DrainPhase::Completed if skipped > 0 => format!("{} moved, {skipped} skipped; {left} are left", objects(moved)),
        DrainPhase::Completed => {
            format!("{} moved; {left} that stay with their data or namespace are left", objects(moved))
        }
        DrainPhase::Aborted if restored > 0 => {
            format!("undo aborted after {} had returned; {moved} stay where they are", objects(restored))
        }
        DrainPhase::Aborted => format!("aborted after {} had moved; {left} are left", objects(moved)),
        DrainPhase::Undone if changed > 0 => {
            format!("{} restored, {changed} not: something has changed since", objects(restored))
        }
        DrainPhase::Undone => format!("{} restored", objects(restored)),
        DrainPhase::Planned | DrainPhase::Running | DrainPhase::Paused | DrainPhase::Blocked => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pending: i64, moving: i64, moved: i64, blocked: i64) -> DrainCounts {
        DrainCounts {
            total: pending + moving + moved + blocked,
            pending,
            moving,
            moved,
            blocked,
            ..DrainCounts::default()
        }
    }

    #[test]
    fn the_phase_follows_from_spec_and_counts() {
        let running = DrainSpec::default();
        let paused = DrainSpec { paused: true, ..DrainSpec::default() };
        let aborted = DrainSpec { abort: true, ..DrainSpec::default() };
        for (case, spec, counts, phase_forth, phase_back) in [
            ("objects wait", &running, counts(3, 0, 0, 0), DrainPhase::Running, DrainPhase::Running),
            ("objects move", &running, counts(0, 1, 2, 1), DrainPhase::Running, DrainPhase::Running),
            ("only blocked ones are left", &running, counts(0, 0, 2, 1), DrainPhase::Blocked, DrainPhase::Blocked),
            ("none are left", &running, counts(0, 0, 3, 0), DrainPhase::Completed, DrainPhase::Undone),
            ("there was none", &running, counts(0, 0, 0, 0), DrainPhase::Completed, DrainPhase::Undone),
            ("paused", &paused, counts(3, 1, 0, 0), DrainPhase::Paused, DrainPhase::Paused),
            ("paused when all is done", &paused, counts(0, 0, 3, 0), DrainPhase::Completed, DrainPhase::Undone),
            ("aborted while one moves", &aborted, counts(3, 1, 0, 0), DrainPhase::Running, DrainPhase::Running),
            ("aborted", &aborted, counts(3, 0, 1, 1), DrainPhase::Aborted, DrainPhase::Running),
        ] {
            let aborted = if counts.moving == 0 { DrainPhase::Aborted } else { DrainPhase::Running };
            assert_eq!(phase_of_undo(spec, &counts, true), aborted, "{case}, and its undo is aborted");
            assert_eq!(
                (phase(spec, &counts), phase_of_undo(spec, &counts, false)),
                (phase_forth, phase_back),
                "{case}"
            );
        }
    }

    #[test]
    fn the_estimate_is_the_pace_until_now() {
        assert_eq!(seconds_left(&counts(15, 0, 5, 0), 10), Some(30));
        assert_eq!(seconds_left(&counts(15, 5, 0, 0), 10), None, "nothing is known yet");
        assert_eq!(seconds_left(&counts(0, 0, 5, 1), 10), None, "nothing moves any more");
    }
}
