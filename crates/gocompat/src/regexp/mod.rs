//! Go's `regexp` on Rust's engines: patterns are checked by Go's rules, with Go's errors, and rewritten to Rust's
//! syntax.

mod matcher;
mod rewrite;
mod syntax;

pub use matcher::{Matcher, TooLong};
pub use rewrite::{BadPattern, Pattern, compile};
