//! What an applied configuration must be so that it can be merged. Texts are those of upstream's structured merge diff.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    set::FieldSet,
    shape::{Form, Shape, field_element},
};
use crate::{decode::go_print, kinds::Scalar};

/// All that is wrong, as `<path>: <message>`.
pub(super) fn validate(shape: Shape<'_>, value: &Value) -> Vec<String> {
    let mut walk = Walk::default();
    walk.value(shape, value);
    walk.errors
}

/// The same in one text; `None` where nothing is wrong.
pub(super) fn complaints(shape: Shape<'_>, value: &Value) -> Option<String> {
    let errors = validate(shape, value);
    match errors.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

#[derive(Default)]
struct Walk {
    path: Vec<Box<str>>,
    errors: Vec<String>,
}

impl Walk {
    fn report(&mut self, message: &str) {
        let mut set = FieldSet::default();
        set.insert(&self.path);
        let path = set.paths().pop().unwrap_or_default();
        self.errors.push(if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") });
    }

    fn at(&mut self, element: Box<str>, check: impl FnOnce(&mut Self)) {
        self.path.push(element);
        check(self);
        self.path.pop();
    }

    fn value(&mut self, shape: Shape<'_>, value: &Value) {
        match (shape.form(Some(value)), value) {
            (Form::Whole, _) | (_, Value::Null) => {}
            (Form::Object, Value::Object(object)) => {
                for (name, value) in object {
                    self.at(field_element(name), |walk| match shape.allows(name) {
                        true => {
                            walk.scalar(shape.scalar(name), value);
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

    fn scalar(&mut self, wanted: Option<Scalar>, value: &Value) {
        let Some(wanted) = wanted.filter(|_| !value.is_null()) else { return };
        match wanted {
            Scalar::String | Scalar::Bytes if !value.is_string() => {
                self.report(&format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_source(value)));
            }
            Scalar::Bool if !value.is_boolean() => {
                self.report(&format!("expected boolean, got &{{{}}}", go_print(value)));
            }
            Scalar::Int32 | Scalar::Int64 | Scalar::Uint32 | Scalar::Uint64 | Scalar::Double if !value.is_number() => {
                self.report(&format!("expected numeric (int or float), got {}", go_type(value)));
            }
            _ => {}
        }
    }

    fn list(&mut self, shape: Shape<'_>, list: &[Value]) {
        let mut seen = HashSet::new();
        for (at, element) in list.iter().enumerate() {
            match shape.identify(element) {
                Err(error) => self.report(&format!("element {at}: {error}")),
                Ok(id) => {
                    if !seen.insert(id.clone()) {
                        let mut one = FieldSet::default();
                        one.insert(std::slice::from_ref(&id));
                        self.report(&format!("duplicate entries for key {}", one.paths().concat()));
                    }
                    self.at(id, |walk| {
                        walk.scalar(shape.element_scalar(), element);
                        walk.value(shape.element(), element);
                    });
                }
            }
        }
    }
}

/// Go's type of a value that was read without a schema.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as it would stand in Go's source.
fn go_source(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(go_source).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(fields) => {
            let entries: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key:?}:{}", go_source(value))).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
    }
}
