//! Patches of objects: JSON patch (RFC 6902), JSON merge patch (RFC 7396) and Kubernetes' strategic merge patch.
//!
//! All of them work on trees whose depth decoding has already bounded. The result is not canonical: the caller runs the
//! strict decoder and the defaults over it, like over any other object a client sends.

mod echo;
mod json;
mod strategic;

use portolan_types::object::Object;
use serde_json::Value;

pub use echo::{Touched, echo, in_go_order};
pub use json::{json_patch, read_operations};
pub use portolan_types::json_patch::{PatchFailure, apply_operations};
pub use strategic::{left_of_patch, strategic_merge};

/// Applies a JSON merge patch (RFC 7396): objects are merged, `null` removes, everything else replaces.
///
/// As in kube-apiserver's library, a value that replaces no object loses the nulls in its objects, also in those of its
/// lists.
pub fn merge_patch(doc: &Value, patch: &Value) -> Value {
    merged(doc.clone(), patch)
}

fn merged(own: Value, patch: &Value) -> Value {
    match (own, patch) {
        (Value::Object(own), Value::Object(patch)) => Value::Object(merge_fields(own, patch)),
        // A value that replaces an object stays unchanged.
        (Value::Object(_), patch) => patch.clone(),
        (_, patch) => without_nulls(patch),
    }
}

fn merge_fields(mut own: Object, patch: &Object) -> Object {
    for (name, value) in patch {
        match value {
            Value::Null => drop(own.remove(name)),
            value => {
                let before = own.get_mut(name).map(Value::take).unwrap_or_default();
                own.insert(name.clone(), merged(before, value));
            }
        }
    }
    own
}

/// Returns a value without nulls in objects; nulls in lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn merge_patch_follows_the_examples_of_the_rfc() {
        for (doc, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            assert_eq!(merge_patch(&doc, &patch), expected, "{doc} with {patch}");
        }
    }

    #[test]
    fn objects_in_lists_have_no_nulls_where_no_object_was() {
        for (doc, patch, expected) in [
            (json!({"a": [1]}), json!({"a": [{"b": null, "c": 1}, null]}), json!({"a": [{"c": 1}, null]})),
            (json!({}), json!({"a": [[{"b": null}], [null]]}), json!({"a": [[{}], [null]]})),
            (json!({"a": null}), json!({"a": {"b": null, "c": [{"d": null}]}}), json!({"a": {"c": [{}]}})),
            (json!({"a": {"b": 1}}), json!({"a": [{"b": null}]}), json!({"a": [{"b": null}]})),
        ] {
            assert_eq!(merge_patch(&doc, &patch), expected, "{doc} with {patch}");
        }
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..9).prop_map(Value::from)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[abc]", inner, 0..4).prop_map(|m| m.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// The first time an object may have made way for a list with nulls.
        #[test]
        fn merging_the_same_patch_a_third_time_changes_nothing(doc in tree(), patch in tree()) {
            let twice = merge_patch(&merge_patch(&doc, &patch), &patch);
            prop_assert_eq!(merge_patch(&twice, &patch), twice);
        }

        #[test]
        fn an_empty_patch_changes_no_object(doc in tree().prop_filter("an object", Value::is_object)) {
            prop_assert_eq!(merge_patch(&doc, &json!({})), doc);
        }
    }
}
