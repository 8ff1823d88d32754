//! Fields that no object of `testdata/bases.jsonl` uses: for them nothing compares our verdicts with the registries'.

use serde_json::Value;

use super::verdicts::{BASES, kind_of};
use portolan_kinds::{FieldKind, Kind, KindTable, TypeId};

/// Kinds that no registry stores, so that `e2e/codegen/kindtable` cannot ask about them.
const NOT_STORED: [&str; 8] = [
    "Binding",
    "ComponentStatus",
    "LocalSubjectAccessReview",
    "SelfSubjectAccessReview",
    "SelfSubjectReview",
    "SelfSubjectRulesReview",
    "SubjectAccessReview",
    "TokenReview",
];

/// Returns the values of a field in several objects; for a list or a map, those of its elements.
fn values_of<'v>(kind: &FieldKind, values: Vec<&'v Value>) -> Vec<&'v Value> {
    match kind {
        FieldKind::List(element) => {
            values_of(element, values.into_iter().filter_map(Value::as_array).flatten().collect())
        }
        FieldKind::Map(element) => {
            values_of(element, values.into_iter().filter_map(Value::as_object).flat_map(|map| map.values()).collect())
        }
        _ => values,
    }
}

/// Lists the fields of a type, and of those below it, that none of its values has.
struct Walk {
    table: &'static KindTable,
    /// The types on the way down: none is entered twice.
    above: Vec<TypeId>,
    unused: Vec<String>,
}

impl Walk {
    fn enter(&mut self, id: TypeId, values: &[&Value], path: &str) {
        if self.above.contains(&id) {
            return;
        }
        self.above.push(id);
        let mut values = values.to_vec();
        self.add_nested(id, &mut values);
        for field in &self.table.get(id).fields {
            let path = format!("{path}.{}", field.name);
            let own: Vec<&Value> = values.iter().filter_map(|value| value.get(&*field.name)).collect();
            if own.is_empty() {
                self.unused.push(path);
            } else if let Some(below) = field.kind.message() {
                self.enter(below, &values_of(&field.kind, own), &path);
            }
        }
        self.above.pop();
    }

    /// Adds the nested values of a type, as in schemas.
    fn add_nested(&self, id: TypeId, values: &mut Vec<&Value>) {
        let mut at = 0;
        while let Some(value) = values.get(at).copied() {
            for field in self.table.get(id).fields.iter().filter(|field| field.kind.message() == Some(id)) {
                values.extend(values_of(&field.kind, value.get(&*field.name).into_iter().collect()));
            }
            at += 1;
        }
    }
}

/// Returns the fields of a kind that no base uses, without its metadata, which all kinds share; nothing where it has no
/// base at all.
fn unused(table: &'static KindTable, kind: &Kind) -> Option<Vec<String>> {
    let bases: Vec<&Value> =
        BASES.iter().filter(|base| kind_of(base).gvk == kind.gvk).map(|base| &base.object).collect();
    if bases.is_empty() {
        return None;
    }
    let mut walk = Walk { table, above: Vec::new(), unused: Vec::new() };
    walk.enter(kind.schema, &bases, "");
    walk.unused.retain(|path| !path.starts_with(".metadata"));
    Some(walk.unused)
}

#[test]
fn every_field_of_a_stored_kind_is_used_by_a_base() {
    let table = KindTable::builtin();
    let (mut without, mut left) = (Vec::new(), Vec::new());
    for kind in table.kinds().filter(|kind| kind.served && kind.is_kubernetes()) {
        match unused(table, kind) {
            None => without.push(&*kind.gvk.kind),
            Some(fields) => left.extend(fields.iter().map(|field| format!("{} {field}", kind.gvk.kind))),
        }
    }
    without.sort_unstable();
    assert_eq!(without, NOT_STORED);
    assert!(left.is_empty(), "{} fields, which the next bases should use: {left:#?}", left.len());
}

#[test]
fn a_field_that_no_base_uses_is_found() {
    let table = KindTable::builtin();
    let kind = table.kind_named("", "v1", "ConfigMap").unwrap();
    let value = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {}});
    let mut walk = Walk { table, above: Vec::new(), unused: Vec::new() };
    walk.enter(kind.schema, &[&value], "");
    walk.unused.retain(|path| !path.starts_with(".metadata"));
    assert_eq!(walk.unused, [".binaryData", ".immutable"]);
}
