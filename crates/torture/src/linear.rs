//! Linearizability check of the calls of one key, as in etcd's robustness tests: Wing and Gong's search with Lowe's
//! memory, for a register with compare-and-swap.

use std::collections::HashSet;

/// Value that was written once; every write has its own.
pub(crate) type Value = u64;

/// Call of a client with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterCall {
    /// Value that a read returned.
    Read(Option<Value>),
    /// Change from one state to another; `None` is absence.
    Swap {
        /// Value that the write required: absence for a create, else the value whose resourceVersion was sent.
        from: Option<Value>,
        /// Value after the write: absence for a delete.
        to: Option<Value>,
        /// Answer to the write.
        outcome: CallOutcome,
    },
}

/// Answer that a client got to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Applied.
    Done,
    /// Rejected: the key had another state.
    Refused,
    /// Unknown: the write may have been applied at any later time.
    Unknown,
}

/// Call with its start and end in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) call: RegisterCall,
    pub(crate) begun: u64,
    /// `u64::MAX` without an answer.
    pub(crate) ended: u64,
}

impl Op {
    fn is_answered(&self) -> bool {
        !matches!(self.call, RegisterCall::Swap { outcome: CallOutcome::Unknown, .. })
    }

    /// Returns the state after the call, if the call may come next.
    fn step(&self, state: Option<Value>) -> Option<Option<Value>> {
        match self.call {
            RegisterCall::Read(seen) => (seen == state).then_some(state),
            RegisterCall::Swap { from, to, outcome: CallOutcome::Done | CallOutcome::Unknown } => {
                (from == state).then_some(to)
            }
            // A create is rejected only if the key exists.
            RegisterCall::Swap { from, outcome: CallOutcome::Refused, .. } => (from != state).then_some(state),
        }
    }
}

/// Finds an order of all answered calls of one key; unanswered calls are optional. Without such an order, returns the
/// first call that does not extend the longest one.
pub(crate) fn misfit(ops: &[Op]) -> Option<Op> {
    let mut ops = ops.to_vec();
    ops.sort_by_key(|op| op.begun);
    let left = ops.iter().filter(|op| op.is_answered()).count();
    let mut search = OrderSearch { ops, taken: Vec::new(), known: HashSet::new(), fewest: (usize::MAX, None) };
    search.taken = vec![0; search.ops.len().div_ceil(64)];
    if search.go_on(0, left, None) { None } else { search.fewest.1 }
}

struct OrderSearch {
    ops: Vec<Op>,
    /// Ordered calls, as bits.
    taken: Vec<u64>,
    /// Minimum number of answered calls that ever remained, and the earliest-ending one of them.
    fewest: (usize, Option<Op>),
    /// States from which the search failed.
    known: HashSet<(Vec<u64>, Option<Value>)>,
}

impl OrderSearch {
    fn is_taken(&self, at: usize) -> bool {
        self.taken[at / 64] & (1 << (at % 64)) != 0
    }

    /// `first` is the first unordered call, and `left` the number of unordered answered calls.
    fn go_on(&mut self, mut first: usize, left: usize, state: Option<Value>) -> bool {
        if left == 0 {
            return true;
        }
        while first < self.ops.len() && self.is_taken(first) {
            first += 1;
        }
        if !self.known.insert((self.taken.clone(), state)) {
            return false;
        }
        self.note(first, left);
        // The next call must have started before the earliest end of the remaining calls.
        let mut earliest = u64::MAX;
        for at in first..self.ops.len() {
            let op = self.ops[at];
            if op.begun > earliest {
                return false;
            }
            if self.is_taken(at) {
                continue;
            }
            if op.is_answered() {
                earliest = earliest.min(op.ended);
            }
            if let Some(after) = op.step(state) {
                self.taken[at / 64] ^= 1 << (at % 64);
                if self.go_on(first, left - usize::from(op.is_answered()), after) {
                    return true;
                }
                self.taken[at / 64] ^= 1 << (at % 64);
            }
        }
        false
    }

    fn note(&mut self, first: usize, left: usize) {
        if left < self.fewest.0 {
            let rest = (first..self.ops.len()).filter(|at| !self.is_taken(*at)).map(|at| self.ops[at]);
            self.fewest = (left, rest.filter(Op::is_answered).min_by_key(|op| op.ended));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(begun: u64, ended: u64, call: RegisterCall) -> Op {
        Op { call, begun, ended }
    }

    fn swap(from: Option<Value>, to: Option<Value>, outcome: CallOutcome) -> RegisterCall {
        RegisterCall::Swap { from, to, outcome }
    }

    #[test]
    fn histories_of_one_key() {
        use CallOutcome::{Done, Refused, Unknown};
        use RegisterCall::Read;
        let created = op(0, 10, swap(None, Some(1), Done));
        for (case, ops, expected) in [
            ("nothing happened", vec![], true),
            ("what was written is read", vec![created, op(11, 12, Read(Some(1)))], true),
            ("what was written is not there", vec![created, op(11, 12, Read(None))], false),
            (
                "a read beside a write may see either",
                vec![created, op(5, 6, Read(None)), op(7, 8, Read(Some(1)))],
                true,
            ),
            ("but not the old after the new", vec![created, op(5, 6, Read(Some(1))), op(7, 8, Read(None))], false),
            (
                "an update is lost",
                vec![created, op(11, 12, swap(Some(1), Some(2), Done)), op(13, 14, swap(Some(1), Some(3), Done))],
                false,
            ),
            (
                "of two at once one wins",
                vec![created, op(11, 20, swap(Some(1), Some(2), Done)), op(11, 20, swap(Some(1), Some(3), Refused))],
                true,
            ),
            (
                "a refusal without a reason",
                vec![created, op(11, 12, swap(Some(1), Some(2), Refused)), op(13, 14, Read(Some(1)))],
                false,
            ),
            (
                "what got no answer may come later",
                vec![op(0, u64::MAX, swap(None, Some(1), Unknown)), op(5, 6, Read(None)), op(7, 8, Read(Some(1)))],
                true,
            ),
            ("or never", vec![op(0, u64::MAX, swap(None, Some(1), Unknown)), op(50, 60, Read(None))], true),
            (
                "but not come and go",
                vec![op(0, u64::MAX, swap(None, Some(1), Unknown)), op(5, 6, Read(Some(1))), op(7, 8, Read(None))],
                false,
            ),
            (
                "a deleted object comes back",
                vec![created, op(11, 12, swap(Some(1), None, Done)), op(13, 14, Read(Some(1)))],
                false,
            ),
        ] {
            assert_eq!(misfit(&ops).is_none(), expected, "{case}");
        }
    }

    /// A register with overlapping calls, driven by a seed: its history must pass, and with one changed answer it must
    /// fail, unless the change is invisible.
    #[test]
    fn a_true_history_passes_and_a_stale_read_is_found() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut state, mut ops, mut next) = (None, Vec::new(), 1);
        for at in 0..400u64 {
            let (begun, ended) = (at * 10 - random(9).min(at * 10), at * 10 + random(9));
            let call = match random(3) {
                0 => RegisterCall::Read(state),
                _ => {
                    let (from, to) = (state, (random(4) > 0).then_some(next));
                    next += 1;
                    state = if from.is_none() && to.is_none() { None } else { to };
                    swap(from, state, CallOutcome::Done)
                }
            };
            ops.push(op(begun, ended, call));
        }
        assert_eq!(misfit(&ops), None);
        let stale = op(4100, 4101, RegisterCall::Read(Some(1)));
        ops.push(stale);
        assert_eq!(misfit(&ops), Some(stale));
    }
}
