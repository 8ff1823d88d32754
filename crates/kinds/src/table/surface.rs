//! Kinds that one logical cluster serves: the built-in table, and tables laid over it.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use portolan_types::{BoxFuture, GroupResource, GroupVersionKind, LogicalClusterId, ObjectKey, Status};

use super::{Kind, KindTable};
use crate::custom::Definition;

/// A kind with the table that knows its types.
#[derive(Clone, Debug)]
pub struct Served {
    /// The table.
    pub table: Arc<KindTable>,
    /// The kind.
    pub kind: Arc<Kind>,
}

/// All kinds of a logical cluster. Logical clusters with the same kinds share one.
#[derive(Debug)]
pub struct Surface {
    /// The built-in table, then those over it in the order of discovery.
    tables: Box<[Arc<KindTable>]>,
    /// Group and plural of the kinds that are not built in.
    resources: HashMap<GroupResource, u32>,
    /// Their group and kind.
    kinds: HashMap<(Arc<str>, Arc<str>), u32>,
}

impl Surface {
    /// Returns the surface of a logical cluster without custom resources.
    pub fn builtin() -> Arc<Self> {
        static BUILTIN: OnceLock<Arc<Surface>> = OnceLock::new();
        BUILTIN.get_or_init(|| Arc::new(Self::over(Vec::new()))).clone()
    }

    /// Returns the built-in kinds and those of `tables`, which are laid over the built-in table. If several kinds have
    /// the same name, built-in kinds win, then the first of `tables`.
    pub fn over(tables: Vec<Arc<KindTable>>) -> Self {
        let tables: Box<[_]> = std::iter::once(KindTable::shared()).chain(tables).collect();
        let (mut resources, mut kinds) = (HashMap::new(), HashMap::new());
        for (at, table) in (0..).zip(&tables).skip(1) {
            for kind in table.kinds() {
                resources.entry(kind.group_resource()).or_insert(at);
                kinds.entry((kind.gvk.group.clone(), kind.gvk.kind.clone())).or_insert(at);
            }
        }
        Self { tables, resources, kinds }
    }

    /// Returns true if it has the built-in kinds alone.
    pub fn is_builtin(&self) -> bool {
        self.tables.len() == 1
    }

    /// Returns the kind behind a resource name (the plural).
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Served> {
        let builtin = || Some(served(&self.tables[0], self.tables[0].resource(group, version, plural)?));
        let own = || {
            let table = self.table_of(&GroupResource::new(group, plural))?;
            Some(served(table, table.resource(group, version, plural)?))
        };
        builtin().or_else(own)
    }

    /// Returns the kind, if it is a resource.
    pub fn kind(&self, gvk: &GroupVersionKind) -> Option<Served> {
        let builtin = || Some(served(&self.tables[0], self.tables[0].kind(gvk)?));
        let own = || {
            let table = self.table_of_kind(&gvk.group, &gvk.kind)?;
            Some(served(table, table.kind(gvk)?))
        };
        builtin().or_else(own)
    }

    /// Returns the kind in any version, also one that is not served any more.
    pub fn kind_in_any_version(&self, group: &str, kind: &str) -> Option<Served> {
        let find = |table: &Arc<KindTable>| {
            let found = table.kinds().find(|own| *own.gvk.group == *group && *own.gvk.kind == *kind)?;
            Some(served(table, found))
        };
        find(&self.tables[0]).or_else(|| find(self.table_of_kind(group, kind)?))
    }

    /// Returns the kind that objects of a stored resource are written as.
    pub fn stored(&self, resource: &GroupResource) -> Option<Served> {
        let find = |table: &Arc<KindTable>| Some(served(table, table.stored(resource)?));
        find(&self.tables[0]).or_else(|| find(self.table_of(resource)?))
    }

    /// Returns all kinds, also those not served, in the order of discovery.
    pub fn kinds(&self) -> impl Iterator<Item = (&Arc<KindTable>, &Arc<Kind>)> {
        self.tables.iter().flat_map(|table| table.kinds().map(move |kind| (table, kind)))
    }

    /// Returns all kinds that are not built in.
    pub fn own_kinds(&self) -> impl Iterator<Item = (&Arc<KindTable>, &Arc<Kind>)> {
        self.tables.iter().skip(1).flat_map(|table| table.kinds().map(move |kind| (table, kind)))
    }

    fn table_of(&self, resource: &GroupResource) -> Option<&Arc<KindTable>> {
        self.resources.get(resource).map(|at| &self.tables[*at as usize])
    }

    fn table_of_kind(&self, group: &str, kind: &str) -> Option<&Arc<KindTable>> {
        if self.is_builtin() {
            return None;
        }
        self.kinds.get(&(group.into(), kind.into())).map(|at| &self.tables[*at as usize])
    }
}

fn served(table: &Arc<KindTable>, kind: &Arc<Kind>) -> Served {
    Served { table: table.clone(), kind: kind.clone() }
}

/// Source of the kinds that each logical cluster serves.
pub trait Kinds: Send + Sync {
    /// Returns the kinds that `cluster` serves now.
    ///
    /// # Errors
    /// Fails if the definitions cannot be read.
    fn of(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>>;

    /// Returns the definitions that `cluster` has now, also those not served, sorted by name.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    fn definitions(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>>;

    /// Marks that the object at `key` is being written. The surface that depends on it is read again while the guard
    /// lives, and once after. Hold the guard during every write of an object that defines kinds.
    fn changing(&self, key: &ObjectKey) -> Box<dyn Send>;

    /// Returns the uid of the object that a logical cluster shows at `key` while none is stored there; `None` where it
    /// shows none. Code that draws conclusions from missing objects must ask.
    fn uid_unstored(&self, key: &ObjectKey) -> Option<String>;

    /// Returns true where a logical cluster may show an object at `key` that is computed from others when it is read:
    /// that none is stored there proves nothing.
    fn is_computed(&self, key: &ObjectKey) -> bool {
        let _ = key;
        false
    }
}

/// Source for which all logical clusters serve the built-in kinds alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltinKinds;

impl Kinds for BuiltinKinds {
    fn of(&self, _: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>> {
        Box::pin(std::future::ready(Ok(Surface::builtin())))
    }

    fn definitions(&self, _: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn changing(&self, _: &ObjectKey) -> Box<dyn Send> {
        Box::new(())
    }

    fn uid_unstored(&self, _: &ObjectKey) -> Option<String> {
        None
    }
}
