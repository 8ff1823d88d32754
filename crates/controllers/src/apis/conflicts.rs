//! Conflicts of names between the bindings and definitions of a logical cluster: the first user of a name keeps it.

use std::{collections::BTreeSet, sync::Arc};

use portolan_kinds::custom::Definition;
use portolan_types::{GroupResource, apis, object};
use serde_json::Value;

/// Returns why a binding cannot serve the definitions in `wanted`, given all definitions of its logical cluster.
pub(super) fn conflict(binding: &Value, wanted: &[Arc<Definition>], present: &[Arc<Definition>]) -> Option<String> {
    // Definitions that the binding serves already are replaced. Those that have left the export stay, and keep their
    // names.
    let is_wanted = |resource: &GroupResource| wanted.iter().any(|wanted| wanted.resource == *resource);
    let own = apis::bound_resources(binding).map(|(resource, _)| resource).filter(is_wanted);
    let own: BTreeSet<GroupResource> = own.collect();
    let others = present.iter().filter(|other| !(other.is_bound && own.contains(&other.resource)));
    let others: Vec<_> = others.filter(|other| other.is_bound || other.is_established).collect();
    wanted.iter().find_map(|wanted| {
        let other = others.iter().find(|other| is_conflict(wanted, other))?;
        let by = if other.is_bound { "another APIBinding" } else { "a CustomResourceDefinition" };
        Some(format!(
            "naming conflict of {} in APIBinding {:?}: {} of {by} has one of its names",
            wanted.resource,
            object::name(binding),
            other.resource,
        ))
    })
}

fn is_conflict(one: &Definition, other: &Definition) -> bool {
    let names = |of: &Definition| {
        let short = of.claimed.short_names.iter();
        [&of.claimed.plural, &of.claimed.singular].into_iter().chain(short).cloned().collect::<BTreeSet<_>>()
    };
    let kinds = |of: &Definition| BTreeSet::from([of.claimed.kind.clone(), of.claimed.list_kind.clone()]);
    one.resource.group == other.resource.group
        && !(names(one).is_disjoint(&names(other)) && kinds(one).is_disjoint(&kinds(other)))
}

#[cfg(test)]
mod tests {
    use portolan_kinds::custom::definition_of_schema;
    use serde_json::json;

    use super::*;

    fn definition(plural: &str, kind: &str, is_bound: bool) -> Arc<Definition> {
        let schema = json!({"spec": {
            "group": "example.dev", "scope": "Cluster", "names": {"plural": plural, "kind": kind}, "versions": [],
        }});
        Arc::new(Definition { is_bound, ..Definition::read(&definition_of_schema(&schema), || None) })
    }

    #[test]
    fn the_first_definition_keeps_the_name() {
        let unbound = json!({"metadata": {"name": "b"}});
        let bound = json!({"metadata": {"name": "b"}, "status": {"boundResources": [{
            "group": "example.dev", "resource": "widgets",
        }]}});
        let left = json!({"metadata": {"name": "b"}, "status": {"boundResources": [{
            "group": "example.dev", "resource": "others",
        }]}});
        let widgets = || definition("widgets", "Widget", true);
        for (what, binding, present, expected) in [
            ("nothing is there", &unbound, vec![], false),
            ("its own resource", &bound, vec![widgets()], false),
            ("another binding's resource", &unbound, vec![widgets()], true),
            ("its own resource that left the export", &left, vec![definition("others", "Widget", true)], true),
            ("a definition", &unbound, vec![definition("widgets", "Widget", false)], true),
            ("a definition of its kind", &bound, vec![definition("others", "Widget", false)], true),
            ("a definition with other names", &unbound, vec![definition("others", "Other", false)], false),
        ] {
            assert_eq!(conflict(binding, &[widgets()], &present).is_some(), expected, "{what}");
        }
    }
}
