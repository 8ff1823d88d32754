//! What is wrong with constants: durations, timestamps, patterns, lists of mixed types, and format strings.

use super::{Checked, constant_text, format};
use crate::syntax::{Call, Expr, Id, Kind, Literal, Problems};
use crate::types::Type;
use crate::{library, time};
use portolan_types::duration;

/// Notes what is wrong with the constants of an expression that checks.
pub(super) fn check(checked: &Checked, offset: &dyn Fn(Id) -> usize, problems: &mut Problems) {
    let mut note = |id: Id, message: String| problems.add(Some(offset(id)), message);
    checked.root.walk(&mut |expr| match &expr.kind {
        Kind::Call(call) => {
            check_constant_argument(call, &mut note);
            if &*call.function == "format" {
                format::check_call(checked, expr, call, &mut note);
            }
        }
        Kind::Missing
        | Kind::Literal(_)
        | Kind::Ident(_)
        | Kind::Select { .. }
        | Kind::List(_)
        | Kind::Map(_)
        | Kind::Struct { .. }
        | Kind::Comprehension(_) => {}
    });
    check_aggregates(checked, &checked.root, &mut note);
}

fn check_constant_argument(call: &Call, note: &mut dyn FnMut(Id, String)) {
    let Some(arg) = call.args.first() else { return };
    let Kind::Literal(value) = &arg.kind else { return };
    let text = constant_text(arg);
    let valid = match (&*call.function, value) {
        ("duration", Literal::String(text)) => duration::parse(text).is_ok(),
        ("timestamp", Literal::String(text)) => time::parse_timestamp(text).is_some(),
        ("timestamp", Literal::Int(seconds)) => time::from_seconds(*seconds).is_some(),
        ("matches", _) => text.is_some_and(|text| library::regex::compile(text).is_ok()),
        _ => true,
    };
    if !valid {
        note(arg.id, format!("invalid {} argument", call.function));
    }
}

/// Lists and maps hold one type, but for the arguments of `format`.
fn check_aggregates(checked: &Checked, expr: &Expr, note: &mut dyn FnMut(Id, String)) {
    match &expr.kind {
        Kind::Call(call) if &*call.function == "format" => return,
        Kind::List(elements) => {
            check_list(checked, elements.iter().map(|element| (&element.value, element.optional)), note)
        }
        Kind::Map(entries) => {
            check_map(checked, entries.iter().map(|entry| (&entry.key, false)), note);
            check_map(checked, entries.iter().map(|entry| (&entry.value, entry.optional)), note);
        }
        Kind::Missing
        | Kind::Literal(_)
        | Kind::Ident(_)
        | Kind::Select { .. }
        | Kind::Call(_)
        | Kind::Struct { .. }
        | Kind::Comprehension(_) => {}
    }
    expr.children().into_iter().for_each(|child| check_aggregates(checked, child, note));
}

fn type_of<'c>(checked: &'c Checked, expr: &Expr, optional: bool) -> &'c Type {
    let found = checked.type_of(expr);
    if optional { found.in_optional().unwrap_or(found) } else { found }
}

/// Tells of the first element that is of another type.
fn check_list<'e>(
    checked: &Checked,
    mut elements: impl Iterator<Item = (&'e Expr, bool)>,
    note: &mut dyn FnMut(Id, String),
) {
    let Some((first, optional)) = elements.next() else { return };
    let expected = type_of(checked, first, optional);
    if let Some((other, optional)) = elements.find(|(other, optional)| type_of(checked, other, *optional) != expected) {
        note(other.id, format!("expected type '{expected}' but found '{}'", type_of(checked, other, optional)));
    }
}

/// Tells of all that are of another type.
fn check_map<'e>(
    checked: &Checked,
    mut parts: impl Iterator<Item = (&'e Expr, bool)>,
    note: &mut dyn FnMut(Id, String),
) {
    let Some((first, optional)) = parts.next() else { return };
    let expected = type_of(checked, first, optional);
    for (other, optional) in parts {
        let found = type_of(checked, other, optional);
        if found != expected {
            note(other.id, format!("expected type '{expected}' but found '{found}'"));
        }
    }
}
