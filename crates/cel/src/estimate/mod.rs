//! What an expression can cost at most, as cel-go and Kubernetes estimate it. Who may write which rule hangs on these figures, so they
//! are the same to the last unit.

mod calls;
mod library;
mod range;

pub(crate) use library::{CHECK_COST, costs_one, selector_cost};

pub(crate) use range::Range;

use crate::check::Checked;
use crate::schema::{DeclaredType, Shape};
use crate::syntax::{Comprehension, Expr, Id, Kind, Literal};
use crate::types::Type;
use range::Path;
use std::collections::HashMap;
use std::sync::Arc;

/// Characters of a text cost a tenth each time it is read through.
pub(crate) const TEXT_FACTOR: f64 = 0.1;
/// Characters of a pattern.
pub(crate) const PATTERN_FACTOR: f64 = 0.25;
/// Making a list, a map, an object.
pub(crate) const LIST_COST: u64 = 10;
pub(crate) const MAP_COST: u64 = 30;
pub(crate) const STRUCT_COST: u64 = 40;

/// The cost of an expression whose variables are of the type `root`.
pub(crate) fn estimate(checked: &Checked, root: Option<&DeclaredType>) -> Range {
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

/// The sizes of what a list or a map holds.
#[derive(Clone, Copy, Debug)]
struct EntrySize {
    is_list: bool,
    key: Range,
    value: Range,
}

impl EntrySize {
    fn union(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        Some(Self { is_list: one.is_list, key: one.key.union(other.key), value: one.value.union(other.value) })
    }
}

/// A variable of a comprehension.
#[derive(Clone, Debug)]
struct Local {
    path: Path,
    size: Option<Range>,
    entries: Option<EntrySize>,
}

/// An argument, as estimates of calls see it.
struct Node<'e> {
    path: Path,
    one: Type,
    expr: Option<&'e Expr>,
    size: Option<Range>,
}

struct Estimator<'c> {
    checked: &'c Checked,
    root: Option<&'c DeclaredType>,
    paths: HashMap<Id, Path>,
    locals: HashMap<Arc<str>, Vec<Local>>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, EntrySize>,
}

impl<'c> Estimator<'c> {
    fn cost(&mut self, expr: &'c Expr) -> Range {
        match &expr.kind {
            Kind::Missing | Kind::Literal(_) => Range::fixed(0),
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| Path::root(name.clone()), |local| local.path.clone());
                self.paths.insert(expr.id, path);
                Range::fixed(1)
            }
            Kind::Select { operand, field, test_only } => self.select(expr, operand, field, *test_only),
            Kind::Call(call) => self.call(expr, call),
            Kind::List(elements) => {
                let mut sum = Range::fixed(LIST_COST);
                let mut item = Range::accumulator(elements.is_empty());
                for element in elements {
                    sum = sum.plus(self.cost(&element.value));
                    item = item.union(self.size_or_unknown(&element.value));
                }
                self.entries.insert(expr.id, EntrySize { is_list: true, key: Range::fixed(1), value: item });
                sum
            }
            Kind::Map(entries) => {
                let mut sum = Range::fixed(MAP_COST);
                let mut key = Range::accumulator(entries.is_empty());
                let mut value = Range::accumulator(entries.is_empty());
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(expr.id, EntrySize { is_list: false, key, value });
                sum
            }
            Kind::Struct { fields, .. } => {
                fields.iter().fold(Range::fixed(STRUCT_COST), |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Comprehension(fold) if fold.is_bind() => self.bind(expr, fold),
            Kind::Comprehension(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.get(name)?.last()
    }

    fn push(&mut self, name: &Arc<str>, local: Local) {
        self.locals.entry(name.clone()).or_default().push(local);
    }

    fn pop(&mut self, name: &str) {
        if let Some(locals) = self.locals.get_mut(name) {
            locals.pop();
        }
    }

    fn path(&self, expr: &Expr) -> Path {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn select(&mut self, expr: &'c Expr, operand: &'c Expr, field: &Arc<str>, test_only: bool) -> Range {
        let sum = self.cost(operand);
        if test_only {
            return sum;
        }
        let own = u64::from(matches!(
            self.checked.type_of(operand),
            Type::Map(..) | Type::Struct(_) | Type::Param(_) | Type::Var(_)
        ));
        let path = self.path(operand).child(field.clone());
        self.paths.insert(expr.id, path);
        sum.plus(Range::fixed(own))
    }

    fn bind(&mut self, expr: &'c Expr, fold: &'c Comprehension) -> Range {
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
        let local =
            Local { path: self.path(&fold.init), entries: self.entry_size(&fold.init), size: self.size(&fold.init) };
        self.push(&fold.accu, local);
    }

    fn fold(&mut self, expr: &'c Expr, fold: &'c Comprehension) -> Range {
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
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
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
            .map_or_else(|| matches!(self.checked.type_of(&fold.range), Type::List(_)), |entries| entries.is_list);
        let path = self.path(&fold.range);
        let key = entries.map(|entries| entries.key);
        let value = entries.map(|entries| entries.value);
        let of = |path: &Path, name: &str, size| Local { path: path.child(name.into()), size, entries: None };
        match &fold.var2 {
            Some(var2) => {
                self.push(&fold.var, of(&path, if is_list { "@indices" } else { "@keys" }, key));
                self.push(var2, of(&path, if is_list { "@items" } else { "@values" }, value));
            }
            None if is_list => self.push(&fold.var, of(&path, "@items", value)),
            None => self.push(&fold.var, of(&path, "@keys", key)),
        }
    }

    /// The size of a value of the request at the end of a path.
    fn declared_size(&self, path: &Path) -> Option<Range> {
        let names = path.names();
        let (_, rest) = names.split_first()?;
        let mut at = self.root?;
        for name in rest {
            at = match (&at.shape, &**name) {
                (Shape::List(inner) | Shape::Map(inner), "@items" | "@values") => inner,
                // Keys are texts of any length, and have been sized as nothing since they came to be.
                (Shape::Map(_), "@keys") => return (rest.last() == Some(name)).then(|| Range::new(0, 0)),
                (Shape::Object(fields), name) => fields.get(name)?,
                _ => return None,
            };
        }
        Some(Range::new(0, u64::try_from(at.max_elements).unwrap_or_default()))
    }

    fn size(&mut self, expr: &'c Expr) -> Option<Range> {
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
            return Some(Range::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name)?.size,
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &'c Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn entry_size(&self, expr: &Expr) -> Option<EntrySize> {
        self.entries.get(&expr.id).copied().or_else(|| match &expr.kind {
            Kind::Ident(name) => self.local(name)?.entries,
            _ => None,
        })
    }

    fn node(&mut self, expr: &'c Expr) -> Node<'c> {
        Node { path: self.path(expr), one: self.checked.type_of(expr).clone(), expr: Some(expr), size: self.size(expr) }
    }
}

fn literal_size(expr: &Expr) -> Option<Range> {
    let size = match &expr.kind {
        Kind::Literal(Literal::String(text)) => text.chars().count(),
        Kind::Literal(Literal::Bytes(bytes)) => bytes.len(),
        Kind::Literal(_) => 1,
        Kind::List(elements) => elements.len(),
        Kind::Map(entries) => entries.len(),
        _ => return None,
    };
    Some(Range::fixed(size as u64))
}

#[cfg(test)]
mod tests;
