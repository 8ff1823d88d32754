//! Equality and order.

use super::value::{CelList, CelListKind, CelMap, CelText, CelValue, JsonFieldShape, Key};
use serde_json::Value as Json;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Returns true if two values are equal. Values that cannot be compared are an error, as when data does not match its
/// schema.
pub(crate) fn equal(one: &CelValue<'_>, other: &CelValue<'_>) -> Result<bool, String> {
    Ok(match (one, other) {
        (CelValue::Null, CelValue::Null) => true,
        (CelValue::Bool(one), CelValue::Bool(other)) => one == other,
        (CelValue::String(one), CelValue::String(other)) => **one == **other,
        (CelValue::Bytes(one), CelValue::Bytes(other)) => one == other,
        (CelValue::Duration(one), CelValue::Duration(other)) => one == other,
        (CelValue::Timestamp(one), CelValue::Timestamp(other)) => one == other,
        (
            CelValue::Int(_) | CelValue::Uint(_) | CelValue::Double(_),
            CelValue::Int(_) | CelValue::Uint(_) | CelValue::Double(_),
        ) => numbers(one, other) == Some(Ordering::Equal),
        (CelValue::List(one), CelValue::List(other)) => return lists(one, other),
        (CelValue::Map(one), CelValue::Map(other)) => return maps(one, other),
        (CelValue::Optional(None), CelValue::Optional(None)) => true,
        (CelValue::Optional(Some(one)), CelValue::Optional(Some(other))) => return equal(one, other),
        (CelValue::Type(one), CelValue::Type(other)) => one.name() == other.name(),
        (CelValue::Quantity(one), CelValue::Quantity(other)) => one.quantity == other.quantity,
        (CelValue::Ip(one), CelValue::Ip(other)) => one == other,
        (CelValue::Cidr(one), CelValue::Cidr(other)) => one == other,
        (CelValue::Url(one), CelValue::Url(other)) => one.text == other.text,
        (CelValue::Semver(one), CelValue::Semver(other)) => one.cmp(other) == Ordering::Equal,
        (CelValue::Format(one), CelValue::Format(other)) => one.name == other.name,
        (CelValue::Preserved(one), CelValue::Preserved(other)) => one == other,
        _ => false,
    })
}

/// Returns the order of two numbers of any type; `None` with NaN.
pub(crate) fn numbers(one: &CelValue<'_>, other: &CelValue<'_>) -> Option<Ordering> {
    let whole = |value: &CelValue<'_>| match value {
        CelValue::Int(value) => Some(i128::from(*value)),
        CelValue::Uint(value) => Some(i128::from(*value)),
        _ => None,
    };
    match (one, other) {
        (CelValue::Double(one), CelValue::Double(other)) => one.partial_cmp(other),
        (CelValue::Double(one), other) => whole_with(*one, whole(other)?),
        (one, CelValue::Double(other)) => whole_with(*other, whole(one)?).map(Ordering::reverse),
        _ => Some(whole(one)?.cmp(&whole(other)?)),
    }
}

fn whole_with(double: f64, whole: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Doubles outside the range of 64-bit integers compare by magnitude.
    if double.abs() >= 1e20 {
        return Some(if double > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let floor = double.floor();
    Some((floor as i128).cmp(&whole).then(if double > floor { Ordering::Greater } else { Ordering::Equal }))
}

/// Returns the order of two values of an ordered type.
pub(crate) fn compare(one: &CelValue<'_>, other: &CelValue<'_>) -> Result<Ordering, String> {
    let none = || "no such overload".to_owned();
    match (one, other) {
        (CelValue::Bool(one), CelValue::Bool(other)) => Ok(one.cmp(other)),
        (CelValue::String(one), CelValue::String(other)) => Ok((**one).cmp(&**other)),
        (CelValue::Bytes(one), CelValue::Bytes(other)) => Ok(one.cmp(other)),
        (CelValue::Duration(one), CelValue::Duration(other)) => Ok(one.cmp(other)),
        (CelValue::Timestamp(one), CelValue::Timestamp(other)) => Ok(one.cmp(other)),
        (
            CelValue::Int(_) | CelValue::Uint(_) | CelValue::Double(_),
            CelValue::Int(_) | CelValue::Uint(_) | CelValue::Double(_),
        ) => numbers(one, other).ok_or_else(|| "NaN values cannot be ordered".to_owned()),
        _ => Err(none()),
    }
}

fn lists(one: &CelList<'_>, other: &CelList<'_>) -> Result<bool, String> {
    if one.len() != other.len() {
        return Ok(false);
    }
    match one.kind {
        CelListKind::Plain => {
            for (one, other) in one.iter().zip(other.iter()) {
                if !equal(&one?, &other?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        CelListKind::Set => {
            let known: BTreeSet<ScalarKey> = scalar_keys(one)?;
            other.iter().try_fold(true, |all, element| Ok(all && known.contains(&ScalarKey::of(&element?))))
        }
        CelListKind::Map(keys) => keyed_lists(one, other, keys),
    }
}

fn scalar_keys(list: &CelList<'_>) -> Result<BTreeSet<ScalarKey>, String> {
    list.iter().map(|element| Ok(ScalarKey::of(&element?))).collect()
}

/// Returns the key of a scalar in a set: its text with its type.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScalarKey(String);

impl ScalarKey {
    pub(crate) fn of(value: &CelValue<'_>) -> Self {
        let text = match value {
            CelValue::Bytes(bytes) => format!("{bytes:?}"),
            CelValue::Duration(nanos) => nanos.to_string(),
            CelValue::Timestamp(time) => time.as_nanosecond().to_string(),
            other => other.plain(),
        };
        Self(format!("{}:{text}", value.type_of().name()))
    }
}

/// Returns the key of an element of a list with keys: the values of its key fields.
pub(crate) fn element_key(element: &CelValue<'_>, keys: &[String]) -> Result<String, String> {
    let CelValue::Map(map) = element else {
        return Err("unexpected data format for element of array with x-kubernetes-list-type=map".to_owned());
    };
    let mut text = String::new();
    for key in keys {
        let name = crate::schema::escape(key).unwrap_or_else(|| key.clone());
        let value = map.find(&CelValue::String(CelText::Borrowed(&name)))?;
        text += &value.map_or_else(|| "-".to_owned(), |value| ScalarKey::of(&value).0);
        text.push('\0');
    }
    Ok(text)
}

fn keyed_lists(one: &CelList<'_>, other: &CelList<'_>, keys: &[String]) -> Result<bool, String> {
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

fn maps(one: &CelMap<'_>, other: &CelMap<'_>) -> Result<bool, String> {
    if one.len() != other.len() {
        return Ok(false);
    }
    if let (CelMap::Json { fields, shape }, CelMap::Json { fields: others, .. }) = (one, other) {
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

type JsonFields = serde_json::Map<String, Json>;

/// Compares fields without a schema as they are, if both values have them.
fn data_maps(
    one: &CelMap<'_>,
    other: &CelMap<'_>,
    fields: &JsonFields,
    others: &JsonFields,
    shape: JsonFieldShape<'_>,
) -> Result<bool, String> {
    for (name, json) in fields {
        let seen = match shape {
            JsonFieldShape::Free | JsonFieldShape::Values(_) => true,
            JsonFieldShape::Object(schema) => schema.property(name).is_some(),
            JsonFieldShape::Closed => false,
        };
        if !seen {
            if others.get(name).is_some_and(|same| same != json) {
                return Ok(false);
            }
            continue;
        }
        let key = CelValue::from(name.as_str());
        match (one.find(&key)?, other.find(&key)?) {
            (Some(one), Some(other)) if equal(&one, &other)? => {}
            (None, None) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns true if a list contains a value equal to `wanted`.
pub(crate) fn contains(list: &CelList<'_>, wanted: &CelValue<'_>) -> Result<bool, String> {
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

/// Returns true if a map has a key.
pub(crate) fn has_key(map: &CelMap<'_>, key: &CelValue<'_>) -> Result<bool, String> {
    if let (CelMap::Owned(entries), Some(key)) = (map, Key::of(key)) {
        return Ok(entries.contains_key(&key));
    }
    map.find(key).map(|found| found.is_some())
}
