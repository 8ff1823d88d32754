//! Chains of field accesses and indexes.

use super::evaluate::{Evaluation, Found};
use super::plan::Node;
use super::value::{Elements, List, Map, Shape};
use super::{Failure, ListKind, Value};
use std::sync::Arc;

/// A value and the fields or indexes taken of it, one after the other.
#[derive(Debug)]
pub(super) struct Attribute {
    base: Base,
    qualifiers: Vec<Qualifier>,
}

/// What a chain begins with.
#[derive(Debug)]
pub(super) enum Base {
    Global(usize),
    Local(usize),
    Relative(Box<Node>),
    Conditional(Box<(Node, Attribute, Attribute)>),
}

/// One access of a chain.
#[derive(Debug)]
pub(super) enum Qualifier {
    Const {
        value: Value<'static>,
        optional: bool,
    },
    /// An index that is itself a chain.
    Attribute {
        key: Box<Attribute>,
        optional: bool,
    },
    Computed {
        key: Box<Node>,
        optional: bool,
    },
    /// `has(….field)`
    Test(Value<'static>),
}

impl Qualifier {
    fn is_optional(&self) -> bool {
        match self {
            Self::Const { optional, .. } | Self::Attribute { optional, .. } | Self::Computed { optional, .. } => {
                *optional
            }
            Self::Test(_) => false,
        }
    }
}

impl Attribute {
    pub(super) fn new(base: Base) -> Self {
        Self { base, qualifiers: Vec::new() }
    }

    pub(super) fn with(mut self, qualifier: Qualifier) -> Self {
        self.qualifiers.push(qualifier);
        self
    }

    pub(super) fn is_test(&self) -> bool {
        matches!(self.qualifiers.last(), Some(Qualifier::Test(_)))
    }

    /// The slot of a variable that nothing is taken of.
    pub(super) fn slot(&self) -> Option<usize> {
        match self.base {
            Base::Local(slot) if self.qualifiers.is_empty() => Some(slot),
            Base::Local(_) | Base::Global(_) | Base::Relative(_) | Base::Conditional(_) => None,
        }
    }

    /// The value, with its cost as a node of the tree: one for the variable. A test and a choice have none of their own.
    pub(super) fn observe<'a>(&'a self, evaluation: &mut Evaluation<'a, '_>) -> Found<'a> {
        let found = self.resolve(evaluation);
        if let Err(Failure::Cancelled(_)) = found {
            return found;
        }
        if !self.is_test() && !matches!(self.base, Base::Conditional(_)) {
            evaluation.charge(1)?;
        }
        found
    }

    /// The value, with the cost of what is taken only.
    pub(super) fn resolve<'a>(&'a self, evaluation: &mut Evaluation<'a, '_>) -> Found<'a> {
        let base = match &self.base {
            Base::Global(index) => evaluation.global(*index)?,
            Base::Local(slot) => evaluation.local(*slot)?,
            Base::Relative(node) => evaluation.eval(node)?,
            Base::Conditional(choice) => match evaluation.eval(&choice.0)? {
                Value::Bool(true) => choice.1.resolve(evaluation)?,
                Value::Bool(false) => choice.2.resolve(evaluation)?,
                _ => return Err(Failure::Error("no such overload".to_owned())),
            },
        };
        if self.qualifiers.is_empty() {
            return Ok(base);
        }
        self.qualify(base, evaluation)
    }

    fn qualify<'a>(&'a self, base: Value<'a>, evaluation: &mut Evaluation<'a, '_>) -> Found<'a> {
        let mut optional = false;
        let mut value = match base {
            Value::Optional(None) => return Ok(if self.is_test() { Value::Bool(false) } else { Value::NONE }),
            Value::Optional(Some(inner)) => {
                optional = true;
                raw(&inner)
            }
            other => other,
        };
        for qualifier in &self.qualifiers {
            optional = optional || qualifier.is_optional();
            match take(qualifier, &value, optional, evaluation)? {
                Some(next) => value = next,
                None => return Ok(if self.is_test() { Value::Bool(false) } else { Value::NONE }),
            }
        }
        Ok(if optional && !self.is_test() { Value::Optional(Some(Arc::new(value))) } else { value })
    }
}

/// What is taken of an optional forgets its schema, as in Kubernetes.
fn raw<'a>(value: &Value<'a>) -> Value<'a> {
    match value {
        Value::Map(Map::Json { fields, .. }) => Value::Map(Map::Json { fields, shape: Shape::Free }),
        Value::List(List { elements: Elements::Json { items, .. }, .. }) => {
            Value::List(List { elements: Elements::Json { items, schema: None }, kind: ListKind::Plain })
        }
        other => other.clone(),
    }
}

/// One access: `None` where an optional one finds nothing.
fn take<'a>(
    qualifier: &'a Qualifier,
    value: &Value<'a>,
    optional: bool,
    evaluation: &mut Evaluation<'a, '_>,
) -> Result<Option<Value<'a>>, Failure> {
    let found = match qualifier {
        Qualifier::Const { value: key, .. } => find(value, key, optional),
        Qualifier::Attribute { key, .. } => key.resolve(evaluation).and_then(|key| find(value, &key, optional)),
        Qualifier::Computed { key, .. } => evaluation.eval(key).and_then(|key| find(value, &key, optional)),
        Qualifier::Test(key) => find(value, key, true).map(|found| match (found, optional) {
            (None, true) => None,
            (found, _) => Some(Value::Bool(found.is_some())),
        }),
    };
    let counted = !optional || matches!(found, Ok(Some(_)));
    if counted && !matches!(found, Err(Failure::Cancelled(_))) {
        evaluation.charge(1)?;
    }
    found
}

/// The field or element; with `lenient`, what is not there is `None` rather than an error.
fn find<'a>(value: &Value<'a>, key: &Value<'_>, lenient: bool) -> Result<Option<Value<'a>>, Failure> {
    let missing = |message: String| if lenient { Ok(None) } else { Err(Failure::Error(message)) };
    match value {
        Value::Map(map) => match map.find(key)? {
            Some(found) => Ok(Some(found)),
            None => missing(format!("no such key: {}", key.plain())),
        },
        Value::List(list) => match usize::try_from(index(key)?).ok().and_then(|index| list.get(index)) {
            Some(found) => Ok(Some(found?)),
            None => missing(format!("index out of bounds: {}", key.plain())),
        },
        _ => missing(format!("no such key: {}", key.plain())),
    }
}

fn index(key: &Value<'_>) -> Result<i64, Failure> {
    let unsupported = || Failure::Error(format!("unsupported index value {} in list", key.plain()));
    match key {
        Value::Int(index) => Ok(*index),
        Value::Uint(index) => i64::try_from(*index).map_err(|_| unsupported()),
        Value::Double(index) if index.fract() == 0.0 && index.abs() < 9e18 => Ok(*index as i64),
        Value::Double(_) => Err(unsupported()),
        other => Err(Failure::Error(format!("unsupported index type '{}' in list", other.type_of().name()))),
    }
}
