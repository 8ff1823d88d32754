//! Type checker: the type of each node, the functions that it calls, and errors in cel-go's words.

mod calls;
mod environment;
mod format;
mod literals;
mod unify;

pub use environment::{Environment, ObjectTypes};

use crate::deep;
use crate::functions::Overload;
use crate::syntax::{
    Comprehension, Expr, ExprKind, Id, ListElement, Literal, MapEntry, Problems, SourceText, operator, parse,
};
use crate::types::CelType;
use std::collections::HashMap;
use std::sync::Arc;
use unify::TypeBindings;

/// Expression that passed the type check.
#[derive(Debug)]
pub(crate) struct CheckedExpression {
    pub(crate) root: Expr,
    pub(crate) types: HashMap<Id, CelType>,
    /// Possible overloads of a call at run time.
    pub(crate) overloads: HashMap<Id, Vec<&'static Overload>>,
    /// Names that refer to a type.
    pub(crate) type_names: HashMap<Id, CelType>,
    /// Variables in use, declared or its own.
    pub(crate) variables: Vec<Arc<str>>,
}

impl CheckedExpression {
    pub(crate) fn output(&self) -> &CelType {
        &self.types[&self.root.id]
    }

    pub(crate) fn type_of(&self, expr: &Expr) -> &CelType {
        self.types.get(&expr.id).unwrap_or(&CelType::Error)
    }
}

/// Parses and checks an expression.
///
/// # Errors
/// Returns its problems, as cel-go displays them.
pub(crate) fn compile(text: &str, environment: &Environment) -> Result<CheckedExpression, String> {
    let deep = deep::may_be_deep(text);
    deep::run(deep, || compile_here(text, environment)).unwrap_or_else(|problem| Err(problem.to_owned()))
}

fn compile_here(text: &str, environment: &Environment) -> Result<CheckedExpression, String> {
    let source = SourceText::new(text);
    let parsed = parse(&source).map_err(|problems| problems.display(&source))?;
    let mut root = parsed.root;
    let mut checker = TypeChecker {
        environment,
        offset: &|id| parsed.offsets.of(id),
        scopes: Vec::new(),
        bindings: TypeBindings::default(),
        types: HashMap::new(),
        overloads: HashMap::new(),
        type_names: HashMap::new(),
        variables: Vec::new(),
        problems: Problems::default(),
    };
    checker.check(&mut root);
    let TypeChecker { bindings, mut types, overloads, type_names, variables, mut problems, .. } = checker;
    types.values_mut().for_each(|one| *one = bindings.resolve(one, true));
    let checked = CheckedExpression { root, types, overloads, type_names, variables };
    if problems.is_empty() {
        literals::check(&checked, &|id| parsed.offsets.of(id), &mut problems);
    }
    if problems.is_empty() { Ok(checked) } else { Err(problems.display(&source)) }
}

struct TypeChecker<'c> {
    environment: &'c Environment,
    offset: &'c dyn Fn(Id) -> usize,
    /// Variables of comprehensions, innermost last.
    scopes: Vec<(Arc<str>, CelType)>,
    bindings: TypeBindings,
    types: HashMap<Id, CelType>,
    overloads: HashMap<Id, Vec<&'static Overload>>,
    type_names: HashMap<Id, CelType>,
    variables: Vec<Arc<str>>,
    problems: Problems,
}

impl TypeChecker<'_> {
    fn problem(&mut self, id: Id, message: String) {
        self.problems.add(Some((self.offset)(id)), message);
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.problem(id, format!("undeclared reference to '{name}' (in container '')"));
        self.types.insert(id, CelType::Error);
    }

    fn mismatch(&mut self, id: Id, expected: &CelType, found: &CelType) {
        self.problem(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn type_of(&self, expr: &Expr) -> CelType {
        self.types.get(&expr.id).cloned().unwrap_or(CelType::Error)
    }

    fn check(&mut self, expr: &mut Expr) {
        match &mut expr.kind {
            ExprKind::Missing => {
                self.types.insert(expr.id, CelType::Error);
            }
            ExprKind::Literal(value) => {
                let found = literal_type(value);
                self.types.insert(expr.id, found);
            }
            ExprKind::Ident(name) => {
                let name = name.clone();
                if !self.identifier(expr, &name) {
                    self.undeclared(expr.id, &name);
                }
            }
            ExprKind::Select { .. } => self.check_select(expr),
            ExprKind::Call(_) => self.check_call(expr),
            ExprKind::List(elements) => {
                let found = self.check_list(elements);
                self.types.insert(expr.id, CelType::list(found));
            }
            ExprKind::Map(entries) => {
                let (key, value) = self.check_map(entries);
                self.types.insert(expr.id, CelType::map(key, value));
            }
            ExprKind::Struct { .. } => self.check_struct(expr),
            ExprKind::Comprehension(fold) => {
                let found = self.check_fold(fold);
                self.types.insert(expr.id, found);
            }
        }
    }

    /// Resolves the node as a name, if there is a declaration for it.
    fn identifier(&mut self, expr: &mut Expr, name: &str) -> bool {
        let name = name.strip_prefix('.').unwrap_or(name);
        let variable = self.scopes.iter().rev().find(|(scoped, _)| &**scoped == name).map(|(_, found)| found.clone());
        let found = if let Some(found) = variable.or_else(|| self.environment.variable(name)) {
            self.variables.push(name.into());
            found
        } else if let Some(named) = self.environment.type_named(name) {
            self.type_names.insert(expr.id, named.clone());
            CelType::Type(Some(Arc::new(named)))
        } else {
            return false;
        };
        self.types.insert(expr.id, found);
        expr.kind = ExprKind::Ident(name.into());
        true
    }

    fn check_select(&mut self, expr: &mut Expr) {
        if let Some(name) = expr.qualified_name()
            && self.identifier(expr, &name)
        {
            return;
        }
        let ExprKind::Select { operand, field, test_only } = &mut expr.kind else { return };
        let found = self.field(expr.id, operand, field, false);
        let found = if *test_only { CelType::Bool } else { self.bindings.resolve(&found, false) };
        self.types.insert(expr.id, found);
    }

    /// Returns the type of `operand.field`.
    fn field(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> CelType {
        self.check(operand);
        let operand_type = self.bindings.resolve(&self.type_of(operand), false);
        let inner = operand_type.in_optional();
        let target = inner.unwrap_or(&operand_type);
        let found = match target {
            CelType::Map(_, value) => (**value).clone(),
            CelType::Struct(name) => self.declared_field(id, name, field),
            CelType::Var(_) => {
                self.bindings.assignable(&CelType::Dyn, target);
                CelType::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.problem(id, format!("type '{other}' does not support field selection"));
                }
                CelType::Dyn
            }
        };
        if inner.is_some() || optional { CelType::optional(found) } else { found }
    }

    fn declared_field(&mut self, id: Id, object: &str, field: &str) -> CelType {
        match self.environment.field(object, field) {
            Some(Some(found)) => found,
            Some(None) => {
                self.problem(id, format!("undefined field '{field}'"));
                CelType::Error
            }
            None => {
                self.problem(id, format!("unexpected failed resolution of '{object}'"));
                CelType::Error
            }
        }
    }

    /// Returns the common type of elements. Mixed types are reported later, except within `format`.
    fn joined(&mut self, previous: Option<CelType>, current: CelType) -> CelType {
        match previous {
            None => current,
            Some(previous) if self.bindings.assignable(&previous, &current) => unify::most_general(&previous, &current),
            Some(_) => CelType::Dyn,
        }
    }

    /// Returns the type inside an optional element.
    fn unwrapped(&mut self, at: Id, found: CelType, optional: bool) -> CelType {
        if !optional {
            return found;
        }
        if let Some(inner) = found.in_optional() {
            return inner.clone();
        }
        if !found.is_dyn() {
            self.mismatch(at, &CelType::optional(found.clone()), &found);
        }
        found
    }

    fn check_list(&mut self, elements: &mut [ListElement]) -> CelType {
        let mut joined = None;
        for element in elements {
            self.check(&mut element.value);
            let id = element.value.id;
            let found = self.unwrapped(id, self.type_of(&element.value), element.optional);
            joined = Some(self.joined(joined, found));
        }
        joined.unwrap_or_else(|| self.bindings.fresh())
    }

    fn check_map(&mut self, entries: &mut [MapEntry]) -> (CelType, CelType) {
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
        let ExprKind::Struct { name, fields } = &mut expr.kind else { return };
        let written = name.strip_prefix('.').unwrap_or(name);
        let declared = match self.environment.type_named(written) {
            None => {
                let name = name.clone();
                return self.undeclared(expr.id, &name);
            }
            Some(CelType::Struct(declared)) => declared,
            Some(other) => {
                let message = format!("'{}' is not a message type", other.name());
                self.problem(expr.id, message);
                self.types.insert(expr.id, CelType::Error);
                return;
            }
        };
        *name = declared.clone();
        self.types.insert(expr.id, CelType::Struct(declared.clone()));
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

    fn check_fold(&mut self, fold: &mut Comprehension) -> CelType {
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
        self.assert(&fold.condition, &CelType::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accu);
        self.scopes.truncate(inner);
        self.check(&mut fold.result);
        self.scopes.truncate(outer);
        self.bindings.resolve(&self.type_of(&fold.result), false)
    }

    fn variables_of(&mut self, range: &CelType, fold: &Comprehension) -> (CelType, CelType) {
        match range {
            CelType::List(element) if fold.var2.is_some() => (CelType::Int, (**element).clone()),
            CelType::List(element) => ((**element).clone(), CelType::Error),
            CelType::Map(key, value) => ((**key).clone(), (**value).clone()),
            CelType::Dyn | CelType::Error | CelType::Var(_) => {
                self.bindings.assignable(&CelType::Dyn, range);
                (CelType::Dyn, CelType::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.problem(fold.range.id, message);
                (CelType::Error, CelType::Error)
            }
        }
    }

    fn assert(&mut self, expr: &Expr, expected: &CelType) {
        let found = self.type_of(expr);
        if !self.bindings.assignable(expected, &found) {
            self.mismatch(expr.id, expected, &found);
        }
    }
}

fn literal_type(value: &Literal) -> CelType {
    match value {
        Literal::Null => CelType::Null,
        Literal::Bool(_) => CelType::Bool,
        Literal::Int(_) => CelType::Int,
        Literal::Uint(_) => CelType::Uint,
        Literal::Double(_) => CelType::Double,
        Literal::String(_) => CelType::String,
        Literal::Bytes(_) => CelType::Bytes,
    }
}

/// Returns a constant text.
fn constant_text(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        ExprKind::Literal(Literal::String(text)) => Some(text),
        _ => None,
    }
}

fn is_junction(function: &str) -> bool {
    function == operator::AND || function == operator::OR
}

#[cfg(test)]
mod tests;
