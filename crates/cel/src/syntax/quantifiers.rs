//! Macros that fold over a list or a map, with one variable or two.

use super::parser::ExpressionParser;
use super::{CallExpr, Comprehension, Expr, ExprKind, ListElement, Literal, MapEntry, StructField, operator};
use std::sync::Arc;

/// Error for arguments that do not fit a macro.
pub(super) struct MacroError {
    pub(super) offset: usize,
    pub(super) message: String,
}

pub(super) type Expanded = Result<Expr, MacroError>;

/// Builder of nodes at the position of the macro's call.
pub(super) struct Build<'p, 's> {
    pub(super) parser: &'p mut ExpressionParser<'s>,
    pub(super) offset: usize,
}

impl Build<'_, '_> {
    pub(super) fn node(&mut self, kind: ExprKind) -> Expr {
        self.parser.node(self.offset, kind)
    }

    pub(super) fn literal(&mut self, value: Literal) -> Expr {
        self.node(ExprKind::Literal(value))
    }

    pub(super) fn ident(&mut self, name: &Arc<str>) -> Expr {
        self.node(ExprKind::Ident(name.clone()))
    }

    fn accumulator(&mut self) -> Expr {
        self.node(ExprKind::Ident(operator::ACCUMULATOR.into()))
    }

    pub(super) fn list(&mut self, elements: Vec<Expr>) -> Expr {
        let elements = elements.into_iter().map(|value| ListElement { value, optional: false }).collect();
        self.node(ExprKind::List(elements))
    }

    pub(super) fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.node(ExprKind::Call(CallExpr { function: function.into(), target: None, args }))
    }

    pub(super) fn member_call(&mut self, function: &str, target: Expr, args: Vec<Expr>) -> Expr {
        self.node(ExprKind::Call(CallExpr { function: function.into(), target: Some(Box::new(target)), args }))
    }

    pub(super) fn wrong(&self, at: &Expr, message: String) -> MacroError {
        MacroError { offset: self.parser.offset(at.id), message }
    }

    /// Returns a copy of the tree with new node ids.
    pub(super) fn copy(&mut self, expr: &Expr) -> Expr {
        let offset = self.parser.offset(expr.id);
        let kind = match &expr.kind {
            ExprKind::Missing => ExprKind::Missing,
            ExprKind::Literal(value) => ExprKind::Literal(value.clone()),
            ExprKind::Ident(name) => ExprKind::Ident(name.clone()),
            ExprKind::Select { operand, field, test_only } => {
                ExprKind::Select { operand: Box::new(self.copy(operand)), field: field.clone(), test_only: *test_only }
            }
            ExprKind::Call(call) => ExprKind::Call(CallExpr {
                function: call.function.clone(),
                target: call.target.as_ref().map(|target| Box::new(self.copy(target))),
                args: call.args.iter().map(|arg| self.copy(arg)).collect(),
            }),
            ExprKind::List(elements) => ExprKind::List(
                elements.iter().map(|e| ListElement { value: self.copy(&e.value), optional: e.optional }).collect(),
            ),
            ExprKind::Map(entries) => ExprKind::Map(
                entries
                    .iter()
                    .map(|e| MapEntry { key: self.copy(&e.key), value: self.copy(&e.value), optional: e.optional })
                    .collect(),
            ),
            ExprKind::Struct { name, fields } => {
                let fields = fields.iter().map(|field| self.copy_field(field)).collect();
                ExprKind::Struct { name: name.clone(), fields }
            }
            ExprKind::Comprehension(fold) => ExprKind::Comprehension(Box::new(self.copy_fold(fold))),
        };
        self.parser.node(offset, kind)
    }

    fn copy_field(&mut self, field: &StructField) -> StructField {
        let id = self.node(ExprKind::Missing).id;
        StructField { id, name: field.name.clone(), value: self.copy(&field.value), optional: field.optional }
    }

    fn copy_fold(&mut self, fold: &Comprehension) -> Comprehension {
        Comprehension {
            range: self.copy(&fold.range),
            var: fold.var.clone(),
            var2: fold.var2.clone(),
            accu: fold.accu.clone(),
            init: self.copy(&fold.init),
            condition: self.copy(&fold.condition),
            step: self.copy(&fold.step),
            result: self.copy(&fold.result),
        }
    }

    fn fold(&mut self, target: &Expr, vars: Vars, init: Expr, condition: Expr, step: Expr, result: Expr) -> Expr {
        let accu = operator::ACCUMULATOR.into();
        let fold =
            Comprehension { range: target.clone(), var: vars.0, var2: vars.1, accu, init, condition, step, result };
        self.node(ExprKind::Comprehension(Box::new(fold)))
    }
}

/// The variables of a fold.
struct Vars(Arc<str>, Option<Arc<str>>);

fn variable(build: &Build<'_, '_>, arg: &Expr, message: &str) -> Result<Arc<str>, MacroError> {
    match &arg.kind {
        ExprKind::Ident(name) => Ok(name.clone()),
        _ => Err(build.wrong(arg, message.to_owned())),
    }
}

fn free(build: &Build<'_, '_>, arg: &Expr, name: &str) -> Result<(), MacroError> {
    if name == operator::ACCUMULATOR || name == "__result__" {
        return Err(build.wrong(arg, "iteration variable overwrites accumulator variable".to_owned()));
    }
    Ok(())
}

/// The variable of a fold over elements or keys.
fn one(build: &Build<'_, '_>, args: &[Expr], message: &str) -> Result<Vars, MacroError> {
    let name = variable(build, &args[0], message)?;
    free(build, &args[0], &name)?;
    Ok(Vars(name, None))
}

/// The variables of a fold over indexes or keys together with their values.
fn two(build: &Build<'_, '_>, args: &[Expr]) -> Result<Vars, MacroError> {
    let first = variable(build, &args[0], "argument must be a simple name")?;
    let second = variable(build, &args[1], "argument must be a simple name")?;
    if first == second {
        return Err(build.wrong(&args[1], format!("duplicate variable name: {first}")));
    }
    free(build, &args[0], &first)?;
    free(build, &args[1], &second)?;
    Ok(Vars(first, Some(second)))
}

/// `all`, `exists` and `exists_one`.
pub(super) fn quantifier(build: &mut Build<'_, '_>, function: &str, target: &Expr, args: &[Expr]) -> Expanded {
    let vars = if args.len() == 3 { two(build, args)? } else { one(build, args, "argument must be a simple name")? };
    let predicate = args[args.len() - 1].clone();
    let (init, condition, step, result);
    match function {
        "all" => {
            init = build.literal(Literal::Bool(true));
            let accumulator = build.accumulator();
            condition = build.call(operator::NOT_STRICTLY_FALSE, vec![accumulator]);
            let accumulator = build.accumulator();
            step = build.call(operator::AND, vec![accumulator, predicate]);
            result = build.accumulator();
        }
        "exists" => {
            init = build.literal(Literal::Bool(false));
            let accumulator = build.accumulator();
            let not = build.call(operator::NOT, vec![accumulator]);
            condition = build.call(operator::NOT_STRICTLY_FALSE, vec![not]);
            let accumulator = build.accumulator();
            step = build.call(operator::OR, vec![accumulator, predicate]);
            result = build.accumulator();
        }
        _ => {
            init = build.literal(Literal::Int(0));
            condition = build.literal(Literal::Bool(true));
            let terms = vec![build.accumulator(), build.literal(Literal::Int(1))];
            let more = build.call(operator::ADD, terms);
            let same = build.accumulator();
            step = build.call(operator::CONDITIONAL, vec![predicate, more, same]);
            let terms = vec![build.accumulator(), build.literal(Literal::Int(1))];
            result = build.call(operator::EQUALS, terms);
        }
    }
    Ok(build.fold(target, vars, init, condition, step, result))
}

/// Builds a fold that appends `element` to a list wherever `filter` holds.
fn collect(build: &mut Build<'_, '_>, target: &Expr, vars: Vars, filter: Option<Expr>, element: Expr) -> Expr {
    let init = build.list(Vec::new());
    let condition = build.literal(Literal::Bool(true));
    let accumulator = build.accumulator();
    let element = build.list(vec![element]);
    let step = build.call(operator::ADD, vec![accumulator, element]);
    let step = guarded(build, filter, step);
    let result = build.accumulator();
    build.fold(target, vars, init, condition, step, result)
}

/// `filter ? step : accumulator`
fn guarded(build: &mut Build<'_, '_>, filter: Option<Expr>, step: Expr) -> Expr {
    match filter {
        Some(filter) => {
            let same = build.accumulator();
            build.call(operator::CONDITIONAL, vec![filter, step, same])
        }
        None => step,
    }
}

/// `map(var, transform)` and `map(var, filter, transform)`.
pub(super) fn map(build: &mut Build<'_, '_>, target: &Expr, args: &[Expr]) -> Expanded {
    let vars = one(build, args, "argument is not an identifier")?;
    let filter = (args.len() == 3).then(|| args[1].clone());
    Ok(collect(build, target, vars, filter, args[args.len() - 1].clone()))
}

/// `filter(var, predicate)`.
pub(super) fn filter(build: &mut Build<'_, '_>, target: &Expr, args: &[Expr]) -> Expanded {
    let vars = one(build, args, "argument is not an identifier")?;
    Ok(collect(build, target, vars, Some(args[1].clone()), args[0].clone()))
}

/// `transformList(index, value, [filter,] transform)`.
pub(super) fn transform_list(build: &mut Build<'_, '_>, target: &Expr, args: &[Expr]) -> Expanded {
    let vars = two(build, args)?;
    let filter = (args.len() == 4).then(|| args[2].clone());
    Ok(collect(build, target, vars, filter, args[args.len() - 1].clone()))
}

/// `transformMap(key, value, [filter,] transform)` and `transformMapEntry(key, value, [filter,] entry)`.
pub(super) fn transform_map(build: &mut Build<'_, '_>, function: &str, target: &Expr, args: &[Expr]) -> Expanded {
    let vars = two(build, args)?;
    let filter = (args.len() == 4).then(|| args[2].clone());
    let transform = args[args.len() - 1].clone();
    let mut inserted = vec![build.accumulator()];
    if function == "transformMap" {
        inserted.push(build.ident(&vars.0));
    }
    inserted.push(transform);
    let step = build.call("cel.@mapInsert", inserted);
    let step = guarded(build, filter, step);
    let init = build.node(ExprKind::Map(Vec::new()));
    let condition = build.literal(Literal::Bool(true));
    let result = build.accumulator();
    Ok(build.fold(target, vars, init, condition, step, result))
}
