//! Format strings whose arguments are written out: whether the clauses fit them.

use super::{Checked, constant_text};
use crate::library::format_string::{Clause, Wrong, interpolate};
use crate::syntax::{Call, Expr, Id, Kind, ListElement};
use crate::types::Type;

/// Notes what is wrong with `'…'.format([…])`.
pub(super) fn check_call(checked: &Checked, expr: &Expr, call: &Call, note: &mut dyn FnMut(Id, String)) {
    let Some(text) = call.target.as_deref().and_then(constant_text) else { return };
    let [Expr { kind: Kind::List(elements), .. }] = call.args.as_slice() else { return };
    let mut used = 0;
    let mut bad = None;
    let outcome = interpolate(text, elements.len(), &mut |index, clause| {
        used += 1;
        check_clause(checked, elements, index, clause).map_err(|(id, message)| {
            bad = Some(id);
            Wrong::Format(message)
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
    checked: &Checked,
    elements: &[ListElement],
    index: usize,
    clause: Clause,
) -> Result<String, (Id, String)> {
    let arg = &elements[index].value;
    if matches!(clause, Clause::Text) {
        return match unprintable(checked, arg) {
            Some(bad) => Err((bad.id, clause.misfit(checked.type_of(bad).name()))),
            None => Ok(String::new()),
        };
    }
    let found = checked.type_of(arg);
    if *found == Type::Dyn || fits(clause, found) {
        Ok(String::new())
    } else {
        Err((arg.id, clause.misfit(found.name())))
    }
}

fn fits(clause: Clause, found: &Type) -> bool {
    match clause {
        Clause::Text => printable(found),
        Clause::Decimal | Clause::Octal => matches!(found, Type::Int | Type::Uint),
        Clause::Fixed(_) | Clause::Scientific(_) => matches!(found, Type::Double | Type::String),
        Clause::Binary => matches!(found, Type::Int | Type::Uint | Type::Bool),
        Clause::Hex { .. } => matches!(found, Type::Int | Type::Uint | Type::String | Type::Bytes),
    }
}

fn printable(found: &Type) -> bool {
    match found {
        Type::List(_)
        | Type::Map(..)
        | Type::Int
        | Type::Uint
        | Type::Double
        | Type::Bool
        | Type::String
        | Type::Timestamp
        | Type::Bytes
        | Type::Duration
        | Type::Type(_)
        | Type::Null
        | Type::Dyn => true,
        Type::Error | Type::Any | Type::Struct(_) | Type::Opaque(..) | Type::Param(_) | Type::Var(_) => false,
    }
}

/// The first part of an argument that `%s` cannot print.
fn unprintable<'e>(checked: &Checked, arg: &'e Expr) -> Option<&'e Expr> {
    if !printable(checked.type_of(arg)) {
        return Some(arg);
    }
    match &arg.kind {
        Kind::List(_) | Kind::Map(_) => arg.children().into_iter().find_map(|child| unprintable(checked, child)),
        _ => None,
    }
}
