//! Names that tenants give, as values of labels: only so many are told apart.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Names that are told apart; all others are [`OTHER`].
pub(super) const MAX_NAMES: usize = 100;
pub(super) const OTHER: &str = "other";

/// Those that came first.
#[derive(Default)]
pub(super) struct Names<const N: usize>(Mutex<BTreeSet<[String; N]>>);

impl<const N: usize> Names<N> {
    /// The names as they are told: themselves, or none of them.
    pub(super) fn told<'n>(&self, names: [&'n str; N]) -> [&'n str; N] {
        let mut all = self.0.lock();
        let own = names.map(str::to_owned);
        if all.contains(&own) || (all.len() < MAX_NAMES && all.insert(own)) { names } else { [OTHER; N] }
    }
}
