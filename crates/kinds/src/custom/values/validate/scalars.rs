//! Texts, numbers and enumerations.

use portolan_gocompat::print::go_general;
use std::cmp::Ordering;

use serde_json::Value;

use super::{
    super::{
        numbers::is_integer,
        result::{Fault, Outcome},
    },
    Node,
};
use crate::custom::schema::{NumberBound, ValueKind, weight};

/// Side of a bound.
#[derive(Clone, Copy)]
enum Side {
    Lower,
    Upper,
}

impl<'v> Node<'v> {
    pub(super) fn check_text(self, text: &str, outcome: &mut Outcome) {
        let checks = self.checks();
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let value = || Fault::Invalid(text.into());
        if let Some(most) = checks.max_length.filter(|most| length() > *most) {
            self.fault(outcome, Fault::TooLong(most), format_args!("should be at most {most} chars long"));
        } else if let Some(least) = checks.min_length.filter(|least| length() < *least) {
            self.fault(outcome, value(), format_args!("should be at least {least} chars long"));
        } else if let Some(pattern) = &checks.pattern {
            match pattern.matches(text, self.left) {
                Ok(Some(true) | None) => {}
                Ok(Some(false)) => self.fault(outcome, value(), format_args!("should match '{}'", pattern.0)),
                Err(why) => {
                    self.fault(
                        outcome,
                        value(),
                        format_args!("should match '{}, but pattern is invalid: {why}'", pattern.0),
                    );
                }
            }
        }
        outcome.matches += 1;
        let Some(format) = checks.format.as_ref().filter(|format| format.is_of_text()) else { return };
        if !format.holds(text) {
            self.mistyped(&format.0, text, outcome);
        }
        outcome.matches += 1;
    }

    pub(super) fn check_values(self, outcome: &mut Outcome) {
        let known = &self.checks().values;
        let found = known.iter().position(|known| is_same(self.value, known));
        let compared = found.map_or(known.len(), |at| at + 1);
        if known.is_empty() || !self.left.take(compared) || found.is_some() {
            return;
        }
        // The error lists all values of the enumeration.
        if !self.left.take(known.iter().map(weight).sum()) {
            return;
        }
        let all: Vec<String> = known.iter().map(portolan_gocompat::print::go_print).collect();
        let fault = Fault::Enum(self.value.clone(), known.to_vec());
        self.fault(outcome, fault, format_args!("should be one of [{}]", all.join(" ")));
    }

    pub(super) fn check_number(self, outcome: &mut Outcome) {
        let checks = self.checks();
        self.check_range("Checked", self.value, outcome);
        if let Some(factor) = checks.multiple_of {
            self.check_multiple(factor, outcome);
        }
        // kube-apiserver reports the lower bound first.
        for (side, bound) in [(Side::Lower, checks.minimum), (Side::Upper, checks.maximum)] {
            bound.into_iter().for_each(|bound| self.check_bound(side, bound, outcome));
        }
        outcome.matches += 2;
    }

    /// Checks that a number of the object or of the schema fits the type and format.
    fn check_range(self, what: &str, number: &Value, outcome: &mut Outcome) -> bool {
        let (kind, format) = (self.schema.kind, self.checks().format.as_ref().map(|format| &*format.0));
        let fits = is_in_range(number, kind, format);
        if !fits && self.may_report() {
            let (word, path) = (kind.word(), self.path);
            let form = format.map_or("(default format)".to_owned(), |format| format!("with format {format}"));
            let text = format!("{what} value must be of type {word} {form} in {path}");
            outcome.add(&path.to_string(), Fault::Whole, text);
        }
        fits
    }

    fn check_multiple(self, factor: f64, outcome: &mut Outcome) {
        let in_range = self.check_range("MultipleOf", &factor.into(), outcome);
        let integer = self.value.as_i64().filter(|_| in_range);
        let float = self.value.as_f64().unwrap_or_default();
        let (is_positive, holds) = match integer {
            Some(integer) => ((factor as i64) > 0, integer.checked_rem(factor as i64) == Some(0)),
            None => (factor > 0.0, is_integer(if factor < 1.0 { 1.0 / factor * float } else { float / factor })),
        };
        let shown = self.format_number(factor, integer);
        if !is_positive && self.may_report() {
            let text = format!("factor MultipleOf declared for {} must be positive: {shown}", self.path);
            outcome.add(&self.path.to_string(), Fault::Invalid(factor.into()), text);
        } else if !holds {
            let fault = Fault::Invalid(self.value.clone());
            self.fault(outcome, fault, format_args!("should be a multiple of {shown}"));
        }
    }

    /// Formats a number of the schema. If it is compared with an integer, it is formatted without a fraction.
    fn format_number(self, number: f64, integer: Option<i64>) -> String {
        if integer.is_some() { (number as i64).to_string() } else { go_general(number) }
    }

    fn check_bound(self, side: Side, bound: NumberBound, outcome: &mut Outcome) {
        let NumberBound { at, is_exclusive } = bound;
        let (name, word, beyond) = match side {
            Side::Lower => ("Minimum boundary", "greater", Ordering::Less),
            Side::Upper => ("Maximum boundary", "less", Ordering::Greater),
        };
        let in_range = self.check_range(name, &at.into(), outcome);
        let integer = self.value.as_i64().filter(|_| in_range);
        let order = match integer {
            Some(integer) => Some(integer.cmp(&(at as i64))),
            None => self.value.as_f64().and_then(|float| float.partial_cmp(&at)),
        };
        if order == Some(beyond) || (is_exclusive && order == Some(Ordering::Equal)) {
            let or_equal = if is_exclusive { "" } else { " or equal to" };
            let shown = self.format_number(at, integer);
            let fault = Fault::Invalid(self.value.clone());
            self.fault(outcome, fault, format_args!("should be {word} than{or_equal} {shown}"));
        }
    }
}

/// Returns true if a number fits a type and format.
fn is_in_range(number: &Value, kind: ValueKind, format: Option<&str>) -> bool {
    let whole = |float: &f64| float.fract() == 0.0 && float.abs() < 9.2e18;
    let integer = || number.as_i64().or_else(|| number.as_f64().filter(whole).map(|float| float as i64));
    match (kind, format) {
        (ValueKind::Integer, Some("int32")) => integer().is_some_and(|integer| i32::try_from(integer).is_ok()),
        (ValueKind::Integer, _) => integer().is_some(),
        (ValueKind::Number, Some("float")) => number.as_f64().is_some_and(|float| float.abs() <= f64::from(f32::MAX)),
        _ => true,
    }
}

/// Returns true if a value equals a value of an enumeration. Numbers are compared as the type of the enumeration's
/// value.
fn is_same(value: &Value, known: &Value) -> bool {
    match (value, known) {
        (Value::Null, _) => false,
        (Value::Number(own), Value::Number(wanted)) if wanted.is_f64() => own.as_f64() == wanted.as_f64(),
        (Value::Number(own), Value::Number(wanted)) => {
            own.as_i64().or_else(|| own.as_f64().map(|float| float as i64)) == wanted.as_i64()
        }
        (value, known) => value == known,
    }
}
