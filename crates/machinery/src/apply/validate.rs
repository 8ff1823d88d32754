//! What an applied configuration must be so that it can be merged. Texts are those of upstream's structured merge diff.

use std::collections::HashSet;

use portolan_types::quoted::go_quoted;
use serde_json::Value;

use super::{
    set::{FieldSet, position_element},
    shape::{Form, InvalidElement, Plain, Shape, field_element},
};
use crate::decode::{go_print, go_type};

/// All that is wrong, as `<path>: <message>`.
pub(super) fn validate(shape: Shape<'_>, value: &Value) -> Vec<String> {
    let mut walk = Walk::default();
    walk.value(shape, value);
    walk.errors
}

/// The same in one text; `None` where nothing is wrong.
pub(super) fn complaints(shape: Shape<'_>, value: &Value) -> Option<String> {
    told(&validate(shape, value))
}

/// Why an object that is there does not fit its kind, in one text; `None` where [`fits`] finds nothing.
pub(super) fn misfits(shape: Shape<'_>, object: &Value) -> Option<String> {
    if fits(shape, object) {
        return None;
    }
    let mut walk = Walk { may_repeat: true, ..Walk::default() };
    walk.value(shape, object);
    told(&walk.errors)
}

/// The elements of lists in which removal left nothing, in one text. Nothing can be compared with them.
pub(super) fn emptied(shape: Shape<'_>, value: &Value) -> Option<String> {
    let mut walk = Walk::default();
    walk.emptied(shape, value);
    told(&walk.errors)
}

fn told(errors: &[String]) -> Option<String> {
    match errors {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

/// Most things that are told.
const MAX: usize = 1000;
/// Bytes of texts after which nothing more is told.
const MAX_TEXT: usize = 1 << 20;

#[derive(Default)]
struct Walk {
    path: Vec<Box<str>>,
    errors: Vec<String>,
    /// Bytes of their texts.
    text: usize,
    /// Elements may stand in their lists more than once.
    may_repeat: bool,
}

impl Walk {
    /// Whether enough is wrong. Each text repeats its whole path, which may be as long as the request.
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

    /// Also what is owned as a whole has to be what the schema says.
    fn value(&mut self, shape: Shape<'_>, value: &Value) {
        if self.is_full() {
            return;
        }
        let shape = shape.inside();
        match (shape.form(Some(value)), value) {
            (Form::Whole, _) | (_, Value::Null) => {}
            (Form::Object, Value::Object(object)) => {
                for (name, value) in object {
                    self.at(field_element(name), |walk| match shape.allows(name) {
                        true => {
                            walk.plain(shape.plain(name), value);
                            walk.value(shape.child(name), value);
                        }
                        false => walk.report("field not declared in schema"),
                    });
                }
            }
            (Form::List, Value::Array(list)) => self.list(shape, list),
            (Form::Object, other) => self.report(&format!("expected map, got &{{{}}}", go_print(other))),
            (Form::List, other) => self.report(&format!("expected list, got &{{{}}}", go_print(other))),
        }
    }

    fn emptied(&mut self, shape: Shape<'_>, value: &Value) {
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

    fn list(&mut self, shape: Shape<'_>, list: &[Value]) {
        let mut seen = HashSet::new();
        for (at, element) in list.iter().enumerate() {
            let id = match shape {
                Shape::Listed(_) => position_element(at),
                _ => match shape.identify(element) {
                    Ok(id) => id,
                    // What comes after it is not looked at.
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

/// Whether an object is one of its kind to whoever tracks owners, whoever is named as owner in it. Elements may stand in their
/// lists more than once.
pub(super) fn fits(shape: Shape<'_>, object: &Value) -> bool {
    let (Shape::Fields(..) | Shape::Custom(_), Value::Object(fields)) = (shape, object) else {
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

fn fits_fields<'a>(shape: Shape<'_>, mut fields: impl Iterator<Item = (&'a String, &'a Value)>) -> bool {
    fields.all(|(name, value)| {
        let Some((plain, shape)) = shape.entry(name) else { return false };
        plain.is_none_or(|wanted| is(wanted, value)) && fits_value(shape, value)
    })
}

fn fits_value(shape: Shape<'_>, value: &Value) -> bool {
    let shape = shape.inside();
    match (shape.form(Some(value)), value) {
        (Form::Whole, _) | (_, Value::Null) => true,
        (Form::Object, Value::Object(fields)) => fits_fields(shape, fields.iter()),
        (Form::List, Value::Array(list)) => list.iter().all(|element| fits_element(shape, element)),
        (Form::Object | Form::List, _) => false,
    }
}

/// Only elements of lists that are no whole need something that tells them apart.
fn fits_element(shape: Shape<'_>, element: &Value) -> bool {
    (matches!(shape, Shape::Listed(_)) || shape.check_element(element).is_ok())
        && shape.plain_element().is_none_or(|wanted| is(wanted, element))
        && fits_value(shape.element(), element)
}

/// Whether a value is a plain one as is wanted; null always is.
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

/// A value as it would stand in Go's source.
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
