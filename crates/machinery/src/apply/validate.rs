//! What an applied configuration must be so that it can be merged. Values of scalars are left to decoding.

use std::collections::HashSet;

use serde_json::Value;

use super::{
    set::FieldSet,
    shape::{Form, Shape, field_element},
};

/// All that is wrong, as `<path>: <message>`.
pub(super) fn validate(shape: Shape<'_>, value: &Value) -> Vec<String> {
    let mut walk = Walk::default();
    walk.value(shape, value);
    walk.errors
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
                        true => walk.value(shape.child(name), value),
                        false => walk.report("field not declared in schema"),
                    });
                }
            }
            (Form::List, Value::Array(list)) => self.list(shape, list),
            (Form::Object, other) => self.report(&format!("expected map, got {other}")),
            (Form::List, other) => self.report(&format!("expected list, got {other}")),
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
                    self.at(id, |walk| walk.value(shape.element(), element));
                }
            }
        }
    }
}
