//! Reading a tree without schema.

use std::{cell::RefCell, collections::HashSet, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::walk::{Step, Walk};

/// Most repeated keys that are told, and most bytes shown of one.
const MAX_REPEATED: usize = 100;
const MAX_SHOWN: usize = 1024;

fn shown(key: &str) -> &str {
    &key[..key.floor_char_boundary(MAX_SHOWN)]
}

/// Reads any value. The last of duplicate keys wins; a walk notes that they are there twice.
#[derive(Clone, Copy)]
pub(super) struct Tree<'w, 't> {
    walk: Option<&'w Walk<'t>>,
    source: Source,
}

/// Reads any value, and notes nothing.
pub(super) const PLAIN: Tree<'static, 'static> = Tree { walk: None, source: Source::Json };

/// As [`PLAIN`], out of YAML.
pub(super) const PLAIN_YAML: Tree<'static, 'static> = Tree { walk: None, source: Source::Yaml };

/// What a value is read out of. Go makes JSON of YAML first, in which a whole number is one however it is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Json,
    Yaml,
}

/// The whole number that a number is.
pub(super) fn whole(number: f64) -> Option<i64> {
    // The bounds are exact; beyond them are no numbers of 64 bits.
    let is_whole =
        number.fract() == 0.0 && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number);
    is_whole.then_some(number as i64)
}

/// What Go says of a number that JSON has no form for.
///
/// # Errors
/// For what is infinite, or none.
pub(super) fn finite<E: Error>(number: f64) -> Result<f64, E> {
    let name = match number {
        number if number.is_finite() => return Ok(number),
        number if number.is_nan() => "NaN",
        number if number > 0.0 => "+Inf",
        _ => "-Inf",
    };
    Err(E::custom(format!("{UNSUPPORTED}{name}")))
}

/// How an error about such a number begins.
pub(super) const UNSUPPORTED: &str = "json: unsupported value: ";

/// A float as Go's converter from YAML writes it as a key: `%g` of its 32 bits.
fn float_key(key: f64) -> String {
    let key = key as f32;
    if !key.is_finite() {
        let name = if key.is_nan() { ".nan" } else { ".inf" };
        return if key < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let shortest = format!("{key:e}");
    match shortest.split_once('e').map(|(mantissa, exponent)| (mantissa, exponent.parse::<i32>())) {
        Some((mantissa, Ok(exponent))) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => key.to_string(),
    }
}

/// Reads the key of a map. Going from YAML to JSON makes texts of truths and numbers.
pub(super) struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Key {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bool<E>(self, key: bool) -> Result<String, E> {
        Ok(key.to_string())
    }

    fn visit_i64<E>(self, key: i64) -> Result<String, E> {
        Ok(key.to_string())
    }

    fn visit_u64<E>(self, key: u64) -> Result<String, E> {
        Ok(key.to_string())
    }

    fn visit_f64<E>(self, key: f64) -> Result<String, E> {
        Ok(float_key(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<String, E> {
        Ok(key.to_owned())
    }

    fn visit_string<E>(self, key: String) -> Result<String, E> {
        Ok(key)
    }
}

impl<'w, 't> Tree<'w, 't> {
    /// Reads what a walk comes to that knows no more of it.
    pub(super) fn of(walk: &'w Walk<'t>) -> Self {
        Self { walk: Some(walk), source: walk.source() }
    }

    fn of_yaml(self) -> bool {
        self.source == Source::Yaml
    }

    fn mark(self) -> usize {
        self.walk.map_or(0, Walk::mark)
    }

    fn prefix(self, mark: usize, step: impl FnOnce() -> Step) {
        if let Some(walk) = self.walk {
            walk.prefix(mark, step);
        }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let value = finite(value)?;
        Ok(match whole(value).filter(|_| self.of_yaml()) {
            Some(whole) => whole.into(),
            None => value.into(),
        })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let mark = self.mark();
            let Some(item) = items.next_element_seed(self)? else { return Ok(Value::Array(list)) };
            self.prefix(mark, || Step::Index(list.len()));
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let start = self.mark();
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(Key)? {
            let mark = self.mark();
            let value = entries.next_value_seed(self)?;
            self.prefix(mark, || Step::Name(key.clone()));
            if let Some(walk) = self.walk.filter(|_| map.contains_key(&key)) {
                walk.duplicate(start, &key);
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Reads nothing, and gathers the keys that stand more than once in a YAML map.
pub(super) struct Repeated<'f>(pub(super) &'f RefCell<Vec<String>>);

impl<'de> DeserializeSeed<'de> for Repeated<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Repeated<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Repeated(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<Spanned<Printed>>()? {
            entries.next_value_seed(Repeated(self.0))?;
            let (line, Printed(key)) = (key.referenced.line(), key.value);
            if self.0.borrow().len() < MAX_REPEATED && seen.contains(&key) {
                self.0.borrow_mut().push(format!("line {line}: key {key} already set in map"));
            }
            seen.insert(key);
        }
        Ok(())
    }
}

/// A key as Go's source would have it, of a long one the beginning.
struct Printed(String);

impl<'de> Deserialize<'de> for Printed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PrintedKey).map(Self)
    }
}

struct PrintedKey;

impl Visitor<'_> for PrintedKey {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bool<E: serde::de::Error>(self, key: bool) -> Result<String, E> {
        Key.visit_bool(key)
    }

    fn visit_i64<E: serde::de::Error>(self, key: i64) -> Result<String, E> {
        Key.visit_i64(key)
    }

    fn visit_u64<E: serde::de::Error>(self, key: u64) -> Result<String, E> {
        Key.visit_u64(key)
    }

    fn visit_f64<E: serde::de::Error>(self, key: f64) -> Result<String, E> {
        Key.visit_f64(key)
    }

    fn visit_str<E>(self, key: &str) -> Result<String, E> {
        Ok(format!("{:?}", shown(key)))
    }
}
