//! Validation of an applied configuration before it is merged, with the messages of Kubernetes' structured-merge-diff.

use std::collections::HashSet;

use portolan_types::quoted::go_quoted;
use serde_json::Value;

use super::{
    set::{FieldSet, position_element},
    shape::{Form, InvalidElement, OwnershipShape, Plain, field_element},
};
use portolan_gocompat::print::{go_print, go_type};

/// Returns all errors, as `<path>: <message>`.
pub(super) fn validate(shape: OwnershipShape<'_>, value: &Value) -> Vec<String> {
    let mut walk = Walk::default();
    walk.value(shape, value);
    walk.errors
}

/// Returns all errors as one text; `None` without errors.
pub(super) fn complaints(shape: OwnershipShape<'_>, value: &Value) -> Option<String> {
    joined_errors(&validate(shape, value))
}

/// Why an object that is there does not fit its kind, in one text; `None` where [`fits`] finds nothing.
pub(super) fn misfits(shape: OwnershipShape<'_>, object: &Value) -> Option<String> {
    if fits(shape, object) {
        return None;
    }
    let mut walk = Walk { may_repeat: true, ..Walk::default() };
    walk.value(shape, object);
    joined_errors(&walk.errors)
}

/// Returns the elements of lists in which removal left nothing, in one text. Nothing can be compared with them.
pub(super) fn emptied(shape: OwnershipShape<'_>, value: &Value) -> Option<String> {
    let mut walk = Walk::default();
    walk.emptied(shape, value);
    joined_errors(&walk.errors)
}

fn joined_errors(errors: &[String]) -> Option<String> {
    match errors {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

/// Maximum number of errors that are reported.
const MAX: usize = 1000;
/// Bytes of texts after which nothing more is reported.
const MAX_TEXT: usize = 1 << 20;

#[derive(Default)]
struct Walk {
    path: Vec<Box<str>>,
    errors: Vec<String>,
    /// Bytes of their texts.
    text: usize,
    /// True if elements may be in their lists more than once.
    may_repeat: bool,
}

impl Walk {
    /// Returns true if enough faults are collected. Each message repeats its whole path, which may be as long as the
    /// request.
    fn is_full(&self) -> bool {
        self.errors.len() >= MAX || self.text >= MAX_TEXT
    }

    fn report(&mut self, message: &str) {
        if self.is_full() {
            return;
        }
        let mut set = FieldSet::default();
        set.insert(&self.path);
        let path = set.paths().pop().unwrap_or_default();
        let error = if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") };
        self.text += error.len();
        self.errors.push(error);
    }

    fn at(&mut self, element: Box<str>, check: impl FnOnce(&mut Self)) {
        self.path.push(element);
        check(self);
        self.path.pop();
    }

    /// Checks a value. Atomic values must match their schema, too.
    fn value(&mut self, shape: OwnershipShape<'_>, value: &Value) {
        if self.is_full() {
            return;
        }
        let shape = shape.inside();
        match (shape.form(Some(value)), value) {
            (Form::Whole, _) | (_, Value::Null) => {}
            (Form::Object, Value::Object(object)) => {
                for (name, value) in object {
                    self.at(field_element(name), |walk| {
                        if shape.allows(name) {
                            walk.plain(shape.plain(name), value);
                            walk.value(shape.child(name), value);
                        } else {
                            walk.report("field not declared in schema")
                        }
                    });
                }
            }
            (Form::List, Value::Array(list)) => self.list(shape, list),
            (Form::Object, other) => self.report(&format!("expected map, got &{{{}}}", go_print(other))),
            (Form::List, other) => self.report(&format!("expected list, got &{{{}}}", go_print(other))),
        }
    }

    fn emptied(&mut self, shape: OwnershipShape<'_>, value: &Value) {
        match (shape.form(Some(value)), value) {
            (Form::Object, Value::Object(object)) => {
                object.iter().for_each(|(name, value)| {
                    self.at(field_element(name), |walk| walk.emptied(shape.child(name), value));
                });
            }
            (Form::List, Value::Array(list)) => {
                for (at, element) in list.iter().enumerate() {
                    match shape.identify(element) {
                        Ok(id) => self.at(id, |walk| walk.emptied(shape.element(), element)),
                        Err(error @ InvalidElement::Null) => self.report(&format!("element {at}: {error}")),
                        Err(_) => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn plain(&mut self, wanted: Option<Plain>, value: &Value) {
        match wanted.filter(|wanted| !is(*wanted, value)) {
            None => {}
            Some(Plain::Text) => {
                self.report(&format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_source(value)));
            }
            Some(Plain::Truth) => self.report(&format!("expected boolean, got &{{{}}}", go_print(value))),
            Some(Plain::Number) => self.report(&format!("expected numeric (int or float), got {}", go_type(value))),
            Some(Plain::Any) => self.report(&format!("expected any scalar, got &{{{}}}", go_print(value))),
        }
    }

    fn list(&mut self, shape: OwnershipShape<'_>, list: &[Value]) {
        let mut seen = HashSet::new();
        for (at, element) in list.iter().enumerate() {
            let id = match shape {
                OwnershipShape::Listed(_) => position_element(at),
                _ => match shape.identify(element) {
                    Ok(id) => id,
                    // The rest of the list is not checked.
                    Err(error) => return self.report(&format!("element {at}: {error}")),
                },
            };
            if !seen.insert(id.clone()) && !self.may_repeat {
                let mut one = FieldSet::default();
                one.insert(std::slice::from_ref(&id));
                self.report(&format!("duplicate entries for key {}", one.paths().concat()));
            }
            self.at(id, |walk| {
                walk.plain(shape.plain_element(), element);
                walk.value(shape.element(), element);
            });
        }
    }
}

/// Returns true if an object fits its shape for tracking owners, whatever owners it names. Elements may be repeated in
/// their lists.
pub(super) fn fits(shape: OwnershipShape<'_>, object: &Value) -> bool {
    let (OwnershipShape::Fields(..) | OwnershipShape::Custom(_), Value::Object(fields)) = (shape, object) else {
        return fits_value(shape, object);
    };
    fields.iter().all(|(name, value)| match (&**name, value) {
        ("metadata", Value::Object(metadata)) => {
            let judged = metadata.iter().filter(|(name, _)| *name != "managedFields");
            fits_fields(shape.child("metadata").inside(), judged)
        }
        _ => fits_fields(shape, std::iter::once((name, value))),
    })
}

fn fits_fields<'a>(shape: OwnershipShape<'_>, mut fields: impl Iterator<Item = (&'a String, &'a Value)>) -> bool {
    fields.all(|(name, value)| {
        let Some((plain, shape)) = shape.entry(name) else { return false };
        plain.is_none_or(|wanted| is(wanted, value)) && fits_value(shape, value)
    })
}

fn fits_value(shape: OwnershipShape<'_>, value: &Value) -> bool {
    let shape = shape.inside();
    match (shape.form(Some(value)), value) {
        (Form::Whole, _) | (_, Value::Null) => true,
        (Form::Object, Value::Object(fields)) => fits_fields(shape, fields.iter()),
        (Form::List, Value::Array(list)) => list.iter().all(|element| fits_element(shape, element)),
        (Form::Object | Form::List, _) => false,
    }
}

/// Checks an element. Only elements of lists that are not atomic need a distinguishing key.
fn fits_element(shape: OwnershipShape<'_>, element: &Value) -> bool {
    (matches!(shape, OwnershipShape::Listed(_)) || shape.check_element(element).is_ok())
        && shape.plain_element().is_none_or(|wanted| is(wanted, element))
        && fits_value(shape.element(), element)
}

/// Returns true if a value has the wanted plain type; null always has.
fn is(wanted: Plain, value: &Value) -> bool {
    match (wanted, value) {
        (_, Value::Null) => true,
        (_, Value::Object(_) | Value::Array(_)) => false,
        (Plain::Text, value) => value.is_string(),
        (Plain::Truth, value) => value.is_boolean(),
        (Plain::Number, value) => value.is_number(),
        (Plain::Any, _) => true,
    }
}

/// Returns a value in the form of Go source.
fn go_source(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::String(text) => go_quoted(text),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(go_source).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(fields) => {
            let entries: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}:{}", go_quoted(key), go_source(value))).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
    }
}
