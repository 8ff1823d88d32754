//! Functions on lists and sets.

use super::{CallContext, LibraryFunction, arithmetic, error, no_overload, strings};
use crate::program::{CelList, CelValue, EvaluationFailure, compare, contains, equal};
use std::cmp::Ordering;

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
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
            [CelValue::List(list)] => sort_by(list, list, context),
            _ => no_overload(),
        },
        "@sortByAssociatedKeys" => |args, context| match args {
            [CelValue::List(list), CelValue::List(keys)] => sort_by(list, keys, context),
            _ => no_overload(),
        },
        "lists.range" => range,
        "reverse" => reverse,
        "distinct" => distinct,
        "sets.contains" => |args, context| match args {
            [CelValue::List(list), CelValue::List(other)] => contains_all(list, other, context).map(CelValue::Bool),
            _ => no_overload(),
        },
        "sets.equivalent" => |args, context| match args {
            [CelValue::List(list), CelValue::List(other)] => {
                Ok(CelValue::Bool(contains_all(list, other, context)? && contains_all(other, list, context)?))
            }
            _ => no_overload(),
        },
        "sets.intersects" => intersects,
        _ => return None,
    })
}

fn values<'a>(list: &CelList<'a>) -> Result<Vec<CelValue<'a>>, EvaluationFailure> {
    list.iter().collect::<Result<_, _>>().map_err(EvaluationFailure::Error)
}

fn is_sorted<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list)] = args else { return no_overload() };
    for pair in values(list)?.windows(2) {
        if compare(&pair[0], &pair[1])? == Ordering::Greater {
            return Ok(CelValue::Bool(false));
        }
    }
    Ok(CelValue::Bool(true))
}

/// Returns the sum. The sum of an empty list is zero if its elements are known to be numbers.
fn sum<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list)] = args else { return no_overload() };
    let mut elements = list.iter();
    let Some(first) = elements.next() else { return Ok(CelValue::Int(0)) };
    elements.try_fold(first?, |sum, element| arithmetic::add(&[sum, element?], context))
}

fn extreme<'a>(args: &[CelValue<'a>], function: &str, replaces: Ordering) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list)] = args else { return no_overload() };
    let mut best: Option<CelValue<'a>> = None;
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

fn position<'a>(list: &CelList<'a>, wanted: &CelValue<'a>, indexes: impl Iterator<Item = usize>) -> CelValue<'a> {
    for index in indexes {
        if let Some(Ok(element)) = list.get(index)
            && equal(&element, wanted) == Ok(true)
        {
            return CelValue::Int(i64::try_from(index).unwrap_or(i64::MAX));
        }
    }
    CelValue::Int(-1)
}

fn index_of<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::List(list), wanted] => Ok(position(list, wanted, 0..list.len())),
        [CelValue::String(text), CelValue::String(part)] => Ok(CelValue::Int(strings::index_of(text, part, 0)?)),
        [CelValue::String(text), CelValue::String(part), CelValue::Int(from)] => {
            Ok(CelValue::Int(strings::index_of(text, part, *from)?))
        }
        _ => no_overload(),
    }
}

fn last_index_of<'a>(args: &[CelValue<'a>], _: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    match args {
        [CelValue::List(list), wanted] => Ok(position(list, wanted, (0..list.len()).rev())),
        [CelValue::String(text), CelValue::String(part)] => {
            Ok(CelValue::Int(strings::last_index_of(text, part, None)?))
        }
        [CelValue::String(text), CelValue::String(part), CelValue::Int(from)] => {
            Ok(CelValue::Int(strings::last_index_of(text, part, Some(*from))?))
        }
        _ => no_overload(),
    }
}

fn slice<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list), CelValue::Int(start), CelValue::Int(end)] = args else { return no_overload() };
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

fn flatten<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let (list, depth) = match args {
        [CelValue::List(list)] => (list, 1),
        [CelValue::List(list), CelValue::Int(depth)] => (list, *depth),
        _ => return no_overload(),
    };
    if depth < 0 {
        return error("level must be non-negative");
    }
    let mut flat = Vec::new();
    flatten_into(list, depth, &mut flat, context)?;
    Ok(CelValue::List(CelList::owned(flat)))
}

fn flatten_into<'a>(
    list: &CelList<'a>,
    depth: i64,
    flat: &mut Vec<CelValue<'a>>,
    context: &CallContext<'_>,
) -> Result<(), EvaluationFailure> {
    context.meter.elements(list.len())?;
    for element in list.iter() {
        match element? {
            CelValue::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, flat, context)?,
            other => flat.push(other),
        }
    }
    Ok(())
}

/// Sorts a list by one key per element.
fn sort_by<'a>(
    list: &CelList<'a>,
    keys: &CelList<'a>,
    context: &CallContext<'_>,
) -> Result<CelValue<'a>, EvaluationFailure> {
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
    let mut pairs: Vec<(CelValue<'a>, CelValue<'a>)> = keys.into_iter().zip(values(list)?).collect();
    pairs.sort_by(|(one, _), (other, _)| compare(one, other).unwrap_or(Ordering::Equal));
    Ok(CelValue::List(CelList::owned(pairs.into_iter().map(|(_, value)| value).collect())))
}

fn range<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::Int(end)] = args else { return no_overload() };
    context.meter.elements(usize::try_from((*end).max(0)).unwrap_or(usize::MAX))?;
    Ok(CelValue::List(CelList::owned((0..*end).map(CelValue::Int).collect())))
}

fn reverse<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list)] = args else { return no_overload() };
    let mut values = values(list)?;
    values.reverse();
    context.meter.list(values)
}

fn distinct<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list)] = args else { return no_overload() };
    let mut unique: Vec<CelValue<'a>> = Vec::new();
    for element in list.iter() {
        let element = element?;
        context.meter.steps(unique.len() as u64)?;
        if !unique.iter().any(|known| equal(&element, known) == Ok(true)) {
            unique.push(element);
        }
    }
    context.meter.list(unique)
}

/// Returns true if a list contains all elements of another.
fn contains_all(list: &CelList<'_>, other: &CelList<'_>, context: &CallContext<'_>) -> Result<bool, EvaluationFailure> {
    for element in other.iter() {
        let element = element?;
        context.meter.steps(list.len() as u64)?;
        if !contains(list, &element)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(args: &[CelValue<'a>], context: &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure> {
    let [CelValue::List(list), CelValue::List(other)] = args else { return no_overload() };
    for element in other.iter() {
        let element = element?;
        context.meter.steps(list.len() as u64)?;
        if contains(list, &element)? {
            return Ok(CelValue::Bool(true));
        }
    }
    Ok(CelValue::Bool(false))
}
