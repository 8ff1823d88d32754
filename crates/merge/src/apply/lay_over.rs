//! Laying a configuration over an object without any record of owners, as mutating admission policies do.

use serde_json::Value;

use super::{merge, shape::OwnershipShape, validate};
use portolan_kinds::{KindTable, TypeId};

/// Returns `object` with the values of `configuration`.
///
/// # Errors
/// Fails if the configuration does not fit the type, or changes a part of an atomic value. Texts are kube-apiserver's.
pub fn lay_over(table: &KindTable, schema: TypeId, object: &Value, configuration: &Value) -> Result<Value, String> {
    let shape = OwnershipShape::of_type(table, schema);
    if let Some(wrong) = validate::complaints(shape, configuration) {
        return Err(format!("failed to convert patch object to typed object: {wrong}"));
    }
    let mut atomic = Vec::new();
    whole(shape, configuration, &mut String::new(), &mut atomic);
    if atomic.is_empty() {
        Ok(merge::merge(shape, object, configuration))
    } else {
        Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}", atomic.join(", ")))
    }
}

/// Paths of lists and objects that are owned as a whole.
fn whole(shape: OwnershipShape<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match (shape, value) {
        (OwnershipShape::Whole | OwnershipShape::Atomic(_), Value::Object(_) | Value::Array(_))
        | (OwnershipShape::Free, Value::Array(_)) => found.push(path.clone()),
        (OwnershipShape::Fields(..), Value::Object(fields)) => {
            for (name, value) in fields.iter().filter(|(name, _)| shape.field(name).is_some()) {
                path.push('.');
                path.push_str(name);
                whole(shape.child(name), value, path, found);
                path.truncate(length);
            }
        }
        (OwnershipShape::Keyed(..), Value::Array(elements)) => {
            for (at, element) in elements.iter().enumerate() {
                path.push_str(&format!("[{at}]"));
                whole(shape.element(), element, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_configuration_is_merged_and_changes_no_part_of_an_atomic_value() {
        let table = KindTable::builtin();
        let schema = table.kind_named("", "v1", "Pod").expect("a kind").schema;
        let pod = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}});
        let more = json!({"metadata": {"labels": {"b": "2"}}, "spec": {"containers": [{"name": "a", "image": "y"}, {"name": "b"}]}});
        let merged = lay_over(table, schema, &pod, &more).expect("it fits");
        let expected = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"containers": [{"name": "a", "image": "y"}, {"name": "b"}]}});
        assert_eq!(merged, expected);
        for (case, configuration, expected) in [
            (
                "a list",
                json!({"spec": {"containers": [{"name": "a", "args": ["x"]}]}}),
                "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.containers[0].args",
            ),
            (
                "an unknown field",
                json!({"spec": {"none": 1}}),
                "failed to convert patch object to typed object: .spec.none: field not declared in schema",
            ),
        ] {
            assert_eq!(lay_over(table, schema, &pod, &configuration), Err(expected.to_owned()), "{case}");
        }
    }
}
