//! Functions that an expression can call. Each checks the types of its arguments: with dynamic types, they are known at
//! run time only.

mod arithmetic;
mod authorization;
mod convert;
pub(crate) mod format_string;
mod formats;
mod lists;
pub(crate) mod net;
mod optionals;
mod quantity;
pub(crate) mod regex;
pub(crate) mod semver;
mod strings;
mod temporal;
mod urls;

pub(crate) use convert::convert_constant;
pub(crate) use formats::NamedFormat;
pub(crate) use urls::CelUrl;

use crate::program::{CelValue, EvaluationFailure, Meter};
use std::collections::HashMap;
use std::sync::Arc;

/// Context shared by the functions of one evaluation.
#[derive(Debug)]
pub(crate) struct CallContext<'a> {
    /// Compiled patterns of the constants of the expression.
    pub(crate) patterns: &'a HashMap<Arc<str>, regex::Pattern>,
    pub(crate) meter: Meter,
}

/// Function on its arguments; the target comes first.
pub(crate) type LibraryFunction =
    for<'a> fn(&[CelValue<'a>], &CallContext<'_>) -> Result<CelValue<'a>, EvaluationFailure>;

/// Returns the function of a name.
pub(crate) fn function(name: &str) -> Option<LibraryFunction> {
    arithmetic::function(name)
        .or_else(|| convert::function(name))
        .or_else(|| strings::function(name))
        .or_else(|| lists::function(name))
        .or_else(|| optionals::function(name))
        .or_else(|| regex::function(name))
        .or_else(|| temporal::function(name))
        .or_else(|| net::function(name))
        .or_else(|| quantity::function(name))
        .or_else(|| semver::function(name))
        .or_else(|| urls::function(name))
        .or_else(|| formats::function(name))
        .or_else(|| authorization::function(name))
}

/// Returns the error for arguments that fit no overload.
fn no_overload<'a>() -> Result<CelValue<'a>, EvaluationFailure> {
    error("no such overload")
}

fn error<'a>(message: impl Into<String>) -> Result<CelValue<'a>, EvaluationFailure> {
    Err(EvaluationFailure::Error(message.into()))
}

#[cfg(test)]
mod tests;
