//! Kinds that each logical cluster serves: built-in ones and those of its definitions, loaded on first use.
//!
//! Tables are compiled once per content, and logical clusters with the same definitions share one [`Served`] with its
//! documents. An unused logical cluster has no entry, and one without definitions only its id.

mod bound;
mod catalog;
mod compiled;
mod definition_cache;
mod discovery_documents;
mod documents;
mod openapi_files;
mod viewed;
mod weights;

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use portolan_kinds::{Kind, Surface};
use portolan_types::GroupResource;

use crate::reach;

pub(crate) use catalog::{DefinitionCatalog, DefinitionWriteGuard};
pub(crate) use discovery_documents::DiscoveryDocument;
pub(crate) use openapi_files::{ApiDocuments, OpenApiFiles, build_files, swagger_of};
pub(crate) use viewed::waiting_kind;

/// Surface with the documents that describe it.
pub(crate) struct ServedKinds {
    pub(crate) surface: Arc<Surface>,
    computes_nodes: bool,
    /// Resources that are shown; `None` for all.
    shown: Option<BTreeSet<GroupResource>>,
    /// Kind that alone is shown, other than the surface has it.
    only: Option<Arc<Kind>>,
    /// Alive while in use, see [`documents`].
    documents: Mutex<Weak<ApiDocuments>>,
}

impl ServedKinds {
    fn new(surface: Arc<Surface>, computes_nodes: bool) -> Self {
        Self { surface, computes_nodes, shown: None, only: None, documents: Mutex::default() }
    }

    /// Returns the kinds of these resources alone.
    fn restricted(&self, shown: BTreeSet<GroupResource>) -> Self {
        Self { shown: Some(shown), ..Self::new(self.surface.clone(), self.computes_nodes) }
    }

    /// Returns one kind alone.
    fn of_kind(&self, only: Arc<Kind>) -> Self {
        Self { only: Some(only), ..Self::new(self.surface.clone(), self.computes_nodes) }
    }

    /// Returns its documents, which are built on first use.
    fn documents(&self) -> Arc<ApiDocuments> {
        let mut known = self.documents.lock();
        known.upgrade().unwrap_or_else(|| {
            let made = Arc::<ApiDocuments>::default();
            *known = Arc::downgrade(&made);
            made
        })
    }

    /// Returns the served kinds in discovery order. Groups of definitions have the same, lowest priority in
    /// kube-apiserver and are sorted by name. Clients resolve an ambiguous name to the first.
    pub(crate) fn kinds(&self) -> Vec<Arc<Kind>> {
        if let Some(only) = &self.only {
            return vec![only.clone()];
        }
        let is_shown = |kind: &Kind| self.shown.as_ref().is_none_or(|shown| shown.contains(&kind.group_resource()));
        let served = self.surface.kinds().filter(|(_, kind)| kind.served && is_shown(kind));
        let mut kinds: Vec<_> = served.collect();
        kinds.sort_by_key(|(table, kind)| table.conversion().map(|_| &kind.gvk.group));
        let is_computed = |kind: &Arc<Kind>| self.computes_nodes && reach::is_node(kind);
        let shown = |kind: &Arc<Kind>| if is_computed(kind) { reach::computed_node().clone() } else { kind.clone() };
        kinds.into_iter().map(|(_, kind)| shown(kind)).collect()
    }
}
