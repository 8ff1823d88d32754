//! Kubernetes quantities.

use super::{LibraryFunction, error, no_overload};
use crate::program::{CelQuantity, CelValue, EvaluationFailure};
use portolan_types::quantity::Quantity;

pub(super) fn function(name: &str) -> Option<LibraryFunction> {
    Some(match name {
        "quantity" => |args, _| match args {
            [CelValue::String(text)] => parse(text).map(CelValue::Quantity),
            _ => no_overload(),
        },
        "isQuantity" => |args, _| match args {
            [CelValue::String(text)] => Ok(CelValue::Bool(parse(text).is_ok())),
            _ => no_overload(),
        },
        "sign" => |args, _| match args {
            [CelValue::Quantity(amount)] => Ok(CelValue::Int(i64::from(amount.quantity.nanos().signum() as i8))),
            _ => no_overload(),
        },
        "isInteger" => |args, _| match args {
            [CelValue::Quantity(amount)] => Ok(CelValue::Bool(integer(amount).is_some())),
            _ => no_overload(),
        },
        "asInteger" => |args, _| match args {
            [CelValue::Quantity(amount)] => integer(amount)
                .map_or_else(|| error("cannot convert value to integer"), |value| Ok(CelValue::Int(value))),
            _ => no_overload(),
        },
        "asApproximateFloat" => |args, _| match args {
            [CelValue::Quantity(amount)] => Ok(CelValue::Double(amount.quantity.nanos() as f64 / 1e9)),
            _ => no_overload(),
        },
        "add" => |args, _| combine(args, |one, other| one + other),
        "sub" => |args, _| combine(args, Quantity::minus),
        _ => return None,
    })
}

fn parse(text: &str) -> Result<CelQuantity, EvaluationFailure> {
    let quantity: Quantity = text
        .parse()
        .map_err(|wrong: portolan_types::quantity::InvalidQuantity| EvaluationFailure::Error(wrong.to_string()))?;
    // cel-go treats a number with a point or a unit below one as a fraction, even if its value is whole.
    let whole = !text.contains('.') && !text.ends_with(['m', 'u', 'n']) && !text.contains("e-") && !text.contains("E-");
    Ok(CelQuantity { quantity, whole })
}

fn integer(amount: &CelQuantity) -> Option<i64> {
    if !amount.whole || amount.quantity.nanos() % 1_000_000_000 != 0 {
        return None;
    }
    i64::try_from(amount.quantity.nanos() / 1_000_000_000).ok()
}

fn combine<'a>(
    args: &[CelValue<'a>],
    combine: fn(Quantity, Quantity) -> Quantity,
) -> Result<CelValue<'a>, EvaluationFailure> {
    let (one, other) = match args {
        [CelValue::Quantity(one), CelValue::Quantity(other)] => (one, *other),
        [CelValue::Quantity(one), CelValue::Int(other)] => {
            (one, CelQuantity { quantity: Quantity::from_units(*other), whole: true })
        }
        _ => return no_overload(),
    };
    Ok(CelValue::Quantity(CelQuantity {
        quantity: combine(one.quantity, other.quantity),
        whole: one.whole && other.whole,
    }))
}
