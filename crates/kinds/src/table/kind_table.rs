//! The finished table and its lookups.

use std::sync::{Arc, OnceLock};

use portolan_types::{GroupResource, GroupVersionKind};

use super::{Kind, TableBuilder, Type, TypeId};
use crate::custom::Conversion;

/// All types and kinds of one API surface. Immutable; shared by all who serve that surface.
#[derive(Debug)]
pub struct KindTable {
    /// The table below. Ids smaller than its length are its own.
    pub(super) base: Option<&'static KindTable>,
    pub(super) version: Arc<str>,
    pub(super) types: Box<[Type]>,
    /// Indices of `types`, sorted by name.
    pub(super) by_name: Box<[TypeId]>,
    /// Own kinds in the order of discovery.
    pub(super) kinds: Box<[Arc<Kind>]>,
    /// Indices of `kinds`, sorted by group, version, kind.
    pub(super) by_kind: Box<[u32]>,
    /// Indices of `kinds`, sorted by [`resource_order`].
    pub(super) by_resource: Box<[u32]>,
    /// Kinds that are not resources (lists, options, reviews), sorted.
    pub(super) objects: Box<[(GroupVersionKind, TypeId)]>,
    /// Conversion between versions, if the kinds are those of a definition.
    pub(super) conversion: Option<Conversion>,
}

/// Returns the position of a kind among resources. The length of the plural decides first: each request looks up its
/// resource several times, and most comparisons are then of numbers.
pub(super) fn resource_order(kind: &Kind) -> (usize, &str, &str, &str) {
    (kind.resource.len(), &kind.resource, &kind.gvk.group, &kind.gvk.version)
}

const KUBERNETES: &str = include_str!("../../data/kinds.json");
const PORTOLAN: &str = include_str!("../../data/portolan.json");
const APIS: &str = include_str!("../../data/apis.json");
const TENANCY: &str = include_str!("../../data/tenancy.json");

/// The kinds of `meta.k8s.io` itself, which clients send under the group version of whatever they are about.
const OPTIONS: [&str; 6] =
    ["CreateOptions", "DeleteOptions", "GetOptions", "ListOptions", "PatchOptions", "UpdateOptions"];

impl KindTable {
    /// Returns the table of a definition whose versions are converted by `conversion`.
    pub(crate) fn of_definition(self, conversion: Conversion) -> Self {
        Self { conversion: Some(conversion), ..self }
    }

    /// Returns the conversion between versions; `None` for built-in kinds.
    pub fn conversion(&self) -> Option<&Conversion> {
        self.conversion.as_ref()
    }

    /// Returns Kubernetes' and Portolan's own kinds. The first call builds the table.
    pub fn builtin() -> &'static KindTable {
        Self::shared_builtin()
    }

    /// Returns the same table, to be kept beside others.
    pub fn shared() -> Arc<KindTable> {
        Self::shared_builtin().clone()
    }

    fn shared_builtin() -> &'static Arc<KindTable> {
        static BUILTIN: OnceLock<Arc<KindTable>> = OnceLock::new();
        BUILTIN.get_or_init(|| {
            let mut builder = TableBuilder::new();
            builder.add_file(KUBERNETES).expect("a test builds the table from this data");
            builder.add_file(PORTOLAN).expect("a test builds the table from this data");
            builder.add_file(APIS).expect("a test builds the table from this data");
            builder.add_file(TENANCY).expect("a test builds the table from this data");
            Arc::new(builder.finish())
        })
    }

    /// Returns the version of Kubernetes the built-in types were read from, such as `v1.36.3`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the kind, if it is a resource.
    pub fn kind(&self, gvk: &GroupVersionKind) -> Option<&Arc<Kind>> {
        self.kind_named(&gvk.group, &gvk.version, &gvk.kind)
    }

    /// Returns a kind like [`KindTable::kind`], by its parts.
    pub fn kind_named(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let wanted = (group, version, kind);
        let at = self.by_kind.binary_search_by(|at| {
            let own = &self.kinds[*at as usize].gvk;
            (&*own.group, &*own.version, &*own.kind).cmp(&wanted)
        });
        let own = at.ok().map(|at| &self.kinds[self.by_kind[at] as usize]);
        own.or_else(|| self.base?.kind_named(group, version, kind))
    }

    /// Returns the kind behind a resource name (the plural).
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let wanted = (plural.len(), plural, group, version);
        let at = self.by_resource.binary_search_by(|at| resource_order(&self.kinds[*at as usize]).cmp(&wanted));
        let own = at.ok().map(|at| &self.kinds[self.by_resource[at] as usize]);
        own.or_else(|| self.base?.resource(group, version, plural))
    }

    /// Returns the kinds of this table without those below it, in the order of discovery, also those not served.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.iter()
    }

    /// Returns the table's own kind that objects of a stored resource are written as.
    pub fn stored(&self, resource: &GroupResource) -> Option<&Arc<Kind>> {
        self.kinds.iter().find(|kind| {
            *kind.gvk.group == *resource.group
                && *kind.resource == *resource.resource
                && *kind.storage.resource == *resource.resource
                && *kind.storage.group == *resource.group
                && kind.storage.version == kind.gvk.version
        })
    }

    /// Returns the type of anything that can be a body: resources, lists, reviews, options (these under any group and
    /// version).
    pub fn object_type(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        if let Some(kind) = self.kind_named(group, version, kind) {
            return Some(kind.schema);
        }
        self.object((group, version, kind))
            .or_else(|| OPTIONS.contains(&kind).then(|| self.object(("meta.k8s.io", "v1", kind))).flatten())
    }

    fn object(&self, wanted: (&str, &str, &str)) -> Option<TypeId> {
        let at = self.objects.binary_search_by(|(own, _)| (&*own.group, &*own.version, &*own.kind).cmp(&wanted));
        at.ok().map(|at| self.objects[at].1).or_else(|| self.base?.object(wanted))
    }

    /// Returns the table's own kinds that are not resources, with their types: lists, options, reviews and others.
    pub fn objects(&self) -> impl Iterator<Item = (&GroupVersionKind, TypeId)> {
        self.objects.iter().map(|(gvk, id)| (gvk, *id))
    }

    /// Returns the type with this OpenAPI definition name.
    pub fn type_named(&self, name: &str) -> Option<TypeId> {
        let own = self.by_name.binary_search_by(|id| (*self.get(*id).name).cmp(name)).ok().map(|at| self.by_name[at]);
        own.or_else(|| self.base?.type_named(name))
    }

    /// Returns the type with this id.
    ///
    /// # Panics
    /// Panics if the id comes from a table that is neither this one nor below it.
    pub fn get(&self, id: TypeId) -> &Type {
        match self.base {
            Some(base) if (id.0 as usize) < base.type_count() => base.get(id),
            base => &self.types[id.0 as usize - base.map_or(0, KindTable::type_count)],
        }
    }

    /// Returns all types with their ids, those of the table below first.
    pub fn types(&self) -> impl Iterator<Item = (TypeId, &Type)> {
        (0..self.type_count() as u32).map(|id| (TypeId(id), self.get(TypeId(id))))
    }

    pub(super) fn type_count(&self) -> usize {
        self.base.map_or(0, KindTable::type_count) + self.types.len()
    }
}
