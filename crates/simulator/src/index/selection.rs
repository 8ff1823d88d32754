//! The pods that a Service or a PodDisruptionBudget selects.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use portolan_types::{LabelSelector, ObjectName};

use super::facts::{PodController, PodFacts};

/// Pods that one object selects, followed.
#[derive(Default)]
pub(super) struct PodSelection {
    pub(super) selector: Option<LabelSelector>,
    pub(super) selected: SelectedPods,
}

/// Selected pods, and those among them that have changed.
#[derive(Default)]
pub(crate) struct SelectedPods {
    members: BTreeMap<ObjectName, Arc<PodFacts>>,
    changed: BTreeSet<ObjectName>,
    /// Ready pods that have not ended and are not being deleted.
    pub(crate) ready: usize,
    /// Pods by their controller.
    owners: HashMap<Option<PodController>, usize>,
}

impl PodSelection {
    /// Selects again among all pods of the namespace.
    pub(super) fn begin<'a>(
        &mut self,
        selector: LabelSelector,
        pods: impl Iterator<Item = (&'a ObjectName, &'a Arc<PodFacts>)>,
    ) {
        let before = std::mem::take(&mut self.selected);
        self.selected.changed = before.changed.into_iter().chain(before.members.into_keys()).collect();
        self.selector = Some(selector);
        for (name, pod) in pods {
            self.update(name, Some(pod));
        }
    }

    /// Applies the present state of a pod.
    pub(super) fn update(&mut self, name: &ObjectName, pod: Option<&Arc<PodFacts>>) {
        let Some(selector) = &self.selector else { return };
        let pod = pod.filter(|pod| selector.matches(|key| pod.label(key)));
        self.selected.update(name, pod);
    }
}

impl SelectedPods {
    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the pods that have changed since the last call; `None` for one that is no longer selected.
    pub(crate) fn take_changes(&mut self) -> Vec<(ObjectName, Option<Arc<PodFacts>>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|name| (name.clone(), self.members.get(&name).cloned())).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns a pod by name.
    pub(crate) fn get(&self, name: &str) -> Option<&PodFacts> {
        self.members.get(&name.parse::<ObjectName>().ok()?).map(Arc::as_ref)
    }

    /// Returns one of the pods.
    pub(crate) fn first(&self) -> Option<&Arc<PodFacts>> {
        self.members.values().next()
    }

    /// Returns the controllers of the pods, each with its number of them.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (Option<&PodController>, usize)> {
        self.owners.iter().map(|(owner, count)| (owner.as_ref(), *count))
    }

    fn update(&mut self, name: &ObjectName, pod: Option<&Arc<PodFacts>>) {
        let old = match pod {
            Some(pod) => self.members.insert(name.clone(), pod.clone()),
            None => self.members.remove(name),
        };
        if old.is_none() && pod.is_none() {
            return;
        }
        self.changed.insert(name.clone());
        if let Some(old) = old {
            self.count(&old, false);
        }
        if let Some(pod) = pod {
            self.count(pod, true);
        }
    }

    fn count(&mut self, pod: &PodFacts, comes: bool) {
        let step = |count: usize| if comes { count + 1 } else { count.saturating_sub(1) };
        if pod.serves() {
            self.ready = step(self.ready);
        }
        let of_owner = self.owners.entry(pod.owner.clone()).or_default();
        *of_owner = step(*of_owner);
        if *of_owner == 0 {
            self.owners.remove(&pod.owner);
        }
    }
}
