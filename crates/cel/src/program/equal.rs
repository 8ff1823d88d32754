//! Equality and order.

use super::value::{Key, List, ListKind, Map, Shape, Text, Value};
use serde_json::Value as Json;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Whether two values are equal. What cannot be compared is an error, as where data is not what the schema says.
pub(crate) fn equal(one: &Value<'_>, other: &Value<'_>) -> Result<bool, String> {
    Ok(match (one, other) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(one), Value::Bool(other)) => one == other,
        (Value::String(one), Value::String(other)) => **one == **other,
        (Value::Bytes(one), Value::Bytes(other)) => one == other,
        (Value::Duration(one), Value::Duration(other)) => one == other,
        (Value::Timestamp(one), Value::Timestamp(other)) => one == other,
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(one, other) == Some(Ordering::Equal)
        }
        (Value::List(one), Value::List(other)) => return lists(one, other),
        (Value::Map(one), Value::Map(other)) => return maps(one, other),
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(one)), Value::Optional(Some(other))) => return equal(one, other),
        (Value::Type(one), Value::Type(other)) => one.name() == other.name(),
        (Value::Quantity(one), Value::Quantity(other)) => one.quantity == other.quantity,
        (Value::Ip(one), Value::Ip(other)) => one == other,
        (Value::Cidr(one), Value::Cidr(other)) => one == other,
        (Value::Url(one), Value::Url(other)) => one.text == other.text,
        (Value::Semver(one), Value::Semver(other)) => one.cmp(other) == Ordering::Equal,
        (Value::Format(one), Value::Format(other)) => one.name == other.name,
        (Value::Preserved(one), Value::Preserved(other)) => one == other,
        _ => false,
    })
}

/// The order of two numbers, whatever their types; none with NaN.
pub(crate) fn numbers(one: &Value<'_>, other: &Value<'_>) -> Option<Ordering> {
    let whole = |value: &Value<'_>| match value {
        Value::Int(value) => Some(i128::from(*value)),
        Value::Uint(value) => Some(i128::from(*value)),
        _ => None,
    };
    match (one, other) {
        (Value::Double(one), Value::Double(other)) => one.partial_cmp(other),
        (Value::Double(one), other) => whole_with(*one, whole(other)?),
        (one, Value::Double(other)) => whole_with(*other, whole(one)?).map(Ordering::reverse),
        _ => Some(whole(one)?.cmp(&whole(other)?)),
    }
}

fn whole_with(double: f64, whole: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Doubles beyond all whole numbers of 64 bits compare by size alone.
    if double.abs() >= 1e20 {
        return Some(if double > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let floor = double.floor();
    Some((floor as i128).cmp(&whole).then(if double > floor { Ordering::Greater } else { Ordering::Equal }))
}

/// The order of two values that have one.
pub(crate) fn compare(one: &Value<'_>, other: &Value<'_>) -> Result<Ordering, String> {
    let none = || "no such overload".to_owned();
    match (one, other) {
        (Value::Bool(one), Value::Bool(other)) => Ok(one.cmp(other)),
        (Value::String(one), Value::String(other)) => Ok((**one).cmp(&**other)),
        (Value::Bytes(one), Value::Bytes(other)) => Ok(one.cmp(other)),
        (Value::Duration(one), Value::Duration(other)) => Ok(one.cmp(other)),
        (Value::Timestamp(one), Value::Timestamp(other)) => Ok(one.cmp(other)),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            numbers(one, other).ok_or_else(|| "NaN values cannot be ordered".to_owned())
        }
        _ => Err(none()),
    }
}

fn lists(one: &List<'_>, other: &List<'_>) -> Result<bool, String> {
    if one.len() != other.len() {
        return Ok(false);
    }
    match one.kind {
        ListKind::Plain => {
            for (one, other) in one.iter().zip(other.iter()) {
                if !equal(&one?, &other?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        ListKind::Set => {
            let known: BTreeSet<ScalarKey> = scalar_keys(one)?;
            other.iter().try_fold(true, |all, element| Ok(all && known.contains(&ScalarKey::of(&element?))))
        }
        ListKind::Map(keys) => keyed_lists(one, other, keys),
    }
}

fn scalar_keys(list: &List<'_>) -> Result<BTreeSet<ScalarKey>, String> {
    list.iter().map(|element| Ok(ScalarKey::of(&element?))).collect()
}

/// What stands for a scalar in a set: its text with its type.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScalarKey(String);

impl ScalarKey {
    pub(crate) fn of(value: &Value<'_>) -> Self {
        let text = match value {
            Value::Bytes(bytes) => format!("{bytes:?}"),
            Value::Duration(nanos) => nanos.to_string(),
            Value::Timestamp(time) => time.as_nanosecond().to_string(),
            other => other.plain(),
        };
        Self(format!("{}:{text}", value.type_of().name()))
    }
}

/// The key of an element of a list with keys: the values of its key fields.
pub(crate) fn element_key(element: &Value<'_>, keys: &[String]) -> Result<String, String> {
    let Value::Map(map) = element else {
        return Err("unexpected data format for element of array with x-kubernetes-list-type=map".to_owned());
    };
    let mut text = String::new();
    for key in keys {
        let name = crate::schema::escape(key).unwrap_or_else(|| key.clone());
        let value = map.find(&Value::String(Text::Borrowed(&name)))?;
        text += &value.map_or_else(|| "-".to_owned(), |value| ScalarKey::of(&value).0);
        text.push('\0');
    }
    Ok(text)
}

fn keyed_lists(one: &List<'_>, other: &List<'_>, keys: &[String]) -> Result<bool, String> {
    let mut known = std::collections::BTreeMap::new();
    for element in one.iter() {
        let element = element?;
        known.insert(element_key(&element, keys)?, element);
    }
    for element in other.iter() {
        let element = element?;
        match known.get(&element_key(&element, keys)?) {
            Some(same) if equal(same, &element)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn maps(one: &Map<'_>, other: &Map<'_>) -> Result<bool, String> {
    if one.len() != other.len() {
        return Ok(false);
    }
    if let (Map::Json { fields, shape }, Map::Json { fields: others, .. }) = (one, other) {
        return data_maps(one, other, fields, others, *shape);
    }
    for key in one.keys() {
        match (one.find(&key)?, other.find(&key)?) {
            (Some(one), Some(other)) if equal(&one, &other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

type Fields = serde_json::Map<String, Json>;

/// Fields that no schema tells of are compared as they are, where both have them.
fn data_maps(
    one: &Map<'_>,
    other: &Map<'_>,
    fields: &Fields,
    others: &Fields,
    shape: Shape<'_>,
) -> Result<bool, String> {
    for (name, json) in fields {
        let seen = match shape {
            Shape::Free | Shape::Values(_) => true,
            Shape::Object(schema) => schema.property(name).is_some(),
            Shape::Closed => false,
        };
        if !seen {
            if others.get(name).is_some_and(|same| same != json) {
                return Ok(false);
            }
            continue;
        }
        let key = Value::from(name.as_str());
        match (one.find(&key)?, other.find(&key)?) {
            (Some(one), Some(other)) if equal(&one, &other)? => {}
            (None, None) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Whether a list holds a value equal to `wanted`.
pub(crate) fn contains(list: &List<'_>, wanted: &Value<'_>) -> Result<bool, String> {
    let mut wrong = None;
    for element in list.iter() {
        match element.and_then(|element| equal(&element, wanted)) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(message) => wrong = wrong.or(Some(message)),
        }
    }
    wrong.map_or(Ok(false), Err)
}

/// Whether a map has a key.
pub(crate) fn has_key(map: &Map<'_>, key: &Value<'_>) -> Result<bool, String> {
    if let (Map::Owned(entries), Some(key)) = (map, Key::of(key)) {
        return Ok(entries.contains_key(&key));
    }
    map.find(key).map(|found| found.is_some())
}
