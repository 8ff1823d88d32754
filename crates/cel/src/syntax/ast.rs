//! The syntax tree.

use std::sync::Arc;

/// Id of a node; its position in the source is kept beside the tree.
pub(crate) type Id = usize;

/// A node of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: ExprKind,
}

/// Kind of a node.
#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    /// Placeholder for source that does not parse; a problem was reported for it.
    Missing,
    Literal(Literal),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        test_only: bool,
    },
    Call(CallExpr),
    List(Vec<ListElement>),
    Map(Vec<MapEntry>),
    Struct {
        name: Arc<str>,
        fields: Vec<StructField>,
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
pub(crate) struct CallExpr {
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
pub(crate) struct MapEntry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// One field of `Type{field: v}`.
#[derive(Clone, Debug)]
pub(crate) struct StructField {
    pub(crate) id: Id,
    pub(crate) name: Arc<str>,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// Fold over a list or a map, the expansion of macros.
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
    /// Returns true if this only names a value and iterates over nothing.
    pub(crate) fn is_bind(&self) -> bool {
        matches!(&self.range.kind, ExprKind::List(elements) if elements.is_empty())
            && matches!(self.condition.kind, ExprKind::Literal(Literal::Bool(false)))
    }
}

impl Expr {
    /// Returns `a.b.c` as a name, if the node consists of names only.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            ExprKind::Ident(name) => Some(name.to_string()),
            ExprKind::Select { operand, field, test_only: false } => {
                Some(format!("{}.{field}", operand.qualified_name()?))
            }
            ExprKind::Missing
            | ExprKind::Literal(_)
            | ExprKind::Select { .. }
            | ExprKind::Call(_)
            | ExprKind::List(_)
            | ExprKind::Map(_)
            | ExprKind::Struct { .. }
            | ExprKind::Comprehension(_) => None,
        }
    }

    /// Returns true if the tree is deeper than `levels`.
    pub(crate) fn is_deeper_than(&self, levels: usize) -> bool {
        levels == 0 || self.children().into_iter().any(|child| child.is_deeper_than(levels - 1))
    }

    /// Calls `visit` with this node and all its descendants, in the order of the source.
    pub(crate) fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        self.children().into_iter().for_each(|child| child.walk(visit));
    }

    /// Returns the child nodes.
    pub(crate) fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            ExprKind::Missing | ExprKind::Literal(_) | ExprKind::Ident(_) => Vec::new(),
            ExprKind::Select { operand, .. } => vec![operand],
            ExprKind::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
            ExprKind::List(elements) => elements.iter().map(|element| &element.value).collect(),
            ExprKind::Map(entries) => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            ExprKind::Struct { fields, .. } => fields.iter().map(|field| &field.value).collect(),
            ExprKind::Comprehension(fold) => vec![&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result],
        }
    }
}

/// Names of operators as functions, as in cel-go.
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
    /// Name of a macro's accumulator.
    pub(crate) const ACCUMULATOR: &str = "@result";
}
