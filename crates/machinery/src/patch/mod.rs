//! Patches of objects: JSON patch (RFC 6902), JSON merge patch (RFC 7396) and Kubernetes' strategic merge patch.
//!
//! All of them work on trees whose depth decoding has already bounded. What comes out is not yet canonical: the caller runs
//! the strict decoder and the defaults over it, as over any other object a client sends.

mod echo;
mod json;
mod strategic;

use serde_json::Value;

pub use echo::{Touched, echo, in_go_order};
pub use json::{Misfit, apply_operations, json_patch, read_operations};
pub use strategic::strategic_merge;

/// Applies a JSON merge patch (RFC 7396): objects are merged, `null` removes, everything else replaces.
pub fn merge_patch(doc: &Value, patch: &Value) -> Value {
    let mut merged = doc.clone();
    json_patch::merge(&mut merged, patch);
    merged
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
        #[test]
        fn merging_the_same_patch_again_changes_nothing(doc in tree(), patch in tree()) {
            let once = merge_patch(&doc, &patch);
            prop_assert_eq!(merge_patch(&once, &patch), once);
        }

        #[test]
        fn an_empty_patch_changes_no_object(doc in tree().prop_filter("an object", Value::is_object)) {
            prop_assert_eq!(merge_patch(&doc, &json!({})), doc);
        }
    }
}
