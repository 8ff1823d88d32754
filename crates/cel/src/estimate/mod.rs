//! Estimates of the maximum cost of expressions, as cel-go and Kubernetes compute them. They decide which rules are
//! accepted, so they match exactly.

mod calls;
mod library;
mod range;

pub(crate) use library::{CHECK_COST, costs_one, selector_cost};

pub(crate) use range::CostRange;

use crate::check::CheckedExpression;
use crate::schema::{DeclaredShape, DeclaredType};
use crate::syntax::{Comprehension, Expr, ExprKind, Id, Literal};
use crate::types::CelType;
use range::EstimatePath;
use std::collections::HashMap;
use std::sync::Arc;

/// Cost of a character each time a string is traversed.
pub(crate) const TEXT_FACTOR: f64 = 0.1;
/// Cost of a character of a pattern.
pub(crate) const PATTERN_FACTOR: f64 = 0.25;
/// Cost of constructing a list, a map or an object.
pub(crate) const LIST_COST: u64 = 10;
pub(crate) const MAP_COST: u64 = 30;
pub(crate) const STRUCT_COST: u64 = 40;

/// Returns the cost of an expression whose variables have the type `root`.
pub(crate) fn estimate(checked: &CheckedExpression, root: Option<&DeclaredType>) -> CostRange {
    let mut estimator = Estimator {
        checked,
        root,
        paths: HashMap::new(),
        locals: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    estimator.cost(&checked.root)
}

/// Sizes of the elements of a list or a map.
#[derive(Clone, Copy, Debug)]
struct EntrySize {
    is_list: bool,
    key: CostRange,
    value: CostRange,
}

impl EntrySize {
    fn union(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        Some(Self { is_list: one.is_list, key: one.key.union(other.key), value: one.value.union(other.value) })
    }
}

/// Variable of a comprehension.
#[derive(Clone, Debug)]
struct LocalVariable {
    path: EstimatePath,
    size: Option<CostRange>,
    entries: Option<EntrySize>,
}

/// Argument of a call, as estimates see it.
struct EstimatedNode<'e> {
    path: EstimatePath,
    one: CelType,
    expr: Option<&'e Expr>,
    size: Option<CostRange>,
}

struct Estimator<'c> {
    checked: &'c CheckedExpression,
    root: Option<&'c DeclaredType>,
    paths: HashMap<Id, EstimatePath>,
    locals: HashMap<Arc<str>, Vec<LocalVariable>>,
    sizes: HashMap<Id, CostRange>,
    entries: HashMap<Id, EntrySize>,
}

impl<'c> Estimator<'c> {
    fn cost(&mut self, expr: &'c Expr) -> CostRange {
        match &expr.kind {
            ExprKind::Missing | ExprKind::Literal(_) => CostRange::fixed(0),
            ExprKind::Ident(name) => {
                let path =
                    self.local(name).map_or_else(|| EstimatePath::root(name.clone()), |local| local.path.clone());
                self.paths.insert(expr.id, path);
                CostRange::fixed(1)
            }
            ExprKind::Select { operand, field, test_only } => self.select(expr, operand, field, *test_only),
            ExprKind::Call(call) => self.call(expr, call),
            ExprKind::List(elements) => {
                let mut sum = CostRange::fixed(LIST_COST);
                let mut item = CostRange::accumulator(elements.is_empty());
                for element in elements {
                    sum = sum.plus(self.cost(&element.value));
                    item = item.union(self.size_or_unknown(&element.value));
                }
                self.entries.insert(expr.id, EntrySize { is_list: true, key: CostRange::fixed(1), value: item });
                sum
            }
            ExprKind::Map(entries) => {
                let mut sum = CostRange::fixed(MAP_COST);
                let mut key = CostRange::accumulator(entries.is_empty());
                let mut value = CostRange::accumulator(entries.is_empty());
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(expr.id, EntrySize { is_list: false, key, value });
                sum
            }
            ExprKind::Struct { fields, .. } => {
                fields.iter().fold(CostRange::fixed(STRUCT_COST), |sum, field| sum.plus(self.cost(&field.value)))
            }
            ExprKind::Comprehension(fold) if fold.is_bind() => self.bind(expr, fold),
            ExprKind::Comprehension(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<&LocalVariable> {
        self.locals.get(name)?.last()
    }

    fn push(&mut self, name: &Arc<str>, local: LocalVariable) {
        self.locals.entry(name.clone()).or_default().push(local);
    }

    fn pop(&mut self, name: &str) {
        if let Some(locals) = self.locals.get_mut(name) {
            locals.pop();
        }
    }

    fn path(&self, expr: &Expr) -> EstimatePath {
        if let ExprKind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn select(&mut self, expr: &'c Expr, operand: &'c Expr, field: &Arc<str>, test_only: bool) -> CostRange {
        let sum = self.cost(operand);
        if test_only {
            return sum;
        }
        let own = u64::from(matches!(
            self.checked.type_of(operand),
            CelType::Map(..) | CelType::Struct(_) | CelType::Param(_) | CelType::Var(_)
        ));
        let path = self.path(operand).child(field.clone());
        self.paths.insert(expr.id, path);
        sum.plus(CostRange::fixed(own))
    }

    fn bind(&mut self, expr: &'c Expr, fold: &'c Comprehension) -> CostRange {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_accumulator(fold);
        let sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accu);
        if let Some(size) = self.size(&fold.result) {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entries) = self.entry_size(&fold.result) {
            self.entries.insert(expr.id, entries);
        }
        sum
    }

    fn push_accumulator(&mut self, fold: &'c Comprehension) {
        let local = LocalVariable {
            path: self.path(&fold.init),
            entries: self.entry_size(&fold.init),
            size: self.size(&fold.init),
        };
        self.push(&fold.accu, local);
    }

    fn fold(&mut self, expr: &'c Expr, fold: &'c Comprehension) -> CostRange {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_accumulator(fold);
        self.push_variables(fold);
        let each = self.cost(&fold.condition);
        let each = self.cost(&fold.step).plus(each);
        self.pop(&fold.var);
        if let Some(var2) = &fold.var2 {
            self.pop(var2);
        }
        let sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accu);
        let count = self.size_or_unknown(&fold.range);
        match &fold.init.kind {
            ExprKind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            ExprKind::List(_) | ExprKind::Map(_) => {
                self.sizes.insert(expr.id, count);
                if let Some(entries) = self.entry_size(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        sum.plus(count.times(each))
    }

    fn push_variables(&mut self, fold: &'c Comprehension) {
        let entries = self.entry_size(&fold.range);
        let is_list = entries
            .map_or_else(|| matches!(self.checked.type_of(&fold.range), CelType::List(_)), |entries| entries.is_list);
        let path = self.path(&fold.range);
        let key = entries.map(|entries| entries.key);
        let value = entries.map(|entries| entries.value);
        let of = |path: &EstimatePath, name: &str, size| LocalVariable {
            path: path.child(name.into()),
            size,
            entries: None,
        };
        match &fold.var2 {
            Some(var2) => {
                self.push(&fold.var, of(&path, if is_list { "@indices" } else { "@keys" }, key));
                self.push(var2, of(&path, if is_list { "@items" } else { "@values" }, value));
            }
            None if is_list => self.push(&fold.var, of(&path, "@items", value)),
            None => self.push(&fold.var, of(&path, "@keys", key)),
        }
    }

    /// Returns the size of a value of the request at the end of a path.
    fn declared_size(&self, path: &EstimatePath) -> Option<CostRange> {
        let names = path.names();
        let (_, rest) = names.split_first()?;
        let mut at = self.root?;
        for name in rest {
            at = match (&at.shape, &**name) {
                (DeclaredShape::List(inner) | DeclaredShape::Map(inner), "@items" | "@values") => inner,
                // Keys may have any length, but cel-go has always estimated their size as zero.
                (DeclaredShape::Map(_), "@keys") => return (rest.last() == Some(name)).then(|| CostRange::new(0, 0)),
                (DeclaredShape::Object(fields), name) => fields.get(name)?,
                _ => return None,
            };
        }
        Some(CostRange::new(0, u64::try_from(at.max_elements).unwrap_or_default()))
    }

    fn size(&mut self, expr: &'c Expr) -> Option<CostRange> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        if let Some(size) = literal_size(expr) {
            return Some(size);
        }
        if let Some(size) = self.declared_size(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.checked.type_of(expr).is_scalar() {
            return Some(CostRange::fixed(1));
        }
        match &expr.kind {
            ExprKind::Ident(name) => self.local(name)?.size,
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &'c Expr) -> CostRange {
        self.size(expr).unwrap_or(CostRange::UNKNOWN)
    }

    fn entry_size(&self, expr: &Expr) -> Option<EntrySize> {
        self.entries.get(&expr.id).copied().or_else(|| match &expr.kind {
            ExprKind::Ident(name) => self.local(name)?.entries,
            _ => None,
        })
    }

    fn node(&mut self, expr: &'c Expr) -> EstimatedNode<'c> {
        EstimatedNode {
            path: self.path(expr),
            one: self.checked.type_of(expr).clone(),
            expr: Some(expr),
            size: self.size(expr),
        }
    }
}

fn literal_size(expr: &Expr) -> Option<CostRange> {
    let size = match &expr.kind {
        ExprKind::Literal(Literal::String(text)) => text.chars().count(),
        ExprKind::Literal(Literal::Bytes(bytes)) => bytes.len(),
        ExprKind::Literal(_) => 1,
        ExprKind::List(elements) => elements.len(),
        ExprKind::Map(entries) => entries.len(),
        _ => return None,
    };
    Some(CostRange::fixed(size as u64))
}

#[cfg(test)]
mod tests;
