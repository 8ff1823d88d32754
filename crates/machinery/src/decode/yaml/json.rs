//! JSON that is sent as YAML.

use serde::de::DeserializeSeed as _;
use serde_json::Value;

use super::{Read, reader::json_number};
use crate::{
    decode::{tree::Tree, walk::Walk},
    kinds::KindTable,
};

/// Reads JSON as the YAML that it is; `None` for what is none.
pub(super) fn read(body: &[u8]) -> Option<Read> {
    if body.first() != Some(&b'{') {
        return None;
    }
    // It notes keys that stand twice.
    let walk = Walk::new(KindTable::builtin());
    let mut json = serde_json::Deserializer::from_slice(body);
    let mut tree = Tree::of(&walk).deserialize(&mut json).ok()?;
    json.end().ok()?;
    make_whole(&mut tree);
    Some(Read { tree, repeats: walk.mark() > 0 })
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
