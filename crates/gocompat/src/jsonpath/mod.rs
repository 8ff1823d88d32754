//! JSONPath as client-go's `util/jsonpath` reads it. [`check`] gives its errors; [`JsonPathQuery`] evaluates the part
//! of it that columns of tables use, within bounds.

mod check;
mod query;

pub use check::check;
pub use query::JsonPathQuery;
