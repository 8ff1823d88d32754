//! Budget of a drain: how many objects may move at once, and how many replicas may be unavailable meanwhile.

use portolan_types::placement::{DrainBudget, WhenBlocked};

/// Use of a budget at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BudgetUse {
    /// Objects under way.
    pub(super) moving: i64,
    /// Replicas that are unavailable because of moves, or will be soon.
    pub(super) unavailable: i64,
}

/// Answer of a budget about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetAnswer {
    /// The object may move.
    Now,
    /// Others have to settle first.
    Later,
    /// The object alone exceeds the budget.
    Never,
}

/// Returns true if no object at all may begin to move.
pub(super) fn is_used_up(budget: &DrainBudget, used: BudgetUse) -> bool {
    used.moving >= i64::from(budget.max_moving()) || used.unavailable > i64::from(budget.max_unavailable())
}

/// Returns the answer about an object whose move makes `downtime` replicas unavailable. An object that is moved by
/// force although it exceeds the budget moves alone.
pub(super) fn ask(budget: &DrainBudget, when_blocked: WhenBlocked, used: BudgetUse, downtime: i64) -> BudgetAnswer {
    let most = i64::from(budget.max_unavailable());
    match (downtime > most, when_blocked) {
        _ if is_used_up(budget, used) => BudgetAnswer::Later,
        (true, WhenBlocked::Force) if used.moving == 0 => BudgetAnswer::Now,
        (true, WhenBlocked::Force) => BudgetAnswer::Later,
        (true, WhenBlocked::Wait | WhenBlocked::Skip) => BudgetAnswer::Never,
        (false, _) if used.unavailable + downtime > most => BudgetAnswer::Later,
        (false, _) => BudgetAnswer::Now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_move_within_the_budget() {
        let budget = DrainBudget { max_unavailable: Some(2), max_moving: Some(3) };
        let used = |moving, unavailable| BudgetUse { moving, unavailable };
        for (case, when_blocked, used, downtime, answer) in [
            ("nothing moves yet", WhenBlocked::Wait, used(0, 0), 0, BudgetAnswer::Now),
            ("one more", WhenBlocked::Wait, used(2, 0), 0, BudgetAnswer::Now),
            ("as many as may move", WhenBlocked::Wait, used(3, 0), 0, BudgetAnswer::Later),
            ("as many are unavailable as may be", WhenBlocked::Wait, used(1, 2), 0, BudgetAnswer::Now),
            ("more are unavailable", WhenBlocked::Wait, used(1, 3), 0, BudgetAnswer::Later),
            ("two may run out", WhenBlocked::Wait, used(1, 0), 2, BudgetAnswer::Now),
            ("not while one does", WhenBlocked::Wait, used(1, 1), 2, BudgetAnswer::Later),
            ("three may not", WhenBlocked::Wait, used(0, 0), 3, BudgetAnswer::Never),
            ("three may not, and are skipped", WhenBlocked::Skip, used(0, 0), 3, BudgetAnswer::Never),
            ("three do by force", WhenBlocked::Force, used(0, 0), 3, BudgetAnswer::Now),
            ("but alone", WhenBlocked::Force, used(1, 0), 3, BudgetAnswer::Later),
        ] {
            assert_eq!(ask(&budget, when_blocked, used, downtime), answer, "{case}");
        }
    }
}
