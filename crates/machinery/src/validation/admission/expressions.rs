//! Expressions: the one place through which those of admissionregistration.k8s.io and resource.k8s.io go.
//!
//! That an expression is there is checked here. Whether it compiles takes a compiler, which this crate knows none of.

use super::super::{Errors, view::At};

/// The expression at `name`, which must be there; `why` says so.
pub(in crate::validation) fn check(at: &At<'_>, name: &str, why: &str, errors: &mut Errors) {
    if at.text(name).trim().is_empty() {
        errors.required(at.path(name), why);
    }
}
