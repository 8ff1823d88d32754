//! Portolan's own kinds of `portolan.dev/v1alpha1`, and the record of a placement on the object itself.

mod access;
mod custom_kinds;
mod drain;
mod kinds;
mod moves;
mod ordinals;
mod plan;
mod pod_access;
mod record;

pub use access::*;
pub use custom_kinds::*;
pub use drain::*;
pub use kinds::*;
pub use moves::*;
pub use ordinals::*;
pub use plan::*;
pub use pod_access::*;
pub use record::*;

/// Group of Portolan's own kinds.
pub const GROUP: &str = "portolan.dev";
/// Version of Portolan's own kinds.
pub const VERSION: &str = "v1alpha1";
