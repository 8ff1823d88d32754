//! Label values that tenants choose, limited in number.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Limit of distinct label values; all others become [`OTHER`].
pub(super) const MAX_NAMES: usize = 100;
pub(super) const OTHER: &str = "other";

/// Label values that were seen first.
#[derive(Default)]
pub(super) struct BoundedLabels<const N: usize>(Mutex<BTreeSet<[String; N]>>);

impl<const N: usize> BoundedLabels<N> {
    /// Returns the values if they are among the known ones, else [`OTHER`] for all.
    pub(super) fn bounded<'n>(&self, bounded_labels: [&'n str; N]) -> [&'n str; N] {
        let mut all = self.0.lock();
        let own = bounded_labels.map(str::to_owned);
        if all.contains(&own) || (all.len() < MAX_NAMES && all.insert(own)) { bounded_labels } else { [OTHER; N] }
    }
}
