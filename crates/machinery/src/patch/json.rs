//! JSON patch with the bounds that keep a small request from growing into a large object.

use json_patch::{Patch, PatchError, PatchErrorKind, PatchOperation};
use portolan_types::{Reason, Status, StatusCause};
use serde_json::Value;

use crate::decode::{MAX_DEPTH, depth};

/// Most operations of one patch, as upstream.
const MAX_OPERATIONS: usize = 10_000;
/// Most bytes of JSON that all `copy` operations of one patch may add, as upstream.
const MAX_COPIED: usize = 3 * 1024 * 1024;
/// How often the real depth of a document is looked up, because operations might have made it too deep.
const MAX_MEASURED: usize = 64;

/// Applies a JSON patch, all operations or none.
///
/// A `test` for `null` also holds where there is nothing, as upstream has it.
///
/// # Errors
/// 400 when `patch` is no list of operations, 413 above 10,000 of them, 422 when one does not apply, a `test` does not
/// hold, copies grow beyond 3 MiB, or the document becomes deeper than 120 levels. What went wrong is in the cause; the message is upstream's.
pub fn json_patch(doc: &Value, patch: &[u8]) -> Result<Value, Status> {
    let patch: Patch = serde_json::from_slice(patch).map_err(|error| {
        // Upstream looks at operations one by one, when it applies them.
        let is_list = serde_json::from_slice::<Vec<serde_json::Map<String, Value>>>(patch).is_ok();
        let why = format!("error decoding patch: {error}");
        if is_list { unprocessable(why) } else { Status::bad_request(why) }
    })?;
    if patch.len() > MAX_OPERATIONS {
        let found = patch.len();
        let message = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {found}");
        return Err(Status::new(Reason::RequestEntityTooLarge, message));
    }
    let (mut patched, mut copied) = (doc.clone(), 0);
    // Without a bound, a few copies into their own leaves make a tree that no stack can walk.
    let (mut at_most, mut measured) = (depth(doc), 0);
    for (index, operation) in patch.iter().enumerate() {
        if let PatchOperation::Copy(copy) = operation {
            copied += patched.pointer(copy.from.as_str()).map_or(0, json_len);
            if copied > MAX_COPIED {
                let why = format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                );
                return Err(unprocessable(why));
            }
        }
        at_most = at_most.max(reach(operation, at_most));
        if at_most > 2 * MAX_DEPTH {
            return Err(too_deep());
        }
        apply_one(&mut patched, operation).map_err(|error| failed(index, operation, &error))?;
        if at_most > MAX_DEPTH {
            // The bound is a guess; the tree is not deeper than twice as much, and can be walked.
            (at_most, measured) = (depth(&patched), measured + 1);
            if at_most > MAX_DEPTH || measured > MAX_MEASURED {
                return Err(too_deep());
            }
        }
    }
    Ok(patched)
}

/// How deep an operation can reach in a document that is `deepest` levels deep.
fn reach(operation: &PatchOperation, deepest: usize) -> usize {
    let levels = |path: &str| path.bytes().filter(|byte| *byte == b'/').count();
    match operation {
        PatchOperation::Add(add) => levels(add.path.as_str()) + depth(&add.value),
        PatchOperation::Replace(replace) => levels(replace.path.as_str()) + depth(&replace.value),
        PatchOperation::Copy(copy) => levels(copy.path.as_str()) + deepest.saturating_sub(levels(copy.from.as_str())),
        PatchOperation::Move(moved) => {
            levels(moved.path.as_str()) + deepest.saturating_sub(levels(moved.from.as_str()))
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
    }
}

fn too_deep() -> Status {
    unprocessable(format!("the patched document is deeper than {MAX_DEPTH} levels"))
}

fn apply_one(doc: &mut Value, operation: &PatchOperation) -> Result<(), PatchError> {
    match operation {
        PatchOperation::Test(test) if test.value.is_null() && doc.pointer(test.path.as_str()).is_none() => Ok(()),
        operation => json_patch::patch_unsafe(doc, std::slice::from_ref(operation)),
    }
}

fn failed(index: usize, operation: &PatchOperation, error: &PatchError) -> Status {
    let path = operation.path();
    unprocessable(match error.kind {
        PatchErrorKind::TestFailed => format!("testing value {path} failed"),
        _ => format!("operation {index} failed at {path}: {}", error.kind),
    })
}

/// 422 with the message that upstream has for all of these, and the reason as a cause.
pub(super) fn unprocessable(why: String) -> Status {
    let cause = StatusCause { reason: "FieldValueInvalid".into(), message: why, field: "patch".into() };
    Status::new(Reason::Invalid, "the server rejected our request due to an error in our request").with_cause(cause)
}

/// Number of bytes of a value as JSON.
fn json_len(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("counting bytes cannot fail");
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;
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
            ("no list is 400", json!({"op": "remove"}), Err(400)),
            ("an unknown operation is 422", json!([{"op": "grow", "path": "/a"}]), Err(422)),
        ] {
            let got = json_patch(&doc, patch.to_string().as_bytes()).map_err(|status| status.code());
            assert_eq!(got, expected, "{case}");
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
        assert!(status.details().causes[0].message.contains("accumulated size"), "{status:?}");
    }
}
