//! Operators on numbers, texts, bytes, times and lists.

use super::{Context, Function, error, no_overload};
use crate::program::{Elements, Failure, List, ListKind, ScalarKey, Value, compare, contains, element_key, has_key};
use crate::time;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn function(name: &str) -> Option<Function> {
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
        "@not_strictly_false" => |args, _| Ok(Value::Bool(!matches!(args, [Value::Bool(false)]))),
        _ => return None,
    })
}

fn int<'a>(result: Option<i64>) -> Result<Value<'a>, Failure> {
    result.map_or_else(|| error("integer overflow"), |value| Ok(Value::Int(value)))
}

fn uint<'a>(result: Option<u64>) -> Result<Value<'a>, Failure> {
    result.map_or_else(|| error("unsigned integer overflow"), |value| Ok(Value::Uint(value)))
}

fn duration<'a>(result: Option<i64>) -> Result<Value<'a>, Failure> {
    result.map_or_else(|| error("duration overflow"), |value| Ok(Value::Duration(value)))
}

fn timestamp<'a>(result: Option<jiff::Timestamp>) -> Result<Value<'a>, Failure> {
    result.map_or_else(|| error("timestamp overflow"), |value| Ok(Value::Timestamp(value)))
}

pub(super) fn add<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(one), Value::Int(other)] => int(one.checked_add(*other)),
        [Value::Uint(one), Value::Uint(other)] => uint(one.checked_add(*other)),
        [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one + other)),
        [Value::String(one), Value::String(other)] => {
            let mut text = String::with_capacity(one.len() + other.len());
            text += one;
            text += other;
            context.meter.text(text)
        }
        [Value::Bytes(one), Value::Bytes(other)] => {
            context.meter.bytes(one.len() + other.len())?;
            Ok(Value::Bytes([&**one, &**other].concat().into()))
        }
        [Value::Duration(one), Value::Duration(other)] => duration(one.checked_add(*other)),
        [Value::Timestamp(time), Value::Duration(nanos)] | [Value::Duration(nanos), Value::Timestamp(time)] => {
            timestamp(time::add(*time, *nanos))
        }
        [Value::List(one), Value::List(other)] => concat(one, other, context),
        _ => no_overload(),
    }
}

/// A set grows by what it has not, a list with keys also replaces what it has.
fn concat<'a>(one: &List<'a>, other: &List<'a>, context: &Context<'_>) -> Result<Value<'a>, Failure> {
    context.meter.elements(one.len() + other.len())?;
    let mut values = one.iter().collect::<Result<Vec<_>, _>>()?;
    let more = other.iter().collect::<Result<Vec<_>, _>>()?;
    match one.kind {
        ListKind::Plain => values.extend(more),
        ListKind::Set => {
            let mut known: BTreeSet<ScalarKey> = values.iter().map(ScalarKey::of).collect();
            values.extend(more.into_iter().filter(|value| known.insert(ScalarKey::of(value))));
        }
        ListKind::Map(keys) => {
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
    Ok(Value::List(List { elements: Elements::Owned(values.into()), kind: one.kind }))
}

fn subtract<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(one), Value::Int(other)] => int(one.checked_sub(*other)),
        [Value::Uint(one), Value::Uint(other)] => uint(one.checked_sub(*other)),
        [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one - other)),
        [Value::Duration(one), Value::Duration(other)] => duration(one.checked_sub(*other)),
        [Value::Timestamp(time), Value::Duration(nanos)] => {
            timestamp(nanos.checked_neg().and_then(|nanos| time::add(*time, nanos)))
        }
        [Value::Timestamp(one), Value::Timestamp(other)] => match time::since(*one, *other) {
            Some(nanos) => Ok(Value::Duration(nanos)),
            None => error("timestamp overflow"),
        },
        _ => no_overload(),
    }
}

fn multiply<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(one), Value::Int(other)] => int(one.checked_mul(*other)),
        [Value::Uint(one), Value::Uint(other)] => uint(one.checked_mul(*other)),
        [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one * other)),
        _ => no_overload(),
    }
}

fn divide<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("division by zero"),
        [Value::Int(one), Value::Int(other)] => int(one.checked_div(*other)),
        [Value::Uint(one), Value::Uint(other)] => uint(one.checked_div(*other)),
        [Value::Double(one), Value::Double(other)] => Ok(Value::Double(one / other)),
        _ => no_overload(),
    }
}

fn modulo<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("modulus by zero"),
        [Value::Int(one), Value::Int(other)] => int(one.checked_rem(*other)),
        [Value::Uint(one), Value::Uint(other)] => uint(one.checked_rem(*other)),
        _ => no_overload(),
    }
}

fn negate<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Int(value)] => int(value.checked_neg()),
        [Value::Double(value)] => Ok(Value::Double(-value)),
        [Value::Duration(value)] => duration(value.checked_neg()),
        _ => no_overload(),
    }
}

fn not<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => error("no such overload"),
    }
}

fn order<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool, function: &str) -> Result<Value<'a>, Failure> {
    let [one, other] = args else { return no_overload() };
    if matches!(one, Value::Null | Value::List(_) | Value::Map(_) | Value::Type(_) | Value::Optional(_)) {
        return error(format!("no such overload: {function}"));
    }
    Ok(Value::Bool(holds(compare(one, other)?)))
}

fn is_in<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [value, Value::List(list)] => {
            context.meter.steps(list.len() as u64)?;
            Ok(Value::Bool(contains(list, value)?))
        }
        [key, Value::Map(map)] => Ok(Value::Bool(has_key(map, key)?)),
        _ => no_overload(),
    }
}
