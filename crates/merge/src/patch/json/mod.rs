//! JSON patch with the rules of kube-apiserver's library, and bounds that keep a small request from growing into a
//! large object.
//!
//! It differs from RFC 6902: a missing value is `null`, and `null` counts as missing; `replace` may add a field to an
//! object; indices below zero count from the end.

use portolan_types::{
    Reason, Status,
    json_patch::{MAX_OPERATIONS, apply_operations, go_word, too_many_operations, unfit},
};
use serde_json::Value;

use portolan_codec::decode::{self, MediaType};

/// Applies a JSON patch, all operations or none.
///
/// # Errors
/// - 400 if `patch` is not a list of objects.
/// - 413 above 10,000 operations.
/// - 422, without a reason as in kube-apiserver, if an operation is invalid or does not apply, a `test` does not hold,
///   copies grow beyond 3 MiB, a hundred million list elements are moved, or the document gets deeper than 120 levels.
pub fn json_patch(doc: &Value, patch: &[u8]) -> Result<Value, Status> {
    let bad = |why: String| Status::bad_request(format!("error decoding patch: {why}"));
    let patch = read_list(patch, "[]handlers.jsonPatchOp").map_err(in_operation).map_err(bad)?;
    if patch.len() > MAX_OPERATIONS {
        return Err(Status::too_large(too_many_operations(patch.len())));
    }
    patch.iter().try_for_each(check_sent).map_err(bad)?;
    apply_operations(doc, &patch).map_err(|_| unprocessable())
}

/// Parses the operations of a JSON patch that no client sent, such as a webhook's.
///
/// # Errors
/// Fails if it is not a list of objects: the message of kube-apiserver's library.
pub fn read_operations(patch: &[u8]) -> Result<Vec<Value>, String> {
    let operations = read_list(patch, "jsonpatch.Patch")?;
    operations.iter().try_for_each(|operation| check_object(operation, "jsonpatch.Operation"))?;
    Ok(operations)
}

/// Returns the 422 that kube-apiserver gives for every patch that does not fit the object.
pub(super) fn unprocessable() -> Status {
    Status::generic(Reason::Invalid, "the server rejected our request due to an error in our request")
}

fn read_list(patch: &[u8], list: &str) -> Result<Vec<Value>, String> {
    match decode::decode_any(MediaType::Json, patch)? {
        Value::Null => Ok(Vec::new()),
        Value::Array(operations) => Ok(operations),
        other => Err(unfit(&other, list)),
    }
}

/// Returns the error for a number in an operation that no float holds.
fn in_operation(why: String) -> String {
    why.replace(" into Go value of type float64", " into Go struct field jsonPatchOp.value of type float64")
}

fn check_object(operation: &Value, go_type: &str) -> Result<(), String> {
    match operation {
        Value::Object(_) | Value::Null => Ok(()),
        other => Err(unfit(other, go_type)),
    }
}

/// Checks a client's operation for more than the library requires.
fn check_sent(operation: &Value) -> Result<(), String> {
    check_object(operation, "handlers.jsonPatchOp")?;
    let odd = |key: &&str| operation.get(*key).is_some_and(|value| !matches!(value, Value::Null | Value::String(_)));
    let Some(key) = ["op", "path", "from"].into_iter().find(odd) else { return Ok(()) };
    let found = go_word(&operation[key]);
    Err(format!("json: cannot unmarshal {found} into Go struct field jsonPatchOp.{key} of type string"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_types::json_patch::PatchFailure;
    use serde_json::json;

    #[test]
    fn json_patches() {
        let doc = json!({"a": {"b": [1, 2]}, "x/y": 1});
        for (case, patch, expected) in [
            (
                "adds",
                json!([{"op": "add", "path": "/a/b/-", "value": 3}]),
                Ok(json!({"a": {"b": [1, 2, 3]}, "x/y": 1})),
            ),
            (
                "replaces",
                json!([{"op": "replace", "path": "/x~1y", "value": 2}]),
                Ok(json!({"a": {"b": [1, 2]}, "x/y": 2})),
            ),
            (
                "moves",
                json!([{"op": "move", "from": "/a/b", "path": "/c"}]),
                Ok(json!({"a": {}, "c": [1, 2], "x/y": 1})),
            ),
            ("tests a value", json!([{"op": "test", "path": "/a/b/0", "value": 1}]), Ok(doc.clone())),
            ("tests that nothing is there", json!([{"op": "test", "path": "/q", "value": null}]), Ok(doc.clone())),
            ("a failed test is 422", json!([{"op": "test", "path": "/a/b/0", "value": 9}]), Err(422)),
            ("removing what is not there is 422", json!([{"op": "remove", "path": "/q"}]), Err(422)),
            ("adding below nothing is 422", json!([{"op": "add", "path": "/q/r", "value": 1}]), Err(422)),
            (
                "counts from the end below zero",
                json!([{"op": "add", "path": "/a/b/-2", "value": 3}, {"op": "remove", "path": "/a/b/-1"}]),
                Ok(json!({"a": {"b": [1, 3]}, "x/y": 1})),
            ),
            (
                "replaces nothing, and adds nothing",
                json!([{"op": "replace", "path": "/q", "value": 1}, {"op": "add", "path": "/r"}]),
                Ok(json!({"a": {"b": [1, 2]}, "x/y": 1, "q": 1, "r": null})),
            ),
            (
                "copies what is not there as null",
                json!([{"op": "copy", "from": "/q", "path": "/r"}]),
                Ok(json!({"a": {"b": [1, 2]}, "x/y": 1, "r": null})),
            ),
            ("replaces the whole", json!([{"op": "replace", "path": "", "value": {"z": 1}}]), Ok(json!({"z": 1}))),
            ("an index too far is 422", json!([{"op": "add", "path": "/a/b/4", "value": 1}]), Err(422)),
            ("an index too far from the end is 422", json!([{"op": "remove", "path": "/a/b/-3"}]), Err(422)),
            ("moving nothing is 422", json!([{"op": "move", "from": "/q", "path": "/r"}]), Err(422)),
            ("an operation without a path is 422", json!([{"op": "remove"}]), Err(422)),
            ("a path that is not a string is 400", json!([{"op": "remove", "path": 1}]), Err(400)),
            ("no list is 400", json!({"op": "remove"}), Err(400)),
            ("an unknown operation is 422", json!([{"op": "grow", "path": "/a"}]), Err(422)),
        ] {
            let got = json_patch(&doc, patch.to_string().as_bytes()).map_err(|status| status.code());
            assert_eq!(got, expected, "{case}");
        }
    }

    #[test]
    fn failed_operations_have_kube_apiservers_messages() {
        let doc = json!({"a": {"b": [1, 2]}, "x": 1});
        let operation = |why: &str| PatchFailure::Operation(why.to_owned());
        for (sent, expected) in [
            (json!({"op": "add", "value": 1}), operation("add operation failed to decode path: missing value")),
            (json!({"op": "remove", "path": 1}), operation("remove operation failed to decode path: missing value")),
            (
                json!({"op": "replace", "path": 1}),
                operation(
                    "replace operation failed to decode path: json: cannot unmarshal number into Go value of type string",
                ),
            ),
            (
                json!({"op": "test"}),
                operation("test operation failed to decode path: operation missing path field: missing value"),
            ),
            (
                json!({"op": "move", "path": "/a"}),
                operation("move operation failed to decode from: operation, missing from field: missing value"),
            ),
            (
                json!({"op": "add", "path": "/q/r"}),
                operation("add operation does not apply: doc is missing path: \"/q/r\": missing value"),
            ),
            (
                json!({"op": "replace", "path": "/x/y"}),
                operation("replace operation does not apply: doc is missing path: /x/y: missing value"),
            ),
            (
                json!({"op": "replace", "path": "/a/b/7"}),
                operation("replace operation does not apply: doc is missing key: /a/b/7: missing value"),
            ),
            (
                json!({"op": "add", "path": "/a/b/x"}),
                operation(
                    "error in add for path: '/a/b/x': value was not a proper array index: 'x': strconv.Atoi: parsing \"x\": invalid syntax",
                ),
            ),
            (
                json!({"op": "remove", "path": "/a/b/-3"}),
                operation(
                    "error in remove for path: '/a/b/-3': Unable to access invalid index: -3: invalid index referenced",
                ),
            ),
            (
                json!({"op": "move", "from": "/q", "path": "/r"}),
                operation("error in move for path: 'q': Unable to remove nonexistent key: q: missing value"),
            ),
            (
                json!({"op": "copy", "from": "/x", "path": "/q/r"}),
                operation("copy operation does not apply: doc is missing destination path: /q/r: missing value"),
            ),
            (
                json!({"op": "test", "path": "/q/r", "value": 1}),
                operation("test operation does not apply: is missing path: /q/r: missing value"),
            ),
            (
                json!({"op": "test", "path": "/x", "value": 2}),
                PatchFailure::Test("testing value /x failed: test failed".to_owned()),
            ),
            (json!({"op": "grow"}), operation("Unexpected kind: grow")),
            (json!({}), operation("Unexpected kind: unknown")),
        ] {
            assert_eq!(apply_operations(&doc, std::slice::from_ref(&sent)), Err(expected), "{sent}");
        }
    }

    #[test]
    fn operations_that_no_client_sent_are_objects_in_a_list() {
        for (patch, expected) in [
            ("null", Ok(0)),
            ("[{}, null]", Ok(2)),
            ("{}", Err("json: cannot unmarshal object into Go value of type jsonpatch.Patch")),
            ("[5]", Err("json: cannot unmarshal number into Go value of type jsonpatch.Operation")),
            ("no", Err("invalid character 'o' in literal null (expecting 'u')")),
        ] {
            let read = read_operations(patch.as_bytes()).map(|operations| operations.len());
            assert_eq!(read, expected.map_err(str::to_owned), "{patch}");
        }
    }

    #[test]
    fn too_many_operations_are_413() {
        let test = json!({"op": "test", "path": "/a", "value": null});
        let patch = Value::from(vec![test; MAX_OPERATIONS + 1]).to_string();
        assert_eq!(json_patch(&json!({}), patch.as_bytes()).unwrap_err().code(), 413);
    }

    #[test]
    fn a_document_cannot_become_deeper_than_a_body() {
        let chain = (0..100).fold(json!(1), |inner, _| json!({ "a": inner }));
        let leaf = |levels: usize| format!("/q{}", "/a".repeat(levels));
        for (case, patch, fits) in [
            ("as deep as a body", json!([{"op": "add", "path": "/q", "value": chain}]), true),
            (
                "moved up and down",
                Value::from(
                    (0..400)
                        .flat_map(|_| {
                            [
                                json!({"op": "move", "from": "/a", "path": "/x/y"}),
                                json!({"op": "move", "from": "/x/y", "path": "/a"}),
                            ]
                        })
                        .collect::<Vec<_>>(),
                ),
                true,
            ),
            (
                "copied into its own leaf",
                json!([{"op": "add", "path": "/q", "value": chain}, {"op": "copy", "from": "/q", "path": leaf(100)}]),
                false,
            ),
            (
                "moved below a leaf",
                json!([
                    {"op": "add", "path": "/q", "value": chain}, {"op": "add", "path": "/r", "value": chain},
                    {"op": "move", "from": "/r", "path": leaf(100)},
                ]),
                false,
            ),
            (
                "added below itself",
                json!([{"op": "add", "path": leaf(1), "value": chain}, {"op": "add", "path": leaf(2000), "value": 1}]),
                false,
            ),
        ] {
            let doc = json!({"a": {"b": {"c": 1}}, "x": {}, "q": {}});
            let got = json_patch(&doc, patch.to_string().as_bytes());
            assert_eq!(got.as_ref().map_err(|status| status.code()).err(), (!fits).then_some(422), "{case}");
        }
    }

    #[test]
    fn copies_cannot_double_an_object_without_end() {
        let copy = |n: usize| json!({"op": "copy", "from": "/a", "path": format!("/a/{n}")});
        let patch = Value::from((0..40).map(copy).collect::<Vec<_>>()).to_string();
        let status = json_patch(&json!({"a": {"seed": "0123456789"}}), patch.as_bytes()).unwrap_err();
        assert_eq!(status.code(), 422);
    }

    #[test]
    fn a_patch_moves_so_many_elements() {
        let doc = json!({"list": vec![0; 20_000]});
        let patch = |count: usize, path: &str| -> Vec<u8> {
            let one = json!({"op": "add", "path": path, "value": 1});
            serde_json::to_vec(&vec![one; count]).unwrap()
        };
        assert!(json_patch(&doc, &patch(2_000, "/list/0")).is_ok());
        assert!(json_patch(&doc, &patch(MAX_OPERATIONS, "/list/-")).is_ok(), "nothing is moved at the end");
        assert_eq!(json_patch(&doc, &patch(MAX_OPERATIONS, "/list/0")).unwrap_err().code(), 422);
    }
}
