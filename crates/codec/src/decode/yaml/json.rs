//! JSON that is sent as YAML.

use std::cell::Cell;

use serde::de::DeserializeSeed as _;
use serde_json::Value;

use super::{MAX_NODES, ParsedYaml, reader::json_number, words};
use crate::decode::{tree::Tree, walk::Walk};
use portolan_kinds::KindTable;

/// Reads JSON, which is also YAML; returns `None` for other text.
///
/// # Errors
/// Fails if it has more than [`MAX_NODES`].
pub(super) fn read(body: &[u8]) -> Option<Result<ParsedYaml, String>> {
    if body.first() != Some(&b'{') {
        return None;
    }
    // The walk notes duplicate keys.
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
    Some(Ok(ParsedYaml { tree, repeats: walk.mark() > 0 }))
}

/// Makes whole numbers integers, in whatever spelling.
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
