//! Functions on lists and sets.

use super::{Context, Function, arithmetic, error, no_overload, strings};
use crate::program::{Failure, List, Value, compare, contains, equal};
use std::cmp::Ordering;

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "isSorted" => is_sorted,
        "sum" => sum,
        "min" => |args, _| extreme(args, "min", Ordering::Greater),
        "max" => |args, _| extreme(args, "max", Ordering::Less),
        "indexOf" => index_of,
        "lastIndexOf" => last_index_of,
        "slice" => slice,
        "flatten" => flatten,
        "sort" => |args, context| match args {
            [Value::List(list)] => sort_by(list, list, context),
            _ => no_overload(),
        },
        "@sortByAssociatedKeys" => |args, context| match args {
            [Value::List(list), Value::List(keys)] => sort_by(list, keys, context),
            _ => no_overload(),
        },
        "lists.range" => range,
        "reverse" => reverse,
        "distinct" => distinct,
        "sets.contains" => |args, context| match args {
            [Value::List(list), Value::List(other)] => within(list, other, context).map(Value::Bool),
            _ => no_overload(),
        },
        "sets.equivalent" => |args, context| match args {
            [Value::List(list), Value::List(other)] => {
                Ok(Value::Bool(within(list, other, context)? && within(other, list, context)?))
            }
            _ => no_overload(),
        },
        "sets.intersects" => intersects,
        _ => return None,
    })
}

fn values<'a>(list: &List<'a>) -> Result<Vec<Value<'a>>, Failure> {
    list.iter().collect::<Result<_, _>>().map_err(Failure::Error)
}

fn is_sorted<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list)] = args else { return no_overload() };
    for pair in values(list)?.windows(2) {
        if compare(&pair[0], &pair[1])? == Ordering::Greater {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

/// Of nothing, zero: of the type of the list, which is not known any more but for numbers.
fn sum<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut elements = list.iter();
    let Some(first) = elements.next() else { return Ok(Value::Int(0)) };
    elements.try_fold(first?, |sum, element| arithmetic::add(&[sum, element?], context))
}

fn extreme<'a>(args: &[Value<'a>], function: &str, replaces: Ordering) -> Result<Value<'a>, Failure> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut best: Option<Value<'a>> = None;
    for element in list.iter() {
        let element = element?;
        let better = match &best {
            None => true,
            Some(best) => compare(best, &element)? == replaces,
        };
        if better {
            best = Some(element);
        }
    }
    best.map_or_else(|| error(format!("{function} called on empty list")), Ok)
}

fn position<'a>(list: &List<'a>, wanted: &Value<'a>, indexes: impl Iterator<Item = usize>) -> Value<'a> {
    for index in indexes {
        if let Some(Ok(element)) = list.get(index)
            && equal(&element, wanted) == Ok(true)
        {
            return Value::Int(i64::try_from(index).unwrap_or(i64::MAX));
        }
    }
    Value::Int(-1)
}

fn index_of<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::List(list), wanted] => Ok(position(list, wanted, 0..list.len())),
        [Value::String(text), Value::String(part)] => Ok(Value::Int(strings::index_of(text, part, 0)?)),
        [Value::String(text), Value::String(part), Value::Int(from)] => {
            Ok(Value::Int(strings::index_of(text, part, *from)?))
        }
        _ => no_overload(),
    }
}

fn last_index_of<'a>(args: &[Value<'a>], _: &Context<'_>) -> Result<Value<'a>, Failure> {
    match args {
        [Value::List(list), wanted] => Ok(position(list, wanted, (0..list.len()).rev())),
        [Value::String(text), Value::String(part)] => Ok(Value::Int(strings::last_index_of(text, part, None)?)),
        [Value::String(text), Value::String(part), Value::Int(from)] => {
            Ok(Value::Int(strings::last_index_of(text, part, Some(*from))?))
        }
        _ => no_overload(),
    }
}

fn slice<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else { return no_overload() };
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return error(format!("cannot slice({start}, {end}), negative indexes not supported"));
    };
    if from > to {
        return error(format!("cannot slice({start}, {end}), start index must be less than or equal to end index"));
    }
    if to > list.len() {
        return error(format!("cannot slice({start}, {end}), list is length {}", list.len()));
    }
    context.meter.list((from..to).filter_map(|index| list.get(index)).collect::<Result<_, _>>()?)
}

fn flatten<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return no_overload(),
    };
    if depth < 0 {
        return error("level must be non-negative");
    }
    let mut flat = Vec::new();
    flatten_into(list, depth, &mut flat, context)?;
    Ok(Value::List(List::owned(flat)))
}

fn flatten_into<'a>(
    list: &List<'a>,
    depth: i64,
    flat: &mut Vec<Value<'a>>,
    context: &Context<'_>,
) -> Result<(), Failure> {
    context.meter.elements(list.len())?;
    for element in list.iter() {
        match element? {
            Value::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, flat, context)?,
            other => flat.push(other),
        }
    }
    Ok(())
}

/// The elements of a list in the order of as many keys.
fn sort_by<'a>(list: &List<'a>, keys: &List<'a>, context: &Context<'_>) -> Result<Value<'a>, Failure> {
    if list.len() != keys.len() {
        return error(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            list.len(),
            keys.len()
        ));
    }
    let keys = values(keys)?;
    if let Some(first) = keys.first() {
        let kind = first.type_of();
        if compare(first, first).is_err() {
            return error("list elements must be comparable");
        }
        if keys.iter().any(|key| key.type_of() != kind) {
            return error("list elements must have the same type");
        }
    }
    context.meter.elements(list.len() * 2)?;
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.into_iter().zip(values(list)?).collect();
    pairs.sort_by(|(one, _), (other, _)| compare(one, other).unwrap_or(Ordering::Equal));
    Ok(Value::List(List::owned(pairs.into_iter().map(|(_, value)| value).collect())))
}

fn range<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::Int(end)] = args else { return no_overload() };
    context.meter.elements(usize::try_from((*end).max(0)).unwrap_or(usize::MAX))?;
    Ok(Value::List(List::owned((0..*end).map(Value::Int).collect())))
}

fn reverse<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut values = values(list)?;
    values.reverse();
    context.meter.list(values)
}

fn distinct<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list)] = args else { return no_overload() };
    let mut unique: Vec<Value<'a>> = Vec::new();
    for element in list.iter() {
        let element = element?;
        context.meter.steps(unique.len() as u64)?;
        if !unique.iter().any(|known| equal(&element, known) == Ok(true)) {
            unique.push(element);
        }
    }
    context.meter.list(unique)
}

/// Whether a list has all that another has.
fn within(list: &List<'_>, other: &List<'_>, context: &Context<'_>) -> Result<bool, Failure> {
    for element in other.iter() {
        let element = element?;
        context.meter.steps(list.len() as u64)?;
        if !contains(list, &element)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(args: &[Value<'a>], context: &Context<'_>) -> Result<Value<'a>, Failure> {
    let [Value::List(list), Value::List(other)] = args else { return no_overload() };
    for element in other.iter() {
        let element = element?;
        context.meter.steps(list.len() as u64)?;
        if contains(list, &element)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
