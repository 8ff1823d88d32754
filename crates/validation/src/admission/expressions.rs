//! Checks of all expressions of admissionregistration.k8s.io.

use portolan_cel::policy::CompiledExpression;

use super::super::{Errors, view::At};

/// Checks the required expression at `name`; `why` is the error if it is missing.
fn check(at: &At<'_>, name: &str, why: &str, errors: &mut Errors) {
    if is_missing(at, name) {
        errors.required(at.path(name), why);
    }
}

fn is_missing(at: &At<'_>, name: &str) -> bool {
    at.text(name).trim().is_empty()
}

/// Checks the expression at `name`, which is required and must compile as it was written.
pub(super) fn compiles(
    at: &At<'_>,
    name: &str,
    why: &str,
    compile: impl FnOnce(&str) -> CompiledExpression,
    errors: &mut Errors,
) {
    check(at, name, why, errors);
    if !is_missing(at, name)
        && let Err(problem) = compile(at.text(name))
    {
        errors.invalid(at.path(name), at.get(name), &problem);
    }
}

/// Does the same for an expression that is compiled, and shown in errors, without the space around it.
pub(super) fn compiles_trimmed(
    at: &At<'_>,
    name: &str,
    why: &str,
    compile: impl FnOnce(&str) -> CompiledExpression,
    errors: &mut Errors,
) {
    let text = at.text(name).trim();
    check(at, name, why, errors);
    if !is_missing(at, name)
        && let Err(problem) = compile(text)
    {
        errors.invalid(at.path(name), &text.into(), &problem);
    }
}
