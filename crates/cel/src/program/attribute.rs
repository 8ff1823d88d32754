//! Chains of field accesses and indexes.

use super::evaluate::{Evaluation, EvaluationResult};
use super::plan::PlanNode;
use super::value::{CelList, CelListElements, CelMap, JsonFieldShape};
use super::{CelListKind, CelValue, EvaluationFailure};
use std::sync::Arc;

/// Value with a chain of field accesses and indexes.
#[derive(Debug)]
pub(super) struct Attribute {
    base: AttributeBase,
    qualifiers: Vec<Qualifier>,
}

/// Start of a chain of selections.
#[derive(Debug)]
pub(super) enum AttributeBase {
    Global(usize),
    Local(usize),
    Relative(Box<PlanNode>),
    Conditional(Box<(PlanNode, Attribute, Attribute)>),
}

/// Access in a chain.
#[derive(Debug)]
pub(super) enum Qualifier {
    Const {
        value: CelValue<'static>,
        optional: bool,
    },
    /// Index that is itself a chain.
    Attribute {
        key: Box<Attribute>,
        optional: bool,
    },
    Computed {
        key: Box<PlanNode>,
        optional: bool,
    },
    /// `has(….field)`
    Test(CelValue<'static>),
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
    pub(super) fn new(base: AttributeBase) -> Self {
        Self { base, qualifiers: Vec::new() }
    }

    pub(super) fn with(mut self, qualifier: Qualifier) -> Self {
        self.qualifiers.push(qualifier);
        self
    }

    pub(super) fn is_test(&self) -> bool {
        matches!(self.qualifiers.last(), Some(Qualifier::Test(_)))
    }

    /// Returns the slot of a variable without accesses.
    pub(super) fn slot(&self) -> Option<usize> {
        match self.base {
            AttributeBase::Local(slot) if self.qualifiers.is_empty() => Some(slot),
            AttributeBase::Local(_)
            | AttributeBase::Global(_)
            | AttributeBase::Relative(_)
            | AttributeBase::Conditional(_) => None,
        }
    }

    /// Evaluates the chain with its cost as a node of the tree, which is one for the variable. A presence test and a
    /// conditional add none.
    pub(super) fn observe<'a>(&'a self, evaluation: &mut Evaluation<'a, '_>) -> EvaluationResult<'a> {
        let found = self.resolve(evaluation);
        if let Err(EvaluationFailure::Cancelled(_)) = found {
            return found;
        }
        if !self.is_test() && !matches!(self.base, AttributeBase::Conditional(_)) {
            evaluation.charge(1)?;
        }
        found
    }

    /// Evaluates the chain with the cost of its accesses only.
    pub(super) fn resolve<'a>(&'a self, evaluation: &mut Evaluation<'a, '_>) -> EvaluationResult<'a> {
        let base = match &self.base {
            AttributeBase::Global(index) => evaluation.global(*index)?,
            AttributeBase::Local(slot) => evaluation.local(*slot)?,
            AttributeBase::Relative(node) => evaluation.eval(node)?,
            AttributeBase::Conditional(choice) => match evaluation.eval(&choice.0)? {
                CelValue::Bool(true) => choice.1.resolve(evaluation)?,
                CelValue::Bool(false) => choice.2.resolve(evaluation)?,
                _ => return Err(EvaluationFailure::Error("no such overload".to_owned())),
            },
        };
        if self.qualifiers.is_empty() {
            return Ok(base);
        }
        self.qualify(base, evaluation)
    }

    fn qualify<'a>(&'a self, base: CelValue<'a>, evaluation: &mut Evaluation<'a, '_>) -> EvaluationResult<'a> {
        let mut optional = false;
        let mut value = match base {
            CelValue::Optional(None) => return Ok(if self.is_test() { CelValue::Bool(false) } else { CelValue::NONE }),
            CelValue::Optional(Some(inner)) => {
                optional = true;
                raw(&inner)
            }
            other => other,
        };
        for qualifier in &self.qualifiers {
            optional = optional || qualifier.is_optional();
            match take(qualifier, &value, optional, evaluation)? {
                Some(next) => value = next,
                None => return Ok(if self.is_test() { CelValue::Bool(false) } else { CelValue::NONE }),
            }
        }
        Ok(if optional && !self.is_test() { CelValue::Optional(Some(Arc::new(value))) } else { value })
    }
}

/// Drops the schema of a value from an optional, as Kubernetes does.
fn raw<'a>(value: &CelValue<'a>) -> CelValue<'a> {
    match value {
        CelValue::Map(CelMap::Json { fields, .. }) => {
            CelValue::Map(CelMap::Json { fields, shape: JsonFieldShape::Free })
        }
        CelValue::List(CelList { elements: CelListElements::Json { items, .. }, .. }) => CelValue::List(CelList {
            elements: CelListElements::Json { items, schema: None },
            kind: CelListKind::Plain,
        }),
        other => other.clone(),
    }
}

/// Evaluates one access; `None` if an optional access finds nothing.
fn take<'a>(
    qualifier: &'a Qualifier,
    value: &CelValue<'a>,
    optional: bool,
    evaluation: &mut Evaluation<'a, '_>,
) -> Result<Option<CelValue<'a>>, EvaluationFailure> {
    let found = match qualifier {
        Qualifier::Const { value: key, .. } => find(value, key, optional),
        Qualifier::Attribute { key, .. } => key.resolve(evaluation).and_then(|key| find(value, &key, optional)),
        Qualifier::Computed { key, .. } => evaluation.eval(key).and_then(|key| find(value, &key, optional)),
        Qualifier::Test(key) => find(value, key, true).map(|found| match (found, optional) {
            (None, true) => None,
            (found, _) => Some(CelValue::Bool(found.is_some())),
        }),
    };
    let counted = !optional || matches!(found, Ok(Some(_)));
    if counted && !matches!(found, Err(EvaluationFailure::Cancelled(_))) {
        evaluation.charge(1)?;
    }
    found
}

/// Returns the field or element. With `lenient`, a missing one is `None` rather than an error.
fn find<'a>(
    value: &CelValue<'a>,
    key: &CelValue<'_>,
    lenient: bool,
) -> Result<Option<CelValue<'a>>, EvaluationFailure> {
    let missing = |message: String| if lenient { Ok(None) } else { Err(EvaluationFailure::Error(message)) };
    match value {
        CelValue::Map(map) => match map.find(key)? {
            Some(found) => Ok(Some(found)),
            None => missing(format!("no such key: {}", key.plain())),
        },
        CelValue::List(list) => match usize::try_from(index(key)?).ok().and_then(|index| list.get(index)) {
            Some(found) => Ok(Some(found?)),
            None => missing(format!("index out of bounds: {}", key.plain())),
        },
        _ => missing(format!("no such key: {}", key.plain())),
    }
}

fn index(key: &CelValue<'_>) -> Result<i64, EvaluationFailure> {
    let unsupported = || EvaluationFailure::Error(format!("unsupported index value {} in list", key.plain()));
    match key {
        CelValue::Int(index) => Ok(*index),
        CelValue::Uint(index) => i64::try_from(*index).map_err(|_| unsupported()),
        CelValue::Double(index) if index.fract() == 0.0 && index.abs() < 9e18 => Ok(*index as i64),
        CelValue::Double(_) => Err(unsupported()),
        other => Err(EvaluationFailure::Error(format!("unsupported index type '{}' in list", other.type_of().name()))),
    }
}
