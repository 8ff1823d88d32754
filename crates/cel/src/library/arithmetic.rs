//! Operators on numbers, strings, bytes, times and lists.

use super::{CallContext, LibraryFunction, error, no_overload};
use crate::program::{
    CelList, CelListElements, CelListKind, CelValue, EvaluationFailure, ScalarKey, compare, contains, element_key,
    has_key,
};
use crate::time;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "_+_" => add,
        "_-_" => subtract,
        "_*_" => multiply,
        "_/_" => divide,
        "_%_" => modulo,
        "-_" => negate,
        "!_" => not,
        "_<_" => |args, _| order(args, Ordering::is_lt, "_<_"),
        "_<=_" => |args, _| order(args, Ordering::is_le, "_<=_"),
        "_>_" => |args, _| order(args, Ordering::is_gt, "_>_"),
        "_>=_" => |args, _| order(args, Ordering::is_ge, "_>=_"),
        "@in" => is_in,
        "@not_strictly_false" => |args, _| Ok(CelValue::Bool(!matches!(args, [CelValue::Bool(false)]))),
        _ => return None,
    })
}

fn int<'a>(result: Option<i64>) -> Result<CelValue<'a>, EvaluationFailure> {
    result.map_or_else(|| error("integer overflow"), |value| Ok(CelValue::Int(value)))
}

fn uint<'a>(result: Option<u64>) -> Result<CelValue<'a>, EvaluationFailure> {
    result.map_or_else(|| error("unsigned integer overflow"), |value| Ok(CelValue::Uint(value)))
}

fn duration<'a>(result: Option<i64>) -> Result<CelValue<'a>, EvaluationFailure> {
    result.map_or_else(|| error("duration overflow"), |value| Ok(CelValue::Duration(value)))
}

fn timestamp<'a>(result: Option<jiff::Timestamp>) -> Result<CelValue<'a>, EvaluationFailure> {
    result.map_or_else(|| error("timestamp overflow"), |value| Ok(CelValue::Timestamp(value)))
}

pub(super) fn add<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Int(one), CelValue::Int(other)] => int(one.checked_add(*other)),
        [CelValue::Uint(one), CelValue::Uint(other)] => uint(one.checked_add(*other)),
        [CelValue::Double(one), CelValue::Double(other)] => Ok(CelValue::Double(one + other)),
        [CelValue::String(one), CelValue::String(other)] => {
            let mut text = String::with_capacity(one.len() + other.len());
            text += one;
            text += other;
            context.meter.text(text)
        }
        [CelValue::Bytes(one), CelValue::Bytes(other)] => {
            context.meter.bytes(one.len() + other.len())?;
            Ok(CelValue::Bytes([&**one, &**other].concat().into()))
        }
        [CelValue::Duration(one), CelValue::Duration(other)] => duration(one.checked_add(*other)),
        [CelValue::Timestamp(time), CelValue::Duration(nanos)]
        | [CelValue::Duration(nanos), CelValue::Timestamp(time)] => timestamp(time::add(*time, *nanos)),
        [CelValue::List(one), CelValue::List(other)] => concat(one, other, context),
        _ => no_overload(),
    }
}

/// Adds two lists. A set gains only new elements; a list with keys also replaces elements of equal keys.
fn concat<'a>(
    one: &CelList<'a>,
    other: &CelList<'a>,
    context: &CallContext<'_>,
) -> Result<CelValue<'a>, EvaluationFailure> {
    context.meter.elements(one.len() + other.len())?;
    let mut values = one.iter().collect::<Result<Vec<_>, _>>()?;
    let more = other.iter().collect::<Result<Vec<_>, _>>()?;
    match one.kind {
        CelListKind::Plain => values.extend(more),
        CelListKind::Set => {
            let mut known: BTreeSet<ScalarKey> = values.iter().map(ScalarKey::of).collect();
            values.extend(more.into_iter().filter(|value| known.insert(ScalarKey::of(value))));
        }
        CelListKind::Map(keys) => {
            let mut places = BTreeMap::new();
            for (place, value) in values.iter().enumerate() {
                places.insert(element_key(value, keys)?, place);
            }
            for value in more {
                match places.get(&element_key(&value, keys)?) {
                    Some(place) => values[*place] = value,
                    None => values.push(value),
                }
            }
        }
    }
    Ok(CelValue::List(CelList { elements: CelListElements::Owned(values.into()), kind: one.kind }))
}

fn subtract<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Int(one), CelValue::Int(other)] => int(one.checked_sub(*other)),
        [CelValue::Uint(one), CelValue::Uint(other)] => uint(one.checked_sub(*other)),
        [CelValue::Double(one), CelValue::Double(other)] => Ok(CelValue::Double(one - other)),
        [CelValue::Duration(one), CelValue::Duration(other)] => duration(one.checked_sub(*other)),
        [CelValue::Timestamp(time), CelValue::Duration(nanos)] => {
            timestamp(nanos.checked_neg().and_then(|nanos| time::add(*time, nanos)))
        }
        [CelValue::Timestamp(one), CelValue::Timestamp(other)] => match time::since(*one, *other) {
            Some(nanos) => Ok(CelValue::Duration(nanos)),
            None => error("timestamp overflow"),
        },
        _ => no_overload(),
    }
}

fn multiply<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Int(one), CelValue::Int(other)] => int(one.checked_mul(*other)),
        [CelValue::Uint(one), CelValue::Uint(other)] => uint(one.checked_mul(*other)),
        [CelValue::Double(one), CelValue::Double(other)] => Ok(CelValue::Double(one * other)),
        _ => no_overload(),
    }
}

fn divide<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Int(_), CelValue::Int(0)] | [CelValue::Uint(_), CelValue::Uint(0)] => error("division by zero"),
        [CelValue::Int(one), CelValue::Int(other)] => int(one.checked_div(*other)),
        [CelValue::Uint(one), CelValue::Uint(other)] => uint(one.checked_div(*other)),
        [CelValue::Double(one), CelValue::Double(other)] => Ok(CelValue::Double(one / other)),
        _ => no_overload(),
    }
}

fn modulo<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Int(_), CelValue::Int(0)] | [CelValue::Uint(_), CelValue::Uint(0)] => error("modulus by zero"),
        [CelValue::Int(one), CelValue::Int(other)] => int(one.checked_rem(*other)),
        [CelValue::Uint(one), CelValue::Uint(other)] => uint(one.checked_rem(*other)),
        _ => no_overload(),
    }
}

fn negate<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Int(value)] => int(value.checked_neg()),
        [CelValue::Double(value)] => Ok(CelValue::Double(-value)),
        [CelValue::Duration(value)] => duration(value.checked_neg()),
        _ => no_overload(),
    }
}

fn not<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::Bool(value)] => Ok(CelValue::Bool(!value)),
        _ => error("no such overload"),
    }
}

fn order<'a>(
    args: &[CelValue<'a>],
    holds: fn(Ordering) -> bool,
    function: &str,
) -> Result<CelValue<'a>, EvaluationFailure> {
    let [one, other] = args else { return no_overload() };
    if matches!(one, CelValue::Null | CelValue::List(_) | CelValue::Map(_) | CelValue::Type(_) | CelValue::Optional(_))
    {
        return error(format!("no such overload: {function}"));
    }
    Ok(CelValue::Bool(holds(compare(one, other)?)))
}

fn is_in<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [value, CelValue::List(list)] => {
            context.meter.steps(list.len() as u64)?;
            Ok(CelValue::Bool(contains(list, value)?))
        }
        [key, CelValue::Map(map)] => Ok(CelValue::Bool(has_key(map, key)?)),
        _ => no_overload(),
    }
}
