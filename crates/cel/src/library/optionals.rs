//! Functions on optionals.

use super::{Context, Function, error, no_overload};
use crate::program::{Failure, List, Value};
use std::sync::Arc;

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "optional.none" => |_, _| Ok(Value::NONE),
        "optional.of" => |args, _| match args {
            [value] => Ok(Value::Optional(Some(Arc::new(value.clone())))),
            _ => no_overload(),
        },
        "optional.ofNonZeroValue" => |args, _| match args {
            [value] if is_zero(value) => Ok(Value::NONE),
            [value] => Ok(Value::Optional(Some(Arc::new(value.clone())))),
            _ => no_overload(),
        },
        "hasValue" => |args, _| match args {
            [Value::Optional(held)] => Ok(Value::Bool(held.is_some())),
            _ => no_overload(),
        },
        "value" => |args, _| match args {
            [Value::Optional(Some(held))] => Ok((**held).clone()),
            [Value::Optional(None)] => error("optional.none() dereference"),
            _ => no_overload(),
        },
        "first" => |args, _| match args {
            [Value::List(list)] => element(list, 0),
            _ => no_overload(),
        },
        "last" => |args, _| match args {
            [Value::List(list)] => element(list, list.len().wrapping_sub(1)),
            _ => no_overload(),
        },
        "optional.unwrap" | "unwrapOpt" => unwrap,
        _ => return None,
    })
}

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        // Lists and maps of schema data tell nothing of being empty, and count as something.
        Value::List(list) => matches!(list.elements, crate::program::Elements::Owned(_)) && list.len() == 0,
        Value::Map(crate::program::Map::Owned(entries)) => entries.is_empty(),
        _ => false,
    }
}

fn element<'a>(list: &List<'a>, index: usize) -> Result<Value<'a>, Failure> {
    match list.get(index) {
        Some(value) => Ok(Value::Optional(Some(Arc::new(value?)))),
        None => Ok(Value::NONE),
    }
}

fn unwrap<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut values = Vec::new();
    for element in list.iter() {
        match element? {
            Value::Optional(Some(held)) => values.push((*held).clone()),
            Value::Optional(None) => {}
            other => return error(format!("value {} is not optional", other.plain())),
        }
    }
    context.meter.list(values)
}
