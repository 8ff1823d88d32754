//! JSON patch as in kube-apiserver's library, within a budget that keeps a small patch from growing into a large
//! document.
//!
//! Every patch is applied here, whether a client sends it, a webhook or policy answers it, or a placement policy stores
//! it.
//!
//! Differences from RFC 6902: an operation without a value has `null`, which is the same as nothing; a replacement may
//! replace nothing in an object; indices below zero count from the end.

mod operation;

use serde_json::Value;

use self::operation::PatchOperation;

/// Most operations of one patch, as in kube-apiserver.
pub const MAX_OPERATIONS: usize = 10_000;

/// Most bytes of JSON that all `copy` operations of one budget may add, as in kube-apiserver.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Most elements that all operations of one budget may move, to make room in lists or to close gaps: half a second of
/// work. kube-apiserver has no such bound.
pub const MAX_MOVED_ELEMENTS: usize = 100_000_000;

/// Maximum depth of a document, in levels of lists and objects. It is below the limit for reading, so that the document
/// can be read back with the fields that the server adds.
pub const MAX_DEPTH: usize = 120;

/// Number of times within one budget that the depth of a document is measured, because operations might have made it
/// too deep.
const MAX_MEASURED: usize = 64;

/// Reason that the operations of a patch do not apply to a document, in the words of kube-apiserver's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchFailure {
    /// A `test` does not hold.
    Test(String),
    /// One of them cannot be done.
    Operation(String),
    /// The budget is exceeded.
    Budget(String),
}

impl PatchFailure {
    /// Returns the sentence.
    pub fn into_text(self) -> String {
        match self {
            Self::Test(why) | Self::Operation(why) | Self::Budget(why) => why,
        }
    }
}

/// Budget of all patches that are applied to one document one after the other.
#[derive(Debug, Default)]
pub struct PatchBudget {
    copied_bytes: usize,
    moved_elements: usize,
    measured: usize,
    is_exceeded: bool,
}

impl PatchBudget {
    /// Counts the elements of a list after the position of an insertion or removal, before they are moved.
    fn take_moved(&mut self, elements: usize) -> Result<(), String> {
        self.moved_elements = self.moved_elements.saturating_add(elements);
        self.is_exceeded = self.moved_elements > MAX_MOVED_ELEMENTS;
        if self.is_exceeded {
            return Err(format!("the patch moves more than {MAX_MOVED_ELEMENTS} elements of lists"));
        }
        Ok(())
    }

    /// Counts the bytes of a copy before it is made.
    fn take_copied(&mut self, bytes: usize) -> Result<(), String> {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
        self.is_exceeded = self.copied_bytes > MAX_COPIED_BYTES;
        let copied = self.copied_bytes;
        if self.is_exceeded {
            return Err(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
            ));
        }
        Ok(())
    }

    /// Returns the real depth of a document, which costs a walk over it.
    fn measure(&mut self, document: &Value) -> Result<usize, PatchFailure> {
        self.measured += 1;
        let found = depth(document);
        if found > MAX_DEPTH || self.measured > MAX_MEASURED {
            return Err(too_deep());
        }
        Ok(found)
    }
}

fn too_deep() -> PatchFailure {
    PatchFailure::Budget("the document becomes too deep".to_owned())
}

/// Applies all operations of a JSON patch or none, within a separate budget.
///
/// # Errors
/// The first operation that does not apply, or that exceeds the budget.
pub fn apply_operations(document: &Value, operations: &[Value]) -> Result<Value, PatchFailure> {
    apply_within(document, operations, &mut PatchBudget::default())
}

/// Applies the operations of a JSON patch, all or none, within a budget that other patches of the same document share.
///
/// # Errors
/// Fails as [`apply_operations`] does.
pub fn apply_within(document: &Value, operations: &[Value], budget: &mut PatchBudget) -> Result<Value, PatchFailure> {
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchFailure::Operation(too_many_operations(operations.len())));
    }
    let mut changed = document.clone();
    // Without a bound, a few copies into their own leaves make a tree that no stack can walk.
    let mut at_most = depth(&changed);
    for operation in operations.iter().map(PatchOperation::of) {
        at_most = at_most.max(operation.reach(at_most));
        if at_most > 2 * MAX_DEPTH {
            return Err(too_deep());
        }
        operation.apply(&mut changed, budget)?;
        if at_most > MAX_DEPTH {
            // The bound is a guess; the tree is not deeper than twice as much, and can be walked.
            at_most = budget.measure(&changed)?;
        }
    }
    Ok(changed)
}

/// Returns kube-apiserver's sentence for a patch of too many operations.
pub fn too_many_operations(operations: usize) -> String {
    format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}")
}

/// Returns Go's sentence for a JSON value that does not have the wanted type.
pub fn unfit(found: &Value, go_type: &str) -> String {
    format!("json: cannot unmarshal {} into Go value of type {go_type}", go_word(found))
}

/// Returns Go's word for the type of a JSON value.
pub fn go_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the levels of lists and objects; 0 for plain values.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Counts the bytes of a value as JSON, without writing it.
pub fn json_len(value: &Value) -> usize {
    struct ByteCount(usize);
    impl std::io::Write for ByteCount {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = ByteCount(0);
    serde_json::to_writer(&mut count, value).expect("counting bytes cannot fail");
    count.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_that_share_a_budget_cannot_grow_a_document_beyond_it() {
        let seed = json!({"a": "x".repeat(1024 * 1024)});
        let copy = |to: &str| vec![json!({"op": "copy", "from": "/a", "path": to})];
        let mut budget = PatchBudget::default();
        let mut document = seed;
        for to in ["/b", "/c"] {
            document = apply_within(&document, &copy(to), &mut budget).unwrap();
        }
        let third = apply_within(&document, &copy("/d"), &mut budget);
        assert!(matches!(third, Err(PatchFailure::Budget(_))), "each copy takes a mebibyte and its quotes");
        assert!(apply_operations(&document, &copy("/d")).is_ok(), "within a budget of its own it fits");
    }
}
