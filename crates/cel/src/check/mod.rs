//! The type checker: what each node is, which functions it calls, and what is wrong, in cel-go's words.

mod calls;
mod environment;
mod format;
mod literals;
mod unify;

pub use environment::{Environment, ObjectTypes};

use crate::deep;
use crate::functions::Overload;
use crate::syntax::{Comprehension, Entry, Expr, Id, Kind, ListElement, Literal, Problems, Source, operator, parse};
use crate::types::Type;
use std::collections::HashMap;
use std::sync::Arc;
use unify::Bindings;

/// An expression that checks.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) root: Expr,
    pub(crate) types: HashMap<Id, Type>,
    /// The overloads a call may turn out to be at run time.
    pub(crate) overloads: HashMap<Id, Vec<&'static Overload>>,
    /// Names that stand for a type.
    pub(crate) type_names: HashMap<Id, Type>,
    /// The variables it uses, declared or its own.
    pub(crate) variables: Vec<Arc<str>>,
}

impl Checked {
    pub(crate) fn output(&self) -> &Type {
        &self.types[&self.root.id]
    }

    pub(crate) fn type_of(&self, expr: &Expr) -> &Type {
        self.types.get(&expr.id).unwrap_or(&Type::Error)
    }
}

/// Reads and checks an expression.
///
/// # Errors
/// Its problems, as cel-go displays them.
pub(crate) fn compile(text: &str, environment: &Environment) -> Result<Checked, String> {
    let deep = deep::may_be_deep(text);
    deep::run(deep, || compile_here(text, environment)).unwrap_or_else(|problem| Err(problem.to_owned()))
}

fn compile_here(text: &str, environment: &Environment) -> Result<Checked, String> {
    let source = Source::new(text);
    let parsed = parse(&source).map_err(|problems| problems.display(&source))?;
    let mut root = parsed.root;
    let mut checker = Checker {
        environment,
        offset: &|id| parsed.offsets.of(id),
        scopes: Vec::new(),
        bindings: Bindings::default(),
        types: HashMap::new(),
        overloads: HashMap::new(),
        type_names: HashMap::new(),
        variables: Vec::new(),
        problems: Problems::default(),
    };
    checker.check(&mut root);
    let Checker { bindings, mut types, overloads, type_names, variables, mut problems, .. } = checker;
    types.values_mut().for_each(|one| *one = bindings.resolve(one, true));
    let checked = Checked { root, types, overloads, type_names, variables };
    if problems.is_empty() {
        literals::check(&checked, &|id| parsed.offsets.of(id), &mut problems);
    }
    if problems.is_empty() { Ok(checked) } else { Err(problems.display(&source)) }
}

struct Checker<'c> {
    environment: &'c Environment,
    offset: &'c dyn Fn(Id) -> usize,
    /// The variables of comprehensions, innermost last.
    scopes: Vec<(Arc<str>, Type)>,
    bindings: Bindings,
    types: HashMap<Id, Type>,
    overloads: HashMap<Id, Vec<&'static Overload>>,
    type_names: HashMap<Id, Type>,
    variables: Vec<Arc<str>>,
    problems: Problems,
}

impl Checker<'_> {
    fn problem(&mut self, id: Id, message: String) {
        self.problems.add(Some((self.offset)(id)), message);
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.problem(id, format!("undeclared reference to '{name}' (in container '')"));
        self.types.insert(id, Type::Error);
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.problem(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn type_of(&self, expr: &Expr) -> Type {
        self.types.get(&expr.id).cloned().unwrap_or(Type::Error)
    }

    fn check(&mut self, expr: &mut Expr) {
        match &mut expr.kind {
            Kind::Missing => {
                self.types.insert(expr.id, Type::Error);
            }
            Kind::Literal(value) => {
                let found = literal_type(value);
                self.types.insert(expr.id, found);
            }
            Kind::Ident(name) => {
                let name = name.clone();
                if !self.identifier(expr, &name) {
                    self.undeclared(expr.id, &name);
                }
            }
            Kind::Select { .. } => self.check_select(expr),
            Kind::Call(_) => self.check_call(expr),
            Kind::List(elements) => {
                let found = self.check_list(elements);
                self.types.insert(expr.id, Type::list(found));
            }
            Kind::Map(entries) => {
                let (key, value) = self.check_map(entries);
                self.types.insert(expr.id, Type::map(key, value));
            }
            Kind::Struct { .. } => self.check_struct(expr),
            Kind::Comprehension(fold) => {
                let found = self.check_fold(fold);
                self.types.insert(expr.id, found);
            }
        }
    }

    /// Takes the node for a name, if there is one of that name.
    fn identifier(&mut self, expr: &mut Expr, name: &str) -> bool {
        let name = name.strip_prefix('.').unwrap_or(name);
        let variable = self.scopes.iter().rev().find(|(scoped, _)| &**scoped == name).map(|(_, found)| found.clone());
        let found = if let Some(found) = variable.or_else(|| self.environment.variable(name)) {
            self.variables.push(name.into());
            found
        } else if let Some(named) = self.environment.type_named(name) {
            self.type_names.insert(expr.id, named.clone());
            Type::Type(Some(Arc::new(named)))
        } else {
            return false;
        };
        self.types.insert(expr.id, found);
        expr.kind = Kind::Ident(name.into());
        true
    }

    fn check_select(&mut self, expr: &mut Expr) {
        if let Some(name) = expr.qualified_name()
            && self.identifier(expr, &name)
        {
            return;
        }
        let Kind::Select { operand, field, test_only } = &mut expr.kind else { return };
        let found = self.field(expr.id, operand, field, false);
        let found = if *test_only { Type::Bool } else { self.bindings.resolve(&found, false) };
        self.types.insert(expr.id, found);
    }

    /// The type of `operand.field`.
    fn field(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand_type = self.bindings.resolve(&self.type_of(operand), false);
        let inner = operand_type.in_optional();
        let target = inner.unwrap_or(&operand_type);
        let found = match target {
            Type::Map(_, value) => (**value).clone(),
            Type::Struct(name) => self.declared_field(id, name, field),
            Type::Var(_) => {
                self.bindings.assignable(&Type::Dyn, target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.problem(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if inner.is_some() || optional { Type::optional(found) } else { found }
    }

    fn declared_field(&mut self, id: Id, object: &str, field: &str) -> Type {
        match self.environment.field(object, field) {
            Some(Some(found)) => found,
            Some(None) => {
                self.problem(id, format!("undefined field '{field}'"));
                Type::Error
            }
            None => {
                self.problem(id, format!("unexpected failed resolution of '{object}'"));
                Type::Error
            }
        }
    }

    /// The type of elements; where they are of several, that is told later, except within `format`.
    fn joined(&mut self, previous: Option<Type>, current: Type) -> Type {
        match previous {
            None => current,
            Some(previous) if self.bindings.assignable(&previous, &current) => unify::most_general(&previous, &current),
            Some(_) => Type::Dyn,
        }
    }

    /// What an optional element holds.
    fn unwrapped(&mut self, at: Id, found: Type, optional: bool) -> Type {
        if !optional {
            return found;
        }
        if let Some(inner) = found.in_optional() {
            return inner.clone();
        }
        if !found.is_dyn() {
            self.mismatch(at, &Type::optional(found.clone()), &found);
        }
        found
    }

    fn check_list(&mut self, elements: &mut [ListElement]) -> Type {
        let mut joined = None;
        for element in elements {
            self.check(&mut element.value);
            let id = element.value.id;
            let found = self.unwrapped(id, self.type_of(&element.value), element.optional);
            joined = Some(self.joined(joined, found));
        }
        joined.unwrap_or_else(|| self.bindings.fresh())
    }

    fn check_map(&mut self, entries: &mut [Entry]) -> (Type, Type) {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            self.check(&mut entry.key);
            let found = self.type_of(&entry.key);
            keys = Some(self.joined(keys, found));
            self.check(&mut entry.value);
            let found = self.unwrapped(entry.value.id, self.type_of(&entry.value), entry.optional);
            values = Some(self.joined(values, found));
        }
        (keys.unwrap_or_else(|| self.bindings.fresh()), values.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn check_struct(&mut self, expr: &mut Expr) {
        let Kind::Struct { name, fields } = &mut expr.kind else { return };
        let written = name.strip_prefix('.').unwrap_or(name);
        let declared = match self.environment.type_named(written) {
            None => {
                let name = name.clone();
                return self.undeclared(expr.id, &name);
            }
            Some(Type::Struct(declared)) => declared,
            Some(other) => {
                let message = format!("'{}' is not a message type", other.name());
                self.problem(expr.id, message);
                self.types.insert(expr.id, Type::Error);
                return;
            }
        };
        *name = declared.clone();
        self.types.insert(expr.id, Type::Struct(declared.clone()));
        for field in fields {
            self.check(&mut field.value);
            let expected = self.declared_field(field.id, &declared, &field.name);
            let found = self.unwrapped(field.value.id, self.type_of(&field.value), field.optional);
            if !self.bindings.assignable(&expected, &found) {
                let message =
                    format!("expected type of field '{}' is '{expected}' but provided type is '{found}'", field.name);
                self.problem(field.id, message);
            }
        }
    }

    fn check_fold(&mut self, fold: &mut Comprehension) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.bindings.resolve(&self.type_of(&fold.range), false);
        let accu = self.type_of(&fold.init);
        let outer = self.scopes.len();
        self.scopes.push((fold.accu.clone(), accu.clone()));
        let (first, second) = self.variables_of(&range, fold);
        let inner = self.scopes.len();
        self.scopes.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.scopes.push((var2.clone(), second));
        }
        self.check(&mut fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accu);
        self.scopes.truncate(inner);
        self.check(&mut fold.result);
        self.scopes.truncate(outer);
        self.bindings.resolve(&self.type_of(&fold.result), false)
    }

    fn variables_of(&mut self, range: &Type, fold: &Comprehension) -> (Type, Type) {
        match range {
            Type::List(element) if fold.var2.is_some() => (Type::Int, (**element).clone()),
            Type::List(element) => ((**element).clone(), Type::Error),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.bindings.assignable(&Type::Dyn, range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.problem(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        }
    }

    fn assert(&mut self, expr: &Expr, expected: &Type) {
        let found = self.type_of(expr);
        if !self.bindings.assignable(expected, &found) {
            self.mismatch(expr.id, expected, &found);
        }
    }
}

fn literal_type(value: &Literal) -> Type {
    match value {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

/// A text constant.
fn constant_text(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        Kind::Literal(Literal::String(text)) => Some(text),
        _ => None,
    }
}

fn is_junction(function: &str) -> bool {
    function == operator::AND || function == operator::OR
}

#[cfg(test)]
mod tests;
