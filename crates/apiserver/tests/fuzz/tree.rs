//! Mutations of JSON trees: the result parses and has odd content.

use serde_json::{Map, Value, json};

use crate::random::Random;

/// Texts that some field accepts as a name, number, time, address, path or expression.
const TEXTS: [&str; 64] = [
    "",
    " ",
    "a",
    "A",
    "-",
    "a-",
    "é",
    "\u{0}",
    "\u{202e}",
    "a/b",
    "a/b/c",
    "/",
    "..",
    "../..",
    "*",
    "%",
    "$(A)",
    "$(",
    "{{",
    "0",
    "-1",
    "1",
    "1.5",
    "0.5",
    "1e3",
    "1e99999",
    "1e-99999",
    "-9223372036854775808",
    "9223372036854775807",
    "100Ei",
    "1Ki",
    "-5",
    "1n",
    "1.0001m",
    "0x10",
    "+1",
    "80%",
    "101%",
    "-1%",
    "http",
    "true",
    "null",
    "2020-01-01T00:00:00Z",
    "2020-13-45T99:99:99Z",
    "0000-00-00T00:00:00Z",
    "9999-12-31T23:59:60Z",
    "2020-01-01T00:00:00.123456789+14:00",
    "10.0.0.1",
    "10.0.0.0/33",
    "255.255.255.255/0",
    "::1",
    "::1/129",
    "::ffff:10.0.0.1",
    "* * * * *",
    "0 0 31 2 *",
    "@every 1ns",
    "TZ=X 0 0 * * *",
    "1-0/0 * * * *",
    "metadata.labels['a']",
    "[\"a\"]",
    "{\"a\":1}",
    "kubernetes.io/x",
    "sha256:0",
    "Always",
];
/// Keys with a meaning somewhere.
const KEYS: [&str; 16] = [
    "",
    "a",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "f:metadata",
    "k:{\"name\":\"c\"}",
    "v:\"a\"",
    ".",
    "metadata",
    "name",
    "namespace",
    "kind",
    "apiVersion",
    "status",
];

/// Parts of the seeds: a part of one kind of object often fits another.
#[derive(Default)]
pub struct Parts {
    values: Vec<Value>,
    keys: Vec<String>,
}

impl Parts {
    pub fn of(seeds: &[Value]) -> Self {
        let mut parts = Self::default();
        seeds.iter().for_each(|seed| parts.take(seed));
        parts.keys.sort();
        parts.keys.dedup();
        parts
    }

    fn take(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                self.keys.extend(map.keys().cloned());
                map.values().for_each(|value| self.take(value));
            }
            Value::Array(items) => items.iter().for_each(|item| self.take(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        self.values.push(value.clone());
    }

    fn value(&self, random: &mut Random) -> Value {
        match random.below(10) {
            0..=2 if !self.values.is_empty() => random.pick(&self.values).clone(),
            3..=5 => (*random.pick(&TEXTS)).into(),
            6 => number(random),
            7 => random.pick(&TEXTS).repeat(1 << random.below(10)).into(),
            _ => odd(random),
        }
    }

    fn key(&self, random: &mut Random) -> String {
        if random.one_in(2) && !self.keys.is_empty() {
            random.pick(&self.keys).clone()
        } else {
            (*random.pick(&KEYS)).into()
        }
    }
}

fn number(random: &mut Random) -> Value {
    let numbers =
        [0, 1, -1, 65535, 65536, i64::from(i32::MAX), i64::from(i32::MIN), i64::from(u32::MAX) + 1, i64::MAX, i64::MIN];
    match random.below(12) {
        10 => json!(u64::MAX),
        11 => json!(0.1),
        at => json!(numbers[at]),
    }
}

fn odd(random: &mut Random) -> Value {
    let depth = 1 << random.below(8);
    match random.below(9) {
        0 => Value::Null,
        1 => json!({}),
        2 => json!([]),
        3 => json!([null]),
        4 => json!({"": ""}),
        5 => json!({"$patch": random.pick(&["delete", "replace", "merge", "burn"])}),
        6 => (0..depth).fold(json!(1), |inner, _| json!([inner])),
        7 => (0..depth).fold(json!("x"), |inner, _| json!({"a": inner})),
        _ => Value::Bool(random.one_in(2)),
    }
}

/// Changes a few nodes of a tree.
pub fn change(tree: &mut Value, parts: &Parts, random: &mut Random) {
    for _ in 0..=random.few() {
        let place = somewhere(tree, random);
        once(place, parts, random);
    }
}

/// Selects a node; deep ones are as likely as shallow ones.
fn somewhere<'a>(mut tree: &'a mut Value, random: &mut Random) -> &'a mut Value {
    loop {
        let is_leaf = match tree {
            Value::Object(map) => map.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        };
        if is_leaf || random.one_in(5) {
            return tree;
        }
        tree = match tree {
            Value::Object(map) => {
                let at = random.below(map.len());
                map.values_mut().nth(at).expect("it is within the length")
            }
            Value::Array(items) => {
                let at = random.below(items.len());
                &mut items[at]
            }
            leaf => return leaf,
        };
    }
}

fn once(place: &mut Value, parts: &Parts, random: &mut Random) {
    match place {
        Value::Object(map) if random.below(4) > 0 => in_map(map, parts, random),
        Value::Array(items) if random.below(4) > 0 => in_list(items, parts, random),
        place => *place = parts.value(random),
    }
}

fn in_map(map: &mut Map<String, Value>, parts: &Parts, random: &mut Random) {
    let at = random.below(map.len());
    let key = map.keys().nth(at).cloned();
    match (random.below(4), key) {
        (0, Some(key)) => drop(map.remove(&key)),
        (1, Some(key)) => {
            let value = map.remove(&key).unwrap_or_default();
            map.insert(parts.key(random), value);
        }
        (2, Some(key)) => drop(map.insert(key, parts.value(random))),
        _ => drop(map.insert(parts.key(random), parts.value(random))),
    }
}

fn in_list(items: &mut Vec<Value>, parts: &Parts, random: &mut Random) {
    let at = random.below(items.len());
    match (random.below(5), items.is_empty()) {
        (0, false) => drop(items.remove(at)),
        (1, false) => items.push(items[at].clone()),
        (2, false) => {
            let item = items[at].clone();
            items.extend(std::iter::repeat_n(item, 1 << random.below(8)));
        }
        (3, false) => items[at] = parts.value(random),
        _ => items.push(parts.value(random)),
    }
}
