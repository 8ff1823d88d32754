//! Portolan's own kinds of `portolan.dev/v1alpha1`, and the record of a placement on the object itself.

mod kinds;
mod record;

pub use kinds::*;
pub use record::*;

/// Group of Portolan's own kinds.
pub const GROUP: &str = "portolan.dev";
/// Version of Portolan's own kinds.
pub const VERSION: &str = "v1alpha1";
