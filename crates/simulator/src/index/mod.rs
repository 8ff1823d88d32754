//! Pods and nodes as the loops count them. Events keep the index up to date, so that a loop that looks at one object
//! never reads all pods: the work of the simulated cluster grows with the number of changes.
//!
//! A loop that writes a pod puts the result in at once, so that its next look does not act on the state before
//! ([`PodIndex::observe`], [`PodIndex::forget`]). Events that are older than what is known change nothing.

mod facts;
mod feeds;
mod nodes;
mod owned;
mod selection;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

use portolan_store::{ChangeKind, Event};
use portolan_types::{GroupResource, LabelSelector, LogicalClusterId, NamespaceName, ObjectKey, ObjectName, object};
use serde_json::Value;

pub(crate) use facts::{PodAmounts, PodController, PodFacts, PodPhase, container_requests};
pub(crate) use feeds::{NodeFeed, PodFeed};
pub(crate) use nodes::PodNeeds;
use nodes::{NodeFacts, NodeTable};
pub(crate) use owned::OwnedPods;
use selection::PodSelection;
pub(crate) use selection::SelectedPods;

/// A namespace of a logical cluster.
type NamespaceAddress = (LogicalClusterId, NamespaceName);

/// Index of the pods and nodes of a simulated cluster.
#[derive(Default)]
pub(crate) struct PodIndex(Mutex<PodIndexState>);

#[derive(Default)]
struct PodIndexState {
    pods: HashMap<NamespaceAddress, BTreeMap<ObjectName, PodEntry>>,
    /// By the uid of the controller.
    owned: HashMap<String, OwnedPods>,
    selections: HashMap<NamespaceAddress, HashMap<ObjectKey, PodSelection>>,
    nodes: NodeTable,
    /// Revision up to which all events have arrived.
    delivered: u64,
    /// Pods that a listing has not shown yet.
    unlisted: HashSet<ObjectKey>,
}

/// Pod in the index.
enum PodEntry {
    /// It exists.
    Live(Arc<PodFacts>),
    /// The pod is deleted, but the event has not arrived yet. Contains the uid.
    Deleted(String),
}

impl PodIndex {
    fn state(&self) -> MutexGuard<'_, PodIndexState> {
        self.0.lock().expect("no code panics under this lock")
    }

    /// Adds a pod that was just read or written.
    pub(crate) fn observe(&self, key: &ObjectKey, pod: &Value) {
        let facts = PodFacts::of(pod);
        let mut state = self.state();
        // What is not newer than the last event was in the index already.
        if facts.revision > state.delivered {
            state.put(key, facts);
        }
    }

    /// Removes a pod that was just found deleted.
    pub(crate) fn forget(&self, key: &ObjectKey, uid: &str) {
        let mut state = self.state();
        if state.live(key).is_some_and(|known| known.uid == uid) {
            state.replace(key, Some(PodEntry::Deleted(uid.to_owned())));
        }
    }

    /// Applies an event of pods.
    fn take_in(&self, event: &Event) {
        let key = &event.key;
        let mut state = self.state();
        state.unlisted.remove(key);
        state.delivered = state.delivered.max(event.revision.get());
        if event.change == ChangeKind::Deleted {
            let uid = &event.record.header.uid;
            let is_newer = state.live(key).is_some_and(|known| known.uid != *uid && !uid.is_empty());
            if !is_newer {
                state.replace(key, None);
            }
            return;
        }
        drop(state);
        if let Ok(pod) = event.record.to_value(event.revision) {
            let facts = PodFacts::of(&pod);
            self.state().put(key, facts);
        }
    }

    fn begin_listing(&self) {
        let mut state = self.state();
        let keys = state.keys();
        state.unlisted = keys.into_iter().collect();
    }

    /// Removes pods that a list at `revision` did not contain.
    fn end_listing(&self, revision: u64) {
        let mut state = self.state();
        state.delivered = state.delivered.max(revision);
        for key in std::mem::take(&mut state.unlisted) {
            if state.live(&key).is_none_or(|known| known.revision <= revision) {
                state.replace(&key, None);
            }
        }
    }

    /// Returns the controller of the pods of which `uid` is the owner, while there are any.
    pub(crate) fn owner(&self, uid: &str) -> Option<PodController> {
        self.state().owned.get(uid).map(|owned| owned.owner.clone())
    }

    /// Reads the pods of which `uid` is the controller.
    pub(crate) fn owned<T>(&self, uid: &str, read: impl FnOnce(&OwnedPods) -> T) -> T {
        match self.state().owned.get(uid) {
            Some(owned) => read(owned),
            None => read(&OwnedPods::default()),
        }
    }

    /// Follows the pods that `by` selects in its namespace, and returns them.
    pub(crate) fn select<T>(
        &self,
        by: &ObjectKey,
        selector: &LabelSelector,
        read: impl FnOnce(&mut SelectedPods) -> T,
    ) -> Option<T> {
        let place = (by.cluster, by.namespace()?.clone());
        let mut state = self.state();
        let PodIndexState { pods, selections, .. } = &mut *state;
        let selection = selections.entry(place.clone()).or_default().entry(by.clone()).or_default();
        if selection.selector.as_ref() != Some(selector) {
            let live = pods.get(&place).into_iter().flatten();
            selection.begin(selector.clone(), live.filter_map(|(name, entry)| Some((name, entry.live()?))));
        }
        Some(read(&mut selection.selected))
    }

    /// Stops following the pods of `by`.
    pub(crate) fn unselect(&self, by: &ObjectKey) {
        let Some(namespace) = by.namespace() else { return };
        let place = (by.cluster, namespace.clone());
        let mut state = self.state();
        if let Some(selections) = state.selections.get_mut(&place) {
            selections.remove(by);
            if selections.is_empty() {
                state.selections.remove(&place);
            }
        }
    }

    /// Returns the objects of `resource` whose selected pods have changed in the namespace of a pod.
    pub(crate) fn changed_selections(&self, pod: &ObjectKey, resource: &GroupResource) -> Vec<ObjectKey> {
        let Some(namespace) = pod.namespace() else { return Vec::new() };
        let state = self.state();
        let selections = state.selections.get(&(pod.cluster, namespace.clone())).into_iter().flatten();
        let changed = selections.filter(|(by, selection)| by.resource == *resource && selection.selected.has_changes());
        changed.map(|(by, _)| by.clone()).collect()
    }

    /// Returns the objects of `resource` that select pods in the namespace of an object.
    pub(crate) fn selections(&self, beside: &ObjectKey, resource: &GroupResource) -> Vec<ObjectKey> {
        let Some(namespace) = beside.namespace() else { return Vec::new() };
        let state = self.state();
        let selections = state.selections.get(&(beside.cluster, namespace.clone())).into_iter().flatten();
        selections.map(|(by, _)| by).filter(|by| by.resource == *resource).cloned().collect()
    }

    /// Chooses a node for a pod and counts the pod there. The error is the scheduler's message; the pod is one of
    /// [`Self::take_unscheduled`] then.
    pub(crate) fn choose_node(&self, key: &ObjectKey, needs: &PodNeeds) -> Result<String, String> {
        let mut state = self.state();
        let chosen = state.nodes.choose(needs);
        match &chosen {
            Ok(node) => {
                if let Some(known) = state.live(key) {
                    let facts = PodFacts { node: node.clone(), ..PodFacts::clone(&known) };
                    state.replace(key, Some(PodEntry::Live(Arc::new(facts))));
                }
            }
            Err(_) => state.nodes.wait(key),
        }
        chosen
    }

    /// Returns some of the pods that found no node, those that have waited longest first.
    pub(crate) fn take_unscheduled(&self, most: usize) -> Vec<ObjectKey> {
        self.state().nodes.take_waiting(most)
    }

    /// Returns the nodes whose labels and taints a pod accepts, regardless of their free room.
    pub(crate) fn eligible_nodes(&self, needs: &PodNeeds) -> Vec<String> {
        self.state().nodes.eligible(needs)
    }

    /// Returns true when there is such a node.
    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.state().nodes.has(name)
    }

    /// Returns the number of nodes.
    pub(crate) fn node_count(&self) -> usize {
        self.state().nodes.count()
    }

    /// Returns the number of pods on a node, and their requests together.
    pub(crate) fn load_of(&self, node: &str) -> Option<(i64, PodAmounts)> {
        self.state().nodes.load_of(node)
    }

    fn put_node(&self, name: &str, node: Option<NodeFacts>) {
        self.state().nodes.put(name, node);
    }
}

impl PodEntry {
    fn live(&self) -> Option<&Arc<PodFacts>> {
        match self {
            Self::Live(facts) => Some(facts),
            Self::Deleted(_) => None,
        }
    }
}

impl PodIndexState {
    fn keys(&self) -> Vec<ObjectKey> {
        let resource = GroupResource::new("", "pods");
        let key = |(cluster, namespace): &NamespaceAddress, name: &ObjectName| {
            ObjectKey::namespaced(*cluster, resource.clone(), namespace.clone(), name.clone())
        };
        self.pods.iter().flat_map(|(place, pods)| pods.keys().map(move |name| key(place, name))).collect()
    }

    fn entry(&self, key: &ObjectKey) -> Option<&PodEntry> {
        self.pods.get(&(key.cluster, key.namespace()?.clone()))?.get(&key.name)
    }

    fn live(&self, key: &ObjectKey) -> Option<Arc<PodFacts>> {
        self.entry(key)?.live().cloned()
    }

    /// Adds a pod, unless a later state of it is known.
    fn put(&mut self, key: &ObjectKey, mut facts: PodFacts) {
        match self.entry(key) {
            Some(PodEntry::Deleted(uid)) if *uid == facts.uid => return,
            Some(PodEntry::Live(known)) if known.revision >= facts.revision => return,
            Some(PodEntry::Live(known)) if known.uid == facts.uid && facts.node.is_empty() => {
                // The chosen node has not been written yet.
                facts.node.clone_from(&known.node);
            }
            _ => {}
        }
        self.replace(key, Some(PodEntry::Live(Arc::new(facts))));
    }

    fn replace(&mut self, key: &ObjectKey, new: Option<PodEntry>) {
        let Some(namespace) = key.namespace() else { return };
        let place = (key.cluster, namespace.clone());
        let live = new.as_ref().and_then(PodEntry::live).cloned();
        let pods = self.pods.entry(place.clone()).or_default();
        let old = match new {
            Some(entry) => pods.insert(key.name.clone(), entry),
            None => pods.remove(&key.name),
        };
        if pods.is_empty() {
            self.pods.remove(&place);
        }
        let old = old.as_ref().and_then(PodEntry::live).cloned();
        if let Some(old) = &old {
            self.discount(key, old);
        }
        if let Some(live) = &live {
            self.count(key, live);
        }
        for selection in self.selections.get_mut(&place).into_iter().flat_map(HashMap::values_mut) {
            selection.update(&key.name, live.as_ref());
        }
    }

    fn count(&mut self, key: &ObjectKey, facts: &Arc<PodFacts>) {
        self.nodes.add(facts);
        if let Some(owner) = &facts.owner {
            let owned = self.owned.entry(owner.uid.clone()).or_insert_with(|| OwnedPods::of(owner.clone()));
            owned.add(key, facts);
        }
    }

    fn discount(&mut self, key: &ObjectKey, facts: &PodFacts) {
        self.nodes.take_off(facts);
        if let Some(owner) = &facts.owner
            && let Some(owned) = self.owned.get_mut(&owner.uid)
        {
            owned.remove(key, facts);
            if owned.is_empty() {
                self.owned.remove(&owner.uid);
            }
        }
    }
}

/// Returns the selector of `spec.selector` as a set of labels; `None` without any.
pub(crate) fn equality_selector(object: &Value) -> Option<LabelSelector> {
    let labels = object.pointer("/spec/selector").and_then(Value::as_object).filter(|labels| !labels.is_empty())?;
    let spec = serde_json::json!({"matchLabels": labels});
    label_selector(&spec)
}

/// Parses a `LabelSelector` of the API; `None` if it is invalid.
pub(crate) fn label_selector(selector: &Value) -> Option<LabelSelector> {
    let spec: portolan_types::labels::LabelSelectorSpec = serde_json::from_value(selector.clone()).ok()?;
    LabelSelector::try_from(&spec).ok()
}

/// Returns the place of `uid` in the metadata, for preconditions.
pub(crate) fn uid_of(pod: &Value) -> &str {
    object::meta_text(pod, "uid")
}
