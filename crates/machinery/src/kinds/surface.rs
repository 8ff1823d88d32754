//! What one logical cluster serves: the built-in table, and tables laid over it.

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
    /// What a logical cluster serves that has no kinds of its own.
    pub fn builtin() -> Arc<Self> {
        static BUILTIN: OnceLock<Arc<Surface>> = OnceLock::new();
        BUILTIN.get_or_init(|| Arc::new(Self::over(Vec::new()))).clone()
    }

    /// The built-in kinds and those of `tables`, which are laid over the built-in table. Of two with the same name the first
    /// counts, and the built-in ones count before all.
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

    /// Whether it has none but the built-in kinds.
    pub fn is_builtin(&self) -> bool {
        self.tables.len() == 1
    }

    /// The kind behind a resource name (the plural).
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Served> {
        let builtin = || Some(served(&self.tables[0], self.tables[0].resource(group, version, plural)?));
        let own = || {
            let table = self.table_of(&GroupResource::new(group, plural))?;
            Some(served(table, table.resource(group, version, plural)?))
        };
        builtin().or_else(own)
    }

    /// The kind, if it is a resource.
    pub fn kind(&self, gvk: &GroupVersionKind) -> Option<Served> {
        let builtin = || Some(served(&self.tables[0], self.tables[0].kind(gvk)?));
        let own = || {
            let table = self.table_of_kind(&gvk.group, &gvk.kind)?;
            Some(served(table, table.kind(gvk)?))
        };
        builtin().or_else(own)
    }

    /// The kind in any version, also one that is not served any more.
    pub fn kind_in_any_version(&self, group: &str, kind: &str) -> Option<Served> {
        let find = |table: &Arc<KindTable>| {
            let found = table.kinds().find(|own| *own.gvk.group == *group && *own.gvk.kind == *kind)?;
            Some(served(table, found))
        };
        find(&self.tables[0]).or_else(|| find(self.table_of_kind(group, kind)?))
    }

    /// The kind that objects of a stored resource are written as.
    pub fn stored(&self, resource: &GroupResource) -> Option<Served> {
        let find = |table: &Arc<KindTable>| Some(served(table, table.stored(resource)?));
        find(&self.tables[0]).or_else(|| find(self.table_of(resource)?))
    }

    /// All kinds, also those not served, in the order of discovery.
    pub fn kinds(&self) -> impl Iterator<Item = (&Arc<KindTable>, &Arc<Kind>)> {
        self.tables.iter().flat_map(|table| table.kinds().map(move |kind| (table, kind)))
    }

    /// All kinds that are not built in.
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

/// Tells what each logical cluster serves.
pub trait Kinds: Send + Sync {
    /// What `cluster` serves now.
    ///
    /// # Errors
    /// When it cannot be read.
    fn of(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Arc<Surface>, Status>>;

    /// The definitions that `cluster` has now, also those not served, sorted by name.
    ///
    /// # Errors
    /// When they cannot be read.
    fn definitions(&self, cluster: LogicalClusterId) -> BoxFuture<'_, Result<Vec<Arc<Definition>>, Status>>;

    /// The object at `key` is about to be written, or has been: what follows from it is read again, until the guard is dropped
    /// and once after. To be held over the write of what defines kinds.
    fn changing(&self, key: &ObjectKey) -> Box<dyn Send>;

    /// The uid of the object that a logical cluster shows at `key` while none is stored there; `None` where it shows none. Whoever
    /// concludes from what is not stored must ask.
    fn uid_unstored(&self, key: &ObjectKey) -> Option<String>;

    /// Returns true where a logical cluster may show an object at `key` that is computed from others when it is read: that none is
    /// stored there proves nothing.
    fn is_computed(&self, key: &ObjectKey) -> bool {
        let _ = key;
        false
    }
}

/// Where all logical clusters serve the built-in kinds and no others.
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
