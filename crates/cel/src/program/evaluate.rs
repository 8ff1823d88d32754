//! Evaluation of nodes, with cel-go's cost accounting.

use super::plan::{CallNode, Fold, PlanNode};
use super::value::{CelList, CelMap, CelValue, Key};
use super::{Activation, CelProgram, EvaluationFailure, Meter, OVER_LIMIT, ProgramOutcome, cost, equal};
use crate::estimate::{LIST_COST, MAP_COST, STRUCT_COST};
use crate::library::CallContext;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type EvaluationResult<'a> = Result<CelValue<'a>, EvaluationFailure>;

pub(super) fn run<'a>(program: &'a CelProgram, activation: &dyn Activation<'a>, limit: u64) -> ProgramOutcome<'a> {
    let mut evaluation = Evaluation {
        program,
        activation,
        globals: vec![None; program.globals.len()],
        locals: vec![VariableSlot::Empty; program.locals],
        context: CallContext { patterns: &program.patterns, meter: Meter::default() },
        cost: 0,
        limit,
    };
    let value = evaluation.eval(&program.root);
    ProgramOutcome { value, cost: evaluation.cost }
}

/// Value of a variable slot.
#[derive(Clone, Debug)]
enum VariableSlot<'a> {
    Empty,
    /// Computed on first use.
    Lazy(&'a PlanNode),
    Filled(EvaluationResult<'a>),
}

/// Evaluation in progress.
pub(super) struct Evaluation<'a, 'e> {
    program: &'a CelProgram,
    activation: &'e dyn Activation<'a>,
    globals: Vec<Option<EvaluationResult<'a>>>,
    locals: Vec<VariableSlot<'a>>,
    context: CallContext<'a>,
    cost: u64,
    limit: u64,
}

impl<'a> Evaluation<'a, '_> {
    /// Adds to the cost, and stops the evaluation at the limit.
    pub(super) fn charge(&mut self, amount: u64) -> Result<(), EvaluationFailure> {
        self.cost = self.cost.saturating_add(amount);
        if self.cost > self.limit { Err(EvaluationFailure::Cancelled(OVER_LIMIT)) } else { Ok(()) }
    }

    pub(super) fn global(&mut self, index: usize) -> EvaluationResult<'a> {
        if let Some(found) = &self.globals[index] {
            return found.clone();
        }
        let name = &self.program.globals[index];
        let found = self.activation.resolve(name);
        let found = found.unwrap_or_else(|| Err(EvaluationFailure::Error(format!("no such attribute(s): {name}"))));
        self.globals[index] = Some(found.clone());
        found
    }

    pub(super) fn local(&mut self, slot: usize) -> EvaluationResult<'a> {
        match &self.locals[slot] {
            VariableSlot::Filled(found) => found.clone(),
            VariableSlot::Empty => Err(EvaluationFailure::Error("no such attribute(s)".to_owned())),
            VariableSlot::Lazy(init) => {
                let found = self.eval(init);
                self.locals[slot] = VariableSlot::Filled(found.clone());
                found
            }
        }
    }

    pub(super) fn eval(&mut self, node: &'a PlanNode) -> EvaluationResult<'a> {
        match node {
            PlanNode::Const(value) => Ok(value.clone()),
            PlanNode::Attribute(attribute) => attribute.observe(self),
            PlanNode::And(terms) => self.junction(terms, false),
            PlanNode::Or(terms) => self.junction(terms, true),
            PlanNode::Equal { sides, negated } => self.equality(sides, *negated),
            PlanNode::Member { value, set } => {
                let value = self.eval(value)?;
                Ok(CelValue::Bool(equal::contains(set, &value)?))
            }
            PlanNode::OptionalOr(sides) => match self.eval(&sides.0)? {
                CelValue::Optional(None) => self.eval(&sides.1),
                other => Ok(other),
            },
            PlanNode::OptionalOrValue(sides) => match self.eval(&sides.0)? {
                CelValue::Optional(None) => self.eval(&sides.1),
                CelValue::Optional(Some(value)) => Ok((*value).clone()),
                other => Ok(other),
            },
            PlanNode::Call(call) => self.call(call),
            PlanNode::List { elements } => self.list(elements),
            PlanNode::Map { entries } => self.map(entries),
            PlanNode::Struct { name, fields } => self.structure(name, fields),
            PlanNode::Fold(fold) => self.fold(fold),
            PlanNode::Append { slot, list } => self.append(*slot, list),
            PlanNode::Insert { slot, args } => self.insert(*slot, args),
        }
    }

    /// Evaluates `&&` and `||`: an error on one side is ignored if the other side decides.
    fn junction(&mut self, terms: &'a (PlanNode, PlanNode), decides: bool) -> EvaluationResult<'a> {
        let mut wrong = None;
        for term in [&terms.0, &terms.1] {
            match self.eval(term) {
                Ok(CelValue::Bool(value)) if value == decides => return Ok(CelValue::Bool(decides)),
                Ok(CelValue::Bool(_)) => {}
                Ok(_) => wrong = wrong.or_else(|| Some(EvaluationFailure::Error("no such overload".to_owned()))),
                Err(EvaluationFailure::Error(message)) => wrong = wrong.or(Some(EvaluationFailure::Error(message))),
                Err(cancelled @ EvaluationFailure::Cancelled(_)) => return Err(cancelled),
            }
        }
        wrong.map_or(Ok(CelValue::Bool(!decides)), Err)
    }

    fn equality(&mut self, sides: &'a (PlanNode, PlanNode), negated: bool) -> EvaluationResult<'a> {
        let left = uncancelled(self.eval(&sides.0))?;
        let right = uncancelled(self.eval(&sides.1))?;
        let (function, overload) = if negated { ("_!=_", "not_equals") } else { ("_==_", "equals") };
        self.charge(cost::of_call(function, overload, &[left.as_ref().ok(), right.as_ref().ok()], None))?;
        let (left, right) = (left?, right?);
        self.context.meter.comparing(&left, &right)?;
        match equal::equal(&left, &right) {
            Ok(same) => Ok(CelValue::Bool(same != negated)),
            // Values that are not known to be equal are not equal.
            Err(_) if negated => Ok(CelValue::Bool(true)),
            Err(message) => Err(EvaluationFailure::Error(message)),
        }
    }

    fn call(&mut self, call: &'a CallNode) -> EvaluationResult<'a> {
        let mut args = Vec::with_capacity(call.args.len());
        let many = call.args.len() > 2;
        for arg in &call.args {
            let found = uncancelled(self.eval(arg))?;
            if many && found.is_err() {
                return found;
            }
            args.push(found);
        }
        if cost::needs_result(call.overload) && args.iter().all(Result::is_ok) {
            let values = args.into_iter().collect::<Result<Vec<_>, _>>()?;
            let result = (call.run)(&values, &self.context);
            let known: Vec<Option<&CelValue<'_>>> = values.iter().map(Some).collect();
            self.charge(cost::of_call(&call.function, call.overload, &known, result.as_ref().ok()))?;
            return result;
        }
        let known: Vec<Option<&CelValue<'_>>> = args.iter().map(|arg| arg.as_ref().ok()).collect();
        known.iter().flatten().try_for_each(|value| self.context.meter.reading(value))?;
        self.charge(cost::of_call(&call.function, call.overload, &known, None))?;
        if &*call.function == crate::syntax::operator::NOT_STRICTLY_FALSE {
            return Ok(CelValue::Bool(!matches!(args.first(), Some(Ok(CelValue::Bool(false))))));
        }
        let values = args.into_iter().collect::<Result<Vec<_>, _>>()?;
        (call.run)(&values, &self.context)
    }

    fn list(&mut self, elements: &'a [(PlanNode, bool)]) -> EvaluationResult<'a> {
        let mut values = Vec::with_capacity(elements.len());
        let made = self.elements(elements, &mut values);
        if !matches!(made, Err(EvaluationFailure::Cancelled(_))) {
            self.charge(LIST_COST)?;
        }
        made?;
        self.context.meter.list(values)
    }

    fn elements(
        &mut self,
        elements: &'a [(PlanNode, bool)],
        values: &mut Vec<CelValue<'a>>,
    ) -> Result<(), EvaluationFailure> {
        for (element, optional) in elements {
            let value = self.eval(element)?;
            match (optional, value) {
                (false, value) => values.push(value),
                (true, CelValue::Optional(held)) => values.extend(held.map(|value| (*value).clone())),
                (true, other) => {
                    let message =
                        format!("cannot initialize optional list element from non-optional value {}", other.plain());
                    return Err(EvaluationFailure::Error(message));
                }
            }
        }
        Ok(())
    }

    fn map(&mut self, entries: &'a [(PlanNode, PlanNode, bool)]) -> EvaluationResult<'a> {
        let mut made = BTreeMap::new();
        let done = self.entries(entries, &mut made);
        if !matches!(done, Err(EvaluationFailure::Cancelled(_))) {
            self.charge(MAP_COST)?;
        }
        done?;
        self.context.meter.elements(made.len())?;
        Ok(CelValue::Map(CelMap::owned(made)))
    }

    fn entries(
        &mut self,
        entries: &'a [(PlanNode, PlanNode, bool)],
        made: &mut BTreeMap<Key, CelValue<'a>>,
    ) -> Result<(), EvaluationFailure> {
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            let name = Key::of(&key)
                .ok_or_else(|| EvaluationFailure::Error(format!("unsupported key type: {}", key.type_of().name())))?;
            match (optional, value) {
                (false, value) => drop(made.insert(name, value)),
                (true, CelValue::Optional(Some(held))) => drop(made.insert(name, (*held).clone())),
                (true, CelValue::Optional(None)) => drop(made.remove(&name)),
                (true, other) => {
                    let message = format!(
                        "cannot initialize optional entry '{}' from non-optional value {}",
                        key.plain(),
                        other.plain()
                    );
                    return Err(EvaluationFailure::Error(message));
                }
            }
        }
        Ok(())
    }

    fn structure(&mut self, name: &Arc<str>, fields: &'a [(Arc<str>, PlanNode, bool)]) -> EvaluationResult<'a> {
        let mut made = BTreeMap::new();
        for (field, value, optional) in fields {
            match (optional, self.eval(value)?) {
                (false, value) => drop(made.insert(Key::String(field.clone()), value)),
                (true, CelValue::Optional(Some(held))) => {
                    drop(made.insert(Key::String(field.clone()), (*held).clone()))
                }
                (true, CelValue::Optional(None)) => {}
                (true, other) => {
                    let message =
                        format!("cannot initialize optional entry '{field}' from non-optional value {}", other.plain());
                    return Err(EvaluationFailure::Error(message));
                }
            }
        }
        self.charge(STRUCT_COST)?;
        self.context.meter.elements(made.len())?;
        Ok(CelValue::Map(CelMap::Object(name.clone(), Arc::new(made))))
    }

    fn fold(&mut self, fold: &'a Fold) -> EvaluationResult<'a> {
        let range = self.eval(&fold.range)?;
        self.locals[fold.accu] = VariableSlot::Lazy(&fold.init);
        match range {
            CelValue::List(list) => self.fold_list(fold, &list)?,
            CelValue::Map(map) => self.fold_map(fold, &map)?,
            other => {
                return Err(EvaluationFailure::Error(format!(
                    "got '{}', expected iterable type",
                    other.type_of().name()
                )));
            }
        }
        let result = self.eval(&fold.result);
        self.locals[fold.accu] = VariableSlot::Empty;
        result
    }

    fn fold_list(&mut self, fold: &'a Fold, list: &CelList<'a>) -> Result<(), EvaluationFailure> {
        for (index, element) in list.iter().enumerate() {
            let element = element.map_err(EvaluationFailure::Error);
            let going = match fold.var2 {
                Some(var2) => {
                    self.once(fold, Ok(CelValue::Int(i64::try_from(index).unwrap_or(i64::MAX))), Some((var2, element)))?
                }
                None => self.once(fold, element, None)?,
            };
            if !going {
                break;
            }
        }
        Ok(())
    }

    fn fold_map(&mut self, fold: &'a Fold, map: &CelMap<'a>) -> Result<(), EvaluationFailure> {
        for key in map.keys() {
            let value = match fold.var2 {
                Some(var2) => {
                    let found = map.find(&key).map_err(EvaluationFailure::Error);
                    Some((
                        var2,
                        found.and_then(|found| {
                            found.ok_or_else(|| EvaluationFailure::Error(format!("no such key: {}", key.plain())))
                        }),
                    ))
                }
                None => None,
            };
            if !self.once(fold, Ok(key), value)? {
                break;
            }
        }
        Ok(())
    }

    /// Runs one round of a fold; returns false after the last one.
    fn once(
        &mut self,
        fold: &'a Fold,
        var: EvaluationResult<'a>,
        var2: Option<(usize, EvaluationResult<'a>)>,
    ) -> Result<bool, EvaluationFailure> {
        self.context.meter.steps(1)?;
        self.locals[fold.var] = VariableSlot::Filled(var);
        if let Some((slot, value)) = var2 {
            self.locals[slot] = VariableSlot::Filled(value);
        }
        if let Ok(CelValue::Bool(false)) = uncancelled(self.eval(&fold.condition))? {
            return Ok(false);
        }
        let step = self.eval(&fold.step);
        if let Err(cancelled @ EvaluationFailure::Cancelled(_)) = step {
            return Err(cancelled);
        }
        self.locals[fold.accu] = VariableSlot::Filled(step);
        Ok(true)
    }

    fn append(&mut self, slot: usize, list: &'a PlanNode) -> EvaluationResult<'a> {
        let accumulator = uncancelled(self.local(slot))?;
        drop(accumulator?);
        self.charge(1)?;
        let added = uncancelled(self.eval(list))?;
        self.charge(1)?;
        let CelValue::List(added) = added? else { return Err(EvaluationFailure::Error("no such overload".to_owned())) };
        let VariableSlot::Filled(Ok(CelValue::List(mut grown))) =
            std::mem::replace(&mut self.locals[slot], VariableSlot::Empty)
        else {
            return Err(EvaluationFailure::Error("no such overload".to_owned()));
        };
        self.context.meter.elements(added.len())?;
        let more = added.iter().collect::<Result<Vec<_>, _>>()?;
        if let super::CelListElements::Owned(values) = &mut grown.elements {
            Arc::make_mut(values).extend(more);
        }
        Ok(CelValue::List(grown))
    }

    fn insert(&mut self, slot: usize, args: &'a [PlanNode]) -> EvaluationResult<'a> {
        drop(self.local(slot)?);
        self.charge(1)?;
        let added = args.iter().map(|arg| self.eval(arg)).collect::<Result<Vec<_>, _>>()?;
        self.charge(1)?;
        let VariableSlot::Filled(Ok(CelValue::Map(CelMap::Owned(mut grown)))) =
            std::mem::replace(&mut self.locals[slot], VariableSlot::Empty)
        else {
            return Err(EvaluationFailure::Error("no such overload".to_owned()));
        };
        let entries = Arc::make_mut(&mut grown);
        let mut put = |key: &CelValue<'a>, value: CelValue<'a>| {
            let name = Key::of(key).ok_or_else(|| format!("unsupported key type: {}", key.type_of().name()))?;
            match entries.insert(name, value) {
                Some(_) => Err(format!("insert failed: key {} already exists", key.plain())),
                None => Ok(()),
            }
        };
        match added.as_slice() {
            [key, value] => put(key, value.clone())?,
            [CelValue::Map(more)] => {
                for key in more.keys() {
                    if let Some(value) = more.find(&key)? {
                        put(&key, value)?;
                    }
                }
            }
            _ => return Err(EvaluationFailure::Error("no such overload".to_owned())),
        }
        self.context.meter.elements(added.len())?;
        Ok(CelValue::Map(CelMap::Owned(grown)))
    }
}

/// Turns errors of the expression into values. A stop of the evaluation stays an error.
fn uncancelled(found: EvaluationResult<'_>) -> Result<EvaluationResult<'_>, EvaluationFailure> {
    match found {
        Err(cancelled @ EvaluationFailure::Cancelled(_)) => Err(cancelled),
        other => Ok(other),
    }
}
