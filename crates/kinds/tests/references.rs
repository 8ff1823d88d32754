//! The table of references names every field of the kind table that can be one.

use std::collections::BTreeSet;

use portolan_kinds::{Field, FieldKind, KindTable, TypeId};
use portolan_types::references::{CLAIM, INGRESS, NO_REFERENCES, POD_SPEC, ReferenceField, SERVICE_ACCOUNT};

/// Deepest path that is walked.
const MAX_DEPTH: usize = 16;

/// Returns true for a field whose name or type is that of a reference to another object.
fn looks_like_a_reference(table: &KindTable, field: &Field) -> bool {
    let name = field.name.to_lowercase();
    let is_named = ["secret", "configmap", "serviceaccount", "claim"].iter().any(|part| name.contains(part));
    let of_type = field.kind.message().map(|id| table.get(id).name.to_string()).unwrap_or_default();
    is_named || of_type.ends_with("Reference") || name.ends_with("ref") || name == "reference"
}

fn walk(table: &KindTable, of: TypeId, path: &str, seen: &mut Vec<TypeId>, found: &mut BTreeSet<String>) {
    if seen.contains(&of) || seen.len() > MAX_DEPTH {
        return;
    }
    seen.push(of);
    for field in table.get(of).fields.iter().filter(|field| &*field.name != "metadata" && &*field.name != "status") {
        let list = if matches!(field.kind, FieldKind::List(_)) { "[]" } else { "" };
        let own = format!("{path}{}{}{list}", if path.is_empty() { "" } else { "." }, field.name);
        if looks_like_a_reference(table, field) {
            found.insert(own.clone());
        }
        if let Some(id) = field.kind.message() {
            walk(table, id, &own, seen, found);
        }
    }
    seen.pop();
}

/// Returns true when the table has the field, something in it, or the reference that it is a part of.
fn is_listed(path: &str, fields: &[ReferenceField]) -> bool {
    let is_within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    fields.iter().any(|field| is_within(field.path, path) || is_within(path, field.path))
}

#[test]
fn every_field_that_can_name_another_object_is_listed_or_has_a_reason_why_not() {
    let table = KindTable::builtin();
    let mut unlisted = Vec::new();
    let mut unused: BTreeSet<&str> = NO_REFERENCES.iter().map(|(path, _)| *path).collect();
    for (type_name, fields) in [
        ("io.k8s.api.core.v1.PodSpec", &POD_SPEC[..]),
        ("io.k8s.api.core.v1.PersistentVolumeClaim", &CLAIM[..]),
        ("io.k8s.api.networking.v1.Ingress", &INGRESS[..]),
        ("io.k8s.api.core.v1.ServiceAccount", &SERVICE_ACCOUNT[..]),
    ] {
        let of = table.type_named(type_name).unwrap_or_else(|| panic!("{type_name} is in the table"));
        let mut found = BTreeSet::new();
        walk(table, of, "", &mut Vec::new(), &mut found);
        assert!(found.len() > 1, "{type_name} has references");
        for path in found {
            let ends = |end: &str| path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            let reason = NO_REFERENCES.iter().find(|(end, _)| ends(end));
            if let Some((end, _)) = reason {
                unused.remove(end);
            }
            if reason.is_none() && !is_listed(&path, fields) {
                unlisted.push(format!("{type_name}: {path}"));
            }
        }
    }
    assert!(unlisted.is_empty(), "neither listed nor excluded:\n{}", unlisted.join("\n"));
    assert!(unused.is_empty(), "excluded, and not there: {unused:?}");
    assert!(NO_REFERENCES.iter().all(|(_, reason)| !reason.is_empty()));
}
