//! From events to facts and tasks.

use portolan_placement::{Workload, contribution, placed_condition};
use portolan_store::{Change, Event, StoredObject};
use portolan_types::{GroupKind, GroupResource, GroupVersionKind, ObjectKey, Record, Uid, object};
use serde_json::Value;

use crate::{
    facts::Amounts,
    kinds,
    peek::{Peek, may_have_pin},
    queue::Task,
    rescan::Scope,
    scheduler::Inner,
};

/// Group and kind as an object names them.
pub(crate) fn kind_of(object: &Value) -> Option<GroupKind> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    Some(GroupVersionKind::parse(text("apiVersion")?, text("kind")?).ok()?.group_kind())
}

/// The tree of a stored object; `None` only when it is damaged.
fn tree(record: &Record) -> Option<Value> {
    serde_json::from_slice(record.body()).ok()
}

/// Returns true when a write says that a Job or Pod has ended. Of other kinds nothing is parsed.
fn ends(resource: &GroupResource, before: &Record, after: &Record) -> bool {
    let kind = match (&*resource.group, &*resource.resource) {
        ("batch", "jobs") => "Job",
        ("", "pods") => "Pod",
        _ => return false,
    };
    let has_ended = |record| tree(record).is_some_and(|object| object::has_ended(&resource.group, kind, &object));
    has_ended(after) && !has_ended(before)
}

/// Returns what an object takes of physical clusters. A Job or Pod that has ended takes nothing.
fn amounts(resource: &GroupResource, record: &Record, peek: &Peek) -> Amounts {
    if peek.record.clusters.is_empty() {
        return Amounts::new();
    }
    let Some(object) = tree(record) else { return Amounts::new() };
    let Some(kind) = kind_of(&object) else { return Amounts::new() };
    if object::has_ended(&kind.group, &kind.kind, &object) {
        return Amounts::new();
    }
    contribution(&Workload::of(kind, resource.clone(), &object), &peek.record)
}

impl Inner {
    /// Forgets what is known of a resource, before it is listed.
    pub(crate) fn start_listing(&self, resource: &GroupResource) {
        let mut facts = self.facts();
        if *resource == kinds::physical_clusters() {
            facts.clear_physicals();
        } else if kinds::policies().contains(resource) {
            facts.clear_policies(resource);
        } else {
            facts.usage.clear(resource);
        }
    }

    /// Takes in an object that was there before the watch.
    pub(crate) fn observe_listed(&self, stored: &StoredObject) {
        let (key, record) = (&stored.key, &stored.record);
        if key.resource == kinds::physical_clusters() || kinds::policies().contains(&key.resource) {
            let event = Event {
                revision: stored.revision,
                change: Change::Created,
                key: key.clone(),
                record: record.clone(),
                previous: None,
            };
            self.observe(&event);
        } else if key.resource != kinds::namespaces() && key.resource != kinds::placements() {
            self.count(key, None, Some(record));
        }
    }

    /// Takes in that an object is there and cannot be read.
    pub(crate) fn observe_unreadable(&self, key: &ObjectKey) {
        if key.resource == kinds::physical_clusters() || kinds::policies().contains(&key.resource) {
            self.facts().put_unreadable(key);
        }
    }

    /// Takes in an event: facts first, then what is to be looked at because of it.
    pub(crate) fn observe(&self, event: &Event) {
        let resource = &event.key.resource;
        // First, as most of what is written is one.
        if kinds::is_follower(resource) {
            self.observe_follower(event);
        } else if *resource == kinds::physical_clusters() {
            self.observe_physical(event);
        } else if kinds::policies().contains(resource) {
            self.observe_policy(event);
        } else if *resource == kinds::namespaces() {
            self.observe_namespace(event);
        } else if *resource == kinds::placements() {
            self.observe_placement(event);
        } else if kinds::is_cause(resource) {
            self.observe_cause(event);
        } else if *resource == kinds::revisions() {
            self.observe_end_of_template(event);
        } else {
            self.observe_object(event);
        }
    }

    fn observe_physical(&self, event: &Event) {
        let Some(object) = tree(&event.record) else { return };
        if event.change == Change::Deleted {
            let Some(uid) = object::uid(&object) else { return };
            self.facts().remove_physical(&event.key, &uid);
            self.rescans.add(Scope::PlacedOn(uid));
            return;
        }
        let changed = self.facts().put_physical(&event.key, &object, self.now());
        if changed {
            self.rescans.add(Scope::Subtree(event.key.cluster));
            self.usage_changed.notify_one();
        }
        self.queue.tasks.add(Task::Physical(event.key.clone()));
    }

    fn observe_policy(&self, event: &Event) {
        let changed = match (event.change, tree(&event.record)) {
            (Change::Deleted, _) => self.facts().remove_policy(&event.key),
            (_, Some(object)) => self.facts().put_policy(&event.key, &object),
            (_, None) => false,
        };
        if !changed {
            return;
        }
        self.watch_selected_kinds();
        self.matched_changed.notify_one();
        self.rescans.add(match event.key.namespace() {
            Some(namespace) => Scope::Namespace(event.key.cluster, namespace.clone()),
            None => Scope::Subtree(event.key.cluster),
        });
    }

    /// Policies may be about kinds that nobody watched so far.
    fn watch_selected_kinds(&self) {
        let facts = self.facts();
        let named = facts.all_policies().flat_map(|(_, policy)| policy.kinds());
        let resources = named.filter_map(|(group, kind)| self.kinds.resource_of(group, kind));
        let new: Vec<_> = resources.filter(|r| !kinds::PLACEABLE.iter().any(|p| p.resource() == *r)).collect();
        drop(facts);
        let mut custom = self.custom();
        let before = custom.len();
        custom.extend(new);
        if custom.len() > before {
            self.custom_changed.notify_one();
        }
    }

    fn observe_namespace(&self, event: &Event) {
        let Ok(namespace) = event.key.name.parse() else { return };
        if event.previous.as_ref().is_some_and(|previous| previous.header.labels != event.record.header.labels) {
            self.ask_again(event.key.cluster, Some(&namespace));
        }
        match (event.change, &event.previous) {
            (Change::Deleted, _) => self.queue.tasks.add(Task::Forget(self.decision_key(event.key.cluster, namespace))),
            (_, Some(previous)) if Peek::of(previous).pin != Peek::of(&event.record).pin => {
                self.rescans.add(Scope::Namespace(event.key.cluster, namespace));
            }
            _ => {}
        }
    }

    /// What is reported of a copy matters while an object moves.
    fn observe_placement(&self, event: &Event) {
        if event.change != Change::Updated {
            return;
        }
        let Some(placement) = tree(&event.record) else { return };
        if placed_condition(&placement).is_none_or(|(reason, _)| reason != "Moving") {
            return;
        }
        let text = |path: &str| placement.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let Ok(kind) = GroupVersionKind::parse(text("/spec/object/apiVersion"), text("/spec/object/kind")) else {
            return;
        };
        let resource = self.resource_of(&kind.group, &kind.kind);
        if let (Some(resource), Ok(name)) = (resource, text("/spec/object/name").parse()) {
            self.queue.tasks.add(Task::Object(ObjectKey { resource, name, ..event.key.clone() }));
        }
    }

    /// The resource of a kind, built-in ones first.
    pub(crate) fn resource_of(&self, group: &str, kind: &str) -> Option<GroupResource> {
        let builtin = kinds::PLACEABLE.iter().find(|p| p.group == group && p.kind == kind);
        builtin.map(kinds::Placeable::resource).or_else(|| self.kinds.resource_of(group, kind))
    }

    fn observe_follower(&self, event: &Event) {
        if event.key.resource == kinds::accounts() {
            self.observe_cause(event);
        }
        let Some(namespace) = event.key.namespace() else { return };
        let add = |key| self.queue.add_followers(event.key.cluster, namespace, key);
        match (event.change, event.previous.as_deref()) {
            (Change::Deleted, previous) => {
                self.count(&event.key, previous.or(Some(&event.record)), None);
                self.queue.tasks.add(Task::Object(event.key.clone()));
                self.follow_names(&event.key, Some(&event.record), None);
            }
            (_, None) if self.stays(event) => {}
            (_, None) => add(Some(event.key.clone())),
            (_, Some(previous)) => {
                let (before, after) = (&previous.header, &event.record.header);
                if before.placed_on != after.placed_on {
                    self.count(&event.key, Some(previous), Some(&event.record));
                }
                let lost = before.placed_on.iter().any(|uid| !after.placed_on.contains(uid));
                let deleting = before.is_deleting != after.is_deleting;
                let is_pinned = may_have_pin(previous) || may_have_pin(&event.record);
                let resized = kinds::is_divided_with_its_target(&event.key.resource)
                    && Peek::of(previous).generation != Peek::of(&event.record).generation;
                if lost || deleting || resized || before.labels != after.labels || is_pinned {
                    add(Some(event.key.clone()));
                }
                // Others follow these: whatever came first, they are looked at again once it has a place or names another.
                if before.placed_on != after.placed_on {
                    self.follow_names(&event.key, None, Some(&event.record));
                } else if previous.body() != event.record.body() {
                    self.follow_names(&event.key, Some(previous), Some(&event.record));
                }
            }
        }
    }

    /// Whether there is nowhere to go for a new follower. Once there is, everything in reach of it is looked at again.
    fn stays(&self, event: &Event) -> bool {
        let ObjectKey { cluster, resource, .. } = &event.key;
        let Some(kind) = kinds::placeable(resource) else { return false };
        let (reach, facts) = (self.reach(*cluster), self.facts());
        event.record.header.placed_on.is_empty()
            && !facts.may_be_placed(&reach)
            && !facts.is_kind_selected(&reach, kind.group, kind.kind)
    }

    fn observe_object(&self, event: &Event) {
        if event.record.header.label(portolan_types::annotations::PROJECTED_FROM).is_some() {
            return self.observe_end_of_template(event);
        }
        let Some(namespace) = event.key.namespace() else { return };
        if event.change == Change::Deleted {
            self.count(&event.key, Some(&event.record), None);
            self.queue.tasks.add(Task::Object(event.key.clone()));
            self.queue.add_followers(event.key.cluster, namespace, None);
            return;
        }
        let Some(previous) = event.previous.as_deref() else {
            self.count(&event.key, None, Some(&event.record));
            self.queue.tasks.add(Task::Object(event.key.clone()));
            return;
        };
        let (before, after) = (Peek::of(previous), Peek::of(&event.record));
        let new_spec = before.generation != after.generation;
        if new_spec || before.record != after.record || ends(&event.key.resource, previous, &event.record) {
            self.count(&event.key, Some(previous), Some(&event.record));
        }
        let header =
            |record: &Record| (record.header.labels.clone(), record.header.owners.clone(), record.header.is_deleting);
        // How a Job or a Pod goes on decides whether it may still move.
        let by_status = matches!(&*event.key.resource.resource, "jobs" | "pods");
        let lost = before.lost_copies(&after);
        let is_told = before.pin != after.pin || before.abandons_volumes != after.abandons_volumes;
        if new_spec || by_status || lost || is_told || header(previous) != header(&event.record) {
            self.queue.tasks.add(Task::Object(event.key.clone()));
        }
        // Autoscalers go no further than the limits of their targets.
        if before.record.clusters != after.record.clusters || before.record.limits != after.record.limits {
            self.queue.add_followers(event.key.cluster, namespace, None);
        } else if new_spec && !after.record.clusters.is_empty() {
            self.follow_names(&event.key, Some(previous), Some(&event.record));
        }
    }

    /// Looks at the followers again when one of the objects has gone from which pods of an earlier template came.
    fn observe_end_of_template(&self, event: &Event) {
        let resource = &event.key.resource;
        // Pods count where nothing else keeps their template.
        let keeps = *resource != kinds::pods()
            || tree(&event.record).is_some_and(|pod| {
                object::controller_of(&pod).is_some_and(|owner| owner["kind"] == "ReplicationController")
            });
        if let (Change::Deleted, true, Some(namespace)) = (event.change, keeps, event.key.namespace()) {
            self.queue.add_followers(event.key.cluster, namespace, None);
        }
    }

    /// Looks at the followers again when an object names others than before. `None` where it is not there, or has no place.
    fn follow_names(&self, key: &ObjectKey, previous: Option<&Record>, record: Option<&Record>) {
        let Some(namespace) = key.namespace() else { return };
        if kinds::is_follower(&key.resource) && !kinds::referrers().any(|referrer| referrer.resource() == key.resource)
        {
            return;
        }
        let names = |record: &Record| tree(record).map(|o| portolan_placement::References::of(&o)).unwrap_or_default();
        if previous.map(names).unwrap_or_default() != record.map(names).unwrap_or_default() {
            self.queue.add_followers(key.cluster, namespace, None);
        }
    }

    /// Counts what a write changed: what is taken of physical clusters, and whom policies decide.
    fn count(&self, key: &ObjectKey, previous: Option<&Record>, record: Option<&Record>) {
        let peek = |record: Option<&Record>| record.filter(|r| !r.header.placed_on.is_empty()).map(Peek::of);
        let (before, after) = (peek(previous), peek(record));
        let taken = |peek: &Option<Peek>, record: Option<&Record>| match (peek, record) {
            (Some(peek), Some(record)) => amounts(&key.resource, record, peek),
            _ => Amounts::new(),
        };
        let (took, takes) = (taken(&before, previous), taken(&after, record));
        let policy = |peek: &Option<Peek>| peek.as_ref().and_then(|p| p.record.policy.clone());
        let mut facts = self.facts();
        if record.is_none() && facts.overruns.forget(key) {
            self.matched_changed.notify_one();
        }
        after.iter().flat_map(|peek| &peek.record.clusters).for_each(|copy| facts.note_place(&copy.uid));
        facts.usage.replace(&key.resource, &took, &takes);
        if took != takes {
            self.usage_changed.notify_one();
        }
        facts.usage.release(key);
        if facts.usage.rematch(&key.resource, policy(&before).as_ref(), policy(&after).as_ref()) {
            self.matched_changed.notify_one();
        }
        let stays = |uid: &Uid| after.as_ref().is_some_and(|p| p.record.on(uid).is_some());
        let left = before.iter().flat_map(|p| &p.record.clusters).map(|c| &c.uid).filter(|uid| !stays(uid));
        let emptied = left.filter_map(|uid| facts.physical(uid)).filter(|p| p.info.deleting);
        emptied.for_each(|p| self.queue.tasks.add(Task::Physical(p.key.clone())));
    }
}
