//! The group apiextensions.k8s.io: what a definition is called and for what. Its schemas are not looked at yet.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    Errors, names,
    rules::{
        Rules,
        Step::{Given, Metadata, MetadataChange},
    },
    view::At,
};

pub(super) static RULES: &[(&str, Rules)] = &[(
    "CustomResourceDefinition",
    Rules {
        create: &[Metadata, Given(|_, new, errors| definition(new, errors))],
        update: &[Metadata, Given(changed), MetadataChange],
        subresources: &[("status", &[Metadata, MetadataChange])],
    },
)];

/// Groups whose objects are this server's own.
const OWN_GROUPS: [&str; 2] = ["portolan.dev", "kcp.io"];

fn definition(new: &At<'_>, errors: &mut Errors) {
    let spec = new.child("spec");
    named(new, &spec, errors);
    group(&spec, errors);
    spec.one_of("scope", &["Cluster", "Namespaced"], errors);
    versions(&spec, errors);
    let names = spec.child("names");
    for name in ["plural", "kind"] {
        if names.needs(name, errors) {
            let text = names.text(name);
            errors.invalid_each(names.path(name), names.get(name), names::dns_1035_label(&text.to_ascii_lowercase()));
        }
    }
}

fn changed(old: Option<&At<'_>>, new: &At<'_>, errors: &mut Errors) {
    definition(new, errors);
    let Some(old) = old else { return };
    let (before, spec) = (old.child("spec"), new.child("spec"));
    let established = |condition: At<'_>| condition.text("type") == "Established" && condition.text("status") == "True";
    if old.child("status").items("conditions").any(established) {
        spec.immutable(&before, "scope", errors);
        spec.child("names").immutable(&before.child("names"), "kind", errors);
    }
    spec.immutable(&before, "group", errors);
    spec.child("names").immutable(&before.child("names"), "plural", errors);
}

/// It has the name of its resource, so that no two of a logical cluster define the same.
fn named(new: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    let metadata = new.child("metadata");
    let required = format!("{}.{}", spec.child("names").text("plural"), spec.text("group"));
    if metadata.text("name") != required {
        errors.invalid(metadata.path("name"), metadata.get("name"), "must be spec.names.plural+\".\"+spec.group");
    }
}

fn group(spec: &At<'_>, errors: &mut Errors) {
    if !spec.needs("group", errors) {
        return;
    }
    let (path, group) = (spec.path("group"), spec.text("group"));
    let wrong = names::dns_subdomain(group);
    if !wrong.is_empty() {
        errors.invalid_each(&path, spec.get("group"), wrong);
    } else if !group.contains('.') {
        errors.invalid(&path, spec.get("group"), "should be a domain with at least one dot");
    } else if OWN_GROUPS
        .iter()
        .any(|own| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    {
        errors.forbidden(&path, "the group belongs to the server");
    }
}

fn versions(spec: &At<'_>, errors: &mut Errors) {
    let path = spec.path("versions");
    let mut taken = HashSet::new();
    let mut doubled = false;
    for version in spec.items("versions") {
        errors.invalid_each(version.path("name"), version.get("name"), names::dns_1035_label(version.text("name")));
        doubled |= !taken.insert(version.text("name"));
    }
    if doubled {
        errors.invalid(&path, spec.get("versions"), "must contain unique version names");
    }
    let stored = spec.items("versions").filter(|version| version.get("storage") == &Value::Bool(true)).count();
    if stored != 1 {
        errors.invalid(&path, spec.get("versions"), "must have exactly one version marked as storage version");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn causes(old: Option<&Value>, new: &Value) -> Vec<String> {
        let mut errors = Errors::default();
        match old {
            None => definition(&At::root(new), &mut errors),
            Some(old) => changed(Some(&At::root(old)), &At::root(new), &mut errors),
        }
        errors.into_causes().into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    fn boats() -> Value {
        json!({"metadata": {"name": "boats.example.dev"}, "spec": {"group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat"}, "versions": [{"name": "v1", "storage": true}]}})
    }

    #[test]
    fn a_definition_is_named_after_what_it_defines_and_stays_so() {
        assert_eq!(causes(None, &boats()), Vec::<String>::new());
        let with = |pointer: &str, value: Value| {
            let mut definition = boats();
            *definition.pointer_mut(pointer).unwrap() = value;
            definition
        };
        for (case, definition, expected) in [
            ("another name", with("/metadata/name", json!("ships.example.dev")), "metadata.name"),
            ("no domain", with("/spec/group", json!("dev")), "should be a domain with at least one dot"),
            ("the server's records", with("/spec/group", json!("internal.portolan.dev")), "belongs to the server"),
            (
                "two versions of a name",
                with("/spec/versions", json!([{"name": "v1", "storage": true}, {"name": "v1"}])),
                "unique",
            ),
            ("none is stored", with("/spec/versions/0/storage", json!(false)), "exactly one version marked"),
            ("another scope", with("/spec/scope", json!("World")), "supported values: \"Cluster\", \"Namespaced\""),
        ] {
            let told = causes(None, &definition);
            assert!(told.iter().any(|cause| cause.contains(expected)), "{case}: {told:?}");
        }
        for (field, value) in [("/spec/group", "example.org"), ("/spec/names/plural", "ships")] {
            let told = causes(Some(&boats()), &with(field, json!(value)));
            assert!(told.iter().any(|cause| cause.contains("field is immutable")), "{field}: {told:?}");
        }
    }
}
