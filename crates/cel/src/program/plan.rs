//! From the syntax tree to what is evaluated: variables are slots, constants are computed, field accesses are chains.

use super::attribute::{Attribute, Base, Qualifier};
use super::{Key, List, Map, Program, Text, Value};
use crate::check::Checked;
use crate::library::regex::Pattern;
use crate::library::{self, Function};
use crate::syntax::{Call, Comprehension, Entry, Expr, Kind, ListElement, Literal, operator};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A step of an evaluation.
#[derive(Debug)]
pub(super) enum Node {
    Const(Value<'static>),
    Attribute(Attribute),
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    /// `==`, or `!=` where `negated`.
    Equal {
        sides: Box<(Node, Node)>,
        negated: bool,
    },
    /// `x in […]` with a constant list, which costs nothing.
    Member {
        value: Box<Node>,
        set: List<'static>,
    },
    OptionalOr(Box<(Node, Node)>),
    OptionalOrValue(Box<(Node, Node)>),
    Call(Box<CallNode>),
    List {
        elements: Vec<(Node, bool)>,
    },
    Map {
        entries: Vec<(Node, Node, bool)>,
    },
    Struct {
        name: Arc<str>,
        fields: Vec<(Arc<str>, Node, bool)>,
    },
    Fold(Box<Fold>),
    /// `accumulator + [elements]`, which grows in place.
    Append {
        slot: usize,
        list: Box<Node>,
    },
    /// An entry put into the accumulator, which grows in place.
    Insert {
        slot: usize,
        args: Vec<Node>,
    },
}

/// A call of a function.
#[derive(Debug)]
pub(super) struct CallNode {
    pub(super) function: Arc<str>,
    /// Empty where it is not known before the arguments are.
    pub(super) overload: &'static str,
    pub(super) args: Vec<Node>,
    pub(super) run: Function,
}

/// A fold over a list or a map.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) range: Node,
    pub(super) var: usize,
    pub(super) var2: Option<usize>,
    pub(super) accu: usize,
    pub(super) init: Node,
    pub(super) condition: Node,
    pub(super) step: Node,
    pub(super) result: Node,
}

pub(super) fn plan(checked: &Checked) -> Result<Program, String> {
    let mut planner = Planner { checked, scopes: Vec::new(), most: 0, globals: Vec::new(), patterns: HashMap::new() };
    let root = planner.node(&checked.root)?;
    let Planner { most, globals, patterns, .. } = planner;
    Ok(Program { root, globals, locals: most, patterns, deep: false })
}

struct Planner<'c> {
    checked: &'c Checked,
    /// Names of the slots in use.
    scopes: Vec<Arc<str>>,
    most: usize,
    globals: Vec<Arc<str>>,
    patterns: HashMap<Arc<str>, Pattern>,
}

impl Planner<'_> {
    fn node(&mut self, expr: &Expr) -> Result<Node, String> {
        match &expr.kind {
            Kind::Missing => Err("expression is incomplete".to_owned()),
            Kind::Literal(value) => Ok(Node::Const(constant(value))),
            Kind::Ident(name) => Ok(match self.checked.type_names.get(&expr.id) {
                Some(named) => Node::Const(Value::Type(named.clone())),
                None => Node::Attribute(Attribute::new(self.variable(name))),
            }),
            Kind::Select { operand, field, test_only } => {
                let attribute = self.attribute(operand)?;
                let field = Value::String(Text::Shared(field.clone()));
                let qualifier = if *test_only {
                    Qualifier::Test(field)
                } else {
                    Qualifier::Const { value: field, optional: false }
                };
                Ok(Node::Attribute(attribute.with(qualifier)))
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => {
                let fields =
                    fields.iter().map(|field| Ok((field.name.clone(), self.node(&field.value)?, field.optional)));
                Ok(Node::Struct { name: name.clone(), fields: fields.collect::<Result<_, String>>()? })
            }
            Kind::Comprehension(fold) => self.fold(fold),
        }
    }

    fn variable(&mut self, name: &Arc<str>) -> Base {
        if let Some(slot) = self.scopes.iter().rposition(|scope| scope == name) {
            return Base::Local(slot);
        }
        let known = self.globals.iter().position(|global| global == name);
        Base::Global(known.unwrap_or_else(|| {
            self.globals.push(name.clone());
            self.globals.len() - 1
        }))
    }

    /// The node as something that fields can be taken of.
    fn attribute(&mut self, expr: &Expr) -> Result<Attribute, String> {
        Ok(match self.node(expr)? {
            Node::Attribute(attribute) if attribute.is_test() => {
                Attribute::new(Base::Relative(Box::new(Node::Attribute(attribute))))
            }
            Node::Attribute(attribute) => attribute,
            other => Attribute::new(Base::Relative(Box::new(other))),
        })
    }

    fn index(&mut self, call: &Call, optional: bool) -> Result<Node, String> {
        let attribute = self.attribute(&call.args[0])?;
        let qualifier = match self.node(&call.args[1])? {
            Node::Const(value) => Qualifier::Const { value, optional },
            Node::Attribute(key) => Qualifier::Attribute { key: Box::new(key), optional },
            key => Qualifier::Computed { key: Box::new(key), optional },
        };
        Ok(Node::Attribute(attribute.with(qualifier)))
    }

    fn pair(&mut self, call: &Call) -> Result<Box<(Node, Node)>, String> {
        Ok(Box::new((self.node(&call.args[0])?, self.node(&call.args[1])?)))
    }

    fn call(&mut self, expr: &Expr, call: &Call) -> Result<Node, String> {
        let overloads = self.checked.overloads.get(&expr.id).map_or(&[][..], Vec::as_slice);
        let overload = if let [only] = overloads { only.id } else { "" };
        match &*call.function {
            operator::AND => return Ok(Node::And(self.pair(call)?)),
            operator::OR => return Ok(Node::Or(self.pair(call)?)),
            operator::EQUALS => return Ok(Node::Equal { sides: self.pair(call)?, negated: false }),
            operator::NOT_EQUALS => return Ok(Node::Equal { sides: self.pair(call)?, negated: true }),
            operator::INDEX => return self.index(call, false),
            operator::OPT_INDEX | operator::OPT_SELECT => return self.index(call, true),
            operator::CONDITIONAL => {
                let condition = self.node(&call.args[0])?;
                let (yes, no) = (self.attribute_of_branch(&call.args[1])?, self.attribute_of_branch(&call.args[2])?);
                return Ok(Node::Attribute(Attribute::new(Base::Conditional(Box::new((condition, yes, no))))));
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

    /// A branch that is a field access is not counted as one.
    fn attribute_of_branch(&mut self, expr: &Expr) -> Result<Attribute, String> {
        self.attribute(expr)
    }

    fn planned_call(&mut self, call: &Call, overload: &'static str, mut args: Vec<Node>) -> Result<Node, String> {
        match (&*call.function, args.as_slice()) {
            ("or", [_, _]) => return Ok(Node::OptionalOr(both(args))),
            ("orValue", [_, _]) => return Ok(Node::OptionalOrValue(both(args))),
            (operator::IN, [_, Node::Const(Value::List(list))]) if overload == "in_list" => {
                if list.len() == 0 {
                    return Ok(Node::Const(Value::Bool(false)));
                }
                if list.iter().all(|element| element.is_ok_and(|element| is_primitive(&element))) {
                    let set = list.clone();
                    return Ok(Node::Member { value: Box::new(args.swap_remove(0)), set });
                }
            }
            (operator::ADD, [Node::Attribute(first), Node::List { .. } | Node::Const(Value::List(_))]) => {
                if let Some(slot) = first.slot().filter(|slot| &*self.scopes[*slot] == operator::ACCUMULATOR) {
                    return Ok(Node::Append { slot, list: Box::new(args.swap_remove(1)) });
                }
            }
            ("cel.@mapInsert", [Node::Attribute(first), ..]) => {
                if let Some(slot) = first.slot() {
                    args.remove(0);
                    return Ok(Node::Insert { slot, args });
                }
            }
            ("matches", [_, Node::Const(Value::String(pattern))]) => {
                let compiled =
                    library::regex::compile(pattern).map_err(|message| format!("error parsing regexp: {message}"))?;
                self.patterns.insert((**pattern).into(), compiled);
            }
            ("find" | "findAll", [_, Node::Const(Value::String(pattern)), ..]) => {
                if let Ok(compiled) = library::regex::compile(pattern) {
                    self.patterns.insert((**pattern).into(), compiled);
                }
            }
            (function, [Node::Const(value)]) if is_conversion(function) => {
                return library::convert_constant(function, value).map(Node::Const);
            }
            _ => {}
        }
        let run =
            library::function(&call.function).ok_or_else(|| format!("no such overload: {}(...)", call.function))?;
        Ok(Node::Call(Box::new(CallNode { function: call.function.clone(), overload, args, run })))
    }

    fn list(&mut self, elements: &[ListElement]) -> Result<Node, String> {
        let elements = elements.iter().map(|element| Ok((self.node(&element.value)?, element.optional)));
        let elements = elements.collect::<Result<Vec<_>, String>>()?;
        let constants: Option<Vec<Value<'static>>> =
            elements.iter().map(|(node, optional)| const_of(node).filter(|_| !optional)).collect();
        Ok(match constants {
            Some(values) => Node::Const(Value::List(List::owned(values))),
            None => Node::List { elements },
        })
    }

    fn map(&mut self, entries: &[Entry]) -> Result<Node, String> {
        let entries =
            entries.iter().map(|entry| Ok((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional)));
        let entries = entries.collect::<Result<Vec<_>, String>>()?;
        let constants: Option<BTreeMap<Key, Value<'static>>> = entries
            .iter()
            .map(|(key, value, optional)| Some((Key::of(&const_of(key)?)?, const_of(value).filter(|_| !optional)?)))
            .collect();
        Ok(match constants {
            Some(constants) if constants.len() == entries.len() => Node::Const(Value::Map(Map::owned(constants))),
            _ => Node::Map { entries },
        })
    }

    fn slot(&mut self, name: &Arc<str>) -> usize {
        self.scopes.push(name.clone());
        self.most = self.most.max(self.scopes.len());
        self.scopes.len() - 1
    }

    fn fold(&mut self, fold: &Comprehension) -> Result<Node, String> {
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
        Ok(Node::Fold(Box::new(Fold { range, var, var2, accu, init, condition, step, result })))
    }
}

fn both(args: Vec<Node>) -> Box<(Node, Node)> {
    let mut args = args.into_iter();
    let first = args.next().expect("the caller has counted two");
    let second = args.next().expect("the caller has counted two");
    Box::new((first, second))
}

fn const_of(node: &Node) -> Option<Value<'static>> {
    match node {
        Node::Const(value) => Some(value.clone()),
        _ => None,
    }
}

fn constant(value: &Literal) -> Value<'static> {
    match value {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(text) => Value::String(Text::Shared(text.clone())),
        Literal::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}

fn is_primitive(value: &Value<'_>) -> bool {
    matches!(value, Value::Bool(_) | Value::Double(_) | Value::Int(_) | Value::String(_) | Value::Uint(_))
}

/// Conversions of constants are made once.
fn is_conversion(function: &str) -> bool {
    matches!(
        function,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    )
}
