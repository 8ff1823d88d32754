//! Whether what clients of one key saw can be put into one order that respects time: linearizability, checked as etcd's
//! robustness tests do it (Wing and Gong's search with Lowe's memory), for a register with compare-and-swap.

use std::collections::HashSet;

/// A value that was written once; every write has its own.
pub(crate) type Value = u64;

/// What a client asked for, and what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// It saw this.
    Read(Option<Value>),
    /// From one state to another; `None` is absence.
    Swap {
        /// What had to be there: absence for a creation, else the value whose resourceVersion was sent.
        from: Option<Value>,
        /// What is there then: absence for a deletion.
        to: Option<Value>,
        /// What the client was told.
        outcome: Outcome,
    },
}

/// What a client was told of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It happened.
    Done,
    /// It did not: something else was there.
    Refused,
    /// Nothing: it may have happened, at any time since.
    Unknown,
}

/// A call and when it was under way, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) call: Call,
    pub(crate) begun: u64,
    /// `u64::MAX` when no answer came.
    pub(crate) ended: u64,
}

impl Op {
    fn is_answered(&self) -> bool {
        !matches!(self.call, Call::Swap { outcome: Outcome::Unknown, .. })
    }

    /// The state after it, when it can come now.
    fn step(&self, state: Option<Value>) -> Option<Option<Value>> {
        match self.call {
            Call::Read(seen) => (seen == state).then_some(state),
            Call::Swap { from, to, outcome: Outcome::Done | Outcome::Unknown } => (from == state).then_some(to),
            // What is refused to a creation is refused because something is there.
            Call::Swap { from, outcome: Outcome::Refused, .. } => (from != state).then_some(state),
        }
    }
}

/// Finds an order of all answered calls of one key; what got no answer may be in it or not. Without one, the first call that fits
/// into none of the longest order there is.
pub(crate) fn misfit(ops: &[Op]) -> Option<Op> {
    let mut ops = ops.to_vec();
    ops.sort_by_key(|op| op.begun);
    let left = ops.iter().filter(|op| op.is_answered()).count();
    let mut search = Search { ops, taken: Vec::new(), known: HashSet::new(), fewest: (usize::MAX, None) };
    search.taken = vec![0; search.ops.len().div_ceil(64)];
    if search.go_on(0, left, None) { None } else { search.fewest.1 }
}

struct Search {
    ops: Vec<Op>,
    /// Which calls are in the order, as bits.
    taken: Vec<u64>,
    /// How few answered calls were ever left, and the one of them that ended first.
    fewest: (usize, Option<Op>),
    /// Where nothing was found.
    known: HashSet<(Vec<u64>, Option<Value>)>,
}

impl Search {
    fn is_taken(&self, at: usize) -> bool {
        self.taken[at / 64] & (1 << (at % 64)) != 0
    }

    /// `first` is the first call that is not in the order yet; `left` answered ones are not.
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
        // Only what began before the earliest end among the rest can come next.
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

    fn op(begun: u64, ended: u64, call: Call) -> Op {
        Op { call, begun, ended }
    }

    fn swap(from: Option<Value>, to: Option<Value>, outcome: Outcome) -> Call {
        Call::Swap { from, to, outcome }
    }

    #[test]
    fn histories_of_one_key() {
        use Call::Read;
        use Outcome::{Done, Refused, Unknown};
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

    /// A register that a seed drives, with calls that overlap: what it answers must pass, and with one answer changed it
    /// must not, unless the change makes no difference to anybody.
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
                0 => Call::Read(state),
                _ => {
                    let (from, to) = (state, (random(4) > 0).then_some(next));
                    next += 1;
                    state = if from.is_none() && to.is_none() { None } else { to };
                    swap(from, state, Outcome::Done)
                }
            };
            ops.push(op(begun, ended, call));
        }
        assert_eq!(misfit(&ops), None);
        let stale = op(4100, 4101, Call::Read(Some(1)));
        ops.push(stale);
        assert_eq!(misfit(&ops), Some(stale));
    }
}
