//! Parser from text to syntax tree: CEL's grammar with Kubernetes' macros expanded, as cel-go parses it.

mod ast;
mod lexer;
mod literal;
mod macros;
mod parser;
mod quantifiers;
mod source;

pub(crate) use ast::{
    CallExpr, Comprehension, Expr, ExprKind, Id, ListElement, Literal, MapEntry, StructField, operator,
};
pub(crate) use parser::{is_reserved, parse};
pub(crate) use source::{Problems, SourceText};

/// Maximum nesting of an expression, as in cel-go.
const MAX_DEPTH: usize = 250;
/// Maximum length of an expression in code points, as in cel-go.
const MAX_CODE_POINTS: usize = 100_000;

#[cfg(test)]
mod tests;
