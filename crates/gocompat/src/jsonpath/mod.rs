//! JSONPath as client-go's `util/jsonpath` reads it. [`check`] gives its errors; [`JsonPathQuery`] evaluates the part
//! of it that columns of tables use, within bounds; [`JsonPathTemplate`] prints objects as `kubectl -o jsonpath` does.

mod check;
mod query;
mod template;

pub use check::check;
pub use query::JsonPathQuery;
pub use template::JsonPathTemplate;
