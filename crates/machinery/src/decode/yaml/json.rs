//! JSON that is sent as YAML.

use std::cell::Cell;

use serde::de::DeserializeSeed as _;
use serde_json::Value;

use super::{MAX_NODES, Read, reader::json_number, words};
use crate::{
    decode::{tree::Tree, walk::Walk},
    kinds::KindTable,
};

/// Reads JSON as the YAML that it is; `None` for what is none.
///
/// # Errors
/// When it has more than [`MAX_NODES`].
pub(super) fn read(body: &[u8]) -> Option<Result<Read, String>> {
    if body.first() != Some(&b'{') {
        return None;
    }
    // It notes keys that stand twice.
    let walk = Walk::new(KindTable::builtin());
    let mut json = serde_json::Deserializer::from_slice(body);
    // It is one itself.
    let left = Cell::new(Some(MAX_NODES - 1));
    let tree = Tree::of(&walk).within(&left).deserialize(&mut json);
    if left.get().is_none() {
        return Some(Err(words::too_many_nodes()));
    }
    let mut tree = tree.ok()?;
    json.end().ok()?;
    make_whole(&mut tree);
    Some(Ok(Read { tree, repeats: walk.mark() > 0 }))
}

/// Whole numbers become such, however they are spelled.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64()) {
                *value = json_number(float);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(entries) => entries.values_mut().for_each(make_whole),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
