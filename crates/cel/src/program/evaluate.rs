//! The evaluation of nodes, with costs counted as cel-go counts them.

use super::plan::{CallNode, Fold, Node};
use super::value::{Key, List, Map, Value};
use super::{Activation, Failure, Meter, OVER_LIMIT, Outcome, Program, cost, equal};
use crate::estimate::{LIST_COST, MAP_COST, STRUCT_COST};
use crate::library::Context;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type Found<'a> = Result<Value<'a>, Failure>;

pub(super) fn run<'a>(program: &'a Program, activation: &dyn Activation<'a>, limit: u64) -> Outcome<'a> {
    let mut evaluation = Evaluation {
        program,
        activation,
        globals: vec![None; program.globals.len()],
        locals: vec![Slot::Empty; program.locals],
        context: Context { patterns: &program.patterns, meter: Meter::default() },
        cost: 0,
        limit,
    };
    let value = evaluation.eval(&program.root);
    Outcome { value, cost: evaluation.cost }
}

/// What a slot holds.
#[derive(Clone, Debug)]
enum Slot<'a> {
    Empty,
    /// To be made when it is first asked for.
    Lazy(&'a Node),
    Filled(Found<'a>),
}

/// One evaluation under way.
pub(super) struct Evaluation<'a, 'e> {
    program: &'a Program,
    activation: &'e dyn Activation<'a>,
    globals: Vec<Option<Found<'a>>>,
    locals: Vec<Slot<'a>>,
    context: Context<'a>,
    cost: u64,
    limit: u64,
}

impl<'a> Evaluation<'a, '_> {
    /// Adds to the cost, and ends the evaluation where that is too much.
    pub(super) fn charge(&mut self, amount: u64) -> Result<(), Failure> {
        self.cost = self.cost.saturating_add(amount);
        if self.cost > self.limit { Err(Failure::Cancelled(OVER_LIMIT)) } else { Ok(()) }
    }

    pub(super) fn global(&mut self, index: usize) -> Found<'a> {
        if let Some(found) = &self.globals[index] {
            return found.clone();
        }
        let name = &self.program.globals[index];
        let found = self.activation.resolve(name);
        let found = found.unwrap_or_else(|| Err(Failure::Error(format!("no such attribute(s): {name}"))));
        self.globals[index] = Some(found.clone());
        found
    }

    pub(super) fn local(&mut self, slot: usize) -> Found<'a> {
        match &self.locals[slot] {
            Slot::Filled(found) => found.clone(),
            Slot::Empty => Err(Failure::Error("no such attribute(s)".to_owned())),
            Slot::Lazy(init) => {
                let found = self.eval(init);
                self.locals[slot] = Slot::Filled(found.clone());
                found
            }
        }
    }

    pub(super) fn eval(&mut self, node: &'a Node) -> Found<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attribute(attribute) => attribute.observe(self),
            Node::And(terms) => self.junction(terms, false),
            Node::Or(terms) => self.junction(terms, true),
            Node::Equal { sides, negated } => self.equality(sides, *negated),
            Node::Member { value, set } => {
                let value = self.eval(value)?;
                Ok(Value::Bool(equal::contains(set, &value)?))
            }
            Node::OptionalOr(sides) => match self.eval(&sides.0)? {
                Value::Optional(None) => self.eval(&sides.1),
                other => Ok(other),
            },
            Node::OptionalOrValue(sides) => match self.eval(&sides.0)? {
                Value::Optional(None) => self.eval(&sides.1),
                Value::Optional(Some(value)) => Ok((*value).clone()),
                other => Ok(other),
            },
            Node::Call(call) => self.call(call),
            Node::List { elements } => self.list(elements),
            Node::Map { entries } => self.map(entries),
            Node::Struct { name, fields } => self.structure(name, fields),
            Node::Fold(fold) => self.fold(fold),
            Node::Append { slot, list } => self.append(*slot, list),
            Node::Insert { slot, args } => self.insert(*slot, args),
        }
    }

    /// `&&` and `||`: an error on one side does not matter where the other decides.
    fn junction(&mut self, terms: &'a (Node, Node), decides: bool) -> Found<'a> {
        let mut wrong = None;
        for term in [&terms.0, &terms.1] {
            match self.eval(term) {
                Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => wrong = wrong.or_else(|| Some(Failure::Error("no such overload".to_owned()))),
                Err(Failure::Error(message)) => wrong = wrong.or(Some(Failure::Error(message))),
                Err(cancelled @ Failure::Cancelled(_)) => return Err(cancelled),
            }
        }
        wrong.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn equality(&mut self, sides: &'a (Node, Node), negated: bool) -> Found<'a> {
        let left = uncancelled(self.eval(&sides.0))?;
        let right = uncancelled(self.eval(&sides.1))?;
        let (function, overload) = if negated { ("_!=_", "not_equals") } else { ("_==_", "equals") };
        self.charge(cost::of_call(function, overload, &[left.as_ref().ok(), right.as_ref().ok()], None))?;
        let (left, right) = (left?, right?);
        self.context.meter.comparing(&left, &right)?;
        match equal::equal(&left, &right) {
            Ok(same) => Ok(Value::Bool(same != negated)),
            // Whatever is not known to be equal is not.
            Err(_) if negated => Ok(Value::Bool(true)),
            Err(message) => Err(Failure::Error(message)),
        }
    }

    fn call(&mut self, call: &'a CallNode) -> Found<'a> {
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
            let known: Vec<Option<&Value<'_>>> = values.iter().map(Some).collect();
            self.charge(cost::of_call(&call.function, call.overload, &known, result.as_ref().ok()))?;
            return result;
        }
        let known: Vec<Option<&Value<'_>>> = args.iter().map(|arg| arg.as_ref().ok()).collect();
        known.iter().flatten().try_for_each(|value| self.context.meter.reading(value))?;
        self.charge(cost::of_call(&call.function, call.overload, &known, None))?;
        if &*call.function == crate::syntax::operator::NOT_STRICTLY_FALSE {
            return Ok(Value::Bool(!matches!(args.first(), Some(Ok(Value::Bool(false))))));
        }
        let values = args.into_iter().collect::<Result<Vec<_>, _>>()?;
        (call.run)(&values, &self.context)
    }

    fn list(&mut self, elements: &'a [(Node, bool)]) -> Found<'a> {
        let mut values = Vec::with_capacity(elements.len());
        let made = self.elements(elements, &mut values);
        if !matches!(made, Err(Failure::Cancelled(_))) {
            self.charge(LIST_COST)?;
        }
        made?;
        self.context.meter.list(values)
    }

    fn elements(&mut self, elements: &'a [(Node, bool)], values: &mut Vec<Value<'a>>) -> Result<(), Failure> {
        for (element, optional) in elements {
            let value = self.eval(element)?;
            match (optional, value) {
                (false, value) => values.push(value),
                (true, Value::Optional(held)) => values.extend(held.map(|value| (*value).clone())),
                (true, other) => {
                    let message =
                        format!("cannot initialize optional list element from non-optional value {}", other.plain());
                    return Err(Failure::Error(message));
                }
            }
        }
        Ok(())
    }

    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Found<'a> {
        let mut made = BTreeMap::new();
        let done = self.entries(entries, &mut made);
        if !matches!(done, Err(Failure::Cancelled(_))) {
            self.charge(MAP_COST)?;
        }
        done?;
        self.context.meter.elements(made.len())?;
        Ok(Value::Map(Map::owned(made)))
    }

    fn entries(
        &mut self,
        entries: &'a [(Node, Node, bool)],
        made: &mut BTreeMap<Key, Value<'a>>,
    ) -> Result<(), Failure> {
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            let name = Key::of(&key)
                .ok_or_else(|| Failure::Error(format!("unsupported key type: {}", key.type_of().name())))?;
            match (optional, value) {
                (false, value) => drop(made.insert(name, value)),
                (true, Value::Optional(Some(held))) => drop(made.insert(name, (*held).clone())),
                (true, Value::Optional(None)) => drop(made.remove(&name)),
                (true, other) => {
                    let message = format!(
                        "cannot initialize optional entry '{}' from non-optional value {}",
                        key.plain(),
                        other.plain()
                    );
                    return Err(Failure::Error(message));
                }
            }
        }
        Ok(())
    }

    fn structure(&mut self, name: &Arc<str>, fields: &'a [(Arc<str>, Node, bool)]) -> Found<'a> {
        let mut made = BTreeMap::new();
        for (field, value, optional) in fields {
            match (optional, self.eval(value)?) {
                (false, value) => drop(made.insert(Key::String(field.clone()), value)),
                (true, Value::Optional(Some(held))) => drop(made.insert(Key::String(field.clone()), (*held).clone())),
                (true, Value::Optional(None)) => {}
                (true, other) => {
                    let message =
                        format!("cannot initialize optional entry '{field}' from non-optional value {}", other.plain());
                    return Err(Failure::Error(message));
                }
            }
        }
        self.charge(STRUCT_COST)?;
        self.context.meter.elements(made.len())?;
        Ok(Value::Map(Map::Object(name.clone(), Arc::new(made))))
    }

    fn fold(&mut self, fold: &'a Fold) -> Found<'a> {
        let range = self.eval(&fold.range)?;
        self.locals[fold.accu] = Slot::Lazy(&fold.init);
        match range {
            Value::List(list) => self.fold_list(fold, &list)?,
            Value::Map(map) => self.fold_map(fold, &map)?,
            other => return Err(Failure::Error(format!("got '{}', expected iterable type", other.type_of().name()))),
        }
        let result = self.eval(&fold.result);
        self.locals[fold.accu] = Slot::Empty;
        result
    }

    fn fold_list(&mut self, fold: &'a Fold, list: &List<'a>) -> Result<(), Failure> {
        for (index, element) in list.iter().enumerate() {
            let element = element.map_err(Failure::Error);
            let going = match fold.var2 {
                Some(var2) => {
                    self.once(fold, Ok(Value::Int(i64::try_from(index).unwrap_or(i64::MAX))), Some((var2, element)))?
                }
                None => self.once(fold, element, None)?,
            };
            if !going {
                break;
            }
        }
        Ok(())
    }

    fn fold_map(&mut self, fold: &'a Fold, map: &Map<'a>) -> Result<(), Failure> {
        for key in map.keys() {
            let value = match fold.var2 {
                Some(var2) => {
                    let found = map.find(&key).map_err(Failure::Error);
                    Some((
                        var2,
                        found.and_then(|found| {
                            found.ok_or_else(|| Failure::Error(format!("no such key: {}", key.plain())))
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

    /// One round of a fold; false where it was the last.
    fn once(&mut self, fold: &'a Fold, var: Found<'a>, var2: Option<(usize, Found<'a>)>) -> Result<bool, Failure> {
        self.context.meter.steps(1)?;
        self.locals[fold.var] = Slot::Filled(var);
        if let Some((slot, value)) = var2 {
            self.locals[slot] = Slot::Filled(value);
        }
        if let Ok(Value::Bool(false)) = uncancelled(self.eval(&fold.condition))? {
            return Ok(false);
        }
        let step = self.eval(&fold.step);
        if let Err(cancelled @ Failure::Cancelled(_)) = step {
            return Err(cancelled);
        }
        self.locals[fold.accu] = Slot::Filled(step);
        Ok(true)
    }

    fn append(&mut self, slot: usize, list: &'a Node) -> Found<'a> {
        let accumulator = uncancelled(self.local(slot))?;
        drop(accumulator?);
        self.charge(1)?;
        let added = uncancelled(self.eval(list))?;
        self.charge(1)?;
        let Value::List(added) = added? else { return Err(Failure::Error("no such overload".to_owned())) };
        let Slot::Filled(Ok(Value::List(mut grown))) = std::mem::replace(&mut self.locals[slot], Slot::Empty) else {
            return Err(Failure::Error("no such overload".to_owned()));
        };
        self.context.meter.elements(added.len())?;
        let more = added.iter().collect::<Result<Vec<_>, _>>()?;
        if let super::Elements::Owned(values) = &mut grown.elements {
            Arc::make_mut(values).extend(more);
        }
        Ok(Value::List(grown))
    }

    fn insert(&mut self, slot: usize, args: &'a [Node]) -> Found<'a> {
        drop(self.local(slot)?);
        self.charge(1)?;
        let added = args.iter().map(|arg| self.eval(arg)).collect::<Result<Vec<_>, _>>()?;
        self.charge(1)?;
        let Slot::Filled(Ok(Value::Map(Map::Owned(mut grown)))) =
            std::mem::replace(&mut self.locals[slot], Slot::Empty)
        else {
            return Err(Failure::Error("no such overload".to_owned()));
        };
        let entries = Arc::make_mut(&mut grown);
        let mut put = |key: &Value<'a>, value: Value<'a>| {
            let name = Key::of(key).ok_or_else(|| format!("unsupported key type: {}", key.type_of().name()))?;
            match entries.insert(name, value) {
                Some(_) => Err(format!("insert failed: key {} already exists", key.plain())),
                None => Ok(()),
            }
        };
        match added.as_slice() {
            [key, value] => put(key, value.clone())?,
            [Value::Map(more)] => {
                for key in more.keys() {
                    if let Some(value) = more.find(&key)? {
                        put(&key, value)?;
                    }
                }
            }
            _ => return Err(Failure::Error("no such overload".to_owned())),
        }
        self.context.meter.elements(added.len())?;
        Ok(Value::Map(Map::Owned(grown)))
    }
}

/// Takes errors of the expression for values; an end of the evaluation stays one.
fn uncancelled(found: Found<'_>) -> Result<Found<'_>, Failure> {
    match found {
        Err(cancelled @ Failure::Cancelled(_)) => Err(cancelled),
        other => Ok(other),
    }
}
