//! Checks of constants: durations, timestamps, patterns, lists of mixed types, and format strings.

use super::{CheckedExpression, constant_text, format};
use crate::syntax::{CallExpr, Expr, ExprKind, Id, Literal, Problems};
use crate::types::CelType;
use crate::{library, time};
use portolan_types::duration;

/// Reports the problems of the constants of a checked expression.
pub(super) fn check(checked: &CheckedExpression, offset: &dyn Fn(Id) -> usize, problems: &mut Problems) {
    let mut note = |id: Id, message: String| problems.add(Some(offset(id)), message);
    checked.root.walk(&mut |expr| match &expr.kind {
        ExprKind::Call(call) => {
            check_constant_argument(call, &mut note);
            if &*call.function == "format" {
                format::check_call(checked, expr, call, &mut note);
            }
        }
        ExprKind::Missing
        | ExprKind::Literal(_)
        | ExprKind::Ident(_)
        | ExprKind::Select { .. }
        | ExprKind::List(_)
        | ExprKind::Map(_)
        | ExprKind::Struct { .. }
        | ExprKind::Comprehension(_) => {}
    });
    check_aggregates(checked, &checked.root, &mut note);
}

fn check_constant_argument(call: &CallExpr, note: &mut dyn FnMut(Id, String)) {
    let Some(arg) = call.args.first() else { return };
    let ExprKind::Literal(value) = &arg.kind else { return };
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

/// Checks that lists and maps hold one type, except the arguments of `format`.
fn check_aggregates(checked: &CheckedExpression, expr: &Expr, note: &mut dyn FnMut(Id, String)) {
    match &expr.kind {
        ExprKind::Call(call) if &*call.function == "format" => return,
        ExprKind::List(elements) => {
            check_list(checked, elements.iter().map(|element| (&element.value, element.optional)), note)
        }
        ExprKind::Map(entries) => {
            check_map(checked, entries.iter().map(|entry| (&entry.key, false)), note);
            check_map(checked, entries.iter().map(|entry| (&entry.value, entry.optional)), note);
        }
        ExprKind::Missing
        | ExprKind::Literal(_)
        | ExprKind::Ident(_)
        | ExprKind::Select { .. }
        | ExprKind::Call(_)
        | ExprKind::Struct { .. }
        | ExprKind::Comprehension(_) => {}
    }
    expr.children().into_iter().for_each(|child| check_aggregates(checked, child, note));
}

fn type_of<'c>(checked: &'c CheckedExpression, expr: &Expr, optional: bool) -> &'c CelType {
    let found = checked.type_of(expr);
    if optional { found.in_optional().unwrap_or(found) } else { found }
}

/// Reports the first element of another type.
fn check_list<'e>(
    checked: &CheckedExpression,
    mut elements: impl Iterator<Item = (&'e Expr, bool)>,
    note: &mut dyn FnMut(Id, String),
) {
    let Some((first, optional)) = elements.next() else { return };
    let expected = type_of(checked, first, optional);
    if let Some((other, optional)) = elements.find(|(other, optional)| type_of(checked, other, *optional) != expected) {
        note(other.id, format!("expected type '{expected}' but found '{}'", type_of(checked, other, optional)));
    }
}

/// Reports all elements of another type.
fn check_map<'e>(
    checked: &CheckedExpression,
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
