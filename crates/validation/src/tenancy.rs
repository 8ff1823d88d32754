//! Types of workspaces.

use super::{Errors, names, view::At};

/// Limit of the entries of each list of a type.
const MAX_ENTRIES: usize = 32;
/// Names of no type.
const RESERVED: [&str; 2] = ["any", "system"];

/// Checks a WorkspaceType.
pub(super) fn workspace_type(object: &At<'_>, errors: &mut Errors) {
    let name = object.child("metadata");
    if RESERVED.contains(&name.text("name")) {
        errors.invalid(name.path("name"), name.get("name"), "is a reserved name");
    }
    let spec = object.child("spec");
    // Accepting them would make workspaces Ready that nothing has initialized.
    for field in ["initializer", "terminator"].into_iter().filter(|field| spec.flag(field)) {
        errors.invalid(spec.path(field), spec.get(field), "initializers and terminators are not supported yet");
    }
    for field in ["defaultAPIBindings", "authenticationConfigurations"] {
        if spec.count(field) > 0 {
            errors.invalid(spec.path(field), spec.get(field), "is not supported yet");
        }
    }
    if spec.has("defaultChildWorkspaceType") {
        reference(&spec.child("defaultChildWorkspaceType"), errors);
    }
    references(&spec.child("extend"), "with", errors);
    for field in ["limitAllowedChildren", "limitAllowedParents"] {
        let limit = spec.child(field);
        references(&limit, "types", errors);
        if limit.flag("none") && limit.count("types") > 0 {
            errors.invalid(limit.path("none"), limit.get("none"), "cannot be used with types");
        }
    }
}

fn references(of: &At<'_>, field: &str, errors: &mut Errors) {
    if of.count(field) > MAX_ENTRIES {
        errors.invalid(of.path(field), &of.count(field).into(), &format!("has at most {MAX_ENTRIES} entries"));
        return;
    }
    for entry in of.items(field) {
        reference(&entry, errors);
    }
}

fn reference(reference: &At<'_>, errors: &mut Errors) {
    reference.needs("name", errors);
    if reference.has("name") {
        reference.follows("name", names::dns_label, errors);
    }
}
