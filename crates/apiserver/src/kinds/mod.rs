//! What each logical cluster serves: the built-in kinds and those that its own definitions add, loaded when first asked for.
//!
//! Tables are compiled once per content, and logical clusters with the same definitions share one [`Served`] with all that is
//! made of it. Of a logical cluster that nobody asks for nothing is kept, of one without definitions no more than its id.

mod catalog;
mod compiled;
mod known;
mod weights;

use std::sync::Arc;

use portolan_machinery::kinds::{Kind, Surface};

use crate::handlers::{ApiDocuments, DiscoveryDocuments};

pub(crate) use catalog::{Catalog, Changing};

/// A surface with the documents that describe it.
pub(crate) struct ServedKinds {
    pub(crate) surface: Arc<Surface>,
    pub(crate) discovery: DiscoveryDocuments,
    pub(crate) documents: ApiDocuments,
}

impl ServedKinds {
    fn new(surface: Arc<Surface>) -> Self {
        Self { surface, discovery: DiscoveryDocuments::default(), documents: ApiDocuments::default() }
    }

    /// The kinds that are served, in the order of discovery.
    pub(crate) fn kinds(&self) -> Vec<Arc<Kind>> {
        self.surface.kinds().map(|(_, kind)| kind).filter(|kind| kind.served).cloned().collect()
    }
}
