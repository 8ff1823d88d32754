//! Text to syntax tree: CEL's grammar with Kubernetes' macros already expanded, as cel-go parses it.

mod ast;
mod lexer;
mod literal;
mod macros;
mod parser;
mod quantifiers;
mod source;

pub(crate) use ast::{Call, Comprehension, Entry, Expr, Field, Id, Kind, ListElement, Literal, operator};
pub(crate) use parser::{is_reserved, parse};
pub(crate) use source::{Problems, Source};

/// Deepest nesting of an expression, as cel-go limits it.
const MAX_DEPTH: usize = 250;
/// Longest expression in code points, as cel-go limits it.
const MAX_CODE_POINTS: usize = 100_000;

#[cfg(test)]
mod tests;
