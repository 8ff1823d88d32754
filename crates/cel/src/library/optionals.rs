//! Functions on optionals.

use super::{CallContext, LibraryFunction, error, no_overload};
use crate::program::{CelList, CelValue, EvaluationFailure};
use std::sync::Arc;

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "optional.none" => |_, _| Ok(CelValue::NONE),
        "optional.of" => |args, _| match args {
            [value] => Ok(CelValue::Optional(Some(Arc::new(value.clone())))),
            _ => no_overload(),
        },
        "optional.ofNonZeroValue" => |args, _| match args {
            [value] if is_zero(value) => Ok(CelValue::NONE),
            [value] => Ok(CelValue::Optional(Some(Arc::new(value.clone())))),
            _ => no_overload(),
        },
        "hasValue" => |args, _| match args {
            [CelValue::Optional(held)] => Ok(CelValue::Bool(held.is_some())),
            _ => no_overload(),
        },
        "value" => |args, _| match args {
            [CelValue::Optional(Some(held))] => Ok((**held).clone()),
            [CelValue::Optional(None)] => error("optional.none() dereference"),
            _ => no_overload(),
        },
        "first" => |args, _| match args {
            [CelValue::List(list)] => element(list, 0),
            _ => no_overload(),
        },
        "last" => |args, _| match args {
            [CelValue::List(list)] => element(list, list.len().wrapping_sub(1)),
            _ => no_overload(),
        },
        "optional.unwrap" | "unwrapOpt" => unwrap,
        _ => return None,
    })
}

fn is_zero(value: &CelValue<'_>) -> bool {
    match value {
        CelValue::Null | CelValue::Optional(None) => true,
        CelValue::Bool(value) => !value,
        CelValue::Int(value) | CelValue::Duration(value) => *value == 0,
        CelValue::Uint(value) => *value == 0,
        CelValue::Double(value) => *value == 0.0,
        CelValue::String(text) => text.is_empty(),
        CelValue::Bytes(bytes) => bytes.is_empty(),
        // Lists and maps from a schema are never known to be empty, so they count as present.
        CelValue::List(list) => matches!(list.elements, crate::program::CelListElements::Owned(_)) && list.len() == 0,
        CelValue::Map(crate::program::CelMap::Owned(entries)) => entries.is_empty(),
        _ => false,
    }
}

fn element<'a>(list: &CelList<'a>, index: usize) -> Result<CelValue<'a>, EvaluationFailure> {
    match list.get(index) {
        Some(value) => Ok(CelValue::Optional(Some(Arc::new(value?)))),
        None => Ok(CelValue::NONE),
    }
}

fn unwrap<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list)] = args else { return no_overload() };
    let mut values = Vec::new();
    for element in list.iter() {
        match element? {
            CelValue::Optional(Some(held)) => values.push((*held).clone()),
            CelValue::Optional(None) => {}
            other => return error(format!("value {} is not optional", other.plain())),
        }
    }
    context.meter.list(values)
}
