//! What a schema makes of values, and what it has against them. Each file is one walk along the schema.

mod correlate;
mod embedded;
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

pub(super) use embedded::{check as check_embedded, check_resource, coerce, coerce_at, coerce_resource};
pub(super) use fill::{Room, fill};
pub(super) use lists::check as check_lists;
pub(crate) use numbers::go_float;
pub(crate) use patterns::Budget as PatternBudget;
pub(super) use prune::{drop_bare_nulls, prune, prune_part, whole_numbers};
pub(super) use settled::is_settled;
pub(crate) use validate::Effort;
pub(super) use validate::validate;

/// Puts a step in front of a path that grows from its end.
fn prefixed(step: &str, path: &str) -> String {
    if path.starts_with('[') { format!("{step}{path}") } else { format!("{step}.{path}") }
}
