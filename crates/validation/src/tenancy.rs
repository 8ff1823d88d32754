//! Types of workspaces.

use portolan_types::LogicalClusterPath;

use super::{Errors, names, view::At};

/// Limit of the entries of each list of a type.
const MAX_ENTRIES: usize = 32;
/// Limit of the configurations of authentication: each request with an unknown token reads all.
const MAX_CONFIGURATIONS: usize = 16;
/// Names of no type.
const RESERVED: [&str; 2] = ["any", "system"];

/// Checks a WorkspaceType.
pub(super) fn workspace_type(object: &At<'_>, errors: &mut Errors) {
    let name = object.child("metadata");
    if RESERVED.contains(&name.text("name")) {
        errors.invalid(name.path("name"), name.get("name"), "is a reserved name");
    }
    let spec = object.child("spec");
    authentication_configurations(&spec, errors);
    default_bindings(&spec, errors);
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

fn authentication_configurations(spec: &At<'_>, errors: &mut Errors) {
    let field = "authenticationConfigurations";
    if spec.count(field) > MAX_CONFIGURATIONS {
        errors.invalid(
            spec.path(field),
            &spec.count(field).into(),
            &format!("has at most {MAX_CONFIGURATIONS} entries"),
        );
        return;
    }
    for entry in spec.items(field) {
        entry.needs("name", errors);
        if entry.has("name") {
            entry.follows("name", names::dns_subdomain, errors);
        }
    }
}

fn default_bindings(spec: &At<'_>, errors: &mut Errors) {
    let field = "defaultAPIBindings";
    if spec.count(field) > MAX_ENTRIES {
        errors.invalid(spec.path(field), &spec.count(field).into(), &format!("has at most {MAX_ENTRIES} entries"));
        return;
    }
    for entry in spec.items(field) {
        entry.needs("export", errors);
        if entry.has("export") {
            entry.follows("export", names::dns_subdomain, errors);
        }
        let path = entry.text("path");
        if !path.is_empty() && path.parse::<LogicalClusterPath>().is_err() {
            errors.invalid(entry.path("path"), entry.get("path"), "must be the path of a workspace");
        }
    }
    if spec.text("defaultAPIBindingLifecycle") == "Maintain" {
        let field = "defaultAPIBindingLifecycle";
        errors.invalid(spec.path(field), spec.get(field), "Maintain is not supported yet");
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
