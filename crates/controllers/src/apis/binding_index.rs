//! Bindings by export, kept in memory by the events of bindings: so that a change of an export does not read all
//! bindings.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};

use portolan_types::{LogicalClusterId, ObjectKey};

/// Bindings by `E`, the name of their export.
///
/// A binding that was deleted while the watch was broken stays, so a reader checks each against the store.
pub(super) struct BindingIndex<E>(Mutex<BindingsByExport<E>>);

struct BindingsByExport<E> {
    bindings: HashMap<E, BTreeSet<ObjectKey>>,
    exports: HashMap<ObjectKey, E>,
}

impl<E> Default for BindingIndex<E> {
    fn default() -> Self {
        Self(Mutex::new(BindingsByExport { bindings: HashMap::new(), exports: HashMap::new() }))
    }
}

impl<E: Clone + Eq + Hash> BindingIndex<E> {
    /// Records the export of a binding; `None` for a binding without one, or a deleted one.
    pub(super) fn set(&self, binding: &ObjectKey, export: Option<E>) {
        let mut index = self.lock();
        if index.exports.get(binding) == export.as_ref() {
            return;
        }
        if let Some(before) = index.exports.remove(binding)
            && let Some(own) = index.bindings.get_mut(&before)
        {
            own.remove(binding);
            if own.is_empty() {
                index.bindings.remove(&before);
            }
        }
        if let Some(export) = export {
            index.exports.insert(binding.clone(), export.clone());
            index.bindings.entry(export).or_default().insert(binding.clone());
        }
    }

    /// Returns the first binding to an export, or the first one after a key.
    pub(super) fn next(&self, export: &E, after: Option<&ObjectKey>) -> Option<ObjectKey> {
        let index = self.lock();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        index.bindings.get(export)?.range((start, Bound::Unbounded)).next().cloned()
    }

    /// Returns the logical clusters with bindings to an export.
    pub(super) fn clusters(&self, export: &E) -> BTreeSet<LogicalClusterId> {
        let index = self.lock();
        index.bindings.get(export).into_iter().flatten().map(|binding| binding.cluster).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BindingsByExport<E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use portolan_types::apis;

    use super::*;

    #[test]
    fn a_binding_is_under_its_last_export() {
        let index = BindingIndex::<&str>::default();
        let binding = |cluster| {
            let cluster = LogicalClusterId::new(cluster);
            ObjectKey::cluster_scoped(cluster, apis::resource(apis::BINDINGS), "widgets".parse().unwrap())
        };
        let clusters = |export| index.clusters(&export).into_iter().map(LogicalClusterId::get).collect::<Vec<_>>();
        index.set(&binding(7), Some("a"));
        index.set(&binding(8), Some("a"));
        index.set(&binding(8), Some("a"));
        assert_eq!(clusters("a"), [7, 8]);
        assert_eq!(
            (index.next(&"a", Some(&binding(7))), index.next(&"a", Some(&binding(8)))),
            (Some(binding(8)), None)
        );
        index.set(&binding(7), Some("b"));
        assert_eq!((clusters("a"), clusters("b")), (vec![8], vec![7]));
        index.set(&binding(8), None);
        assert_eq!((index.next(&"a", None), index.next(&"b", None)), (None, Some(binding(7))));
        assert_eq!(index.lock().bindings.len(), 1, "an export without bindings takes no room");
    }
}
