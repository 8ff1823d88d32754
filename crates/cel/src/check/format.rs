//! Check of constant format strings: their clauses must fit the arguments.

use super::{CheckedExpression, constant_text};
use crate::library::format_string::{FormatClause, FormatError, interpolate};
use crate::syntax::{CallExpr, Expr, ExprKind, Id, ListElement};
use crate::types::CelType;

/// Reports the problems of `'…'.format([…])`.
pub(super) fn check_call(checked: &CheckedExpression, expr: &Expr, call: &CallExpr, note: &mut dyn FnMut(Id, String)) {
    let Some(text) = call.target.as_deref().and_then(constant_text) else { return };
    let [Expr { kind: ExprKind::List(elements), .. }] = call.args.as_slice() else { return };
    let mut used = 0;
    let mut bad = None;
    let outcome = interpolate(text, elements.len(), &mut |index, clause| {
        used += 1;
        check_clause(checked, elements, index, clause).map_err(|(id, message)| {
            bad = Some(id);
            FormatError::Format(message)
        })
    });
    match outcome {
        Err(wrong) => note(bad.unwrap_or(expr.id), wrong.message()),
        Ok(_) if elements.len() > used => {
            let message =
                format!("too many arguments supplied to string.format (expected {used}, got {})", elements.len());
            note(expr.id, message);
        }
        Ok(_) => {}
    }
}

fn check_clause(
    checked: &CheckedExpression,
    elements: &[ListElement],
    index: usize,
    clause: FormatClause,
) -> Result<String, (Id, String)> {
    let arg = &elements[index].value;
    if matches!(clause, FormatClause::Text) {
        return match unprintable(checked, arg) {
            Some(bad) => Err((bad.id, clause.misfit(checked.type_of(bad).name()))),
            None => Ok(String::new()),
        };
    }
    let found = checked.type_of(arg);
    if *found == CelType::Dyn || fits(clause, found) {
        Ok(String::new())
    } else {
        Err((arg.id, clause.misfit(found.name())))
    }
}

fn fits(clause: FormatClause, found: &CelType) -> bool {
    match clause {
        FormatClause::Text => printable(found),
        FormatClause::Decimal | FormatClause::Octal => matches!(found, CelType::Int | CelType::Uint),
        FormatClause::Fixed(_) | FormatClause::Scientific(_) => matches!(found, CelType::Double | CelType::String),
        FormatClause::Binary => matches!(found, CelType::Int | CelType::Uint | CelType::Bool),
        FormatClause::Hex { .. } => matches!(found, CelType::Int | CelType::Uint | CelType::String | CelType::Bytes),
    }
}

fn printable(found: &CelType) -> bool {
    match found {
        CelType::List(_)
        | CelType::Map(..)
        | CelType::Int
        | CelType::Uint
        | CelType::Double
        | CelType::Bool
        | CelType::String
        | CelType::Timestamp
        | CelType::Bytes
        | CelType::Duration
        | CelType::Type(_)
        | CelType::Null
        | CelType::Dyn => true,
        CelType::Error
        | CelType::Any
        | CelType::Struct(_)
        | CelType::Opaque(..)
        | CelType::Param(_)
        | CelType::Var(_) => false,
    }
}

/// Returns the first part of an argument that `%s` cannot print.
fn unprintable<'e>(checked: &CheckedExpression, arg: &'e Expr) -> Option<&'e Expr> {
    if !printable(checked.type_of(arg)) {
        return Some(arg);
    }
    match &arg.kind {
        ExprKind::List(_) | ExprKind::Map(_) => {
            arg.children().into_iter().find_map(|child| unprintable(checked, child))
        }
        _ => None,
    }
}
