//! Definitions, tables and surfaces by content, shared while they are in use.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use portolan_kinds::{
    KindTable, Surface,
    custom::{self, Definition, Fingerprint, Names, RulesWatch},
};
use portolan_types::{ObjectName, ResourceVersion};
use prometheus::IntCounter;
use serde_json::Value;

use super::ServedKinds;

/// Fewest entries at which dead ones are removed.
const MIN_SWEPT: usize = 64;

/// Map of shared values that are in use.
struct SharedByKey<K, V>(Mutex<SharedEntries<K, V>>);

struct SharedEntries<K, V> {
    all: HashMap<K, Weak<V>>,
    /// Live entries after the last removal.
    live: usize,
}

impl<K: Eq + Hash, V> SharedByKey<K, V> {
    fn new() -> Self {
        Self(Mutex::new(SharedEntries { all: HashMap::new(), live: 0 }))
    }

    fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().all.get(key).and_then(Weak::upgrade)
    }

    /// Inserts `made` and returns it, or the existing value at `key`.
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

/// Cached definition, shared by all logical clusters that have the same.
pub(super) struct CachedDefinition {
    pub(super) definition: Arc<Definition>,
    /// Bytes of its `spec`, the shared part.
    pub(super) spec: usize,
}

/// Definition of one logical cluster.
#[derive(Clone)]
pub(super) struct LoadedDefinition {
    pub(super) held: Arc<CachedDefinition>,
    /// Revision of its creation, which distinguishes it from others of its name.
    pub(super) created: ResourceVersion,
    /// Revision of its last write when it was read.
    pub(super) revision: ResourceVersion,
    /// Binding that serves it; `None` for a definition of the logical cluster's own. The revisions are the binding's.
    pub(super) binding: Option<ObjectName>,
}

impl CachedDefinition {
    /// Estimates the bytes in memory: trees and compiled schemas take several times their text.
    pub(super) fn weight(&self) -> usize {
        const GROWTH: usize = 4;
        const LEAST: usize = 2048;
        self.spec.saturating_mul(GROWTH) + LEAST
    }
}

/// Identity of a definition.
#[derive(PartialEq, Eq, Hash)]
struct DefinitionContent {
    name: Arc<str>,
    claimed: Names,
    accepted: Names,
    state: [bool; 4],
    /// Address of its table, which lives as long as the definition.
    table: Option<usize>,
}

impl DefinitionContent {
    fn of(definition: &Definition) -> Self {
        let Definition { name, claimed, accepted, is_established, is_deleting, is_settled, is_bound, table, .. } =
            definition;
        Self {
            name: name.clone(),
            claimed: claimed.clone(),
            accepted: accepted.clone(),
            state: [*is_established, *is_deleting, *is_settled, *is_bound],
            table: table.as_ref().map(|table| Arc::as_ptr(table) as usize),
        }
    }
}

/// Result of a compilation, for all that wait for it.
#[derive(Default)]
enum CompilationResult {
    #[default]
    Pending,
    /// `None` when the definition does not compile.
    Of(Option<Arc<KindTable>>),
}

/// Lock of a compilation; after a panic the next holder compiles.
type CompilationLock = Mutex<CompilationResult>;

/// Guard that ends a compilation, also on panic, and only its own.
struct CompilationGuard<'a> {
    compiling: &'a Mutex<HashMap<Fingerprint, Arc<CompilationLock>>>,
    fingerprint: Fingerprint,
    turn: &'a Arc<CompilationLock>,
}

impl Drop for CompilationGuard<'_> {
    fn drop(&mut self) {
        let mut compiling = self.compiling.lock();
        if compiling.get(&self.fingerprint).is_some_and(|now| Arc::ptr_eq(now, self.turn)) {
            compiling.remove(&self.fingerprint);
        }
    }
}

/// Compiled definitions.
pub(super) struct CompiledDefinitions {
    definitions: SharedByKey<DefinitionContent, CachedDefinition>,
    tables: SharedByKey<Fingerprint, KindTable>,
    /// Compilations in progress; a second caller waits for the first.
    compiling: Mutex<HashMap<Fingerprint, Arc<CompilationLock>>>,
    /// Surfaces by the addresses of their tables, which live as long as the surface.
    surfaces: SharedByKey<Vec<usize>, ServedKinds>,
    builtin: Arc<ServedKinds>,
    computes_nodes: bool,
    compilations: IntCounter,
    /// Observer of rule evaluation.
    watch: Arc<dyn RulesWatch>,
}

impl CompiledDefinitions {
    pub(super) fn new(compilations: IntCounter, watch: Arc<dyn RulesWatch>, computes_nodes: bool) -> Self {
        let builtin = Arc::new(ServedKinds::new(Surface::builtin(), computes_nodes));
        let (definitions, tables, surfaces) = (SharedByKey::new(), SharedByKey::new(), SharedByKey::new());
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

    /// Returns true if nodes are computed and none is stored.
    pub(super) fn computes_nodes(&self) -> bool {
        self.computes_nodes
    }

    /// Returns the shared entry of a definition.
    pub(super) fn definition(&self, crd: &Value) -> Arc<CachedDefinition> {
        self.shared(crd, Definition::read(crd, || self.table(crd)))
    }

    /// Returns the shared entry of a definition that a binding serves.
    pub(super) fn bound_definition(&self, crd: &Value) -> Arc<CachedDefinition> {
        self.shared(crd, Definition { is_bound: true, ..Definition::read(crd, || self.table(crd)) })
    }

    fn shared(&self, crd: &Value, definition: Definition) -> Arc<CachedDefinition> {
        let identity = DefinitionContent::of(&definition);
        if let Some(known) = self.definitions.get(&identity) {
            return known;
        }
        let spec = serde_json::to_vec(&crd["spec"]).map_or(0, |text| text.len());
        self.definitions.put(identity, Arc::new(CachedDefinition { definition: Arc::new(definition), spec }))
    }

    /// Returns the kinds of a definition; `None` when it does not compile, which affects nothing else.
    fn table(&self, crd: &Value) -> Option<Arc<KindTable>> {
        let fingerprint = custom::fingerprint(crd);
        if let Some(known) = self.tables.get(&fingerprint) {
            return Some(known);
        }
        let turn = self.compiling.lock().entry(fingerprint).or_default().clone();
        let _ends = CompilationGuard { compiling: &self.compiling, fingerprint, turn: &turn };
        let mut outcome = turn.lock();
        if let CompilationResult::Of(table) = &*outcome {
            return table.clone();
        }
        // Another compilation may have ended since the lookup.
        let table = self.tables.get(&fingerprint).or_else(|| self.compiled(crd, fingerprint));
        *outcome = CompilationResult::Of(table.clone());
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

    /// Returns the surface of these tables.
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
