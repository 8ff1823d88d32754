//! Sets of fields, as `fieldsV1` has them.
//!
//! An element of a path is kept in its wire form: `f:<name>` for a field, `k:<JSON object>` for an element of a map
//! list, `v:<JSON>` for an element of a set, `i:<n>` for a position. That form is canonical, so equal elements are
//! equal text.

use std::collections::BTreeMap;

use portolan_types::{object::Object, quoted::go_quoted};
use serde::Deserialize as _;
use serde_json::Value;

use portolan_gocompat::json::escaped;

/// A set of paths. Holds no node that is neither a member nor above one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet(BTreeMap<Box<str>, Node>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    member: bool,
    below: FieldSet,
}

impl Node {
    fn of(member: bool, below: FieldSet) -> Option<Self> {
        (member || !below.is_empty()).then_some(Self { member, below })
    }

    /// Returns true if the path so far is in the set.
    pub(super) fn is_member(&self) -> bool {
        self.member
    }

    /// Returns the members inside.
    pub(super) fn below(&self) -> &FieldSet {
        &self.below
    }

    pub(super) fn below_mut(&mut self) -> &mut FieldSet {
        &mut self.below
    }

    /// Is a member itself, in place of those below.
    pub(super) fn become_whole(&mut self) {
        *self = Self { member: true, below: FieldSet::default() };
    }
}

impl FieldSet {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, element: &str) -> Option<&Node> {
        self.0.get(element)
    }

    pub(super) fn insert(&mut self, path: &[Box<str>]) {
        let [first, rest @ ..] = path else { return };
        let node = self.0.entry(first.clone()).or_default();
        match rest {
            [] => node.member = true,
            rest => node.below.insert(rest),
        }
    }

    /// Adds one element with its children.
    pub(super) fn put(&mut self, element: Box<str>, member: bool, below: FieldSet) {
        if let Some(node) = Node::of(member, below) {
            self.0.insert(element, node);
        }
    }

    pub(super) fn union(mut self, other: Self) -> Self {
        for (element, theirs) in other.0 {
            let own = self.0.entry(element).or_default();
            own.member |= theirs.member;
            own.below = std::mem::take(&mut own.below).union(theirs.below);
        }
        self
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let both = self.0.iter().filter_map(|(element, own)| {
            let theirs = other.get(element)?;
            let node = Node::of(own.member && theirs.member, own.below.intersection(&theirs.below))?;
            Some((element.clone(), node))
        });
        Self(both.collect())
    }

    /// Returns the members of this set that are not in `other`.
    pub(super) fn difference(&self, other: &Self) -> Self {
        let left = self.0.iter().filter_map(|(element, own)| {
            let node = match other.get(element) {
                None => Some(own.clone()),
                Some(theirs) => Node::of(own.member && !theirs.member, own.below.difference(&theirs.below)),
            };
            Some((element.clone(), node?))
        });
        Self(left.collect())
    }

    /// Returns the members of this set that are neither in `other` nor below a member of it.
    pub(super) fn outside(&self, other: &Self) -> Self {
        let left = self.0.iter().filter_map(|(element, own)| {
            let node = match other.get(element) {
                None => Some(own.clone()),
                Some(theirs) if theirs.member => None,
                Some(theirs) => Node::of(own.member, own.below.outside(&theirs.below)),
            };
            Some((element.clone(), node?))
        });
        Self(left.collect())
    }

    /// Returns the nodes of the first level.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(element, node)| (&**element, node))
    }

    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = (&str, &mut Node)> {
        self.0.iter_mut().map(|(element, node)| (&**element, node))
    }

    /// Returns all members as people read them (`.spec.ports[port=80]`): level by level.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.collect_paths("", &mut all);
        all
    }

    fn collect_paths(&self, prefix: &str, all: &mut Vec<String>) {
        let path = |element: &str| format!("{prefix}{}", readable(element));
        all.extend(self.0.iter().filter(|(_, node)| node.member).map(|(element, _)| path(element)));
        for (element, node) in self.0.iter().filter(|(_, node)| !node.below.is_empty()) {
            node.below.collect_paths(&path(element), all);
        }
    }

    /// Parses `fieldsV1`. Elements of unknown form are dropped, as in kube-apiserver; `None` if it is no `fieldsV1` at
    /// all.
    pub(super) fn parse(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (element, below) in fields.as_object()? {
            if element == "." {
                continue;
            }
            let Some(element) = read_element(element)? else { continue };
            let inner = Self::parse_below(below)?;
            set.put(element, inner.member, inner.below);
        }
        Some(set)
    }

    /// Parses the fields below an element; `None` if the element is owned as a whole.
    fn parse_below(fields: &Value) -> Option<Node> {
        let below = if fields.is_null() { Self::default() } else { Self::parse(fields)? };
        let member = below.is_empty() || fields.get(".").is_some();
        Some(Node { member, below })
    }

    pub(super) fn to_fields(&self) -> Value {
        Value::Object(self.0.iter().map(|(element, node)| (element.to_string(), node.to_fields())).collect())
    }
}

impl Node {
    fn to_fields(&self) -> Value {
        let mut fields = Object::new();
        if self.member && !self.below.is_empty() {
            fields.insert(".".into(), Value::Object(Object::new()));
        }
        fields.extend(self.below.0.iter().map(|(element, node)| (element.to_string(), node.to_fields())));
        Value::Object(fields)
    }
}

/// Parses an element as a client wrote it, and brings the JSON in it into this server's form. Returns `Some(None)` for
/// one of unknown form, `None` for an invalid one.
fn read_element(text: &str) -> Option<Option<Box<str>>> {
    let (kind, content) = text.split_at_checked(2).filter(|(kind, _)| kind.ends_with(':'))?;
    Some(match kind {
        "f:" => Some(text.into()),
        "k:" => match first_json(content)? {
            Value::Object(keys) => Some(key_element(keys.into_iter().collect())),
            Value::Null => Some(key_element(Vec::new())),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => return None,
        },
        "v:" => Some(value_element(&first_json(content)?)),
        "i:" => Some(format!("i:{}", content.parse::<i64>().ok()?).into()),
        _ => None,
    })
}

/// Returns the JSON at the start of a text. The rest is ignored, as in kube-apiserver.
fn first_json(text: &str) -> Option<Value> {
    Value::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()
}

/// Returns the element of a map list with these keys.
pub(super) fn key_element(mut keys: Vec<(String, Value)>) -> Box<str> {
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
    escaped(&format!("k:{{{}}}", pairs.join(","))).into()
}

/// Returns a position in a list.
pub(super) fn position_element(at: usize) -> Box<str> {
    format!("i:{at}").into()
}

/// Returns the element of a set.
pub(super) fn value_element(value: &Value) -> Box<str> {
    escaped(&format!("v:{value}")).into()
}

/// Returns the element in the form of messages.
fn readable(element: &str) -> String {
    let (kind, content) = element.split_at(2);
    match kind {
        "f:" => format!(".{content}"),
        "k:" => {
            let keys: Object = serde_json::from_str(content).unwrap_or_default();
            let pairs: Vec<String> =
                keys.iter().map(|(key, value)| format!("{key}={}", printed_value(value))).collect();
            format!("[{}]", pairs.join(","))
        }
        "v:" => format!("[={}]", printed_value(&serde_json::from_str(content).unwrap_or_default())),
        _ => format!("[{content}]"),
    }
}

/// Returns the value of a key or of a set's element in the form of messages.
fn printed_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), go_quoted)
}
