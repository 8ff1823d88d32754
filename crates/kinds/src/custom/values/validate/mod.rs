//! Values against schemas, with the messages and the order of kube-apiserver's validator (kube-openapi `validate`).

mod choices;
mod scalars;

use std::{cell::Cell, fmt, sync::LazyLock};

use serde_json::{Map, Value};

use super::{
    correlate::Pair,
    numbers::is_integer,
    result::{Fault, Outcome},
};
use crate::{
    custom::schema::{Additional, Checks, Schema, ValueKind},
    field::{Errors, FieldError, Path},
};

/// Budget of steps that validations share. One step is a visit of a value (once for each choice of its schema), a
/// comparison with another value, or a byte of a reported path; eight steps of a pattern count as one.
#[derive(Debug)]
pub struct Effort(Cell<u64>);

const MAX_STEPS: u64 = 20_000_000;
/// Steps of a pattern that are worth one of these.
const PATTERN_STEPS: u64 = 8;

impl Default for Effort {
    fn default() -> Self {
        Self(Cell::new(MAX_STEPS))
    }
}

impl Effort {
    #[cfg(test)]
    pub(super) fn of(steps: u64) -> Self {
        Self(Cell::new(steps))
    }

    /// Takes `steps` from the budget. If fewer are left, empties it and returns false.
    fn take(&self, steps: usize) -> bool {
        let left = self.0.get().checked_sub(steps as u64);
        self.0.set(left.unwrap_or_default());
        left.is_some()
    }

    /// Runs a pattern with its own, shorter steps, and charges them.
    pub(super) fn spend<T>(&self, work: impl FnOnce(&mut u64) -> T) -> T {
        let mut left = self.0.get().saturating_mul(PATTERN_STEPS);
        let done = work(&mut left);
        self.0.set(left / PATTERN_STEPS);
        done
    }

    fn is_over(&self) -> bool {
        self.0.get() == 0
    }
}

/// Reports the errors of a value at `base`. An error that `old` has too, at an unchanged value, is forgiven.
pub fn validate(
    base: &Path,
    value: &Value,
    old: Option<&Value>,
    (schema, effort): (&Schema, &Effort),
    errors: &mut Errors,
) {
    let pair = old.map(|old| Pair { new: value, old, schema });
    let outcome = Node { left: effort, path: &Steps::Root, value, pair, schema }.forgiving();
    outcome.tell(base, errors);
    if effort.is_over() {
        errors.push(FieldError::invalid_hidden(base, "the object takes too long to be validated"));
    }
}

/// The way to a value, from its end.
enum Steps<'p> {
    Root,
    Name(&'p Steps<'p>, &'p str),
    Index(&'p Steps<'p>, usize),
}

impl Steps<'_> {
    /// Returns its approximate bytes as text.
    fn length(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Name(above, name) => above.length() + name.len() + 1,
            Self::Index(above, _) => above.length() + 4,
        }
    }

    fn is_root(&self) -> bool {
        matches!(self, Self::Root)
    }
}

impl fmt::Display for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Name(Self::Root, name) => f.write_str(name),
            Self::Name(above, name) => write!(f, "{above}.{name}"),
            Self::Index(above, at) => write!(f, "{above}[{at}]"),
        }
    }
}

/// Value with the schema that applies to it.
#[derive(Clone, Copy)]
struct Node<'v> {
    left: &'v Effort,
    path: &'v Steps<'v>,
    value: &'v Value,
    /// Old value to compare with.
    pair: Option<Pair<'v>>,
    schema: &'v Schema,
}

static NO_CHECKS: LazyLock<Checks> = LazyLock::new(Checks::default);

/// Returns the name of the type of a value, and its format.
fn words(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::Number(number) if number.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    }
}

impl<'v> Node<'v> {
    fn forgiving(self) -> Outcome {
        let outcome = self.check();
        match self.pair {
            Some(pair) if !outcome.is_valid() && pair.is_unchanged() => {
                Outcome { found: Vec::new(), matches: outcome.matches }
            }
            _ => outcome,
        }
    }

    fn checks(self) -> &'v Checks {
        self.schema.checks.as_deref().unwrap_or(&NO_CHECKS)
    }

    /// Adds an error. kube-apiserver's messages begin with the path.
    fn fault(self, outcome: &mut Outcome, fault: Fault, text: impl fmt::Display) {
        if self.may_report() {
            outcome.add(&self.path.to_string(), fault, format!("{} in body {text}", self.path));
        }
    }

    /// Returns true if the budget allows to report faults of this node. A path can be long, and be repeated for each
    /// choice of a schema.
    fn may_report(self) -> bool {
        self.left.take(1 + self.path.length())
    }

    fn mistyped(self, wanted: &str, found: &str, outcome: &mut Outcome) {
        self.fault(outcome, Fault::Type(found.into()), format_args!("must be of type {wanted}: {found:?}"));
    }

    fn check(self) -> Outcome {
        let mut outcome = Outcome::default();
        if !self.left.take(1) {
            return outcome;
        }
        if self.value.is_null() {
            self.check_type(&mut outcome);
            self.check_values(&mut outcome);
            return outcome;
        }
        if self.schema.kind != ValueKind::Any || self.checks().format.is_some() {
            self.check_type(&mut outcome);
            outcome.matches += 1;
        }
        self.check_choices(&mut outcome);
        outcome.matches += 1;
        match self.value {
            Value::String(text) => self.check_text(text, &mut outcome),
            Value::Number(_) => self.check_number(&mut outcome),
            Value::Array(items) => self.check_list(items, &mut outcome),
            Value::Null | Value::Bool(_) | Value::Object(_) => {}
        }
        self.check_values(&mut outcome);
        outcome.matches += 1;
        if let Value::Object(fields) = self.value {
            self.check_object(fields, &mut outcome);
        }
        outcome.matches += 1;
        outcome
    }

    fn check_type(self, outcome: &mut Outcome) {
        let (kind, value) = (self.schema.kind, self.value);
        let (word, own_format) = words(value);
        if value.is_null() {
            if kind == ValueKind::Any || self.schema.nullable {
                outcome.matches += 1
            } else {
                self.mistyped(kind.word(), word, outcome)
            }
            return;
        }
        let whole = value.is_f64() && kind.has("integer") && value.as_f64().is_some_and(is_integer);
        let fits = kind.has(word) || whole || (word == "integer" && kind == ValueKind::Number);
        let has_text_form = matches!(value, Value::String(_) | Value::Array(_));
        if let Some(format) = &self.checks().format {
            if !has_text_form && !fits && own_format != &*format.0 {
                return self.mistyped(&format.0, own_format, outcome);
            }
            // The format of a string is the stricter check.
            if has_text_form && !kind.has("number") && !kind.has("integer") {
                outcome.matches += 1;
                return;
            }
        }
        if fits { outcome.matches += 1 } else { self.mistyped(kind.word(), word, outcome) }
    }

    fn check_list(self, items: &'v [Value], outcome: &mut Outcome) {
        if let Some(schema) = self.schema.items.as_deref() {
            let elements = self.pair.map(Pair::elements).unwrap_or_default();
            for (at, value) in items.iter().enumerate() {
                let pair = elements.of(value);
                let path = Steps::Index(self.path, at);
                outcome.merge(Node { left: self.left, path: &path, value, pair, schema }.forgiving());
            }
        }
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(least) = self.checks().min_items.filter(|least| count < *least) {
            self.fault(outcome, Fault::Invalid(count.into()), format_args!("should have at least {least} items"));
        }
        if let Some(most) = self.checks().max_items.filter(|most| count > *most) {
            let fault = Fault::TooMany(items.len(), most);
            self.fault(outcome, fault, format_args!("should have at most {most} items"));
        }
        outcome.matches += 2;
    }

    fn check_object(self, fields: &'v Map<String, Value>, outcome: &mut Outcome) {
        let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
        if let Some(least) = self.checks().min_properties.filter(|least| count < *least) {
            self.fault(outcome, Fault::Invalid(count.into()), format_args!("should have at least {least} properties"));
        }
        if let Some(most) = self.checks().max_properties.filter(|most| count > *most) {
            let fault = Fault::TooMany(fields.len(), most);
            self.fault(outcome, fault, format_args!("should have at most {most} properties"));
        }
        self.check_further(fields, outcome);
        for (name, schema) in &self.schema.properties {
            let Some(value) = fields.get(&**name) else { continue };
            // `apiVersion` and `kind` never count as changed: old and new are of the same type.
            let is_type = self.path.is_root() && matches!(&**name, "kind" | "apiVersion");
            let pair = self.pair.and_then(|pair| pair.key(name)).filter(|_| !is_type);
            let path = Steps::Name(self.path, name);
            outcome.merge(Node { left: self.left, path: &path, value, pair, schema }.forgiving());
        }
        for name in self.checks().required.iter().filter(|name| !fields.contains_key(&***name)) {
            if !self.may_report() {
                return;
            }
            let path = format!("{}.{name}", self.path);
            outcome.add(&path, Fault::Required, format!("{path} in body is required"));
        }
        outcome.matches += 1;
    }

    /// Keys that are not properties.
    fn check_further(self, fields: &'v Map<String, Value>, outcome: &mut Outcome) {
        if matches!(self.schema.additional, Additional::Unsaid | Additional::Allowed(true)) {
            return;
        }
        for (name, value) in fields.iter().filter(|(name, _)| self.schema.property(name).is_none()) {
            match self.schema.entries() {
                None if !self.may_report() => return,
                None => {
                    let text = format!("{}.{name} in body is a forbidden property", self.path);
                    outcome.add(&self.path.to_string(), Fault::Invalid(name.as_str().into()), text);
                }
                Some(schema) => {
                    let pair = self.pair.and_then(|pair| pair.key(name));
                    let path = Steps::Name(self.path, name);
                    outcome.merge(Node { left: self.left, path: &path, value, pair, schema }.forgiving());
                }
            }
        }
    }
}
