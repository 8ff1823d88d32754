//! Names of who writes, and the owners of fields in metadata (apimachinery `ValidateManagedFields`).

use portolan_types::{StatusCause, quoted::go_prints};

use super::{Errors, FieldError, Path, view::At};

/// Longest name of who writes, in bytes.
pub const MAX_MANAGER: usize = 128;
/// Longest name of a subresource, in bytes.
const MAX_SUBRESOURCE: usize = 256;
/// Maximum of checked bytes in a name that is too long: each unprintable character is reported together with all of
/// them.
const MAX_SHOWN: usize = 2 * MAX_MANAGER;

/// Validates the field manager in the options of a write.
pub fn field_manager(name: &str) -> Vec<StatusCause> {
    let mut errors = Errors::default();
    manager(&Path::new("fieldManager"), name, &mut errors);
    errors.into_causes()
}

fn manager(path: &Path, name: &str, errors: &mut Errors) {
    if name.len() > MAX_MANAGER {
        errors.push(FieldError::too_long(path, MAX_MANAGER));
    }
    let shown = &name[..name.floor_char_boundary(MAX_SHOWN)];
    for (at, odd) in shown.char_indices().filter(|(_, character)| !go_prints(*character)) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(odd));
        errors.invalid(path, &shown.into(), &why);
    }
}

/// Checks the owners in metadata.
pub(super) fn validate(metadata: &At<'_>, errors: &mut Errors) {
    for entry in metadata.items("managedFields") {
        let operation = entry.text("operation");
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(entry.path("operation"), &operation.into(), "must be `Apply` or `Update`");
        }
        if !matches!(entry.text("fieldsType"), "" | "FieldsV1") {
            errors.invalid(entry.path("fieldsType"), &entry.text("fieldsType").into(), "must be `FieldsV1`");
        }
        manager(&entry.path("manager"), entry.text("manager"), errors);
        if entry.text("subresource").len() > MAX_SUBRESOURCE {
            errors.push(FieldError::too_long(entry.path("subresource"), MAX_SUBRESOURCE));
        }
    }
}
