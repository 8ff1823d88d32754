//! Conversion of nodes to JSON, like `decode.go` of Go's `yaml.v2` and the converter of `sigs.k8s.io/yaml`: an alias is
//! read again at each use, a merge overwrites earlier keys of its map, and the last of equal keys wins.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    MAX_NODES,
    document::{At, Document, What},
    key::{self, Key},
    scalar::{self, Scalar, Tag},
    words,
};
use crate::decode::MAX_READ_DEPTH;

/// Aliases may not blow the texts of a document up to more than this many times its size.
const MAX_EXPANSION: usize = 8;
/// Nodes that aliases may expand to in any document. Go allows forty times as many, each of any size.
const MIN_ALIASED: usize = 10_000;
/// Most repeated keys that are reported.
const MAX_REPEATED: usize = 100;

/// One reading of a document.
pub(super) struct YamlReader<'d> {
    document: &'d Document<'d>,
    left: AliasBudget,
    /// The aliases that are being read, of which an inner one leads back to an outer one.
    within: HashSet<At>,
    /// Keys and values without a JSON form, which Go finds after it has read everything.
    no_key: Option<String>,
    no_value: Option<String>,
    repeats: bool,
    /// Messages for repeated keys, if requested.
    repeated: Option<Vec<String>>,
}

/// Budget of aliases.
struct AliasBudget {
    /// Nodes of the tree and of the document. The document alone has fewer than the maximum.
    nodes: usize,
    /// Nodes that aliases expanded to.
    aliased: usize,
    /// Bytes of scalars, with those of the document.
    bytes: usize,
}

/// Map under construction. Its keys are collected only if duplicates must be reported.
#[derive(Default)]
struct Entries {
    map: Map<String, Value>,
    keys: HashSet<Key>,
}

impl<'d> YamlReader<'d> {
    /// `size`: bytes of the body, which bounds the expansion of aliases.
    pub(super) fn new(document: &'d Document<'d>, size: usize) -> Self {
        // A node takes far more memory than the byte that it may be in the text.
        let aliased = MIN_ALIASED.max(size / 4);
        let left = AliasBudget { nodes: MAX_NODES, aliased, bytes: size.saturating_mul(MAX_EXPANSION) };
        let (no_key, no_value) = (None, None);
        Self { document, left, within: HashSet::new(), no_key, no_value, repeats: false, repeated: None }
    }

    /// Returns a reader that reports repeated keys.
    pub(super) fn strict(document: &'d Document<'d>, size: usize) -> Self {
        Self { repeated: Some(Vec::new()), ..Self::new(document, size) }
    }

    /// Returns the document as JSON.
    ///
    /// # Errors
    /// Go's message for text that it cannot parse or cannot convert to JSON.
    pub(super) fn read(&mut self) -> Result<Value, String> {
        let tree = self.document.root().map_or(Ok(Value::Null), |root| self.value(root, 0))?;
        match self.no_key.take().or(self.no_value.take()) {
            Some(refused) => Err(refused),
            None => Ok(tree),
        }
    }

    /// Returns true if a key was repeated.
    pub(super) fn repeats(&self) -> bool {
        self.repeats
    }

    /// Returns the messages for repeated keys.
    pub(super) fn into_repeated(self) -> Vec<String> {
        self.repeated.unwrap_or_default()
    }

    fn value(&mut self, at: At, depth: usize) -> Result<Value, String> {
        self.count()?;
        let document = self.document;
        match &document.node(at).what {
            What::Alias(target, name) => self.alias(at, name, |reader| reader.value(*target, depth)),
            What::List(items) => {
                let depth = below(depth)?;
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    list.push(self.value(*item, depth)?);
                }
                Ok(Value::Array(list))
            }
            What::Map(entries) => {
                let mut map = Entries::default();
                self.entries(entries, &mut map, below(depth)?)?;
                Ok(Value::Object(map.map))
            }
            what @ (What::Plain(_) | What::Text(_) | What::Tagged(..)) => {
                let scalar = self.scalar(what)?;
                Ok(self.json(scalar))
            }
        }
    }

    /// Counts a node of the tree.
    fn count(&mut self) -> Result<(), String> {
        self.left.nodes = self.left.nodes.checked_sub(1).ok_or(words::EXCESSIVE)?;
        if !self.within.is_empty() {
            self.left.aliased = self.left.aliased.checked_sub(1).ok_or(words::EXCESSIVE)?;
        }
        Ok(())
    }

    fn alias<T>(&mut self, at: At, name: &str, read: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        if !self.within.insert(at) {
            return Err(words::contains_itself(name));
        }
        let done = read(self);
        self.within.remove(&at);
        done
    }

    fn scalar(&mut self, what: &'d What<'d>) -> Result<Scalar<'d>, String> {
        let (What::Plain(text) | What::Text(text) | What::Tagged(_, text)) = what else { return Ok(Scalar::Null) };
        // Charged before parsing: the digits of a number and scalars that end up empty cost time as well.
        self.charge(text.len())?;
        let scalar = match what {
            What::Plain(text) => scalar::plain(text),
            What::Tagged(tag, text) => scalar::tagged(*tag, text)?,
            What::Text(_) | What::List(_) | What::Map(_) | What::Alias(..) => Scalar::Text((&**text).into()),
        };
        if let Scalar::Text(read) = &scalar {
            self.charge(read.len().saturating_sub(text.len()))?;
        }
        Ok(scalar)
    }

    fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.left.bytes = self.left.bytes.checked_sub(bytes).ok_or(words::EXCESSIVE)?;
        Ok(())
    }

    fn json(&mut self, scalar: Scalar<'_>) -> Value {
        match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(truth) => truth.into(),
            Scalar::Int(number) => number.into(),
            Scalar::Uint(number) => number.into(),
            Scalar::Float(number) => self.float(number),
            Scalar::Text(text) => text.into_owned().into(),
        }
    }

    /// Converts a float: JSON has whole numbers as integers, in whatever spelling, and has no infinity or NaN.
    fn float(&mut self, number: f64) -> Value {
        let name = match number {
            number if number.is_finite() => return json_number(number),
            number if number.is_nan() => "NaN",
            number if number > 0.0 => "+Inf",
            _ => "-Inf",
        };
        self.no_value.get_or_insert_with(|| format!("json: unsupported value: {name}"));
        Value::Null
    }

    /// Puts the entries of a map into one, which may have others.
    fn entries(&mut self, entries: &'d [At], into: &mut Entries, depth: usize) -> Result<(), String> {
        for entry in entries.chunks_exact(2) {
            let (key, value) = (entry[0], entry[1]);
            if self.is_merge(key) {
                self.merge(value, into, depth)?;
                continue;
            }
            let key = self.key(key, depth)?;
            let line = self.document.node(value).line;
            let value = self.value(value, depth)?;
            self.put(into, key, value, line);
        }
        Ok(())
    }

    fn put(&mut self, into: &mut Entries, key: Key, value: Value, line: u32) {
        let name = match key.text() {
            Ok(name) => name,
            Err(go_type) => {
                self.no_key.get_or_insert_with(|| key.refused(go_type, &value));
                return;
            }
        };
        if let Some(repeated) = &mut self.repeated {
            if into.keys.contains(&key) && repeated.len() < MAX_REPEATED {
                repeated.push(format!("line {line}: key {} already set in map", key.source()));
            }
            into.keys.insert(key);
        }
        self.repeats |= into.map.insert(name, value).is_some();
    }

    fn key(&mut self, at: At, depth: usize) -> Result<Key, String> {
        self.count()?;
        let document = self.document;
        match &document.node(at).what {
            What::Alias(target, name) => self.alias(at, name, |reader| reader.key(*target, depth)),
            What::List(_) | What::Map(_) => {
                let key = self.value(at, depth)?;
                Err(format!("yaml: invalid map key: {}", key::source(&key)))
            }
            what @ (What::Plain(_) | What::Text(_) | What::Tagged(..)) => self.scalar(what).map(Key::from),
        }
    }

    fn is_merge(&self, at: At) -> bool {
        match &self.document.node(at).what {
            What::Plain(text) => text == "<<",
            // The tag `!` equals no tag here, and only here.
            What::Tagged(tag, text) => text == "<<" && matches!(tag, Tag::Merge | Tag::NonSpecific),
            What::Text(_) | What::List(_) | What::Map(_) | What::Alias(..) => false,
        }
    }

    /// Merges a map, or a list of maps of which the first ones win.
    fn merge(&mut self, at: At, into: &mut Entries, depth: usize) -> Result<(), String> {
        let document = self.document;
        match &document.node(at).what {
            What::List(maps) => maps.iter().rev().try_for_each(|map| self.merge_one(*map, into, depth)),
            _ => self.merge_one(at, into, depth),
        }
    }

    fn merge_one(&mut self, at: At, into: &mut Entries, depth: usize) -> Result<(), String> {
        // A chain of merges must not exhaust the stack either.
        let depth = below(depth)?;
        let document = self.document;
        let is_map = |at: At| matches!(document.node(at).what, What::Map(_));
        match &document.node(at).what {
            What::Alias(target, name) if is_map(*target) => {
                self.count()?;
                self.alias(at, name, |reader| reader.merge_one(*target, into, depth))
            }
            What::Map(entries) => {
                self.count()?;
                self.entries(entries, into, depth)
            }
            What::Alias(..) | What::Plain(_) | What::Text(_) | What::Tagged(..) | What::List(_) => {
                Err(words::NO_MAP.into())
            }
        }
    }
}

/// Returns the next level, if it is not too deep.
fn below(depth: usize) -> Result<usize, String> {
    if depth < MAX_READ_DEPTH { Ok(depth + 1) } else { Err(words::too_deep()) }
}

/// Returns a float in the form in which JSON is read back: Go writes a whole one with the fewest distinguishing digits
/// and zeros behind them, so it is read as an integer if it fits into one.
pub(super) fn json_number(number: f64) -> Value {
    let text = number.to_string();
    let whole = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    whole.unwrap_or_else(|_| number.into())
}
