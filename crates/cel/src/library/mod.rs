//! The functions that an expression can call. Each takes its arguments as they are and says where they do not fit: with dynamic
//! types, that shows at run time only.

mod arithmetic;
mod authorization;
mod convert;
pub(crate) mod format_string;
mod formats;
mod go_ip;
mod go_regex;
mod go_syntax;
mod lists;
mod matcher;
pub(crate) mod net;
mod optionals;
mod quantity;
pub(crate) mod regex;
pub(crate) mod semver;
mod strings;
mod temporal;
mod urls;

pub(crate) use convert::convert_constant;
pub(crate) use formats::Format;
pub use go_regex::BadPattern;
pub use matcher::{Matcher, TooLong};
pub(crate) use urls::Url;
pub use urls::is_request_uri;

use crate::program::{Failure, Meter, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// What functions of one evaluation share.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// Patterns that the expression has as constants.
    pub(crate) patterns: &'a HashMap<Arc<str>, regex::Pattern>,
    pub(crate) meter: Meter,
}

/// A function on its arguments, the target first.
pub(crate) type Function = for<'a> fn(&[Value<'a>], &Context<'_>) -> Result<Value<'a>, Failure>;

/// The function of that name.
pub(crate) fn function(name: &str) -> Option<Function> {
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

/// No overload fits these arguments.
fn no_overload<'a>() -> Result<Value<'a>, Failure> {
    error("no such overload")
}

fn error<'a>(message: impl Into<String>) -> Result<Value<'a>, Failure> {
    Err(Failure::Error(message.into()))
}

#[cfg(test)]
mod tests;
