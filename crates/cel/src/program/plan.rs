//! Compilation of the syntax tree to steps: variables become slots, constants are computed, field accesses become
//! chains.

use super::attribute::{Attribute, AttributeBase, Qualifier};
use super::{CelList, CelMap, CelProgram, CelText, CelValue, Key};
use crate::check::CheckedExpression;
use crate::library::regex::Pattern;
use crate::library::{self, LibraryFunction};
use crate::syntax::{CallExpr, Comprehension, Expr, ExprKind, ListElement, Literal, MapEntry, operator};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A step of an evaluation.
#[derive(Debug)]
pub(super) enum PlanNode {
    Const(CelValue<'static>),
    Attribute(Attribute),
    And(Box<(PlanNode, PlanNode)>),
    Or(Box<(PlanNode, PlanNode)>),
    /// `==`, or `!=` if `negated`.
    Equal {
        sides: Box<(PlanNode, PlanNode)>,
        negated: bool,
    },
    /// `x in […]` with a constant list; it costs nothing.
    Member {
        value: Box<PlanNode>,
        set: CelList<'static>,
    },
    OptionalOr(Box<(PlanNode, PlanNode)>),
    OptionalOrValue(Box<(PlanNode, PlanNode)>),
    Call(Box<CallNode>),
    List {
        elements: Vec<(PlanNode, bool)>,
    },
    Map {
        entries: Vec<(PlanNode, PlanNode, bool)>,
    },
    Struct {
        name: Arc<str>,
        fields: Vec<(Arc<str>, PlanNode, bool)>,
    },
    Fold(Box<Fold>),
    /// `accumulator + [elements]`, which grows in place.
    Append {
        slot: usize,
        list: Box<PlanNode>,
    },
    /// Entry that is put into the accumulator, which grows in place.
    Insert {
        slot: usize,
        args: Vec<PlanNode>,
    },
}

/// A call of a function.
#[derive(Debug)]
pub(super) struct CallNode {
    pub(super) function: Arc<str>,
    /// Empty if the overload depends on the arguments.
    pub(super) overload: &'static str,
    pub(super) args: Vec<PlanNode>,
    pub(super) run: LibraryFunction,
}

/// A fold over a list or a map.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) range: PlanNode,
    pub(super) var: usize,
    pub(super) var2: Option<usize>,
    pub(super) accu: usize,
    pub(super) init: PlanNode,
    pub(super) condition: PlanNode,
    pub(super) step: PlanNode,
    pub(super) result: PlanNode,
}

pub(super) fn plan(checked: &CheckedExpression) -> Result<CelProgram, String> {
    let mut planner =
        ProgramPlanner { checked, scopes: Vec::new(), most: 0, globals: Vec::new(), patterns: HashMap::new() };
    let root = planner.node(&checked.root)?;
    let ProgramPlanner { most, globals, patterns, .. } = planner;
    Ok(CelProgram { root, globals, locals: most, patterns, deep: false })
}

struct ProgramPlanner<'c> {
    checked: &'c CheckedExpression,
    /// Names of the slots in use.
    scopes: Vec<Arc<str>>,
    most: usize,
    globals: Vec<Arc<str>>,
    patterns: HashMap<Arc<str>, Pattern>,
}

impl ProgramPlanner<'_> {
    fn node(&mut self, expr: &Expr) -> Result<PlanNode, String> {
        match &expr.kind {
            ExprKind::Missing => Err("expression is incomplete".to_owned()),
            ExprKind::Literal(value) => Ok(PlanNode::Const(constant(value))),
            ExprKind::Ident(name) => Ok(match self.checked.type_names.get(&expr.id) {
                Some(named) => PlanNode::Const(CelValue::Type(named.clone())),
                None => PlanNode::Attribute(Attribute::new(self.variable(name))),
            }),
            ExprKind::Select { operand, field, test_only } => {
                let attribute = self.attribute(operand)?;
                let field = CelValue::String(CelText::Shared(field.clone()));
                let qualifier = if *test_only {
                    Qualifier::Test(field)
                } else {
                    Qualifier::Const { value: field, optional: false }
                };
                Ok(PlanNode::Attribute(attribute.with(qualifier)))
            }
            ExprKind::Call(call) => self.call(expr, call),
            ExprKind::List(elements) => self.list(elements),
            ExprKind::Map(entries) => self.map(entries),
            ExprKind::Struct { name, fields } => {
                let fields =
                    fields.iter().map(|field| Ok((field.name.clone(), self.node(&field.value)?, field.optional)));
                Ok(PlanNode::Struct { name: name.clone(), fields: fields.collect::<Result<_, String>>()? })
            }
            ExprKind::Comprehension(fold) => self.fold(fold),
        }
    }

    fn variable(&mut self, name: &Arc<str>) -> AttributeBase {
        if let Some(slot) = self.scopes.iter().rposition(|scope| scope == name) {
            return AttributeBase::Local(slot);
        }
        let known = self.globals.iter().position(|global| global == name);
        AttributeBase::Global(known.unwrap_or_else(|| {
            self.globals.push(name.clone());
            self.globals.len() - 1
        }))
    }

    /// Returns the node as the start of a chain.
    fn attribute(&mut self, expr: &Expr) -> Result<Attribute, String> {
        Ok(match self.node(expr)? {
            PlanNode::Attribute(attribute) if attribute.is_test() => {
                Attribute::new(AttributeBase::Relative(Box::new(PlanNode::Attribute(attribute))))
            }
            PlanNode::Attribute(attribute) => attribute,
            other => Attribute::new(AttributeBase::Relative(Box::new(other))),
        })
    }

    fn index(&mut self, call: &CallExpr, optional: bool) -> Result<PlanNode, String> {
        let attribute = self.attribute(&call.args[0])?;
        let qualifier = match self.node(&call.args[1])? {
            PlanNode::Const(value) => Qualifier::Const { value, optional },
            PlanNode::Attribute(key) => Qualifier::Attribute { key: Box::new(key), optional },
            key => Qualifier::Computed { key: Box::new(key), optional },
        };
        Ok(PlanNode::Attribute(attribute.with(qualifier)))
    }

    fn pair(&mut self, call: &CallExpr) -> Result<Box<(PlanNode, PlanNode)>, String> {
        Ok(Box::new((self.node(&call.args[0])?, self.node(&call.args[1])?)))
    }

    fn call(&mut self, expr: &Expr, call: &CallExpr) -> Result<PlanNode, String> {
        let overloads = self.checked.overloads.get(&expr.id).map_or(&[][..], Vec::as_slice);
        let overload = if let [only] = overloads { only.id } else { "" };
        match &*call.function {
            operator::AND => return Ok(PlanNode::And(self.pair(call)?)),
            operator::OR => return Ok(PlanNode::Or(self.pair(call)?)),
            operator::EQUALS => return Ok(PlanNode::Equal { sides: self.pair(call)?, negated: false }),
            operator::NOT_EQUALS => return Ok(PlanNode::Equal { sides: self.pair(call)?, negated: true }),
            operator::INDEX => return self.index(call, false),
            operator::OPT_INDEX | operator::OPT_SELECT => return self.index(call, true),
            operator::CONDITIONAL => {
                let condition = self.node(&call.args[0])?;
                let (yes, no) = (self.attribute_of_branch(&call.args[1])?, self.attribute_of_branch(&call.args[2])?);
                return Ok(PlanNode::Attribute(Attribute::new(AttributeBase::Conditional(Box::new((
                    condition, yes, no,
                ))))));
            }
            _ => {}
        }
        let args = call
            .target
            .as_deref()
            .into_iter()
            .chain(&call.args)
            .map(|arg| self.node(arg))
            .collect::<Result<Vec<_>, _>>()?;
        self.planned_call(call, overload, args)
    }

    /// A branch that is a field access does not count as one.
    fn attribute_of_branch(&mut self, expr: &Expr) -> Result<Attribute, String> {
        self.attribute(expr)
    }

    fn planned_call(
        &mut self,
        call: &CallExpr,
        overload: &'static str,
        mut args: Vec<PlanNode>,
    ) -> Result<PlanNode, String> {
        match (&*call.function, args.as_slice()) {
            ("or", [_, _]) => return Ok(PlanNode::OptionalOr(two_arguments(args))),
            ("orValue", [_, _]) => return Ok(PlanNode::OptionalOrValue(two_arguments(args))),
            (operator::IN, [_, PlanNode::Const(CelValue::List(list))]) if overload == "in_list" => {
                if list.len() == 0 {
                    return Ok(PlanNode::Const(CelValue::Bool(false)));
                }
                if list.iter().all(|element| element.is_ok_and(|element| is_primitive(&element))) {
                    let set = list.clone();
                    return Ok(PlanNode::Member { value: Box::new(args.swap_remove(0)), set });
                }
            }
            (
                operator::ADD,
                [PlanNode::Attribute(first), PlanNode::List { .. } | PlanNode::Const(CelValue::List(_))],
            ) => {
                if let Some(slot) = first.slot().filter(|slot| &*self.scopes[*slot] == operator::ACCUMULATOR) {
                    return Ok(PlanNode::Append { slot, list: Box::new(args.swap_remove(1)) });
                }
            }
            ("cel.@mapInsert", [PlanNode::Attribute(first), ..]) => {
                if let Some(slot) = first.slot() {
                    args.remove(0);
                    return Ok(PlanNode::Insert { slot, args });
                }
            }
            ("matches", [_, PlanNode::Const(CelValue::String(pattern))]) => {
                let compiled =
                    library::regex::compile(pattern).map_err(|message| format!("error parsing regexp: {message}"))?;
                self.patterns.insert((**pattern).into(), compiled);
            }
            ("find" | "findAll", [_, PlanNode::Const(CelValue::String(pattern)), ..]) => {
                if let Ok(compiled) = library::regex::compile(pattern) {
                    self.patterns.insert((**pattern).into(), compiled);
                }
            }
            (function, [PlanNode::Const(value)]) if is_conversion(function) => {
                return library::convert_constant(function, value).map(PlanNode::Const);
            }
            _ => {}
        }
        let run =
            library::function(&call.function).ok_or_else(|| format!("no such overload: {}(...)", call.function))?;
        Ok(PlanNode::Call(Box::new(CallNode { function: call.function.clone(), overload, args, run })))
    }

    fn list(&mut self, elements: &[ListElement]) -> Result<PlanNode, String> {
        let elements = elements.iter().map(|element| Ok((self.node(&element.value)?, element.optional)));
        let elements = elements.collect::<Result<Vec<_>, String>>()?;
        let constants: Option<Vec<CelValue<'static>>> =
            elements.iter().map(|(node, optional)| const_of(node).filter(|_| !optional)).collect();
        Ok(match constants {
            Some(values) => PlanNode::Const(CelValue::List(CelList::owned(values))),
            None => PlanNode::List { elements },
        })
    }

    fn map(&mut self, entries: &[MapEntry]) -> Result<PlanNode, String> {
        let entries =
            entries.iter().map(|entry| Ok((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional)));
        let entries = entries.collect::<Result<Vec<_>, String>>()?;
        let constants: Option<BTreeMap<Key, CelValue<'static>>> = entries
            .iter()
            .map(|(key, value, optional)| Some((Key::of(&const_of(key)?)?, const_of(value).filter(|_| !optional)?)))
            .collect();
        Ok(match constants {
            Some(constants) if constants.len() == entries.len() => {
                PlanNode::Const(CelValue::Map(CelMap::owned(constants)))
            }
            _ => PlanNode::Map { entries },
        })
    }

    fn slot(&mut self, name: &Arc<str>) -> usize {
        self.scopes.push(name.clone());
        self.most = self.most.max(self.scopes.len());
        self.scopes.len() - 1
    }

    fn fold(&mut self, fold: &Comprehension) -> Result<PlanNode, String> {
        let range = self.node(&fold.range)?;
        let init = self.node(&fold.init)?;
        let accu = self.slot(&fold.accu);
        let var = self.slot(&fold.var);
        let var2 = fold.var2.as_ref().map(|var2| self.slot(var2));
        let condition = self.node(&fold.condition)?;
        let step = self.node(&fold.step)?;
        self.scopes.truncate(accu + 1);
        let result = self.node(&fold.result)?;
        self.scopes.truncate(accu);
        Ok(PlanNode::Fold(Box::new(Fold { range, var, var2, accu, init, condition, step, result })))
    }
}

fn two_arguments(args: Vec<PlanNode>) -> Box<(PlanNode, PlanNode)> {
    let mut args = args.into_iter();
    let first = args.next().expect("the caller has counted two");
    let second = args.next().expect("the caller has counted two");
    Box::new((first, second))
}

fn const_of(node: &PlanNode) -> Option<CelValue<'static>> {
    match node {
        PlanNode::Const(value) => Some(value.clone()),
        _ => None,
    }
}

fn constant(value: &Literal) -> CelValue<'static> {
    match value {
        Literal::Null => CelValue::Null,
        Literal::Bool(value) => CelValue::Bool(*value),
        Literal::Int(value) => CelValue::Int(*value),
        Literal::Uint(value) => CelValue::Uint(*value),
        Literal::Double(value) => CelValue::Double(*value),
        Literal::String(text) => CelValue::String(CelText::Shared(text.clone())),
        Literal::Bytes(bytes) => CelValue::Bytes(bytes.clone()),
    }
}

fn is_primitive(value: &CelValue<'_>) -> bool {
    matches!(
        value,
        CelValue::Bool(_) | CelValue::Double(_) | CelValue::Int(_) | CelValue::String(_) | CelValue::Uint(_)
    )
}

/// Conversions of constants run once.
fn is_conversion(function: &str) -> bool {
    matches!(
        function,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    )
}
