//! Definitions, tables and surfaces by content, for as long as somebody uses them.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use portolan_machinery::{
    custom::{self, Definition, Fingerprint, Names},
    kinds::{KindTable, Surface},
};
use prometheus::IntCounter;
use serde_json::Value;

use super::ServedKinds;

/// Fewest entries at which those that are gone are looked for.
const MIN_SWEPT: usize = 64;

/// Values that are shared by key while they are in use.
struct Shared<K, V>(Mutex<Entries<K, V>>);

struct Entries<K, V> {
    all: HashMap<K, Weak<V>>,
    /// So many were in use at the last look.
    live: usize,
}

impl<K: Eq + Hash, V> Shared<K, V> {
    fn new() -> Self {
        Self(Mutex::new(Entries { all: HashMap::new(), live: 0 }))
    }

    fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().all.get(key).and_then(Weak::upgrade)
    }

    /// The value at `key`: that of another who was faster, else `made`.
    fn put(&self, key: K, made: Arc<V>) -> Arc<V> {
        let mut entries = self.0.lock();
        if let Some(known) = entries.all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        entries.all.insert(key, Arc::downgrade(&made));
        if entries.all.len() > MIN_SWEPT.max(2 * entries.live) {
            entries.all.retain(|_, own| own.strong_count() > 0);
            entries.live = entries.all.len();
        }
        made
    }
}

/// A definition as it is kept, one for all logical clusters that have the same.
pub(super) struct Held {
    pub(super) definition: Arc<Definition>,
    /// Bytes of its `spec`, which is what of it is shared.
    pub(super) spec: usize,
}

/// A definition of one logical cluster.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) held: Arc<Held>,
}

impl Held {
    /// Bytes that it takes in memory, about: trees and compiled schemas are so much larger than their text.
    pub(super) fn weight(&self) -> usize {
        const GROWTH: usize = 4;
        const LEAST: usize = 2048;
        self.spec.saturating_mul(GROWTH) + LEAST
    }
}

/// What tells definitions apart, to all that know of them no more than that.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    name: Arc<str>,
    claimed: Names,
    accepted: Names,
    state: [bool; 3],
    /// The address of its table, which lives as long as the definition does.
    table: Option<usize>,
}

impl Identity {
    fn of(definition: &Definition) -> Self {
        let Definition { name, claimed, accepted, is_established, is_deleting, is_settled, table, .. } = definition;
        Self {
            name: name.clone(),
            claimed: claimed.clone(),
            accepted: accepted.clone(),
            state: [*is_established, *is_deleting, *is_settled],
            table: table.as_ref().map(|table| Arc::as_ptr(table) as usize),
        }
    }
}

/// What has been compiled.
pub(super) struct Compiled {
    definitions: Shared<Identity, Held>,
    tables: Shared<Fingerprint, KindTable>,
    /// What is being compiled now. Who wants the same meanwhile waits for it, and has no more to do then.
    compiling: Mutex<HashMap<Fingerprint, Arc<Mutex<()>>>>,
    /// By the addresses of their tables, which live as long as the surface does.
    surfaces: Shared<Vec<usize>, ServedKinds>,
    builtin: Arc<ServedKinds>,
    compilations: IntCounter,
}

impl Compiled {
    pub(super) fn new(compilations: IntCounter) -> Self {
        let builtin = Arc::new(ServedKinds::new(Surface::builtin()));
        let (definitions, tables, surfaces) = (Shared::new(), Shared::new(), Shared::new());
        Self { definitions, tables, compiling: Mutex::default(), surfaces, builtin, compilations }
    }

    /// What is kept of a definition.
    pub(super) fn definition(&self, crd: &Value) -> Arc<Held> {
        let definition = Definition::read(crd, || self.table(crd));
        let identity = Identity::of(&definition);
        if let Some(known) = self.definitions.get(&identity) {
            return known;
        }
        let spec = serde_json::to_vec(&crd["spec"]).map_or(0, |text| text.len());
        self.definitions.put(identity, Arc::new(Held { definition: Arc::new(definition), spec }))
    }

    /// The kinds of a definition; `None` when it cannot be compiled, which harms nobody but itself.
    fn table(&self, crd: &Value) -> Option<Arc<KindTable>> {
        let fingerprint = custom::fingerprint(crd);
        if let Some(known) = self.tables.get(&fingerprint) {
            return Some(known);
        }
        let turn = self.compiling.lock().entry(fingerprint).or_default().clone();
        let _compiles = turn.lock();
        let known = self.tables.get(&fingerprint);
        let table = known.or_else(|| self.compiled(crd, fingerprint));
        self.compiling.lock().remove(&fingerprint);
        table
    }

    fn compiled(&self, crd: &Value, fingerprint: Fingerprint) -> Option<Arc<KindTable>> {
        self.compilations.inc();
        match custom::compile(crd) {
            Ok(made) => Some(self.tables.put(fingerprint, Arc::new(made))),
            Err(error) => {
                let name = portolan_types::object::name(crd);
                tracing::warn!(name, %error, "a definition cannot be served");
                None
            }
        }
    }

    /// What is served with these tables.
    pub(super) fn served(&self, tables: Vec<Arc<KindTable>>) -> Arc<ServedKinds> {
        if tables.is_empty() {
            return self.builtin.clone();
        }
        let key: Vec<usize> = tables.iter().map(|table| Arc::as_ptr(table) as usize).collect();
        if let Some(known) = self.surfaces.get(&key) {
            return known;
        }
        self.surfaces.put(key, Arc::new(ServedKinds::new(Arc::new(Surface::over(tables)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_want_at_once_is_compiled_once() {
        let compiled = Compiled::new(IntCounter::new("compilations", "How often.").unwrap());
        let schema = serde_json::json!({"type": "object", "properties": {"spec": {"type": "object"}}});
        let names =
            serde_json::json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
        let crd = serde_json::json!({
            "metadata": {"name": "widgets.example.dev"},
            "status": {"acceptedNames": names},
            "spec": {
                "group": "example.dev", "scope": "Namespaced", "names": names,
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        });
        let together = std::sync::Barrier::new(8);
        let wants = || {
            together.wait();
            compiled.table(&crd)
        };
        let tables: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(wants)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        assert!(tables.iter().all(|table| Arc::ptr_eq(table, &tables[0])));
        assert_eq!((compiled.compilations.get(), compiled.compiling.lock().len()), (1, 0));
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let shared = Shared::new();
        let kept = shared.put(0, Arc::new(0));
        (1..10 * MIN_SWEPT).for_each(|n| drop(shared.put(n, Arc::new(n))));
        assert!(shared.0.lock().all.len() <= MIN_SWEPT + 1);
        assert!(Arc::ptr_eq(&kept, &shared.put(0, Arc::new(7))) && shared.get(&1).is_none());
    }
}
