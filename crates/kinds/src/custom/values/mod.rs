//! Schema applied to values. Each file is one walk along the schema.

mod correlate;
mod fill;
mod formats;
mod lists;
mod numbers;
mod patterns;
mod prune;
mod result;
mod settled;
#[cfg(test)]
mod tests;
mod validate;

pub(crate) use fill::{Room, fill};
pub use lists::check as check_lists;
pub use patterns::Budget as PatternBudget;
pub use prune::{drop_bare_nulls, prune, prune_part, whole_numbers};
pub use settled::is_settled;
pub use validate::Effort;
pub use validate::validate;

/// Prepends a step to a path that is built from its end.
pub fn prefixed(step: &str, path: &str) -> String {
    if path.starts_with('[') { format!("{step}{path}") } else { format!("{step}.{path}") }
}
