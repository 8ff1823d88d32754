//! Validation of a definition's names and of the protected groups.

use portolan_types::{GroupResource, object};

use super::super::{Errors, names, view::At};
use portolan_kinds::custom;

/// Checks that a definition has the name of its resource, so that no two of a logical cluster define the same one.
pub(super) fn definition(new: &At<'_>, errors: &mut Errors) {
    let (metadata, spec) = (new.child("metadata"), new.child("spec"));
    let required = format!("{}.{}", spec.child("names").text("plural"), spec.text("group"));
    if metadata.text("name") != required && !metadata.text("name").is_empty() {
        errors.invalid(metadata.path("name"), metadata.get("name"), "must be spec.names.plural+\".\"+spec.group");
    }
}

pub(super) fn group(spec: &At<'_>, errors: &mut Errors) {
    if !spec.needs("group", errors) {
        return;
    }
    let (path, group) = (spec.path("group"), spec.text("group"));
    let wrong = names::dns_subdomain(group);
    if !wrong.is_empty() {
        errors.invalid(&path, spec.get("group"), &wrong.join(","));
    } else if !group.contains('.') {
        errors.invalid(&path, spec.get("group"), "should be a domain with at least one dot");
    } else if custom::is_own_group(group) {
        errors.forbidden(&path, "the group belongs to the server");
    }
}

/// Refuses the names of built-in resources, which the server serves and stores without a definition.
pub(super) fn not_builtin(new: &At<'_>, errors: &mut Errors) {
    let spec = new.child("spec");
    let names = spec.child("names");
    let resource = GroupResource::new(spec.text("group"), names.text("plural"));
    // The server's own groups have another error.
    if !custom::is_own_group(&resource.group) && custom::is_builtin_resource(&resource) {
        errors.forbidden(names.path("plural"), &format!("{resource} is built into the server"));
    }
}

/// Names of a resource and of its kind.
pub(super) fn names(at: &At<'_>, errors: &mut Errors) {
    for name in ["plural", "singular"] {
        label(&at.child(name), errors);
    }
    for name in ["kind", "listKind"] {
        let text = at.text(name);
        let wrong = names::dns_1035_label(&text.to_lowercase());
        if !text.is_empty() && !wrong.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            errors.invalid(at.path(name), &text.into(), &why);
        }
    }
    at.items("shortNames").for_each(|name| required_label(&name, errors));
    if !at.text("kind").is_empty() && at.text("kind") == at.text("listKind") {
        errors.invalid(at.path("listKind"), at.get("listKind"), "kind and listKind may not be the same");
    }
    at.items("categories").for_each(|name| required_label(&name, errors));
}

fn label(at: &At<'_>, errors: &mut Errors) {
    if !at.as_text().is_empty() {
        required_label(at, errors);
    }
}

fn required_label(at: &At<'_>, errors: &mut Errors) {
    let wrong = names::dns_1035_label(at.as_text());
    if !wrong.is_empty() {
        errors.invalid(&at.path, &at.as_text().into(), &wrong.join(","));
    }
}

/// Groups of the Kubernetes community ask for the approval of who reviews their kinds.
pub(super) fn approval(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    let Some(state) = custom::approval(new.value) else { return };
    let before = old.and_then(|old| custom::approval_in_any_group(old.value));
    if before.is_some_and(|before| before.reason == state.reason) || state.is_given_or_waived() {
        return;
    }
    let path = new.path("metadata").child("annotations").key(custom::APPROVAL);
    match object::annotation(new.value, custom::APPROVAL).filter(|text| !text.is_empty()) {
        None => errors.required(path, &state.message),
        Some(text) => errors.invalid(path, &text.into(), &state.message),
    }
}
