//! What each logical cluster serves: the built-in kinds and those that its own definitions add, loaded when first asked for.
//!
//! Tables are compiled once per content, and logical clusters with the same definitions share one [`Served`] with all that is
//! made of it. Of a logical cluster that nobody asks for nothing is kept, of one without definitions no more than its id.

mod catalog;
mod compiled;
mod documents;
mod known;
mod weights;

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use portolan_machinery::kinds::{Kind, Surface};

use crate::{handlers::ApiDocuments, reach};

pub(crate) use catalog::{Catalog, Changing, Standing};

/// A surface with the documents that describe it.
pub(crate) struct ServedKinds {
    pub(crate) surface: Arc<Surface>,
    computes_nodes: bool,
    /// For as long as somebody uses them, see [`documents`].
    documents: Mutex<Weak<ApiDocuments>>,
}

impl ServedKinds {
    fn new(surface: Arc<Surface>, computes_nodes: bool) -> Self {
        Self { surface, computes_nodes, documents: Mutex::default() }
    }

    /// The documents that describe it, made when they are first asked for.
    fn documents(&self) -> Arc<ApiDocuments> {
        let mut known = self.documents.lock();
        known.upgrade().unwrap_or_else(|| {
            let made = Arc::<ApiDocuments>::default();
            *known = Arc::downgrade(&made);
            made
        })
    }

    /// The kinds that are served, in the order of discovery: groups that definitions add have the same priority upstream, less than
    /// all others, and are sorted by name. Clients take an ambiguous name for what comes first.
    pub(crate) fn kinds(&self) -> Vec<Arc<Kind>> {
        let mut kinds: Vec<_> = self.surface.kinds().filter(|(_, kind)| kind.served).collect();
        kinds.sort_by_key(|(table, kind)| table.conversion().map(|_| &kind.gvk.group));
        let is_computed = |kind: &Arc<Kind>| self.computes_nodes && reach::is_node(kind);
        let shown = |kind: &Arc<Kind>| if is_computed(kind) { reach::computed_node().clone() } else { kind.clone() };
        kinds.into_iter().map(|(_, kind)| shown(kind)).collect()
    }
}
