//! Definitions, tables and surfaces by content, for as long as somebody uses them.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use portolan_machinery::{
    custom::{self, Definition, Fingerprint, Names, RulesWatch},
    kinds::{KindTable, Surface},
};
use portolan_types::ResourceVersion;
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
    /// Its first write, which tells it from others of its name.
    pub(super) created: ResourceVersion,
    /// Its last write, when it was read.
    pub(super) revision: ResourceVersion,
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

/// How a compilation ended, for all that wait for it.
#[derive(Default)]
enum Outcome {
    #[default]
    Pending,
    /// `None` when the definition cannot be compiled.
    Of(Option<Arc<KindTable>>),
}

/// Whoever has it compiles; after a panic the next one does.
type Turn = Mutex<Outcome>;

/// Ends a turn, also by a panic, and no other that began since.
struct Ends<'a> {
    compiling: &'a Mutex<HashMap<Fingerprint, Arc<Turn>>>,
    fingerprint: Fingerprint,
    turn: &'a Arc<Turn>,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut compiling = self.compiling.lock();
        if compiling.get(&self.fingerprint).is_some_and(|now| Arc::ptr_eq(now, self.turn)) {
            compiling.remove(&self.fingerprint);
        }
    }
}

/// What has been compiled.
pub(super) struct Compiled {
    definitions: Shared<Identity, Held>,
    tables: Shared<Fingerprint, KindTable>,
    /// What is being compiled now. Who wants the same meanwhile waits for it, and has no more to do then.
    compiling: Mutex<HashMap<Fingerprint, Arc<Turn>>>,
    /// By the addresses of their tables, which live as long as the surface does.
    surfaces: Shared<Vec<usize>, ServedKinds>,
    builtin: Arc<ServedKinds>,
    computes_nodes: bool,
    compilations: IntCounter,
    /// Measures what rules take.
    watch: Arc<dyn RulesWatch>,
}

impl Compiled {
    pub(super) fn new(compilations: IntCounter, watch: Arc<dyn RulesWatch>, computes_nodes: bool) -> Self {
        let builtin = Arc::new(ServedKinds::new(Surface::builtin(), computes_nodes));
        let (definitions, tables, surfaces) = (Shared::new(), Shared::new(), Shared::new());
        Self {
            definitions,
            tables,
            compiling: Mutex::default(),
            surfaces,
            builtin,
            computes_nodes,
            compilations,
            watch,
        }
    }

    /// Returns true where nodes are computed, and none is stored.
    pub(super) fn computes_nodes(&self) -> bool {
        self.computes_nodes
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
        let _ends = Ends { compiling: &self.compiling, fingerprint, turn: &turn };
        let mut outcome = turn.lock();
        if let Outcome::Of(table) = &*outcome {
            return table.clone();
        }
        // Another turn may have ended after this looked.
        let table = self.tables.get(&fingerprint).or_else(|| self.compiled(crd, fingerprint));
        *outcome = Outcome::Of(table.clone());
        table
    }

    fn compiled(&self, crd: &Value, fingerprint: Fingerprint) -> Option<Arc<KindTable>> {
        self.compilations.inc();
        match custom::compile(crd) {
            Ok(made) => {
                let contents = made.kinds().filter_map(|kind| kind.content.as_ref());
                contents.for_each(|content| content.watch_rules(&self.watch));
                Some(self.tables.put(fingerprint, Arc::new(made)))
            }
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
        self.surfaces.put(key, Arc::new(ServedKinds::new(Arc::new(Surface::over(tables)), self.computes_nodes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled() -> Compiled {
        let metrics = crate::metrics::Metrics::new(prometheus::Registry::new()).expressions();
        Compiled::new(IntCounter::new("compilations", "How often.").unwrap(), Arc::new(metrics), false)
    }

    fn crd(schema: Value) -> Value {
        let names =
            serde_json::json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
        serde_json::json!({
            "metadata": {"name": "widgets.example.dev"},
            "status": {"acceptedNames": names},
            "spec": {
                "group": "example.dev", "scope": "Namespaced", "names": names,
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        })
    }

    /// What eight get that all want it before one of them may compile it.
    fn wanted_by_eight(compiled: &Compiled, crd: &Value) -> Vec<Option<Arc<KindTable>>> {
        let turn = Arc::new(Turn::default());
        let held = turn.lock();
        compiled.compiling.lock().insert(custom::fingerprint(crd), turn.clone());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| compiled.table(crd))).collect();
            // The map, this function, and each that waits.
            while Arc::strong_count(&turn) < 10 {
                std::thread::yield_now();
            }
            drop(held);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_many_want_at_once_is_compiled_once() {
        let spec = serde_json::json!({"type": "object"});
        let served = crd(serde_json::json!({"type": "object", "properties": {"spec": spec}}));
        let mut unserved = served.clone();
        let versions = unserved["spec"]["versions"].as_array_mut().unwrap();
        versions.push(versions[0].clone());
        for (case, crd, is_served) in [("a definition", served, true), ("one with a version twice", unserved, false)] {
            let compiled = compiled();
            let tables = wanted_by_eight(&compiled, &crd);
            let address = |table: &Option<Arc<KindTable>>| table.as_ref().map(Arc::as_ptr);
            assert_eq!(tables[0].is_some(), is_served, "{case}");
            assert!(tables.iter().all(|table| address(table) == address(&tables[0])), "{case}");
            assert_eq!((compiled.compilations.get(), compiled.compiling.lock().len()), (1, 0), "{case}");
        }
    }

    #[test]
    fn a_turn_ends_with_a_panic_and_ends_no_other() {
        let (compiled, fingerprint) = (compiled(), custom::fingerprint(&crd(serde_json::json!({"type": "object"}))));
        let begin = || compiled.compiling.lock().entry(fingerprint).or_default().clone();
        let turn = begin();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ends = Ends { compiling: &compiled.compiling, fingerprint, turn: &turn };
            let _compiles = turn.lock();
            panic!("while it compiles");
        }));
        assert!(panics.is_err() && turn.try_lock().is_some() && compiled.compiling.lock().is_empty());
        let later = begin();
        drop(Ends { compiling: &compiled.compiling, fingerprint, turn: &turn });
        assert!(Arc::ptr_eq(&later, &begin()), "who waited for the first leaves the second");
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
