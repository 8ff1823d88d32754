//! Objects of custom resources brought into the form of their structural schema: fields that are not declared go,
//! embedded objects get canonical metadata, defaults are filled in.

mod embedded;

pub use embedded::{coerce_at, coerce_resource};

use serde_json::Value;

use portolan_kinds::custom::{Content, values};

/// Drops undeclared fields, and nulls that are not values. Returns the paths of the undeclared fields.
///
/// # Errors
/// Metadata of an embedded object that does not fit.
pub fn clean(content: &Content, object: &mut Value) -> Result<Vec<String>, String> {
    values::drop_bare_nulls(object, content.schema());
    clean_applied(content, object)
}

/// Drops undeclared fields of the result of an apply. Nulls stay there, and are checked like other values.
///
/// # Errors
/// Fails as [`clean`] does.
pub(crate) fn clean_applied(content: &Content, object: &mut Value) -> Result<Vec<String>, String> {
    values::whole_numbers(object);
    let mut unknown = values::prune(object, content.schema());
    unknown.extend(embedded::coerce(object, content.schema())?);
    Ok(unknown)
}

/// Fits an object of this version to the version that is stored.
pub fn store(content: &Content, object: &mut Value) {
    if let Some(stored) = content.stored() {
        drop(clean(stored, object));
    }
}

/// Fits a stored object to the version that serves it. Defaults that only a later definition asks for are left out
/// where they have no room: they would be refused in a write, and must not keep anybody from reading the object.
pub fn serve(content: &Content, object: &mut Value) {
    // Embedded metadata that does not fit was stored before the definition asked for it.
    drop(clean(content, object));
    content.fill_to_read(object);
}

/// Drops the parts of an object that do not belong to this version.
pub fn prune(content: &Content, object: &mut Value) {
    drop(clean(content, object));
}
