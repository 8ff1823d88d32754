//! Custom resources: objects against the schema and the rules of their definition, and the defaults of the schema
//! itself.

mod defaults;
mod embedded;
#[cfg(test)]
mod tests;

use serde_json::Value;

use portolan_kinds::{
    Kind,
    custom::{
        Content,
        values::{self, Effort},
    },
    field::{Errors, Path},
};

pub(crate) use defaults::{DefaultsAllowance, check_defaults};

/// Validates a custom object: a new one, a changed one, or one whose subresource changed.
pub fn check(kind: &Kind, (old, new): (Option<&Value>, &Value), subresource: Option<&str>, errors: &mut Errors) {
    let Some(content) = &kind.content else { return };
    match (old, subresource) {
        (None, _) => check_new(content, new, errors),
        (Some(old), Some("status")) => check_status(content, old, new, errors),
        (Some(old), _) => check_changed(content, old, new, errors),
    }
}

/// Validates a new object, except for its metadata.
fn check_new(content: &Content, object: &Value, errors: &mut Errors) {
    let root = Path::default();
    values::validate(&root, object, None, (content.schema(), &Effort::default()), errors);
    content.scale().into_iter().for_each(|scale| scale.check(object, errors));
    embedded::check(&root, object, content.schema(), errors);
    values::check_lists(&root, object, content.schema(), errors);
    content.rules().check(object, None, errors);
}

/// Validates a changed object.
fn check_changed(content: &Content, old: &Value, new: &Value, errors: &mut Errors) {
    let root = Path::default();
    values::validate(&root, new, Some(old), (content.schema(), &Effort::default()), errors);
    content.scale().into_iter().for_each(|scale| scale.check(new, errors));
    embedded::check(&root, new, content.schema(), errors);
    check_lists(content, old, new, errors);
    content.rules().check(new, Some(old), errors);
}

/// Validates an object whose status changed.
fn check_status(content: &Content, old: &Value, new: &Value, errors: &mut Errors) {
    // One that is null is as none was before.
    let is_none = |object: &Value| object.get("status").is_none_or(Value::is_null);
    let status = new.get("status").filter(|_| !is_none(old) || !is_none(new));
    if let (Some(status), Some(schema)) = (status, content.schema().property("status")) {
        values::validate(&Path::new("status"), status, old.get("status"), (schema, &Effort::default()), errors);
    }
    content.scale().into_iter().for_each(|scale| scale.check_status(new, errors));
    check_lists(content, old, new, errors);
    content.rules().check(new, Some(old), errors);
}

/// Lists that had elements twice before may still have them.
fn check_lists(content: &Content, old: &Value, new: &Value, errors: &mut Errors) {
    let mut before = Errors::default();
    values::check_lists(&Path::default(), old, content.schema(), &mut before);
    if before.is_empty() {
        values::check_lists(&Path::default(), new, content.schema(), errors);
    }
}
