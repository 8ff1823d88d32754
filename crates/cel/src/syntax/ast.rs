//! The syntax tree.

use std::sync::Arc;

/// Names a node; its place in the source is kept beside the tree.
pub(crate) type Id = usize;

/// A node of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Stands where the source could not be read; a problem was noted for it.
    Missing,
    Literal(Literal),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        test_only: bool,
    },
    Call(Call),
    List(Vec<ListElement>),
    Map(Vec<Entry>),
    Struct {
        name: Arc<str>,
        fields: Vec<Field>,
    },
    Comprehension(Box<Comprehension>),
}

/// A constant of the source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// `function(args)`, or `target.function(args)`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) function: Arc<str>,
    pub(crate) target: Option<Box<Expr>>,
    pub(crate) args: Vec<Expr>,
}

/// One element of `[a, ?b]`.
#[derive(Clone, Debug)]
pub(crate) struct ListElement {
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// One entry of `{k: v, ?k: v}`.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// One field of `Type{field: v}`.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) id: Id,
    pub(crate) name: Arc<str>,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// A fold over a list or a map, which is what macros become.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) range: Expr,
    pub(crate) var: Arc<str>,
    pub(crate) var2: Option<Arc<str>>,
    pub(crate) accu: Arc<str>,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Comprehension {
    /// Whether this only gives a value a name: nothing is ever iterated.
    pub(crate) fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List(elements) if elements.is_empty())
            && matches!(self.condition.kind, Kind::Literal(Literal::Bool(false)))
    }
}

impl Expr {
    /// `a.b.c` as a name, where the node is made of nothing else.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select { operand, field, test_only: false } => Some(format!("{}.{field}", operand.qualified_name()?)),
            Kind::Missing
            | Kind::Literal(_)
            | Kind::Select { .. }
            | Kind::Call(_)
            | Kind::List(_)
            | Kind::Map(_)
            | Kind::Struct { .. }
            | Kind::Comprehension(_) => None,
        }
    }

    /// Whether the tree has more levels.
    pub(crate) fn is_deeper_than(&self, levels: usize) -> bool {
        levels == 0 || self.children().into_iter().any(|child| child.is_deeper_than(levels - 1))
    }

    /// Shows `visit` this node and all below it, in the order of the source.
    pub(crate) fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        self.children().into_iter().for_each(|child| child.walk(visit));
    }

    /// The nodes right below this one.
    pub(crate) fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Missing | Kind::Literal(_) | Kind::Ident(_) => Vec::new(),
            Kind::Select { operand, .. } => vec![operand],
            Kind::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
            Kind::List(elements) => elements.iter().map(|element| &element.value).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            Kind::Struct { fields, .. } => fields.iter().map(|field| &field.value).collect(),
            Kind::Comprehension(fold) => vec![&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result],
        }
    }
}

/// The names under which operators are called, as in cel-go.
pub(crate) mod operator {
    pub(crate) const CONDITIONAL: &str = "_?_:_";
    pub(crate) const AND: &str = "_&&_";
    pub(crate) const OR: &str = "_||_";
    pub(crate) const NOT: &str = "!_";
    pub(crate) const NEGATE: &str = "-_";
    pub(crate) const EQUALS: &str = "_==_";
    pub(crate) const NOT_EQUALS: &str = "_!=_";
    pub(crate) const ADD: &str = "_+_";
    pub(crate) const IN: &str = "@in";
    pub(crate) const INDEX: &str = "_[_]";
    pub(crate) const OPT_INDEX: &str = "_[?_]";
    pub(crate) const OPT_SELECT: &str = "_?._";
    pub(crate) const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    /// The name of the value a macro folds into.
    pub(crate) const ACCUMULATOR: &str = "@result";
}
