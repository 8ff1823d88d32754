//! JSON patch as kube-apiserver's library has it, with the bounds that keep a small request from growing into a large object.
//!
//! Where it differs from RFC 6902: an operation without a value has `null`, which is the same as nothing; a replacement may
//! replace nothing in an object; indices below zero count from the end.

use portolan_types::{Reason, Status, object::Object};
use serde_json::Value;

use crate::decode::{self, MAX_DEPTH, MediaType, depth, go_word};

/// Most operations of one patch, as upstream.
const MAX_OPERATIONS: usize = 10_000;
/// Most bytes of JSON that all `copy` operations of one patch may add, as upstream.
const MAX_COPIED: usize = 3 * 1024 * 1024;
/// How often the real depth of a document is looked up, because operations might have made it too deep.
const MAX_MEASURED: usize = 64;

/// Applies a JSON patch, all operations or none.
///
/// # Errors
/// 400 when `patch` is no list of objects, 413 above 10,000 operations, 422 when an operation is none or does not apply, a
/// `test` does not hold, copies grow beyond 3 MiB, or the document becomes deeper than 120 levels. Like upstream it does not
/// say which of these it was.
pub fn json_patch(doc: &Value, patch: &[u8]) -> Result<Value, Status> {
    let bad = |why: String| Status::bad_request(format!("error decoding patch: {why}"));
    let patch = decode::decode_any(MediaType::Json, patch).map_err(bad)?;
    let found = go_word(&patch);
    let Value::Array(patch) = (if patch.is_null() { Value::Array(Vec::new()) } else { patch }) else {
        return Err(bad(format!("json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp")));
    };
    if patch.len() > MAX_OPERATIONS {
        let found = patch.len();
        return Err(Status::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {found}"
        )));
    }
    let operations = patch.iter().map(|operation| read(operation).map_err(bad)).collect::<Result<Vec<_>, _>>()?;
    apply_all(doc.clone(), &operations).map_err(|_| unprocessable())
}

/// Why operations do not apply to a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A `test` does not hold.
    Test,
    /// One of them cannot be done, as upstream's library tells it.
    Operation(String),
}

/// Applies the operations of a JSON patch, all or none, and says why not.
///
/// # Errors
/// As [`json_patch`].
pub fn apply_operations(doc: &Value, operations: &[Value]) -> Result<Value, Misfit> {
    if operations.len() > MAX_OPERATIONS {
        return Err(Misfit::Operation(format!("more than {MAX_OPERATIONS} operations")));
    }
    let read = operations.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(Misfit::Operation)?;
    apply_all(doc.clone(), &read).map_err(|at| match read.get(at) {
        Some(operation) if operation.name == "test" => Misfit::Test,
        Some(operation) => Misfit::Operation(operation.complaint()),
        None => Misfit::Operation("the document becomes too deep".to_owned()),
    })
}

/// 422 as upstream has it for all that does not fit the object.
pub(super) fn unprocessable() -> Status {
    Status::generic(Reason::Invalid, "the server rejected our request due to an error in our request")
}

/// One operation, as it was sent.
struct Operation<'a> {
    name: &'a str,
    path: Option<&'a str>,
    from: Option<&'a str>,
    value: &'a Value,
}

fn read(operation: &Value) -> Result<Operation<'_>, String> {
    if !matches!(operation, Value::Object(_) | Value::Null) {
        let found = go_word(operation);
        return Err(format!("json: cannot unmarshal {found} into Go value of type handlers.jsonPatchOp"));
    }
    let text = |key: &str| match operation.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => {
            let found = go_word(other);
            Err(format!("json: cannot unmarshal {found} into Go struct field jsonPatchOp.{key} of type string"))
        }
    };
    let value = operation.get("value").unwrap_or(&Value::Null);
    Ok(Operation { name: text("op")?.unwrap_or_default(), path: text("path")?, from: text("from")?, value })
}

/// # Errors
/// Which of them does not apply.
fn apply_all(mut doc: Value, operations: &[Operation<'_>]) -> Result<Value, usize> {
    let mut copied = 0;
    // Without a bound, a few copies into their own leaves make a tree that no stack can walk.
    let (mut at_most, mut measured) = (depth(&doc), 0);
    for (at, operation) in operations.iter().enumerate() {
        at_most = at_most.max(operation.reach(at_most));
        if at_most > 2 * MAX_DEPTH {
            return Err(at);
        }
        operation.apply(&mut doc, &mut copied).ok_or(at)?;
        if at_most > MAX_DEPTH {
            // The bound is a guess; the tree is not deeper than twice as much, and can be walked.
            (at_most, measured) = (depth(&doc), measured + 1);
            if at_most > MAX_DEPTH || measured > MAX_MEASURED {
                return Err(at);
            }
        }
    }
    Ok(doc)
}

impl Operation<'_> {
    /// How deep it can reach in a document that is `deepest` levels deep.
    fn reach(&self, deepest: usize) -> usize {
        let levels = |path: Option<&str>| path.unwrap_or_default().bytes().filter(|byte| *byte == b'/').count();
        match self.name {
            "add" | "replace" => levels(self.path) + depth(self.value),
            "copy" | "move" => levels(self.path) + deepest.saturating_sub(levels(self.from)),
            _ => 0,
        }
    }

    /// Why it could not be done.
    fn complaint(&self) -> String {
        let path = self.path.unwrap_or_default();
        match self.name {
            "add" | "replace" => {
                format!("{} operation does not apply: doc is missing path: {path:?}: missing value", self.name)
            }
            "remove" => {
                let key = path.rsplit('/').next().unwrap_or_default();
                format!("error in remove for path: '{path}': Unable to remove nonexistent key: {key}: missing value")
            }
            "move" | "copy" => {
                let from = self.from.unwrap_or_default();
                format!("{} operation does not apply: doc is missing from path: {from}: missing value", self.name)
            }
            other => format!("Unexpected kind: {other}"),
        }
    }

    fn apply(&self, doc: &mut Value, copied: &mut usize) -> Option<()> {
        match self.name {
            "add" => Place::find(doc, self.path?)?.add(self.value.clone()),
            "remove" => Place::find(doc, self.path?)?.remove().map(drop),
            "replace" if self.path?.is_empty() => {
                *doc = Some(self.value.clone()).filter(|value| value.is_object() || value.is_array())?;
                Some(())
            }
            "replace" => Place::find(doc, self.path?)?.replace(self.value.clone()),
            "move" => {
                let moved = Place::find(doc, self.from?)?.remove()?;
                Place::find(doc, self.path?)?.add(moved)
            }
            "copy" => {
                let place = Place::find(doc, self.from?)?;
                let original = place.get()?;
                // Counted before it is made: what is too much is never there.
                *copied += json_len(original);
                if *copied > MAX_COPIED {
                    return None;
                }
                let copy = original.clone();
                Place::find(doc, self.path?)?.add(copy)
            }
            "test" if self.path?.is_empty() => (doc == self.value).then_some(()),
            "test" => (Place::find(doc, self.path?)?.get()? == self.value).then_some(()),
            _ => None,
        }
    }
}

/// What a path leads to: an entry of an object, or of a list, that is there. The entry itself need not be.
enum Place<'d> {
    Field(&'d mut Object, String),
    Element(&'d mut Vec<Value>, String),
}

impl<'d> Place<'d> {
    fn find(doc: &'d mut Value, path: &str) -> Option<Self> {
        // What stands before the first slash does not count.
        let (_, path) = path.split_once('/')?;
        let mut keys = path.split('/').map(|key| key.replace("~1", "/").replace("~0", "~"));
        let last = keys.next_back()?;
        let mut at = doc;
        for key in keys {
            at = match at {
                Value::Object(fields) => fields.get_mut(&key)?,
                Value::Array(list) => {
                    let index = index(&key, list.len())?;
                    list.get_mut(index)?
                }
                _ => return None,
            };
        }
        match at {
            Value::Object(fields) => Some(Self::Field(fields, last)),
            Value::Array(list) => Some(Self::Element(list, last)),
            _ => None,
        }
    }

    /// The value there; `null` where an object has none.
    fn get(&self) -> Option<&Value> {
        match self {
            Self::Field(fields, key) => Some(fields.get(key).unwrap_or(&Value::Null)),
            Self::Element(list, key) => list.get(index(key, list.len())?),
        }
    }

    fn add(self, value: Value) -> Option<()> {
        match self {
            Self::Field(fields, key) => drop(fields.insert(key, value)),
            Self::Element(list, key) if key == "-" => list.push(value),
            Self::Element(list, key) => {
                // From the end it counts from behind the last element.
                let at = index(&key, list.len() + 1).filter(|at| *at <= list.len())?;
                list.insert(at, value);
            }
        }
        Some(())
    }

    fn replace(self, value: Value) -> Option<()> {
        match self {
            Self::Field(fields, key) => drop(fields.insert(key, value)),
            Self::Element(list, key) => {
                let index = index(&key, list.len())?;
                *list.get_mut(index)? = value;
            }
        }
        Some(())
    }

    fn remove(self) -> Option<Value> {
        match self {
            Self::Field(fields, key) => fields.remove(&key),
            Self::Element(list, key) => {
                let at = index(&key, list.len()).filter(|at| *at < list.len())?;
                Some(list.remove(at))
            }
        }
    }
}

/// An index into a list of this length; below zero it counts from the end.
fn index(key: &str, length: usize) -> Option<usize> {
    let index: i64 = key.parse().ok()?;
    match usize::try_from(index) {
        Ok(index) => Some(index),
        Err(_) => length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?),
    }
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
            ("a path that is no text is 400", json!([{"op": "remove", "path": 1}]), Err(400)),
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
    }
}
